"""Files of ``uldp link``: what a silo sends to be matched, what comes back, and the links that stay in the silo."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any, Final

import msgspec

from uldp.data.id_rules import HEADER, ROSTER
from uldp.data.linkage import HASH_BYTES, HashedPeople, LinkProposal
from uldp.errors import ConfigError, DataError

MAX_BYTES: Final = 1 << 30
_SILO: Final = re.compile(r"[^/\\\0]{1,200}")
_HASH: Final = re.compile(rf"[0-9a-f]{{{2 * HASH_BYTES}}}")


class _PreparedFile(msgspec.Struct, forbid_unknown_fields=True):
    uldp_link: str
    silo: str
    kinds: list[str]
    key: str
    people: dict[str, list[list[str]]]


class _ProposalFile(msgspec.Struct, forbid_unknown_fields=True):
    uldp_link: str
    silo: str
    persons: int
    numbers: dict[str, int]


_PREPARED: Final = "prepared 1"
_PROPOSAL: Final = "proposal 1"


def check_silo(silo: str) -> str:
    """A silo's name, which is part of a file's name too."""
    if not _SILO.fullmatch(silo) or silo in (".", "..") or not silo.isprintable():
        raise ConfigError("a silo's name, without slashes", location="--silo", value=silo)
    return silo


def write_prepared(part: HashedPeople, file: Path) -> None:
    """Write what goes to whoever matches."""
    people = {one: list(map(list, hashes)) for one, hashes in part.people.items()}
    _write_new(file, msgspec.json.encode(_PreparedFile(_PREPARED, part.silo, list(part.kinds), part.key, people)))


def read_prepared(file: Path) -> HashedPeople:
    """What :func:`write_prepared` wrote."""
    found = _read(file, _PreparedFile, _PREPARED, "uldp link prepare")
    people = {one: tuple(map(tuple, hashes)) for one, hashes in found.people.items()}
    whole = all(len(hashes) == len(found.kinds) for hashes in people.values())
    named = {one for hashes in people.values() for each in hashes for one in each} | people.keys()
    if not whole or not found.kinds or not found.people or not all(map(_HASH.fullmatch, named)):
        raise _no_file(file, "uldp link prepare")
    return HashedPeople(check_silo(found.silo), tuple(found.kinds), found.key, people)


def write_proposals(proposal: LinkProposal, folder: Path) -> list[Path]:
    """One file for each silo, which says nothing about the people of the others but how many there are in all."""
    files = {silo: folder / f"{silo}.proposal.json" for silo in proposal.numbers}
    for file in files.values():
        _refuse_existing(file)
    for silo, file in files.items():
        content = _ProposalFile(_PROPOSAL, silo, proposal.persons, dict(sorted(proposal.numbers[silo].items())))
        _write_new(file, msgspec.json.encode(content))
    return list(files.values())


def read_proposal(file: Path) -> tuple[str, int, Mapping[str, int]]:
    """A silo's name, how many people there are in all, and the number of each of its handles."""
    found = _read(file, _ProposalFile, _PROPOSAL, "uldp link match")
    distinct = len(set(found.numbers.values())) == len(found.numbers)
    if not distinct or not all(1 <= number <= found.persons for number in found.numbers.values()):
        raise _no_file(file, "uldp link match")
    return check_silo(found.silo), found.persons, found.numbers


def write_links(links: Mapping[str, int], persons: int, silo: str, folder: Path) -> tuple[Path, Path]:
    """The silo's file of links, which holds its ids, and the roster, a list of numbers."""
    file, roster = folder / f"{silo}.csv", folder / ROSTER
    text = StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(HEADER)
    lines.writerows(links.items())
    everybody = "".join(f"{number}\n" for number in range(1, persons + 1)).encode()
    if roster.exists() and roster.read_bytes() != everybody:
        reason = "is another roster; choose another --out, or take away what an earlier matching wrote"
        raise ConfigError(reason, location=str(roster), value=str(roster))
    _write_new(file, text.getvalue().encode())
    if not roster.exists():
        _write_new(roster, everybody)
    return file, roster


def _refuse_existing(file: Path) -> None:
    if file.exists():
        raise ConfigError("exists already; choose another --out, or take it away", location=str(file), value=str(file))


def _write_new(file: Path, data: bytes) -> None:
    _refuse_existing(file)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "xb", opener=_private) as out:
            out.write(data)
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", location=str(file), value=str(file)) from error


def _private(path: str, flags: int) -> int:
    import os

    return os.open(path, flags, 0o600)


def _read(file: Path, kind: type[Any], form: str, command: str) -> Any:
    try:
        if file.stat().st_size > MAX_BYTES:
            raise DataError(f"larger than {MAX_BYTES} bytes", location=str(file), value=str(file))
        found = msgspec.json.decode(file.read_bytes(), type=kind)
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", location=str(file), value=str(file)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _no_file(file, command) from error
    if found.uldp_link != form:
        raise _no_file(file, command)
    return found


def _no_file(file: Path, command: str) -> DataError:
    return DataError(f"is no file of `{command}`, or was damaged", location=str(file), value=str(file))
