"""A digest of kernels' sources. A package makes it before it imports them: it is that of the code which runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

#: The files of this package that are compiled into every kernel.
SHARED: Final = ("jit.py", "simd.py")


class Sources:
    """The files that compiled code is made of: those given and the shared ones.

    Args:
        name: of the folder of compiled code.
        files: with compiled functions, or with what they are made of.
    """

    def __init__(self, name: str, files: Iterable[Path]) -> None:
        self.name = name
        self.files: Final = [*sorted(files), *(Path(__file__).with_name(shared) for shared in SHARED)]
        self.imported = self.digest()

    def digest(self) -> str:
        """Of all files, as they lie on disk now."""
        known = hashlib.sha256()
        for source in self.files:
            known.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
        return known.hexdigest()
