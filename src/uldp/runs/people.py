"""Which runs may be about the same people: digests of ids and tables, under a key of the owner.

All runs of a user on a machine share the key, so equal ids give equal digests, and whoever has not got the key can
confirm no guess. The key lies in ``$ULDP_STATE``, else ``$XDG_STATE_HOME/uldp`` or ``~/.local/state/uldp``; the digests
lie in the run's private folder. They distinguish people where nothing else is in doubt. Whatever is in doubt (no
digests, another key, ids of another kind) counts as the same people: a total may be too large, never too small.
"""

from __future__ import annotations

import hashlib
import logging
import os
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any, Final

import msgspec
import numpy as np

from uldp.data.builtin import datasets
from uldp.data.federation import People
from uldp.data.store import expand_home
from uldp.encoding import encode
from uldp.errors import RunError, UldpError
from uldp.experiment.config import Experiment
from uldp.runs.directory import RunDirectory
from uldp.runs.files import private_folder, replace_file, report_disk_errors, seal, stored_key, unseal

LOG: Final = logging.getLogger("uldp.runs")
STATE: Final = "ULDP_STATE"
_PROCESS_KEY: Final = os.urandom(32)
_MAGIC: Final = b"uldp-people-1\n"
_ID_BYTES: Final = 8
"""Two ids with the same digest make a total too large, never too small; and a million ids fit into 8 MB."""


class PeopleDigests(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of one run: which key they were made with; the ids' digests, sorted and joined; the tables'.

    ``column`` and ``dataset`` are as in :class:`uldp.data.federation.People`.
    """

    key: bytes
    ids: bytes
    tables: frozenset[bytes]
    column: str = ""
    dataset: str = ""

    def shares_ids(self, other: PeopleDigests) -> bool:
        """Whether somebody is in both."""
        if self is other and self.ids:
            return True
        mine, theirs = (np.frombuffer(one.ids, dtype=np.uint64) for one in (self, other))
        return bool(np.intersect1d(mine, theirs, assume_unique=True).size)


def owner_key() -> bytes:
    """The key that all runs of this user on this machine share, made at its first use."""
    own = os.environ.get(STATE)
    shared = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    folder = expand_home(own, STATE) if own else expand_home(shared, "XDG_STATE_HOME") / "uldp"
    private_folder(folder)
    return stored_key(folder / "people.key")


@lru_cache(maxsize=32)  # many runs of one process are about the same people
def digests_of(people: People, key: bytes) -> PeopleDigests:
    """What may be stored of ``people``."""

    def digest(what: bytes, value: bytes, size: int) -> bytes:
        return hashlib.blake2b(value, digest_size=size, key=key, person=what).digest()

    ids = {digest(b"id", user.encode(), _ID_BYTES) for user in people.ids}
    tables = frozenset(digest(b"table", table, 16) for table in people.tables)
    return PeopleDigests(digest(b"key", b"", 16), b"".join(sorted(ids)), tables, people.column, people.dataset)


def save_people(directory: RunDirectory, people: People | None) -> None:
    """Write into the private folder whose records a run is about to use. Without a key nothing is written."""
    with report_disk_errors(directory.people_file):
        directory.people_file.unlink(missing_ok=True)  # of a start that was cut short, perhaps with other data
    if people is None:
        return
    try:
        key = owner_key()
    except UldpError as error:  # also where no home folder is known
        _say_once(f"`uldp total` will not know this run's people and add it to all others: {error}")
        return
    body = encode(digests_of(people, key))
    replace_file(directory.people_file, seal(_MAGIC, body))


@cache
def _say_once(text: str) -> None:
    LOG.warning(text)


def stored_people(directory: RunDirectory) -> PeopleDigests | None:
    """What :func:`save_people` wrote; None where there is nothing, or nothing whole: half of it would hide people."""
    try:
        with report_disk_errors(directory.people_file):
            body = unseal(_MAGIC, directory.people_file.read_bytes())
        found = None if body is None else msgspec.msgpack.decode(body, type=PeopleDigests)
    except (RunError, msgspec.DecodeError):
        return None
    return found if found is not None and len(found.ids) % _ID_BYTES == 0 else None


@dataclass(frozen=True)
class Population:
    """The people of one run, as far as they are known: ``people`` of a run in this process, else ``digests``."""

    run: str
    experiment: Experiment
    digests: PeopleDigests | None = None
    people: People | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """A pickle may go anywhere: it holds nobody's id. Its people are unknown then, and added up with all others."""
        return {**vars(self), "people": None}

    @classmethod
    def of(cls, directory: RunDirectory, experiment: Experiment) -> Population:
        return cls(str(directory.path), experiment, stored_people(directory))

    @property
    def name(self) -> str:
        """What the experiment calls its people, or else its data."""
        data = self.experiment.data
        files = data.silos if isinstance(data.silos, tuple) else ()
        own = ", ".join(sorted({str((self.experiment.base / file).resolve()) for file in files}))
        return data.population or data.dataset or own or str(data.given)

    @property
    def dataset(self) -> str:
        """The built-in data set whose users these are; empty for people who exist."""
        return self.experiment.data.dataset or (self.digests.dataset if self.digests is not None else "")

    @property
    def column(self) -> str:
        """The column that the ids are from."""
        return (self.digests.column if self.digests is not None else "") or self.experiment.data.user or ""


def under_one_key(populations: Sequence[Population]) -> list[Population]:
    """Populations whose digests can be compared: those in memory get digests under the key of those on disk.

    Without any on disk the key is one of this process, and nothing is written.
    """
    key = _PROCESS_KEY
    if any(one.digests is not None for one in populations) and any(one.people is not None for one in populations):
        with suppress(UldpError):  # without a state folder the keys differ, and all are added up
            key = owner_key()
    return [
        one if one.people is None else replace(one, digests=digests_of(one.people, key), people=None)
        for one in populations
    ]


@dataclass(frozen=True)
class Relation:
    """Why two runs are added up. ``doubt``: nobody knows that their people are the same, only that they may be."""

    why: str
    doubt: bool = False


def relate(one: Population, other: Population) -> Relation | None:
    """Why the people of two runs are, or may be, the same; None where they are known to differ."""
    mine, theirs = one.experiment.data, other.experiment.data
    if mine.population and theirs.population and _fold_name(mine.population) == _fold_name(theirs.population):
        return Relation("data.population is the same in both")
    if one.dataset and other.dataset:
        # The people of a built-in data set are dealt out by the simulation: other seeds deal the same records.
        if one.dataset == other.dataset:
            return Relation(f"both use {one.dataset}")
        foreign = [name for name in (one.dataset, other.dataset) if ":" in name]
        return _doubt(f"{foreign[0]} may hold the records of any other data set") if foreign else None
    if one.dataset or other.dataset:
        # A built-in data set beside own tables: what comes with uldp is about nobody whom an owner knows.
        built_in = one if one.dataset else other
        name = built_in.dataset
        known = datasets().get(name)
        if known is not None and known.files is None:
            return None
        return _doubt(f"{built_in.run} reads {name} from files that may be about these people")
    return _together_in_tables(one, other)


def _together_in_tables(one: Population, other: Population) -> Relation | None:
    for run in (one, other):
        if run.digests is None:
            where = "" if run.experiment.data.given else " in its private folder"
            return _doubt(f"{run.run} has no (or damaged) digests of its people{where}")
    assert one.digests is not None and other.digests is not None
    if one.digests.key != other.digests.key:
        return _doubt(f"the digests of {one.run} and {other.run} were made with different keys")
    if one.digests.shares_ids(other.digests):
        return Relation("some ids are in both")
    if one.digests.tables & other.digests.tables:
        return Relation("they have a table in common, but for its ids")
    if one.column != other.column:
        return _doubt(f"{one.run} and {other.run} have their ids from columns of different names")
    if one.experiment.method.privacy_unit == other.experiment.method.privacy_unit == "client":
        return _doubt(f"{one.run} and {other.run} protect clients, and a client may have other people's records too")
    return None


def _fold_name(name: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold()).split())


def _doubt(why: str) -> Relation:
    return Relation(why, doubt=True)
