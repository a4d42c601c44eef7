"""Folders with short paths, for sockets. What a killed process left of them goes when the next one is made.

A process holds a lock on its folder for as long as it lives, so whoever gets that lock may remove the folder.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Final

_SUFFIX: Final = ".held"
"""Only such folders are locked by their processes."""


class TemporaryFolder(AbstractContextManager["TemporaryFolder"]):
    """``uldp-KIND-*.held`` in the system's folder for temporary files, for its owner only; gone when it is closed."""

    def __init__(self, kind: str) -> None:
        remove_abandoned(kind)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=f"uldp-{kind}-", suffix=_SUFFIX))
            with suppress(FileNotFoundError):  # taken for abandoned, as nobody had locked it yet: make another
                self._handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
                fcntl.flock(self._handle, fcntl.LOCK_EX)
                if self.path.is_dir():
                    return
                os.close(self._handle)

    def close(self) -> None:
        """Remove the folder with all that is in it. May be called again."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __exit__(self, *_: object) -> None:
        self.close()


def remove_abandoned(kind: str) -> None:
    """Remove this user's temporary folders of ``kind`` whose processes are dead."""
    for folder in Path(tempfile.gettempdir()).glob(f"uldp-{kind}-*"):
        with suppress(OSError):  # locked: its process lives; or somebody else removes it
            if folder.lstat().st_uid != os.getuid():
                continue
            if not folder.name.endswith(_SUFFIX):
                folder.rmdir()  # of an older version, which held no lock: if it is empty, nobody listens there
                continue
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(handle)
