"""Compiled code on disk, so that a machine compiles once.

The folder's name holds a hash of the kernels' sources, the versions of numba and llvmlite, and the processor: numba
alone would not notice a change in a function that a cached one calls. A folder that cannot be written costs time only.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import llvmlite
import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator
from numba.core.registry import cpu_target

from uldp.native.jit import CHECKED
from uldp.native.sources import Sources

FOLDER_VARIABLE: Final = "ULDP_CACHE_DIR"


def _say(text: str) -> None:
    print(f"uldp: {text}", file=sys.stderr, flush=True)


def folder(sources: Sources) -> Path:
    """Where the compiled code of these sources for this processor lies."""
    home = os.environ.get(FOLDER_VARIABLE) or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "uldp"
    )
    known = repr((sources.imported, numba.__version__, llvmlite.__version__, CHECKED))
    known += repr(cpu_target.target_context.codegen().magic_tuple())
    return Path(home) / f"{sources.name}-{hashlib.sha256(known.encode()).hexdigest()[:20]}"


class _Locator(_CacheLocator):  # type: ignore[misc]
    """The one folder; its name already says everything that numba would look at."""

    sources: Sources

    def __init__(self, function: Any, file: str) -> None:
        self._path = str(folder(self.sources))

    def get_cache_path(self) -> str:
        return self._path

    def get_source_stamp(self) -> str:
        return self._path

    def get_disambiguator(self) -> str:
        return "0"

    @classmethod
    def from_function(cls, function: Any, file: str) -> _Locator:
        return cls(function, file)


class _Cache(FunctionCache):  # type: ignore[misc]
    def __init__(self, function: Any, sources: Sources) -> None:
        self._sources = sources
        locator = type("_Locator", (_Locator,), {"sources": sources})
        self._impl_class = type("_Impl", (CompileResultCacheImpl,), {"_locator_classes": [locator]})
        super().__init__(function)

    def load_overload(self, signature: Any, context: Any) -> Any:
        try:
            found = super().load_overload(signature, context)
            # Two processes that save different code at the same time may give both files one name.
            damaged = found is not None and tuple(found.signature.args) != tuple(signature)
        except Exception:
            damaged = True
        if damaged:  # as good as none, and written anew
            found = None
            with contextlib.suppress(OSError):
                self._cache_file.flush()
        if found is None:
            _say("compiling kernels (once); this takes up to a minute")
        return found

    def save_overload(self, signature: Any, data: Any) -> None:
        # After an upgrade in the middle of this process nobody knows what was compiled.
        if self._sources.digest() != self._sources.imported:
            return
        try:
            super().save_overload(signature, data)
        except Exception as error:  # a full disk, or a damaged file that could not be written anew
            reason = getattr(error, "strerror", None) or error
            _say(f"compiled kernels cannot be kept in {self._cache_path} ({reason}); they stay in memory")


def keep_on_disk(function: Any, sources: Sources) -> Any:
    """Let numba keep what it compiles for ``function``; without a writable folder, say so and compile in memory."""
    place = folder(sources)
    try:
        place.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=place).close()
        function._cache = _Cache(function.py_func, sources)
    except OSError as error:
        _say(f"no folder for compiled kernels ({error.strerror}: {place}); they are compiled again in each process")
    return function
