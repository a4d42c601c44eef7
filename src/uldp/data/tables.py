"""Your own tables as a federation: a CSV or Parquet file or a folder of images per silo, a user column and a schema.

Rows keep their order and each becomes numbers by itself, so removing one user's rows leaves all other rows'
features, labels, indices and places in training or test exactly as they are, unless the data are refused. A refusal
to start does depend on single rows and is seen by the others; docs/experiment-file.md lists them.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from uldp.data.federation import Federation, FloatArray, IntArray, People, Records, SiloData
from uldp.data.files import Table, read_table, table_name, table_stem
from uldp.data.id_forms import different_forms
from uldp.data.ids import normalised_ids
from uldp.data.roster import HashedIds, UserIndex, check_room, select_test_rows
from uldp.data.schema import EncodedTable, Schema, check_silos, encode_table, number_positions, why_no_guarantee
from uldp.data.statistics import Statistics
from uldp.errors import ConfigError, DataError, require
from uldp.rng import Streams

if TYPE_CHECKING:
    import pandas as pd

Spellings = Mapping[str, frozenset[str]]
Files = Sequence[Path | str] | Mapping[str, Table]


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

    def encoded_holdout(self, schema: Schema) -> EncodedTable:
        """The rows of the people that are held out for testing."""
        return encode_table(schema, self.held_out, self.location, self.data.name)


def load_tables(
    files: Files,
    schema: Schema,
    index: UserIndex,
    streams: Streams,
    *,
    user: str,
    test: Table | None = None,
    test_fraction: float | None = None,
    name: str = "tables",
) -> Federation:
    """The federation of these files or data frames; the test set is the table ``test``, or a share of the users."""
    if (test is None) == (test_fraction is None):
        raise ConfigError("give exactly one of test (a table) and test_fraction", location="data.test")
    fraction = checked_fraction(test_fraction)
    schema = replace(schema, statistics=None)  # those of this data are taken below, if any
    # Read the test file first: a wrong path shows before minutes are spent on the silos.
    test_part = None if test is None else _test_frame(test, schema)
    named = silo_files(files)
    check_silos(schema, named)
    silos = [
        load_silo(silo, path, schema, index, streams, user=user, test_fraction=fraction) for silo, path in named.items()
    ]
    ids = frozenset[str]().union(*(silo.spellings for silo in silos))
    _check_users(ids, index)
    respelled = _several_spellings([silo.spellings for silo in silos])
    if schema.standardise == "silo":
        where = number_positions(schema.columns)
        # Of all silos' training records: test records and new data belong to no silo in particular.
        pooled = Statistics.of(np.concatenate([silo.data.features for silo in silos]), where)
        schema = replace(schema, statistics=pooled)
        silos = [replace(silo, data=_standardise(silo.data, where)) for silo in silos]
    notes = [note for silo in silos for note in silo.notes]
    tests = (
        [silo.encoded_holdout(schema) for silo in silos] if test_part is None else [encode_table(schema, *test_part)]
    )
    notes += [] if test_part is None else tests[0].notes
    notes += different_forms({silo.data.name: silo.spellings for silo in silos})
    return Federation(
        name,
        tuple(silo.data for silo in silos),
        index.users,
        schema.label.task,
        _test_records(tests, test_fraction == 0),
        caveats=schema.caveats,
        no_guarantee=why_no_guarantee(schema),
        hashed_ids=isinstance(index, HashedIds),
        notes=(*notes, *_collisions(ids, index), *respelled, *_same_files(named)),
        schema=schema,
        roster=index.digest(),
        people=People(ids, frozenset(silo.table for silo in silos), user),
    )


def load_silo(
    name: str,
    table: Table,
    schema: Schema,
    index: UserIndex,
    streams: Streams,
    *,
    user: str,
    test_fraction: float = 0.0,
    named: str = "data.silos",
) -> LoadedSilo:
    """One silo from its file or data frame: all that a silo of a real federation needs. Nothing is standardised yet.

    ``named`` is where the file was named, for errors.
    """
    location = table_name(table, f"silo {name!r}")
    where = named if isinstance(table, str | Path) else location
    frame = _rows(read_table(table, where, schema.column_names() | {user}), location)
    if user in schema.column_names():
        reason = f"{user!r} is the user id and cannot be a feature or the label; remove it"
        raise ConfigError(reason, location="data.schema", value=user)
    ids = normalised_ids(frame, user, location, index.reader(name))
    users = index.indices(ids.rows, location)
    encoded = encode_table(schema, frame, location, name)
    records, rows = encoded.records, encoded.rows
    test = select_test_rows(ids.rows, test_fraction, streams)
    return LoadedSilo(
        SiloData(name, records.features, records.labels, users[rows]).take(~test[rows]),
        spellings=ids.spellings,
        held_out=frame[test],
        location=location,
        notes=(*encoded.notes, *_lone_records(schema, users[rows][~test[rows]], location)),
        table=table_digest(schema.feature_names(), records.features.reshape(len(records), -1)),
    )


def _lone_records(schema: Schema, users: IntArray, location: str) -> tuple[str, ...]:
    """Whether people contribute nothing to a Cox model."""
    if not schema.label.task.survival:
        return ()
    _, counts = np.unique(users, return_counts=True)
    alone = int((counts == 1).sum())
    if not alone:
        return ()
    return (
        f"{location}: {alone} of {len(counts)} people have one record only, and Cox's loss compares a person's own "
        "records: these people contribute nothing to the model",
    )


def table_digest(names: Sequence[str], features: FloatArray) -> bytes:
    """A digest of a table's features without its ids, in whatever order rows and columns stand.

    It recognises a copy in which ids were exchanged for others. Like every digest of records it can confirm a guess.
    """
    columns = (
        name.encode() + b"\0" + np.sort(column).tobytes() for name, column in zip(names, features.T, strict=True)
    )
    digests = sorted(hashlib.blake2b(column, digest_size=32).digest() for column in columns)
    return hashlib.blake2b(b"".join(digests), digest_size=32).digest()


def load_test(path: Path | str, schema: Schema) -> Records:
    """The records of a test file: all of the data that a server of a real federation may hold."""
    return _test_records([encode_table(schema, *_test_frame(path, schema))])


def silo_files(files: Files) -> dict[str, Table]:
    """Silo names and their tables; without names, the files' stems, numbered where two are the same."""
    named: dict[str, Table]
    if isinstance(files, Mapping):
        named = {str(name): Path(table) if isinstance(table, str) else table for name, table in files.items()}
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
    within = isinstance(test_fraction, int | float) and 0 <= test_fraction < 1
    require(within, "data.test_fraction", test_fraction, "a number between 0 and 1 (0: no test set)")
    return test_fraction


def _test_frame(table: Table, schema: Schema) -> tuple[pd.DataFrame, str]:
    """The test table, and its name for errors."""
    location = table_name(table, "test")
    where = "data.test" if isinstance(table, str | Path) else location
    return _rows(read_table(table, where, schema.column_names()), location), location


def _rows(frame: pd.DataFrame, location: str) -> pd.DataFrame:
    if not len(frame):
        raise DataError("the table has no rows; leave the file out or fill it", location=location, value=0)
    return frame


def _check_users(ids: frozenset[str], index: UserIndex) -> None:
    if len(ids) < 2:
        reason = (
            "there is one user only, and user-level privacy hides one person among others; at least two are"
            " needed (is data.user the right column?)"
        )
        raise DataError(reason, location="data.user", value=len(ids))
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
    """Whether ids were taken for one that may be two people's: then one can replace the other."""
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


def _same_files(named: Mapping[str, Table]) -> tuple[str, ...]:
    silos: dict[Path | int, list[str]] = {}
    for name, table in named.items():
        silos.setdefault(Path(table).resolve() if isinstance(table, str | Path) else id(table), []).append(name)
    return tuple(
        f"data.silos: {table.name if isinstance(table, Path) else 'one data frame'} is the table of {len(names)} silos"
        f" ({', '.join(names)}); is that meant?"
        for table, names in silos.items()
        if len(names) > 1
    )


def _standardise(silo: SiloData, where: Sequence[int]) -> SiloData:
    own = Statistics.of(silo.features, where)
    return replace(silo, features=own.apply(silo.features, where).astype(np.float32))


def _test_records(parts: Sequence[EncodedTable], none: bool = False) -> Records:
    """The encoded test records; none at all only where that was asked for."""
    records = Records.joined([part.records for part in parts])
    if not len(records) and not none:
        reason = "no user fell into the test set; raise data.test_fraction or give a test file"
        raise DataError(reason, location="data.test_fraction")
    return records
