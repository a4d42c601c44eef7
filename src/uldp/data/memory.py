"""Federations of data that are in memory: data frames and arrays that a caller hands over."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from uldp.caveats import Caveat, Severity
from uldp.data.builtin import load_builtin
from uldp.data.federation import Federation, FloatArray, IntArray, People, Records, SiloData, Task
from uldp.data.files import Table, read_table, table_name
from uldp.data.ids import normalised_ids, read_ids
from uldp.data.roster import HashedIds, Roster, UserIndex
from uldp.data.schema import Schema
from uldp.data.tables import load_tables
from uldp.errors import ConfigError, DataError, check_keys, format_value, require
from uldp.rng import Secrets, Streams

TEST_FRACTION: Final = 0.2
IDS_FROM_DATA: Final = Caveat(
    "ids-from-data",
    "The list of users was read from the data, so the guarantee takes it for public who is on it; a public list of "
    "ids, or a number of users that ids are hashed into, hides that too.",
    Severity.LIMITS,
)
ARRAYS: Final = Caveat(
    "features-as-given",
    "Features came as numbers: that a row depends on nobody else's records is an assertion of whoever made them.",
    Severity.LIMITS,
)
SEEDED_KEY: Final = Caveat(
    "seeded-id-key",
    "Ids were hashed with a key from the seed: whoever knows the seed can tell which bucket is whose.",
    Severity.LIMITS,
)


def tables_in_memory(
    silos: Mapping[str, Table],
    *,
    user: str,
    label: str,
    schema: Schema | Mapping[str, Any] | None,
    test: Table | None,
    test_fraction: float | None,
    users: int | Sequence[str | int] | None,
    seed: int,
) -> Federation:
    """See :meth:`Federation.from_frames`."""
    if not isinstance(silos, Mapping) or not silos:
        wanted = 'a table for each silo, by its name ({"north": table, ...})'
        raise ConfigError(f"{wanted}, not {format_value(silos)}", location="silos")
    for name, column in (("user", user), ("label", label)):
        require(isinstance(column, str) and bool(column), name, column, "the name of a column")
    if test is not None and test_fraction is not None:
        raise ConfigError("give test or test_fraction, not both", location="test_fraction", value=test_fraction)
    if schema is None:
        # A range that was read from the training data is no reason to refuse a value of the test set.
        schema = replace(Schema.draft(silos, user=user, label=label), outside="clip")  # type: ignore[arg-type]
    elif isinstance(schema, Mapping):
        schema = Schema.from_dict(schema, label=label, user=user, location="schema")
    elif not isinstance(schema, Schema):
        raise ConfigError(f"a uldp.Schema, not {format_value(schema)}", location="schema")
    if schema.label.name != label:
        raise ConfigError(f"the schema's label is {schema.label.name!r}, not {label!r}", location="label", value=label)
    if test is None and test_fraction is None:
        test_fraction = TEST_FRACTION
    index, caveats = _index(silos, user, users, seed)
    held_out = {"test": test, "test_fraction": test_fraction}
    streams = Streams.from_seed(seed).child("data")
    federation = load_tables(silos, schema, index, streams, user=user, name="data frames", **held_out)  # type: ignore[arg-type]
    notes = (*federation.notes, *_find_trained_test_users(test, user, federation))
    return replace(federation, caveats=(*federation.caveats, *caveats), notes=notes)


def _find_trained_test_users(test: Table | None, user: str, federation: Federation) -> tuple[str, ...]:
    """Whether people of the test table train too, where it says who they are."""
    frame = None if test is None else read_table(test, "test", {user})
    if frame is None or user not in frame.columns or federation.people is None:
        return ()
    both = federation.people.ids & set(normalised_ids(frame, user, "test").rows)
    if not both:
        return ()
    return (
        f"test: {len(both)} of its users are in the silos' tables too: metrics are too good, and what they say about "
        "these users is not covered by epsilon; leave their rows out of one of them",
    )


def _index(
    silos: Mapping[str, Table], user: str, users: int | Sequence[str | int] | None, seed: int
) -> tuple[UserIndex, tuple[Caveat, ...]]:
    """How ids become users, and what a statement must say about that."""
    import pandas as pd

    if users is None:
        found: set[str] = set()
        for name, table in silos.items():
            location = table_name(table, f"silo {name!r}")
            found.update(normalised_ids(read_table(table, location, {user}), user, location).rows)
        if len(found) < 2:
            reason = f"{len(found)} user id in the data: user-level privacy hides one person among others"
            raise DataError(f"{reason} (is {user!r} the right column?)", location="user", value=len(found))
        return Roster(tuple(sorted(found)), "users"), (IDS_FROM_DATA,)
    if isinstance(users, int) and not isinstance(users, bool):
        require(users >= 2, "users", users, "at least 2: user-level privacy hides one person among others")
        return HashedIds.from_secrets(users, Secrets.simulated_from_seed(seed).child("ids")), (SEEDED_KEY,)
    if isinstance(users, str | bytes) or not isinstance(users, Sequence | np.ndarray | pd.Series | pd.Index):
        raise ConfigError(f"a number, or a list of all ids, not {format_value(users)}", location="users")
    return Roster(tuple(read_ids(pd.Series(list(users), dtype="object"), "users", "users").rows), "users"), ()


def arrays_in_memory(
    silos: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike]],
    test: tuple[npt.ArrayLike, npt.ArrayLike],
    classes: int,
    users: int | None,
) -> Federation:
    """See :meth:`Federation.from_arrays`."""
    if not isinstance(silos, Mapping) or not silos:
        raise ConfigError(
            f"(features, labels, users) for each silo, by its name, not {format_value(silos)}", location="silos"
        )
    task, parts = Task(classes), []
    for name, part in silos.items():
        location = f"silo {name!r}"
        if not isinstance(part, tuple | list) or len(part) != 3:
            raise DataError("three arrays are needed: features, labels, users", location=location)
        records = _records(part[0], part[1], task, location)
        parts.append(SiloData(str(name), records.features, records.labels, _user_indices(part[2], location)))
    known = users
    if known is None:
        known = 1 + max((int(silo.users.max()) for silo in parts if len(silo)), default=0)
    if not isinstance(test, tuple | list) or len(test) != 2:
        raise DataError("two arrays are needed: features and labels", location="test")
    shapes = {silo.features.shape[1:] for silo in parts}
    if len(shapes) > 1:
        raise DataError(f"silos have features of different shapes: {sorted(shapes)}", location="silos")
    return Federation(
        "arrays",
        tuple(parts),
        known,
        task,
        _records(test[0], test[1], task, "test"),
        caveats=(ARRAYS, *((IDS_FROM_DATA,) if users is None else ())),
        roster=hashlib.sha256(f"arrays {known}".encode()).hexdigest(),
    )


def feature_array(values: npt.ArrayLike, location: str) -> FloatArray:
    """An array of numbers; what numpy says of others quotes them."""
    # Beyond float32 is infinite, and refused as such.
    with suppress(TypeError, ValueError, OverflowError), np.errstate(over="ignore"):
        if not np.iscomplexobj(values):
            return np.asarray(values, dtype=np.float32)
    raise DataError("features and labels must be arrays of numbers", location=location)


def _records(features: npt.ArrayLike, labels: npt.ArrayLike, task: Task, location: str) -> Records:
    rows = feature_array(features, location)
    try:
        found = np.asarray(labels, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise DataError("features and labels must be arrays of numbers", location=location) from None
    if rows.ndim < 2 or found.ndim != 1 or len(rows) != len(found):
        reason = f"features of shape {rows.shape} and labels of shape {found.shape}; (rows, ...) and (rows,) are needed"
        raise DataError(reason, location=location)
    if not np.isfinite(rows).all() or not np.isfinite(found).all():
        row = int(np.argmax(~np.isfinite(rows.reshape(len(rows), -1)).all(axis=1) | ~np.isfinite(found)))
        raise DataError(f"NaN, infinity or a number beyond float32 (first: row {row})", location=location)
    if not task.classes:
        return Records(rows, found.astype(np.float32))
    wrong = (found != np.floor(found)) | (found < 0) | (found >= task.classes)
    if wrong.any():
        first = int(np.argmax(wrong))
        reason = f"{int(wrong.sum())} labels are not one of 0 .. {task.classes - 1} (first: row {first})"
        raise DataError(reason, location=location)
    return Records(rows, found.astype(np.int64))


def _user_indices(users: npt.ArrayLike, location: str) -> IntArray:
    found = np.asarray(users)
    if found.ndim != 1 or (found.size and not np.issubdtype(found.dtype, np.integer)):
        reason = f"users are an array of whole numbers from 0, not {found.dtype} of shape {found.shape}"
        raise DataError(reason, location=location)
    if found.size and found.min() < 0:
        raise DataError("users are numbered from 0; some are negative", location=location)
    return found.astype(np.int64)


def load_dataset(name: str, seed: int, settings: Mapping[str, Any]) -> Federation:
    """See :meth:`Federation.from_dataset`."""
    check_keys(settings, ("allocation", "options", "silos", "users"), "from_dataset")
    options = settings.get("options", {})
    users, silos, allocation = (settings.get(key) for key in ("users", "silos", "allocation"))
    federation = load_builtin(name, users, silos, allocation, Streams.from_seed(seed), None, options)
    return replace(federation, people=People(dataset=name))
