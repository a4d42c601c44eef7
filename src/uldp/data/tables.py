"""Your own tables as a federation: a CSV or Parquet file per silo, a user column and a schema.

Rows keep their order and each becomes numbers by itself, so removing one user's rows leaves all other rows'
features, labels, indices and places in training or test exactly as they are.
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
from uldp.data.roster import HashedIds, UserIndex, check_room, held_out, normalised_ids
from uldp.data.schema import Schema
from uldp.data.standardise import Statistics
from uldp.errors import ConfigError, DataError
from uldp.rng import Streams

if TYPE_CHECKING:
    import pandas as pd

Files = Sequence[Path | str] | Mapping[str, Path | str]


@dataclass(frozen=True)
class LoadedSilo:
    """A silo's training records; its held-out users' rows, not yet encoded; and what the schema clipped."""

    data: SiloData
    ids: frozenset[str]
    held_out: pd.DataFrame
    place: str
    notes: tuple[str, ...]


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
        raise ConfigError("give exactly one of test (a file) and test_fraction", place="data.test", value=test)
    fraction = _fraction(test_fraction)
    schema = replace(schema, statistics=None)  # those of this data are taken below, if any
    # Read the test file first: a wrong path shows before minutes are spent on the silos.
    test_frame = None if test is None else _rows(read_table(test, "data.test"), str(test))
    silos = [
        load_silo(silo, path, schema, index, streams, user=user, test_fraction=fraction)
        for silo, path in silo_files(files).items()
    ]
    ids = frozenset[str]().union(*(silo.ids for silo in silos))
    _check_users(ids, index)
    if schema.standardise == "silo":
        schema = schema.with_statistics(_pooled(schema, silos))
        silos = [replace(silo, data=_standardised(schema, silo.data)) for silo in silos]
    parts = [(silo.held_out, silo.place) for silo in silos] if test_frame is None else [(test_frame, str(test))]
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
        void=schema.void,
        hashed=isinstance(index, HashedIds),
        notes=(*notes, *_collisions(ids, index)),
        schema=schema,
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
) -> LoadedSilo:
    """One silo from its file: all that a silo of a real federation needs. Nothing is standardised yet."""
    place = str(path)
    frame = _rows(read_table(path, "data.silos"), place)
    _check_not_feature(schema, user)
    ids = normalised_ids(frame, user, place)
    users = index.indices(ids, place)
    features, labels = schema.features(frame, place), schema.labels(frame, place)
    test = held_out(ids, test_fraction, streams)
    return LoadedSilo(
        SiloData(name, features, labels, users).take(~test),
        ids=frozenset(ids),
        held_out=frame[test],
        place=place,
        notes=schema.notes(frame, place),
    )


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
        raise ConfigError("at least one file is needed", place="data.silos")
    return named


def _fraction(test_fraction: float | None) -> float:
    if test_fraction is None:
        return 0.0
    if not (isinstance(test_fraction, int | float) and 0 < test_fraction < 1):
        raise ConfigError(
            f"a number between 0 and 1, not {test_fraction!r}",
            place="data.test_fraction",
            value=test_fraction,
        )
    return test_fraction


def _rows(frame: pd.DataFrame, place: str) -> pd.DataFrame:
    if not len(frame):
        raise DataError("the table has no rows; leave the file out or fill it", place=place, value=0)
    return frame


def _check_not_feature(schema: Schema, user: str) -> None:
    if user in {column.name for column in schema.columns} | {schema.label.name}:
        raise ConfigError(
            f"{user!r} is the user id and cannot be a feature or the label; remove it",
            place="data.schema",
            value=user,
        )


def _check_users(ids: frozenset[str], index: UserIndex) -> None:
    if len(ids) < 2:
        raise DataError(
            "there is one user only, and user-level privacy hides one person among others; at least two are"
            " needed (is data.user the right column?)",
            place="data.user",
            value=len(ids),
        )
    if isinstance(index, HashedIds):
        check_room(len(ids), index.users, "data.users")


def _collisions(ids: frozenset[str], index: UserIndex) -> tuple[str, ...]:
    units = len(np.unique(index.indices(sorted(ids), "data.users")))
    if units == len(ids):
        return ()
    return (
        f"data.users: {len(ids)} user ids fall on {units} places by hashing; whoever shares a place has the larger"
        " epsilon that the statement names (a larger data.users makes this rarer, a roster impossible)",
    )


def _pooled(schema: Schema, silos: Sequence[LoadedSilo]) -> Statistics:
    """Of all silos' training records: test records and new data belong to no silo in particular."""
    return Statistics.of(np.concatenate([silo.data.features for silo in silos]), schema.number_positions())


def _standardised(schema: Schema, silo: SiloData) -> SiloData:
    where = schema.number_positions()
    own = Statistics.of(silo.features, where)
    return replace(silo, features=own.apply(silo.features, where).astype(np.float32))


def _test_records(schema: Schema, parts: Sequence[tuple[pd.DataFrame, str]]) -> Records:
    features = np.concatenate([schema.features(frame, place) for frame, place in parts])
    labels = np.concatenate([schema.labels(frame, place) for frame, place in parts])
    if not len(labels):
        raise DataError(
            "no user fell into the test set; raise data.test_fraction or give a test file",
            place="data.test_fraction",
        )
    return Records(features, labels)
