"""Your own tables as a federation: a CSV or Parquet file per silo, a user column and a schema.

Rows keep their order and each becomes numbers by itself, so removing one user's rows leaves all other rows'
features, labels, indices and places in training or test exactly as they are, unless the data are refused. A refusal
to start does depend on single rows and is seen by the others; docs/experiment-file.md lists them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from uldp.data.federation import Federation, Records, SiloData
from uldp.data.files import read_table, table_stem
from uldp.data.ids import normalised_ids
from uldp.data.people import People, table_digest
from uldp.data.roster import HashedIds, UserIndex, check_room, held_out
from uldp.data.schema import Schema
from uldp.data.standardise import Statistics
from uldp.errors import ConfigError, DataError
from uldp.rng import Streams

if TYPE_CHECKING:
    import pandas as pd

Spellings = Mapping[str, frozenset[str]]
Files = Sequence[Path | str] | Mapping[str, Path | str]


@dataclass(frozen=True)
class LoadedSilo:
    """A silo's training records; its ids as they were written; its held-out users' rows, not yet encoded; and notes.

    ``table`` is a digest of the whole table without its ids; it goes nowhere as it is.
    """

    data: SiloData
    spellings: Spellings
    held_out: pd.DataFrame
    location: str
    notes: tuple[str, ...]
    table: bytes


def load_tables(
    files: Files,
    schema: Schema,
    index: UserIndex,
    streams: Streams,
    *,
    user: str,
    test: Path | str | None = None,
    test_fraction: float | None = None,
    name: str = "tables",
) -> Federation:
    """The federation of these files; the test set is the file ``test``, or a share of the users."""
    if (test is None) == (test_fraction is None):
        raise ConfigError("give exactly one of test (a file) and test_fraction", location="data.test", value=test)
    fraction = checked_fraction(test_fraction)
    schema = replace(schema, statistics=None)  # those of this data are taken below, if any
    # Read the test file first: a wrong path shows before minutes are spent on the silos.
    test_frame = None if test is None else _rows(read_table(test, "data.test", schema.column_names()), str(test))
    named = silo_files(files)
    silos = [
        load_silo(silo, path, schema, index, streams, user=user, test_fraction=fraction) for silo, path in named.items()
    ]
    ids = frozenset[str]().union(*(silo.spellings for silo in silos))
    _check_users(ids, index)
    respelled = _several_spellings([silo.spellings for silo in silos])
    if schema.standardise == "silo":
        schema = schema.with_statistics(_pooled(schema, silos))
        silos = [replace(silo, data=_standardised(schema, silo.data)) for silo in silos]
    parts = [(silo.held_out, silo.location) for silo in silos] if test_frame is None else [(test_frame, str(test))]
    notes = [note for silo in silos for note in silo.notes]
    if test_frame is not None:
        notes += schema.notes(test_frame, str(test))
    return Federation(
        name,
        tuple(silo.data for silo in silos),
        index.users,
        schema.task,
        _test_records(schema, parts),
        caveats=schema.caveats,
        no_guarantee=schema.no_guarantee,
        hashed_ids=isinstance(index, HashedIds),
        notes=(*notes, *_collisions(ids, index), *respelled, *_same_files(named)),
        schema=schema,
        roster=index.digest(),
        people=People(ids, frozenset(silo.table for silo in silos)),
    )


def load_silo(
    name: str,
    path: Path | str,
    schema: Schema,
    index: UserIndex,
    streams: Streams,
    *,
    user: str,
    test_fraction: float = 0.0,
    named: str = "data.silos",
) -> LoadedSilo:
    """One silo from its file: all that a silo of a real federation needs. Nothing is standardised yet.

    ``named`` is where the file was named, for errors.
    """
    location = str(path)
    frame = _rows(read_table(path, named, schema.column_names() | {user}), location)
    _check_not_feature(schema, user)
    ids = normalised_ids(frame, user, location)
    users = index.indices(ids.rows, location)
    features, labels = schema.features(frame, location), schema.labels(frame, location)
    test = held_out(ids.rows, test_fraction, streams)
    return LoadedSilo(
        SiloData(name, features, labels, users).take(~test),
        spellings=ids.spellings,
        held_out=frame[test],
        location=location,
        notes=schema.notes(frame, location),
        table=table_digest(schema.feature_names(), features),
    )


def load_test(path: Path | str, schema: Schema) -> Records:
    """The records of a test file: all of the data that a server of a real federation may hold."""
    return _test_records(schema, [(_rows(read_table(path, "data.test", schema.column_names()), str(path)), str(path))])


def silo_files(files: Files) -> dict[str, Path]:
    """Silo names and their files; without names, the files' stems, numbered where two are the same."""
    if isinstance(files, Mapping):
        named = {str(name): Path(path) for name, path in files.items()}
    else:
        named = {}
        for path in map(Path, files):
            stem = table_stem(path)
            numbered = (f"{stem}-{number}" for number in itertools.count(2))
            named[next(name for name in itertools.chain([stem], numbered) if name not in named)] = path
    if not named:
        raise ConfigError("at least one file is needed", location="data.silos")
    return named


def checked_fraction(test_fraction: float | None) -> float:
    """The share of users that are held out for testing; 0 for none."""
    if test_fraction is None:
        return 0.0
    if not (isinstance(test_fraction, int | float) and 0 < test_fraction < 1):
        raise ConfigError(
            f"a number between 0 and 1, not {test_fraction!r}",
            location="data.test_fraction",
            value=test_fraction,
        )
    return test_fraction


def _rows(frame: pd.DataFrame, location: str) -> pd.DataFrame:
    if not len(frame):
        raise DataError("the table has no rows; leave the file out or fill it", location=location, value=0)
    return frame


def _check_not_feature(schema: Schema, user: str) -> None:
    if user in schema.column_names():
        raise ConfigError(
            f"{user!r} is the user id and cannot be a feature or the label; remove it",
            location="data.schema",
            value=user,
        )


def _check_users(ids: frozenset[str], index: UserIndex) -> None:
    if len(ids) < 2:
        raise DataError(
            "there is one user only, and user-level privacy hides one person among others; at least two are"
            " needed (is data.user the right column?)",
            location="data.user",
            value=len(ids),
        )
    if isinstance(index, HashedIds):
        check_room(len(ids), index.users, "data.users")


def _collisions(ids: frozenset[str], index: UserIndex) -> tuple[str, ...]:
    units = len(np.unique(index.indices(sorted(ids), "data.users")))
    if units == len(ids):
        return ()
    return (
        f"data.users: {len(ids)} user ids fall on {units} buckets by hashing; whoever shares a bucket has the larger"
        " epsilon that the statement names (a larger data.users makes this rarer, a roster avoids it)",
    )


def _several_spellings(silos: Sequence[Spellings]) -> tuple[str, ...]:
    """Whether ids were taken for one that may be two people's: then one can stand in for the other."""
    written: dict[str, set[str]] = {}
    for user, ways in itertools.chain.from_iterable(silo.items() for silo in silos):
        written.setdefault(user, set()).update(ways)
    several = sum(len(ways) > 1 for ways in written.values())
    if not several:
        return ()
    return (
        f"data.user: {several} user ids are written in several ways (such as 7 and 007, or A1 and a1) and count as one"
        " person each; if two people are behind one of them, these have the larger epsilon that the statement names",
    )


def _same_files(named: Mapping[str, Path]) -> tuple[str, ...]:
    silos: dict[Path, list[str]] = {}
    for name, path in named.items():
        silos.setdefault(path.resolve(), []).append(name)
    return tuple(
        f"data.silos: {path.name} is the table of {len(names)} silos ({', '.join(names)}); is that meant?"
        for path, names in silos.items()
        if len(names) > 1
    )


def _pooled(schema: Schema, silos: Sequence[LoadedSilo]) -> Statistics:
    """Of all silos' training records: test records and new data belong to no silo in particular."""
    return Statistics.of(np.concatenate([silo.data.features for silo in silos]), schema.number_positions())


def _standardised(schema: Schema, silo: SiloData) -> SiloData:
    where = schema.number_positions()
    own = Statistics.of(silo.features, where)
    return replace(silo, features=own.apply(silo.features, where).astype(np.float32))


def _test_records(schema: Schema, parts: Sequence[tuple[pd.DataFrame, str]]) -> Records:
    features = np.concatenate([schema.features(frame, location) for frame, location in parts])
    labels = np.concatenate([schema.labels(frame, location) for frame, location in parts])
    if not len(labels):
        raise DataError(
            "no user fell into the test set; raise data.test_fraction or give a test file",
            location="data.test_fraction",
        )
    return Records(features, labels)
