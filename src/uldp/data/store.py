"""Where the files of a data set lie, how they are fetched, and whether they are the known ones.

Files are looked for in ``<root>/<folder of the set>``. With an explicit data directory that is the only root, so that
no run silently trains on another copy than the one it named. Otherwise the roots are ``$ULDP_DATA`` and then the user
cache (``$XDG_CACHE_HOME/uldp`` or ``~/.cache/uldp``).
"""

from __future__ import annotations

import hashlib
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shlex import quote
from typing import IO, Any, Final

from uldp.errors import ConfigError, DataError

VARIABLE: Final = "ULDP_DATA"
TIMEOUT: Final = 60.0
LARGEST: Final = 1 << 30  # no file of ours comes near; a server that sends more is not the one we meant
STALE: Final = 3600.0  # seconds: nobody writes any more to a part that was left alone for so long
_BLOCK: Final = 1 << 20

OK: Final = "checksum ok"
UNKNOWN: Final = "no checksum known"
DIFFERENT: Final = "not the known file"

Located = Mapping[str, Path]
"""The files that were found, by name."""


@dataclass(frozen=True)
class DataFile:
    """A file of a data set (or a ``folder`` of them): where to download it, the checksums of its known versions."""

    name: str
    url: str = ""
    sha256: tuple[str, ...] = ()
    folder: bool = False

    def is_in(self, folder: Path) -> bool:
        """Whether it is in ``folder``. A folder in a file's place is not the file."""
        path = folder / self.name
        with _report_path_errors(path):
            return path.is_dir() if self.folder else path.is_file()


@dataclass(frozen=True)
class DataFiles:
    """The files of one data set.

    Each of ``ways`` is a complete form in which the data may lie; the first complete one is read. ``extras`` are used
    when they are there. ``by_hand`` says how a person gets the files.
    """

    name: str
    folder: str
    ways: tuple[tuple[DataFile, ...], ...]
    extras: tuple[DataFile, ...] = ()
    by_hand: str = ""

    @property
    def downloads(self) -> tuple[DataFile, ...]:
        """What ``fetch`` gets: the first form that can be downloaded, and the extras that can."""
        ways = (way for way in self.ways if all(file.url for file in way))
        return (*next(ways, ()), *(file for file in self.extras if file.url))


@dataclass(frozen=True)
class FileReport:
    """What became of one file, or what it is."""

    name: str
    path: Path
    bytes: int
    state: str
    fetched: bool = False

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "path": str(self.path)}


def roots(data_dir: Path | None = None) -> tuple[Path, ...]:
    """The folders in which the sets' folders are looked for, in this order."""
    if data_dir is not None:
        return (expand_home(data_dir, "--data-dir"),)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or expand_home("~/.cache", "XDG_CACHE_HOME")) / "uldp"
    own = os.environ.get(VARIABLE)
    return (expand_home(own, VARIABLE), cache) if own else (cache,)


def expand_home(path: Path | str, location: str) -> Path:
    """``path`` with ``~`` as the home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(f"no home folder is known for {str(path)!r}", location=location, value=str(path)) from None


def locate(files: DataFiles, data_dir: Path | None = None) -> Located:
    """The files of the first complete form in the first root that has one."""
    for root in roots(data_dir):
        folder = root / files.folder
        for way in files.ways:
            if all(file.is_in(folder) for file in way):
                extras = (file for file in files.extras if file.is_in(folder))
                return {file.name: folder / file.name for file in (*way, *extras)}
    raise _missing_error(files, data_dir)


def check(files: DataFiles, data_dir: Path | None = None) -> tuple[FileReport, ...]:
    """The files that would be read, each compared with its known checksums."""
    known = {file.name: file for way in files.ways for file in way} | {file.name: file for file in files.extras}
    return tuple(_report(known[name], path) for name, path in locate(files, data_dir).items())


def fetch(
    files: DataFiles, data_dir: Path | None = None, say: Callable[[str], None] = lambda text: None
) -> tuple[FileReport, ...]:
    """Download what is not there yet into the first root. A file appears whole and verified, or not at all.

    Data that are there in any form, and are not known to be others, stay as they are. Where a file is not the known
    one, it is moved aside to NAME.old.
    """
    with suppress(DataError):
        there = check(files, data_dir)
        if all(report.state != DIFFERENT for report in there):
            return there
    folder = roots(data_dir)[0] / files.folder
    if not files.downloads:
        raise DataError(
            f"no direct download: {_download_instructions(files, folder)}", location="data.dataset", value=files.name
        )
    return tuple(_fetch_file(files, file, folder, say) for file in files.downloads)


def _fetch_file(files: DataFiles, file: DataFile, folder: Path, say: Callable[[str], None]) -> FileReport:
    path = folder / file.name
    if file.is_in(folder):
        report = _report(file, path)
        if report.state != DIFFERENT:
            return report
    say(f"fetching {file.url}")
    try:
        old = _download(file, path)
    except DataError as error:
        if not files.by_hand:
            raise
        reason = f"{error.message}; or {_download_instructions(files, folder)}"
        raise DataError(reason, location=error.location, value=error.value) from None
    if old is not None:
        say(f"the file that was there is now {old}")
    return replace(_report(file, path), fetched=True)


def sha256(path: Path) -> str:
    """The checksum of a file."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(path, error) from None


def unreadable(path: Path, reason: object) -> DataError:
    """The error for a file that is there and cannot be read, or is not what its name says."""
    text = f"cannot be read ({_sentence(reason)}); `uldp data check` compares checksums"
    return DataError(text, location=str(path), value=path.name)


@contextmanager
def _report_path_errors(path: Path) -> Iterator[None]:
    """A name that is too long, or a folder that we may not enter, as one sentence."""
    try:
        yield
    except OSError as error:
        raise DataError(f"cannot be looked at ({_sentence(error)})", location=str(path), value=path.name) from None


def _sentence(reason: object) -> str:
    """The first line of what somebody else says."""
    text = str(getattr(reason, "strerror", None) or reason).strip()
    return text.splitlines()[0] if text else type(reason).__name__


def _report(file: DataFile, path: Path) -> FileReport:
    if file.folder:
        return FileReport(file.name, path, 0, UNKNOWN)
    with _report_path_errors(path):
        size = path.stat().st_size
    if not file.sha256:
        return FileReport(file.name, path, size, UNKNOWN)
    return FileReport(file.name, path, size, OK if sha256(path) in file.sha256 else DIFFERENT)


def remedy(files: DataFiles, data_dir: Path | None) -> str:
    """How one gets the files, as a clause."""
    if not files.downloads:
        return _download_instructions(files, roots(data_dir)[0] / files.folder)
    where = "" if data_dir is None else f" --data-dir {quote(str(data_dir))}"
    return f"get it with `uldp data fetch {files.name}{where}`"


def _missing_error(files: DataFiles, data_dir: Path | None) -> DataError:
    searched = roots(data_dir)
    wanted = " or ".join(_missing(way, [root / files.folder for root in searched]) for way in files.ways)
    places = " or ".join(str(root / files.folder) for root in searched)
    elsewhere = f"set {VARIABLE} (or --data-dir) to the folder that holds {files.folder}/"
    text = f"{files.name} is not here: no {wanted} in {places}; {remedy(files, data_dir)}, or {elsewhere}"
    return DataError(text, location="data.dataset", value=files.name)


def _missing(way: tuple[DataFile, ...], folders: list[Path]) -> str:
    """What the fullest folder lacks of a complete form."""
    lacking = min(([file.name for file in way if not file.is_in(folder)] for folder in folders), key=len)
    return lacking[0] if len(lacking) == 1 else f"{lacking[0]} (and {len(lacking) - 1} more)"


def _download_instructions(files: DataFiles, folder: Path) -> str:
    return f"{files.by_hand} into {folder}"


def _download(file: DataFile, target: Path) -> Path | None:
    """Put the file in its place. Return where one that was there is now."""
    import http.client
    import urllib.error
    import urllib.request

    if not file.url.startswith(("https://", "http://")):
        raise DataError(f"not an http address: {file.url}", location=file.name, value=file.url)
    part: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir():
            why = f"a folder lies in its place, {target}; take it away"
            raise DataError(why, location=file.name, value=str(target))
        prefix = f".{target.name}.part-"
        for left in target.parent.glob(f"{prefix}*"):  # by downloads that were killed
            if time.time() - left.stat().st_mtime > STALE:
                left.unlink(missing_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=prefix, delete=False) as stream:
            part = Path(stream.name)
            request = urllib.request.Request(file.url, headers={"User-Agent": "uldp"})
            with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
                found = _copy(response, stream, response.headers.get("Content-Length"))
        if file.sha256 and found not in file.sha256:
            why = f"what {file.url} sent is not the known file (its sha256 is {found}); it was discarded"
            raise DataError(why, location=file.name, value=found)
        part.chmod(0o644)
        old = _put_aside(target)
        part.replace(target)
        return old
    except urllib.error.HTTPError as error:
        reason = f"{error.code} {_sentence(error.reason)}"
        raise DataError(f"{file.url} responds {reason}", location=file.name, value=file.url) from None
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        reason = _sentence(getattr(error, "reason", error))
        why = f"no download from {file.url} ({reason}); try again where there is a network"
        raise DataError(why, location=file.name, value=file.url) from None
    except OSError as error:
        reason = _sentence(error)
        raise DataError(f"cannot write to {target.parent} ({reason})", location=file.name, value=str(target)) from None
    finally:
        if part is not None:
            part.unlink(missing_ok=True)


def _put_aside(target: Path) -> Path | None:
    """Rename the file that is there to NAME.old, or NAME.old-2 and so on where that name is taken."""
    if not os.path.lexists(target):
        return None
    names = itertools.chain([f"{target.name}.old"], (f"{target.name}.old-{number}" for number in itertools.count(2)))
    return target.rename(next(path for path in map(target.with_name, names) if not os.path.lexists(path)))


def _copy(response: Any, stream: IO[bytes], announced: str | None) -> str:
    """Write what is sent and return its checksum. Too little and too much are connection errors."""
    state, size = hashlib.sha256(), 0
    while block := response.read(_BLOCK):
        size += len(block)
        if size > LARGEST:
            raise ConnectionError(f"more than {LARGEST} bytes")
        state.update(block)
        stream.write(block)
    if announced is not None and announced.isdigit() and int(announced) != size:
        raise ConnectionError(f"the connection ended after {size} of {announced} bytes")
    return state.hexdigest()
