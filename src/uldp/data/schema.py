"""The agreed preprocessing of tables: public constants only.

A mean, a range or a list of categories taken from the data would let one person move everybody's features,
and the sensitivity bound would be gone. So the parties agree on a schema, write it into the experiment file,
and every cell becomes a number by that schema alone::

    [data.schema]
    outside = "error"        # a value outside its range or categories: "error", or "clip" (and count)
    standardise = "none"     # "silo" scales by the silo's own statistics: user-level DP does not hold then
    source = "public"        # "data" as long as the constants are only a proposal drawn from the data
    [data.schema.label]
    kind = "class"           # or "number" with a range, for regression
    classes = [0, 1]
    [data.schema.columns.age]
    kind = "number"
    range = [0, 120]
    missing = 50
    [data.schema.columns.sex]
    kind = "category"
    categories = ["f", "m"]

Columns of a table that the schema does not name are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from uldp.caveats import Caveat, Severity
from uldp.data.columns import (
    ABSENT,
    OUTSIDE,
    UNREADABLE,
    Column,
    Finding,
    Label,
    NumberColumn,
    Tree,
    check_keys,
    column_from_dict,
    label_from_dict,
)
from uldp.data.federation import FloatArray, LabelArray, Task
from uldp.data.files import column_names
from uldp.data.standardise import Statistics
from uldp.errors import ConfigError, DataError, shown
from uldp.limits import MAX_FEATURES

if TYPE_CHECKING:
    import pandas as pd

OUTSIDE_RULES: Final = ("error", "clip")
STANDARDISE_RULES: Final = ("none", "silo")
SOURCES: Final = ("public", "data")

_KEYS: Final = ("label", "columns", "outside", "standardise", "source", "statistics")

STANDARDISE_CAVEAT: Final = (
    'user-level DP does not hold: standardise = "silo" scales features by statistics of the data, so that '
    'one user moves the features of all others; the guarantee needs standardise = "none"'
)
SOURCE_CAVEAT: Final = Caveat(
    "schema-from-data",
    "The guarantee assumes public constants, but ranges and categories were proposed from the "
    'data (source = "data"); it holds once the parties agree on them and set source = "public".',
    Severity.WEAKENS,
)


@dataclass(frozen=True)
class Schema:
    """Feature columns, label and rules. ``statistics`` are set by a loader that standardises."""

    columns: tuple[Column, ...]
    label: Label
    outside: str = "error"
    standardise: str = "none"
    source: str = "public"
    statistics: Statistics | None = None

    def __post_init__(self) -> None:
        if self.statistics is None:
            return
        if self.standardise != "silo":  # else statistics could slip in without the caveat
            raise ConfigError('statistics need standardise = "silo"', location="data.schema.statistics")
        if not len(self.statistics.mean) == len(self.statistics.deviation) == len(self.number_positions()):
            raise ConfigError("one mean and deviation for each number column", location="data.schema.statistics")

    @classmethod
    def from_dict(
        cls, tree: Tree, *, label: str | None = None, user: str | None = None, location: str = "data.schema"
    ) -> Schema:
        """Read the tree of an experiment file or a run directory.

        ``label`` is the label's column, needed where the tree does not name it itself; ``user`` is the id
        column, which must not be a feature.
        """
        check_keys(tree, _KEYS, location)
        target = _label(tree, label, location)
        columns = _columns(tree, target.name, user, location)
        statistics = tree.get("statistics")
        return cls(
            columns,
            target,
            outside=_choice(tree, "outside", OUTSIDE_RULES, location),
            standardise=_choice(tree, "standardise", STANDARDISE_RULES, location),
            source=_choice(tree, "source", SOURCES, location),
            statistics=None if statistics is None else Statistics.from_dict(statistics, f"{location}.statistics"),
        )

    def to_dict(self) -> dict[str, Any]:
        """A plain tree for TOML or JSON; ``from_dict`` reads it back to an equal schema."""
        tree: dict[str, Any] = {
            "outside": self.outside,
            "standardise": self.standardise,
            "source": self.source,
            "label": self.label.to_dict(),
            "columns": {column.name: column.to_dict() for column in self.columns},
        }
        return tree if self.statistics is None else tree | {"statistics": self.statistics.to_dict()}

    @property
    def task(self) -> Task:
        return self.label.task

    @property
    def caveats(self) -> tuple[Caveat, ...]:
        """What a privacy statement about data under this schema must say."""
        return (SOURCE_CAVEAT,) if self.source == "data" else ()

    @property
    def no_guarantee(self) -> str:
        """Why no guarantee holds for data under this schema; empty where one does."""
        return STANDARDISE_CAVEAT if self.standardise == "silo" else ""

    def column_names(self) -> frozenset[str]:
        """The columns of a table that matter, the label's among them."""
        return frozenset({self.label.name, *(column.name for column in self.columns)})

    def feature_names(self) -> tuple[str, ...]:
        return tuple(name for column in self.columns for name in column.feature_names())

    def features(self, frame: pd.DataFrame, location: str) -> FloatArray:
        """(rows, features), each row from that row's cells alone; ``location`` names the table in errors."""
        _need_columns(frame, [column.name for column in self.columns], location)
        encoded = [column.encode(frame[column.name]) for column in self.columns]
        self._judge([finding for _, findings in encoded for finding in findings], location)
        matrix = np.concatenate([part for part, _ in encoded], axis=1)
        if self.statistics is not None:
            matrix = self.statistics.apply(matrix, self.number_positions())
        return matrix.astype(np.float32)

    def labels(self, frame: pd.DataFrame, location: str) -> LabelArray:
        """Class positions, or numbers scaled to [-1, 1]."""
        _need_columns(frame, [self.label.name], location)
        labels, findings = self.label.encode(frame[self.label.name])
        self._judge(findings, location)
        return labels

    def notes(self, frame: pd.DataFrame, location: str) -> tuple[str, ...]:
        """What ``outside = "clip"`` changed in a table that :meth:`features` and :meth:`labels` accept."""
        if self.outside != "clip":
            return ()
        findings = [finding for column in self.columns for finding in column.encode(frame[column.name])[1]]
        if self.label.name in frame.columns:
            findings += self.label.encode(frame[self.label.name])[1]
        return tuple(f"{location}: clipped {finding.text}" for finding in findings if finding.kind == OUTSIDE)

    def with_statistics(self, statistics: Statistics) -> Schema:
        """The schema that also standardises: for the test set and for new data, which belong to no silo."""
        return replace(self, statistics=statistics)

    def number_positions(self) -> tuple[int, ...]:
        """Where the numeric columns lie among the features; these are what is standardised."""
        positions, start = [], 0
        for column in self.columns:
            if isinstance(column, NumberColumn):
                positions.append(start)
            start += len(column.feature_names())
        return tuple(positions)

    def _judge(self, findings: list[Finding], location: str) -> None:
        """Raise for the gravest kind of finding, naming every column that has it."""
        remedies = {
            UNREADABLE: "correct these cells, or change the column's kind or list in data.schema",
            ABSENT: "set missing = <an agreed constant> for the column in data.schema or leave the rows out",
            OUTSIDE: 'correct these cells, widen data.schema, or set data.schema.outside = "clip"',
        }
        if self.outside == "clip":
            del remedies[OUTSIDE]
        for kind, remedy in remedies.items():
            found = [finding for finding in findings if finding.kind == kind]
            if found:
                if kind == ABSENT and found[0].column == self.label.name:
                    remedy = "every row needs its label, so leave these rows out"
                texts = ", ".join(finding.text for finding in found)
                raise DataError(f"{texts}; {remedy}", location=location, value=sum(f.count for f in found))


def _label(tree: Tree, name: str | None, location: str) -> Label:
    if "label" not in tree:
        raise ConfigError('missing; say what the label is, e.g. kind = "class"', location=f"{location}.label")
    own = tree["label"].get("column") if isinstance(tree["label"], Mapping) else None
    if name is None and own is None:
        raise ConfigError("missing; name the label's column", location=f"{location}.label.column")
    if name is not None and own is not None and name != own:
        raise ConfigError(
            f"{own!r}, but data.label is {name!r}; keep one of them", location=f"{location}.label.column", value=own
        )
    return label_from_dict(str(name if own is None else own), tree["label"], f"{location}.label")


def _columns(tree: Tree, label: str, user: str | None, location: str) -> tuple[Column, ...]:
    columns = tree.get("columns")
    if not isinstance(columns, Mapping) or not columns:
        raise ConfigError(
            "at least one feature column is needed; `uldp new` drafts them from a table",
            location=f"{location}.columns",
            value=columns,
        )
    for name, what in ((label, "the label"), (user, "the user id")):
        if name in columns:
            raise ConfigError(
                f"{name!r} is {what} and cannot be a feature; remove it", location=f"{location}.columns", value=name
            )
    if len(columns) > MAX_FEATURES:
        raise ConfigError(
            f"at most {MAX_FEATURES:,} columns, not {len(columns):,}",
            location=f"{location}.columns",
            value=len(columns),
        )
    return tuple(column_from_dict(name, part, f"{location}.columns.{name}") for name, part in columns.items())


def _choice(tree: Tree, key: str, known: tuple[str, ...], location: str) -> str:
    value = tree.get(key, known[0])
    if value not in known:
        raise ConfigError(f"one of {', '.join(known)}, not {shown(value)}", location=f"{location}.{key}", value=value)
    return str(value)


def _need_columns(frame: pd.DataFrame, names: list[str], location: str) -> None:
    absent = [repr(name) for name in names if name not in frame.columns]
    if absent:
        there = ", ".join(column_names(frame))
        plural = "s" if len(absent) > 1 else ""
        raise DataError(
            f"no column{plural} {', '.join(absent)}; the table has: {there}",
            location=location,
            value=", ".join(absent),
        )
