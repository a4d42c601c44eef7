"""The columns of a schema: each turns cells into numbers by public constants, and reports what is wrong.

Trees are read by hand: msgspec.convert would name neither the value nor what the parties have to agree on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from uldp.data import values
from uldp.data.federation import LabelArray, Task
from uldp.data.values import MISSING, UNKNOWN, Value
from uldp.errors import ConfigError, check_keys, format_value, require
from uldp.limits import MAX_FEATURES

if TYPE_CHECKING:
    import pandas as pd

Matrix = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Tree = Mapping[str, Any]

UNREADABLE: Final = "unreadable"
ABSENT: Final = "missing"
OUTSIDE: Final = "outside"


@dataclass(frozen=True)
class CellProblem:
    """What is wrong with some cells of one column: how many, and in which row the first of them is.

    The text names no value: it may end in a log, and who holds the table can look.
    """

    kind: str
    column: str
    count: int
    text: str


def find(kind: str, column: pd.Series, wrong: Mask, expected: str) -> list[CellProblem]:
    """One finding for the cells marked in ``wrong``, none if there are none."""
    count = int(wrong.sum())
    if not count:
        return []
    text = f"{count} {expected} in column {column.name!r} (first: row {int(np.argmax(wrong)) + 1})"
    return [CellProblem(kind, str(column.name), count, text)]


@dataclass(frozen=True)
class NumberColumn:
    """A number, scaled to [-1, 1] by an agreed range; ``missing`` is imputed for a missing value."""

    name: str
    low: float
    high: float
    missing: float | None = None

    def feature_names(self) -> tuple[str, ...]:
        return (self.name,)

    def encode(self, column: pd.Series) -> tuple[Matrix, list[CellProblem]]:
        """(rows, 1), clipped to the range, and what was wrong."""
        numbers, findings = _read_numbers(column, self.low, self.high, impute=self.missing)
        return _scale(numbers, self.low, self.high)[:, None], findings

    def to_dict(self) -> dict[str, Any]:
        tree: dict[str, Any] = {"kind": "number", "range": [self.low, self.high]}
        return tree if self.missing is None else tree | {"missing": self.missing}


@dataclass(frozen=True)
class CategoryColumn:
    """One of an agreed list, one-hot; ``missing`` names the category that is imputed for a missing value."""

    name: str
    categories: tuple[Value, ...]
    missing: Value | None = None

    def feature_names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}={category}" for category in self.categories)

    def encode(self, column: pd.Series) -> tuple[Matrix, list[CellProblem]]:
        """(rows, categories), all zero for a value that is not on the list, and what was wrong."""
        index = _index(self.categories)
        codes = values.codes(column, index)
        findings = find(OUTSIDE, column, codes == UNKNOWN, "not among the agreed categories")
        if self.missing is None:
            findings += find(ABSENT, column, codes == MISSING, "missing")
        else:
            codes[codes == MISSING] = index[values.canonical(self.missing)]
        return (codes[:, None] == np.arange(len(self.categories))).astype(np.float64), findings

    def to_dict(self) -> dict[str, Any]:
        tree: dict[str, Any] = {"kind": "category", "categories": list(self.categories)}
        return tree if self.missing is None else tree | {"missing": self.missing}


@dataclass(frozen=True)
class ClassLabel:
    """A label out of an agreed list of classes; it becomes its position on the list."""

    name: str
    classes: tuple[Value, ...]

    @property
    def task(self) -> Task:
        return Task(classes=len(self.classes))

    def encode(self, column: pd.Series) -> tuple[LabelArray, list[CellProblem]]:
        codes = values.codes(column, _index(self.classes))
        # Unlike a feature, a class has no neutral stand-in: an unknown one is unreadable, never clipped.
        findings = find(UNREADABLE, column, codes == UNKNOWN, "not among the agreed classes")
        return codes, findings + find(ABSENT, column, codes == MISSING, "missing")

    def to_dict(self) -> dict[str, Any]:
        return {"column": self.name, "kind": "class", "classes": list(self.classes)}


@dataclass(frozen=True)
class NumberLabel:
    """A numeric label, scaled to [-1, 1] by an agreed range; the task remembers the original units."""

    name: str
    low: float
    high: float

    @property
    def task(self) -> Task:
        return Task(0, label_scale=(self.high - self.low) / 2, label_offset=(self.high + self.low) / 2)

    def encode(self, column: pd.Series) -> tuple[LabelArray, list[CellProblem]]:
        numbers, findings = _read_numbers(column, self.low, self.high, impute=None)
        return _scale(numbers, self.low, self.high).astype(np.float32), findings

    def to_dict(self) -> dict[str, Any]:
        return {"column": self.name, "kind": "number", "range": [self.low, self.high]}


Column = NumberColumn | CategoryColumn
Label = ClassLabel | NumberLabel


def column_from_dict(name: str, tree: Any, location: str) -> Column:
    """The column that ``[data.schema.columns.NAME]`` describes."""
    kind, place = _kind(tree, ("number", "category"), location), f"{location}.missing"
    if kind == "number":
        check_keys(tree, ("kind", "range", "missing"), location)
        missing, (low, high) = tree.get("missing"), _range(tree, location)
        within = missing is None or (_is_number(missing) and low <= missing <= high)
        require(within, place, missing, f"a number within the range [{low:g}, {high:g}]")
        return NumberColumn(name, low, high, None if missing is None else float(missing))
    check_keys(tree, ("kind", "categories", "missing"), location)
    missing, categories = tree.get("missing"), _value_list(tree, "categories", location)
    if missing is not None and values.canonical(missing) not in _index(categories):
        reason = f"{format_value(missing)} is not among the categories; name one of them or add it"
        raise ConfigError(reason, location=place, value=missing)
    return CategoryColumn(name, categories, missing)


def label_from_dict(name: str, tree: Any, location: str) -> Label:
    """The label that ``[data.schema.label]`` describes."""
    if _kind(tree, ("class", "number"), location) == "number":
        check_keys(tree, ("column", "kind", "range"), location)
        return NumberLabel(name, *_range(tree, location))
    check_keys(tree, ("column", "kind", "classes"), location)
    classes = _value_list(tree, "classes", location)
    if len(classes) < 2:
        raise ConfigError("at least two classes are needed", location=f"{location}.classes", value=list(classes))
    return ClassLabel(name, classes)


def _read_numbers(column: pd.Series, low: float, high: float, impute: float | None) -> tuple[Matrix, list[CellProblem]]:
    numbers, unreadable = values.numbers(column)
    missing = np.isnan(numbers)
    outside = ~missing & ~unreadable & ((numbers < low) | (numbers > high))
    findings = find(UNREADABLE, column, unreadable, "not a finite number")
    findings += find(OUTSIDE, column, outside, f"outside the agreed range [{low:g}, {high:g}]")
    if impute is None:
        return numbers, findings + find(ABSENT, column, missing, "missing")
    return np.where(missing, impute, numbers), findings


def _scale(numbers: Matrix, low: float, high: float) -> Matrix:
    return 2 * (np.clip(numbers, low, high) - low) / (high - low) - 1


def _index(listed: tuple[Value, ...]) -> dict[str, int]:
    return {values.canonical(value): position for position, value in enumerate(listed)}


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond any float
        return False


def _kind(tree: Any, known: tuple[str, str], location: str) -> str:
    kind = tree.get("kind") if isinstance(tree, Mapping) else None
    require(kind in known, location, kind, f'kind = "{known[0]}" or kind = "{known[1]}" is needed')
    return str(kind)


def _range(tree: Tree, location: str) -> tuple[float, float]:
    location = f"{location}.range"
    limits = tree.get("range", [])
    if limits in ([], ()):
        reason = "still empty; write the lowest and highest value the parties agree on, e.g. range = [0, 100]"
        raise ConfigError(reason, location=location, value=limits)
    two_numbers = isinstance(limits, list | tuple) and len(limits) == 2 and all(map(_is_number, limits))
    require(two_numbers, location, limits, "two finite numbers [lowest, highest]")
    low, high = float(limits[0]), float(limits[1])
    require(low < high and math.isfinite(high - low), location, limits, "the lowest value comes first")
    return low, high


def _value_list(tree: Tree, key: str, location: str) -> tuple[Value, ...]:
    location = f"{location}.{key}"
    listed = tree.get(key, [])
    if listed in ([], ()):
        reason = f'still empty; list the {key} that the parties agree on, e.g. {key} = ["no", "yes"]'
        raise ConfigError(reason, location=location, value=listed)
    plain = isinstance(listed, list | tuple) and all(isinstance(value, Value) for value in listed)
    require(plain, location, listed, "a list of texts, numbers or true/false")
    if len(listed) > MAX_FEATURES:
        raise ConfigError(f"at most {MAX_FEATURES:,} {key}, not {len(listed):,}", location=location, value=len(listed))
    if len(_index(tuple(listed))) < len(listed):
        raise ConfigError(f"two entries mean the same in {format_value(listed)}", location=location, value=listed)
    return tuple(listed)
