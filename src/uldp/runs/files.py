"""Files that survive a crash: replaced in one step, appended line by line, held by one process at a time.

Trouble with the disk is a :class:`RunError` of one sentence; the file is then as it was.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from uldp.errors import RunError, first_line
from uldp.trees import json_tree

_PARTIAL: Final = re.compile(r"\..+\.[0-9a-f]{16}\.partial")


@contextmanager
def report_disk_errors(file: Path) -> Iterator[None]:
    """Trouble with the disk as one sentence."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{error.strerror or error}", location=str(file), value=str(file)) from error


def replace_file(file: Path, data: bytes, mode: int = 0o600) -> None:
    """Write ``file`` as a whole: after a crash it is the old one or the new one. It is on disk when this returns."""
    with report_disk_errors(file), _write_beside(file, data, mode) as partial:
        partial.replace(file)
        sync_folder(file.parent)


@contextmanager
def _write_beside(file: Path, data: bytes, mode: int) -> Iterator[Path]:
    """A file beside ``file`` that holds ``data``, on disk; it is gone when this ends, unless it was moved.

    It is locked meanwhile, which is how :func:`remove_partial_files` knows that its writer lives.
    """
    partial, handle = _open_beside(file, mode)
    with os.fdopen(handle, "wb") as out:
        try:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
            yield partial
        finally:
            with suppress(OSError):
                partial.unlink()


def _open_beside(file: Path, mode: int) -> tuple[Path, int]:
    while True:
        # A new name, and never what lies there: a file or a link that somebody else put there keeps its mode and place.
        partial = file.with_name(f".{file.name}.{secrets.token_hex(8)}.partial")
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return partial, handle
        os.close(handle)  # removed by somebody who saw it before it was locked


def remove_partial_files(folder: Path) -> None:
    """Remove what processes that were killed while they wrote a file have left in ``folder`` and below it."""
    for file in folder.rglob("*.partial"):
        if _PARTIAL.fullmatch(file.name):
            with suppress(OSError):  # locked: its writer lives; gone: its writer was faster; a link is not followed
                handle = os.open(file, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                with os.fdopen(handle, "wb") as left:
                    fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    file.unlink()


def seal(magic: bytes, body: bytes) -> bytes:
    """What a file holds that must be whole: its kind, a checksum, the content."""
    return magic + hashlib.sha256(body).digest() + body


def unseal(magic: bytes, data: bytes) -> bytes | None:
    """The content that :func:`seal` was given; None if it is damaged, or of another kind."""
    body = data[len(magic) + 32 :]
    return body if data == seal(magic, body) else None


class Parts:
    """Large things in a folder for the owner only, each under its own digest: written once, however often it is put."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, data: bytes) -> str:
        """Keep ``data``, and give its name. It is on disk when this returns."""
        name = hashlib.sha256(data).hexdigest()
        private_folder(self._folder)
        if not (self._folder / name).exists():
            replace_file(self._folder / name, data)
        return name

    def get(self, name: str) -> bytes:
        """What was kept under ``name``."""
        file = self._folder / name
        with report_disk_errors(file):
            data = file.read_bytes()
        if hashlib.sha256(data).hexdigest() != name:
            raise RunError("is damaged (its checksum does not fit); start a new run", location=str(file))
        return data

    def remove(self) -> None:
        """Nobody needs them any more."""
        shutil.rmtree(self._folder, ignore_errors=True)


def append_line(file: Path, tree: dict[str, Any], mode: int = 0o644) -> None:
    """One more line of JSON, safely on disk before this returns."""
    with report_disk_errors(file):
        handle = os.open(file, os.O_RDWR | os.O_CREAT, mode)
        with os.fdopen(handle, "r+b") as out:
            end = out.seek(0, os.SEEK_END)
            before = b""
            if end:
                out.seek(0)
                data = out.read()
                complete = data.rfind(b"\n") + 1
                if _is_complete(data[complete:]):
                    before = b"\n"  # somebody took the newline away; the line counts
                else:  # drop a half-written last line
                    out.truncate(complete)
                    out.seek(complete)
            out.write(before + (json.dumps(tree) + "\n").encode())
            out.flush()
            os.fsync(out.fileno())
            if not end:
                sync_folder(file.parent)


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file that :func:`append_line` wrote; none if there is no such file."""
    with report_disk_errors(file):
        if not file.exists():
            return
        data = file.read_bytes()
    yield from parse_lines(data, str(file))


def parse_lines(data: bytes, location: str) -> Iterator[dict[str, Any]]:
    """The lines of what :func:`append_line` wrote to the file at ``location``."""
    *lines, last = data.split(b"\n")
    # A crash can leave the last line half written; it was not acted upon yet. A whole one counts.
    for number, line in enumerate([*lines, last] if _is_complete(last) else lines, start=1):
        try:
            tree = json_tree(line)
        except ValueError as error:
            raise RunError(f"line {number} is damaged ({first_line(error)})", location=location) from error
        if not isinstance(tree, dict) or not tree:
            raise RunError(f"line {number} is damaged: it holds no keys", location=location)
        yield tree


def _is_complete(line: bytes) -> bool:
    """Whether a line without its newline is all there."""
    try:
        return isinstance(json_tree(line), dict)
    except ValueError:
        return False


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, not only the contents of its files."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def private_folder(folder: Path) -> None:
    """The folder, made if need be for its owner only. One that is there and open to others is refused, not changed."""
    with report_disk_errors(folder):
        try:
            folder.mkdir(parents=True, mode=0o700)
            sync_folder(folder.parent)
        except FileExistsError:
            if not folder.is_dir():
                raise
            mode = stat.S_IMODE(folder.stat().st_mode)
            if mode & 0o077:
                why = f"others may look into this folder (mode {mode:o}); chmod 700 it, or choose another"
                raise RunError(why, location=str(folder), value=str(folder)) from None


def stored_key(file: Path) -> bytes:
    """32 bytes from the operating system, made once and stored for the owner only."""
    with report_disk_errors(file):
        if not file.exists():
            # Of two processes that do it at once one is first, and its file stays.
            with _write_beside(file, os.urandom(32), 0o600) as partial:
                with suppress(FileExistsError):
                    os.link(partial, file)
                sync_folder(file.parent)
        key = file.read_bytes()
    if len(key) != 32:
        raise RunError(f"is damaged: {len(key)} bytes, not 32; restore it", location=str(file), value=str(file))
    return key


def is_locked(file: Path) -> bool:
    """Whether a process holds :func:`lock` on ``file`` at this moment."""
    with report_disk_errors(file):
        if not file.exists():
            return False
        number = os.open(file, os.O_RDONLY)
    with os.fdopen(number) as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


@contextmanager
def lock(file: Path, taken: str, location: str, folder: Path | None = None) -> Iterator[None]:
    """Keep other processes out while this lasts; ``taken`` is the message that they get.

    What a killed process left half written in ``folder`` is removed first. It is the lock's own if none is given.
    """
    with report_disk_errors(file):
        number = os.open(file, os.O_WRONLY | os.O_CREAT, 0o600)
    with os.fdopen(number, "w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(taken, location=location, value=location) from None
        remove_partial_files(folder or file.parent)
        yield
