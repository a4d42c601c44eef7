"""Tables as tallies, for a description of the data: which bin of which column a record falls into.

The bins follow from the schema alone: equal parts of a number's agreed range with everything below and above it, a
category's agreed list with everything else, and in each column what is missing. So every cell falls into one bin of its
column, no cell is refused, and whose records there are changes neither the number of bins nor their edges.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from uldp.data.cells import CellRules
from uldp.data.columns import CategoryColumn, CodeColumn, DateColumn, NumberColumn, OrdinalColumn
from uldp.data.federation import IntArray
from uldp.data.findings import CellProblem, Matrix
from uldp.data.image_columns import ImageColumn
from uldp.data.labels import ClassLabel, Label, NoLabel, NumberLabel, SurvivalLabel
from uldp.data.values import MISSING, UNKNOWN, Value
from uldp.data.vector_columns import VectorColumn
from uldp.limits import check_whole

if TYPE_CHECKING:
    import pandas as pd

    from uldp.data.columns import Column
    from uldp.data.schema import Schema

OFFSET_WEIGHT: Final = 0.25
"""The weight of a number's place within its bin. Means then have no rounding error; every count has 3 % more noise."""
OFFSET_STEPS: Final = 1024
"""A place within a bin is a multiple of one part in so many: sums of them are exact in any order."""
MAX_BINS: Final = 200
ABSENT_BIN: Final = "missing"
UNLISTED_BIN: Final = "not on the list"
UNREADABLE_BIN: Final = "not readable"


@dataclass(frozen=True)
class NumberTally:
    """Bins of numbers (or of dates that become numbers): equal parts of the agreed range, and what is outside.

    The last feature is where in its bin a number lies, from -1 to 1, times ``OFFSET_WEIGHT``.
    """

    source: NumberColumn | DateColumn
    parts: int

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def rules(self) -> CellRules:
        return self.source.rules

    missing: Value = ABSENT_BIN
    """A column that a table does not have is missing in all of its rows."""

    @property
    def edges(self) -> Matrix:
        """The limits of the parts, from the agreed range."""
        return np.linspace(self.source.low, self.source.high, self.parts + 1)

    @property
    def bins(self) -> tuple[str, ...]:
        """What the bins are called: below the range, its parts, above it, missing, unreadable."""
        edges = [f"{edge:.6g}" for edge in self.edges.tolist()]
        between = (f"{low} to {high}" for low, high in itertools.pairwise(edges))
        return (f"below {edges[0]}", *between, f"above {edges[-1]}", ABSENT_BIN, UNREADABLE_BIN)

    @property
    def norm(self) -> float:
        """A bound on the L2 norm of a record's features of this column."""
        return math.hypot(1.0, OFFSET_WEIGHT)

    def feature_names(self) -> tuple[str, ...]:
        return (*(f"{self.name}: {name}" for name in self.bins), f"{self.name}: place in its bin")

    def encode(self, column: pd.Series, outside: str = "error", silo: str = "") -> tuple[Matrix, list[CellProblem]]:
        """(rows, bins + 1); nothing is wrong with any cell."""
        numbers, unreadable = self.source.numbers(column, silo)
        low, high = self.source.low, self.source.high
        absent = np.isnan(numbers)
        plain = np.where(absent | unreadable, low, numbers)
        inside = ~absent & ~unreadable & (plain >= low) & (plain <= high)
        scaled = np.where(inside, (np.clip(plain, low, high) - low) / (high - low) * self.parts, 0.0)
        part = np.minimum(scaled.astype(np.int64), self.parts - 1)
        codes = np.where(plain < low, 0, np.where(plain > high, self.parts + 1, part + 1))
        codes = np.where(absent, self.parts + 2, np.where(unreadable, self.parts + 3, codes))
        place = np.where(inside, np.clip(2 * (scaled - part) - 1, -1, 1), 0.0)
        place = np.round(place * OFFSET_STEPS) / OFFSET_STEPS * OFFSET_WEIGHT
        return np.concatenate([_indicators(codes, self.parts + 4), place[:, None]], axis=1), []

    def to_dict(self) -> dict[str, Any]:
        return self.source.to_dict()


@dataclass(frozen=True)
class ListTally:
    """Bins of categories, of ordered ones or of classes: the agreed list, what is not on it, and what is missing."""

    name: str
    listed: tuple[Value, ...]
    rules: CellRules
    source: CategoryColumn | OrdinalColumn | CodeColumn | ClassLabel | None = None
    missing: Value = ABSENT_BIN

    @property
    def bins(self) -> tuple[str, ...]:
        return (*map(str, self.listed), UNLISTED_BIN, ABSENT_BIN)

    @property
    def norm(self) -> float:
        return 1.0

    def feature_names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}: {name}" for name in self.bins)

    def encode(self, column: pd.Series, outside: str = "error", silo: str = "") -> tuple[Matrix, list[CellProblem]]:
        """(rows, bins); nothing is wrong with any cell."""
        codes = self.rules.codes(column, self.listed)
        codes = np.where(codes == UNKNOWN, len(self.listed), np.where(codes == MISSING, len(self.listed) + 1, codes))
        return _indicators(codes, len(self.listed) + 2), []

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "category", "categories": list(self.listed)} if self.source is None else self.source.to_dict()


Tally = NumberTally | ListTally


def tally_schema(schema: Schema, parts: int) -> Schema:
    """The schema under which a table becomes tallies of its columns, the label's among them.

    Args:
        schema: What the parties agree on, or propose.
        parts: Into how many equal parts a range is divided.

    Raises:
        ConfigError: Not a number of parts.
    """
    check_whole(parts, 2, MAX_BINS, "method.bins")
    # Vectors and images have no histograms that say anything.
    told = (column for column in schema.columns if not isinstance(column, VectorColumn | ImageColumn))
    columns = (*(_tally(column, parts) for column in told), *_label_tallies(schema.label, parts))
    # Statistics of a silo are no public constants, and nothing is scaled here.
    return replace(schema, columns=columns, label=NoLabel(schema.label.name), standardise="none", statistics=None)


def tallies(schema: Schema) -> tuple[Tally, ...]:
    """The tallies of a schema that :func:`tally_schema` made."""
    return tuple(column for column in schema.columns if isinstance(column, Tally))


def _tally(column: Column, parts: int) -> Tally:
    if isinstance(column, NumberColumn | DateColumn):
        return NumberTally(column, parts)
    if isinstance(column, CategoryColumn | OrdinalColumn | CodeColumn):
        return ListTally(column.name, column.categories, column.rules, column)
    raise TypeError(f"no tally of a {type(column).__name__}")


def _label_tallies(label: Label, parts: int) -> tuple[Tally, ...]:
    if isinstance(label, ClassLabel):
        return (ListTally(label.name, label.classes, label.rules, label),)
    if isinstance(label, NumberLabel):
        return (NumberTally(NumberColumn(label.name, label.low, label.high, rules=label.rules), parts),)
    if isinstance(label, SurvivalLabel):
        own = CellRules(missing_codes=label.rules.missing_codes, factor=label.rules.factor)
        times = NumberTally(NumberColumn(label.name, label.low, label.high, rules=own), parts)
        return (times, ListTally(label.event, label.classes, label.rules))
    return ()


def _indicators(codes: IntArray, bins: int) -> Matrix:
    return np.asarray(codes[:, None] == np.arange(bins), dtype=np.float64)
