"""The feature columns of a schema: each turns cells into numbers by public constants, and reports what is wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from uldp.data import values
from uldp.data.cells import NO_RULES, CellRules, Limits, read_listed
from uldp.data.column_keys import (
    Tree,
    check_spellings,
    is_number,
    read_kind,
    read_list,
    read_listed_value,
    read_missing_number,
    read_range,
    read_rules,
    read_values,
)
from uldp.data.dates import check_formats, read_date
from uldp.data.findings import UNREADABLE, CellProblem, Mask, Matrix
from uldp.data.image_columns import CHANNELS, ImageColumn
from uldp.data.values import Value
from uldp.data.vector_columns import ZERO, VectorColumn
from uldp.errors import ConfigError, check_keys, require
from uldp.limits import MAX_FEATURES, check_whole

if TYPE_CHECKING:
    import pandas as pd

UNIT_NORM: Final = 1.0
"""No record's features of one column are longer: numbers lie in [-1, 1], and of categories one is 1."""
MIN_NORM: Final = 1e-6
MAX_NORM: Final = 1e6
MAX_CODE: Final = 1 << 24
"""Features have single precision, in which whole numbers are exact up to here."""
_LIST_RULES: Final = ("missing_codes", "outside", "other", "aliases", "fold_case")


class Column(Protocol):
    """A column of a schema, whatever its kind."""

    @property
    def name(self) -> str: ...

    @property
    def missing(self) -> Value | None: ...

    @property
    def rules(self) -> CellRules: ...

    @property
    def norm(self) -> float:
        """A bound on the L2 norm of a record's features of this column."""
        ...

    def feature_names(self) -> tuple[str, ...]: ...

    def encode(self, column: pd.Series, outside: str = "error", silo: str = "") -> tuple[Matrix, list[CellProblem]]:
        """(rows, features), each row from its cell alone, and what was wrong."""
        ...

    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class NumberColumn:
    """A number, scaled to [-1, 1] by an agreed range; ``missing`` is imputed for a missing value."""

    name: str
    low: float
    high: float
    missing: float | None = None
    rules: CellRules = NO_RULES

    @property
    def norm(self) -> float:
        return UNIT_NORM

    def feature_names(self) -> tuple[str, ...]:
        return (self.name,)

    def encode(self, column: pd.Series, outside: str = "error", silo: str = "") -> tuple[Matrix, list[CellProblem]]:
        """(rows, 1), clipped to the range, and what was wrong; in the units of ``silo``."""
        limits = Limits(self.low, self.high, self.missing)
        numbers, findings = limits.apply(column, *self.numbers(column, silo), outside)
        return numbers[:, None], findings

    def numbers(self, column: pd.Series, silo: str = "") -> tuple[Matrix, Mask]:
        """The cells as numbers in the agreed unit, NaN where a value is missing; and which are no finite number."""
        return self.rules.numbers(column, silo)

    def to_dict(self) -> dict[str, Any]:
        return _with_missing({"kind": "number", "range": [self.low, self.high]}, self.missing, self.rules)


@dataclass(frozen=True)
class CategoryColumn:
    """One of an agreed list, one-hot; ``missing`` names the category that is imputed for a missing value."""

    name: str
    categories: tuple[Value, ...]
    missing: Value | None = None
    rules: CellRules = NO_RULES

    @property
    def norm(self) -> float:
        return UNIT_NORM

    def feature_names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}={category}" for category in self.categories)

    def encode(self, column: pd.Series, outside: str = "error", silo: str = "") -> tuple[Matrix, list[CellProblem]]:
        """(rows, categories), all zero for a value that is not on the list, and what was wrong."""
        codes, findings = read_listed(column, self.categories, self.rules, self.missing, outside)
        return (codes[:, None] == np.arange(len(self.categories))).astype(np.float64), findings

    def to_dict(self) -> dict[str, Any]:
        return _with_missing({"kind": "category", "categories": list(self.categories)}, self.missing, self.rules)


@dataclass(frozen=True)
class OrdinalColumn:
    """One of an agreed list in its order, as one number: the first is -1, the last 1, equal steps between them."""

    name: str
    categories: tuple[Value, ...]
    missing: Value | None = None
    rules: CellRules = NO_RULES

    @property
    def norm(self) -> float:
        return UNIT_NORM

    def feature_names(self) -> tuple[str, ...]:
        return (self.name,)

    def encode(self, column: pd.Series, outside: str = "error", silo: str = "") -> tuple[Matrix, list[CellProblem]]:
        """(rows, 1), and what was wrong. An unknown level is not clipped: none is the nearest."""
        outside = "error" if outside == "clip" else outside
        codes, findings = read_listed(column, self.categories, self.rules, self.missing, outside)
        return (2.0 * np.maximum(codes, 0) / (len(self.categories) - 1) - 1)[:, None], findings

    def to_dict(self) -> dict[str, Any]:
        return _with_missing({"kind": "ordinal", "categories": list(self.categories)}, self.missing, self.rules)


@dataclass(frozen=True)
class CodeColumn:
    """One of an agreed list, as its number on it from ``first`` on: for a model that begins with an ``Embedding``."""

    name: str
    categories: tuple[Value, ...]
    first: int = 0
    missing: Value | None = None
    rules: CellRules = NO_RULES

    @property
    def norm(self) -> float:
        """None that says anything: a code is no size."""
        return math.inf

    def feature_names(self) -> tuple[str, ...]:
        return (f"{self.name}:code",)

    def encode(self, column: pd.Series, outside: str = "error", silo: str = "") -> tuple[Matrix, list[CellProblem]]:
        """(rows, 1), -1 for a value that is not on the list, and what was wrong."""
        codes, findings = read_listed(column, self.categories, self.rules, self.missing, outside)
        return np.where(codes < 0, -1.0, self.first + codes)[:, None], findings

    def to_dict(self) -> dict[str, Any]:
        tree = {"kind": "code", "categories": list(self.categories), "first": self.first}
        return _with_missing(tree, self.missing, self.rules)


@dataclass(frozen=True)
class DateColumn:
    """A date as one number (days since a public date, the year, the month or the day of the week), then as a number.

    Args:
        name: The column.
        part: "days", "year", "month" or "weekday" (Monday is 1).
        low: The lowest number of the agreed range.
        high: The highest.
        since: The public date from which days are counted.
        formats: How dates are written, as in ``datetime.strptime``; ISO 8601 if there are none.
        missing: The number that is imputed for a missing date.
        rules: Which cells are missing, and what happens to a date outside the range.
    """

    name: str
    part: str
    low: float
    high: float
    since: date | None = None
    formats: tuple[str, ...] = ()
    missing: float | None = None
    rules: CellRules = NO_RULES

    @property
    def norm(self) -> float:
        return UNIT_NORM

    def feature_names(self) -> tuple[str, ...]:
        return (f"{self.name}:{self.part}",)

    def encode(self, column: pd.Series, outside: str = "error", silo: str = "") -> tuple[Matrix, list[CellProblem]]:
        """(rows, 1), clipped to the range, and what was wrong."""
        limits = Limits(self.low, self.high, self.missing)
        numbers, findings = limits.apply(column, *self.numbers(column), outside)
        unreadable = "not a date"
        named = [
            CellProblem(one.kind, one.column, one.wrong, unreadable) if one.kind == UNREADABLE else one
            for one in findings
        ]
        return numbers[:, None], named

    def numbers(self, column: pd.Series, silo: str = "") -> tuple[Matrix, Mask]:
        """The dates as numbers, NaN where one is missing; and which cells are no date."""
        codes = {values.canonical(code) for code in self.rules.missing_codes}
        different, rows = values.distinct(column)
        numbers = np.array([self._number(cell, codes) for cell in different], dtype=np.float64)[rows]
        return numbers, np.isinf(numbers)

    def _number(self, cell: object, codes: set[str]) -> float:
        """NaN for a missing cell, infinity for one that is no date."""
        if values.is_missing(cell) or values.canonical(cell) in codes:
            return np.nan
        day = read_date(cell, self.formats)
        if day is None:
            return np.inf
        if self.since is not None:
            return float((day - self.since).days)
        return float({"year": day.year, "month": day.month, "weekday": day.isoweekday()}[self.part])

    def to_dict(self) -> dict[str, Any]:
        tree: dict[str, Any] = {"kind": "date", "part": self.part}
        tree |= {} if self.since is None else {"since": self.since.isoformat()}
        tree |= {} if self.part in _WHOLE_RANGES else {"range": [self.low, self.high]}
        tree |= {"formats": list(self.formats)} if self.formats else {}
        return _with_missing(tree, self.missing, self.rules)


_WHOLE_RANGES: Final = {"month": (1.0, 12.0), "weekday": (1.0, 7.0)}


def column_from_dict(name: str, tree: Any, location: str) -> Column:
    """The column that ``[data.schema.columns.NAME]`` describes."""
    kind = read_kind(tree, ("number", "category", "ordinal", "code", "date", "vector", "image"), location)
    if kind == "number":
        return _number_column(name, tree, location)
    if kind == "date":
        return _date_column(name, tree, location)
    if kind == "vector":
        return _vector_column(name, tree, location)
    if kind == "image":
        return _image_column(name, tree, location)
    check_keys(tree, ("kind", "categories", "missing", *_LIST_RULES, *(["first"] if kind == "code" else [])), location)
    rules = read_rules(tree, _LIST_RULES, location)
    categories = read_list(tree, "categories", location, rules)
    check_spellings(rules, categories, location)
    read_listed_value(tree, "other", categories, rules, location)
    missing = read_listed_value(tree, "missing", categories, rules, location)
    if kind == "category":
        return CategoryColumn(name, categories, missing, rules)
    if kind == "code":
        first = check_whole(tree.get("first", 0), 0, MAX_CODE - len(categories), f"{location}.first")
        return CodeColumn(name, categories, first, missing, rules)
    if len(categories) < 2:
        reason = "at least two categories are needed, from the lowest to the highest"
        raise ConfigError(reason, location=f"{location}.categories", value=list(categories))
    return OrdinalColumn(name, categories, missing, rules)


def _number_column(name: str, tree: Tree, location: str) -> NumberColumn:
    keys = ("missing_codes", "outside", "factor")
    check_keys(tree, ("kind", "range", "missing", *keys), location)
    low, high = read_range(tree, location)
    missing = read_missing_number(tree, low, high, location)
    return NumberColumn(name, low, high, missing, read_rules(tree, keys, location))


def _date_column(name: str, tree: Tree, location: str) -> DateColumn:
    keys = ("missing_codes", "outside")
    check_keys(tree, ("kind", "part", "since", "range", "formats", "missing", *keys), location)
    part, parts = tree.get("part", "days"), ("days", "year", "month", "weekday")
    require(part in parts, f"{location}.part", part, f"one of {', '.join(parts)}")
    whole = list(_WHOLE_RANGES.get(part, ()))
    for key, fits in (("since", part == "days"), ("range", not whole or tree.get("range") == whole)):
        if key in tree and not fits:
            raise ConfigError(f"does not go with part = {part!r}; remove it", location=f"{location}.{key}")
    formats = tree.get("formats", [])
    texts = all(isinstance(one, str) for one in read_values(formats, f"{location}.formats"))
    require(texts, f"{location}.formats", formats, "a list of formats such as '%d.%m.%Y'")
    check_formats(formats, f"{location}.formats")
    low, high = whole or read_range(tree, location)
    since = _since(tree.get("since", ""), f"{location}.since") if part == "days" else None
    missing = read_missing_number(tree, low, high, location)
    return DateColumn(name, part, low, high, since, tuple(formats), missing, read_rules(tree, keys, location))


def _vector_column(name: str, tree: Tree, location: str) -> VectorColumn:
    check_keys(tree, ("kind", "length", "norm", "missing", "outside"), location)
    length, norm, missing = tree.get("length"), tree.get("norm", []), tree.get("missing")
    check_whole(length, 1, MAX_FEATURES, f"{location}.length", "the numbers in every list")
    if norm == []:
        reason = "still empty; write the largest Euclidean norm that the parties agree on, e.g. norm = 1.0"
        raise ConfigError(reason, location=f"{location}.norm", value=norm)
    within = is_number(norm) and MIN_NORM <= norm <= MAX_NORM
    require(within, f"{location}.norm", norm, f"a number from {MIN_NORM:g} to {MAX_NORM:g}")
    require(missing in (None, ZERO), f"{location}.missing", missing, f"{ZERO!r}, which takes a missing list for zeros")
    return VectorColumn(name, int(str(length)), float(norm), missing, read_rules(tree, ("outside",), location))


def _image_column(name: str, tree: Tree, location: str) -> ImageColumn:
    check_keys(tree, ("kind", "size", "channels", "missing", "outside"), location)
    size, channels, missing = tree.get("size", []), tree.get("channels", ""), tree.get("missing")
    if size in ([], ()):
        reason = "still empty; write the height and width that the parties agree on, e.g. size = [28, 28]"
        raise ConfigError(reason, location=f"{location}.size", value=size)
    require(channels in tuple(CHANNELS), f"{location}.channels", channels, "'grey' or 'rgb'")
    two = isinstance(size, list | tuple) and len(size) == 2
    require(two, f"{location}.size", size, "two numbers of pixels [height, width]")
    height, width = (check_whole(side, 1, MAX_FEATURES, f"{location}.size", "pixels") for side in size)
    if CHANNELS[channels] * height * width > MAX_FEATURES:
        reason = f"at most {MAX_FEATURES:,} pixels, colours counted apart; take a smaller size"
        raise ConfigError(reason, location=f"{location}.size", value=size)
    require(missing in (None, ZERO), f"{location}.missing", missing, f"{ZERO!r}, which takes a missing image for grey")
    return ImageColumn(name, height, width, channels, missing, read_rules(tree, ("outside",), location))


def _since(value: Any, location: str) -> date:
    if value == "":
        reason = 'still empty; write the day from which days are counted, e.g. since = "2015-01-01"'
        raise ConfigError(reason, location=location, value=value)
    day = read_date(value, ()) if isinstance(value, str | date) else None
    require(day is not None, location, value, 'a day such as "2015-01-01"')
    assert day is not None
    return day


def _with_missing(tree: dict[str, Any], missing: Value | None, rules: CellRules) -> dict[str, Any]:
    return tree | ({} if missing is None else {"missing": missing}) | rules.to_dict()
