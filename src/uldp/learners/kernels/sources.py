"""A digest of the kernels' sources. The package imports this first: it is that of the code which this process runs."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

#: Files without compiled functions; all others count.
ORDINARY: Final = (
    "__init__.py",
    "__main__.py",
    "cache.py",
    "forms.py",
    "layers.py",
    "program.py",
    "runner.py",
    "support.py",
    "workspace.py",
    "sources.py",
)


def digest(folder: Path = Path(__file__).parent) -> str:
    """Of all kernels, as they lie on disk now."""
    known = hashlib.sha256()
    for source in sorted(folder.glob("*.py")):
        if source.name not in ORDINARY:
            known.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return known.hexdigest()


IMPORTED: Final = digest()
