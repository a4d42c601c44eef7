"""Where the files of a data set lie, how they are fetched, and whether they are the known ones.

Files are looked for in ``<root>/<folder of the set>``. With an explicit data directory that is the only root, so that
no run silently trains on another copy than the one it named. Otherwise the roots are ``$ULDP_DATA`` and then the user
cache (``$XDG_CACHE_HOME/uldp`` or ``~/.cache/uldp``).
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from uldp.errors import DataError

VARIABLE: Final = "ULDP_DATA"
TIMEOUT: Final = 60.0
LARGEST: Final = 1 << 30  # no file of ours comes near; a server that sends more is not the one we meant
_BLOCK: Final = 1 << 20

OK: Final = "checksum ok"
UNKNOWN: Final = "no checksum known"
DIFFERENT: Final = "not the known file"

Located = Mapping[str, Path]
"""The files that were found, by name."""


@dataclass(frozen=True)
class DataFile:
    """A file or folder of a data set: where it can be downloaded, and the checksums of its known versions."""

    name: str
    url: str = ""
    sha256: tuple[str, ...] = ()


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
        return {
            "name": self.name,
            "path": str(self.path),
            "bytes": self.bytes,
            "state": self.state,
            "fetched": self.fetched,
        }


def roots(data_dir: Path | None = None) -> tuple[Path, ...]:
    """The folders in which the sets' folders are looked for, in this order."""
    if data_dir is not None:
        return (Path(data_dir).expanduser(),)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "uldp"
    own = os.environ.get(VARIABLE)
    return (Path(own).expanduser(), cache) if own else (cache,)


def locate(files: DataFiles, data_dir: Path | None = None) -> Located:
    """The files of the first complete form in the first root that has one."""
    for root in roots(data_dir):
        folder = root / files.folder
        for way in files.ways:
            if all((folder / file.name).exists() for file in way):
                extras = (file for file in files.extras if (folder / file.name).exists())
                return {file.name: folder / file.name for file in (*way, *extras)}
    raise _absent(files, data_dir)


def check(files: DataFiles, data_dir: Path | None = None) -> tuple[FileReport, ...]:
    """The files that would be read, each compared with its known checksums."""
    known = {file.name: file for way in files.ways for file in way} | {file.name: file for file in files.extras}
    return tuple(_report(known[name], path) for name, path in locate(files, data_dir).items())


def fetch(
    files: DataFiles, data_dir: Path | None = None, say: Callable[[str], None] = lambda text: None
) -> tuple[FileReport, ...]:
    """Download what is not there yet into the first root. A file appears whole and verified, or not at all."""
    folder = roots(data_dir)[0] / files.folder
    if not files.downloads:
        raise DataError(f"no direct download: {_by_hand(files, folder)}", place="data.dataset", value=files.name)
    reports = []
    for file in files.downloads:
        there = _report(file, folder / file.name) if (folder / file.name).exists() else None
        if there is not None and there.state != DIFFERENT:
            reports.append(there)
            continue
        say(f"fetching {file.url}")
        try:
            _download(file, folder / file.name)
        except DataError as error:
            if not files.by_hand:
                raise
            raise DataError(
                f"{error.message}; or {_by_hand(files, folder)}", place=error.place, value=error.value
            ) from None
        fetched = _report(file, folder / file.name)
        reports.append(FileReport(fetched.name, fetched.path, fetched.bytes, fetched.state, fetched=True))
    return tuple(reports)


def sha256(path: Path) -> str:
    """The checksum of a file."""
    state = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            while block := stream.read(_BLOCK):
                state.update(block)
    except OSError as error:
        raise unreadable(path, error) from None
    return state.hexdigest()


def unreadable(path: Path, reason: object) -> DataError:
    """The error for a file that is there and cannot be read, or is not what its name says."""
    text = str(getattr(reason, "strerror", None) or reason or type(reason).__name__).splitlines()[0]
    return DataError(f"cannot be read ({text}); `uldp data check` compares checksums", place=str(path), value=path.name)


def _report(file: DataFile, path: Path) -> FileReport:
    if path.is_dir() or not file.sha256:
        return FileReport(file.name, path, path.stat().st_size if path.is_file() else 0, UNKNOWN)
    state = OK if sha256(path) in file.sha256 else DIFFERENT
    return FileReport(file.name, path, path.stat().st_size, state)


def _absent(files: DataFiles, data_dir: Path | None) -> DataError:
    searched = roots(data_dir)
    wanted = " or ".join(_missing(way, [root / files.folder for root in searched]) for way in files.ways)
    places = " or ".join(str(root / files.folder) for root in searched)
    how = (
        f"get it with `uldp data fetch {files.name}`"
        if files.downloads
        else _by_hand(files, searched[0] / files.folder)
    )
    elsewhere = f"set {VARIABLE} (or --data-dir) to the folder that holds {files.folder}/"
    return DataError(
        f"{files.name} is not here: no {wanted} in {places}; {how}, or {elsewhere}",
        place="data.dataset",
        value=files.name,
    )


def _missing(way: tuple[DataFile, ...], folders: list[Path]) -> str:
    """What the fullest folder lacks of a complete form."""
    lacking = min(([file.name for file in way if not (folder / file.name).exists()] for folder in folders), key=len)
    return lacking[0] if len(lacking) == 1 else f"{lacking[0]} (and {len(lacking) - 1} more)"


def _by_hand(files: DataFiles, folder: Path) -> str:
    return f"{files.by_hand} into {folder}"


def _download(file: DataFile, target: Path) -> None:
    import http.client
    import urllib.error
    import urllib.request

    if not file.url.startswith(("https://", "http://")):
        raise DataError(f"not an http address: {file.url}", place=file.name, value=file.url)
    part: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{file.name}.", delete=False) as stream:
            part = Path(stream.name)
            request = urllib.request.Request(file.url, headers={"User-Agent": "uldp"})
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                found = _copy(answer, stream, answer.headers.get("Content-Length"))
        if file.sha256 and found not in file.sha256:
            raise DataError(
                f"what {file.url} sent is not the known file (its sha256 is {found}); nothing was kept",
                place=file.name,
                value=found,
            )
        part.chmod(0o644)
        part.replace(target)
    except urllib.error.HTTPError as error:
        raise DataError(f"{file.url} answers {error.code} {error.reason}", place=file.name, value=file.url) from None
    except urllib.error.URLError as error:
        raise _no_answer(file, error.reason) from None
    except (http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise _no_answer(file, error) from None
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"cannot write to {target.parent} ({reason})", place=file.name, value=str(target)) from None
    finally:
        if part is not None:
            part.unlink(missing_ok=True)


def _copy(answer: Any, stream: IO[bytes], announced: str | None) -> str:
    """Write what is sent and return its checksum. Too little and too much are connection errors."""
    state, size = hashlib.sha256(), 0
    while block := answer.read(_BLOCK):
        size += len(block)
        if size > LARGEST:
            raise ConnectionError(f"more than {LARGEST} bytes")
        state.update(block)
        stream.write(block)
    if announced is not None and announced.isdigit() and int(announced) != size:
        raise ConnectionError(f"the connection ended after {size} of {announced} bytes")
    return state.hexdigest()


def _no_answer(file: DataFile, reason: object) -> DataError:
    text = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
    return DataError(
        f"no download from {file.url} ({text}); try again where there is a network", place=file.name, value=file.url
    )
