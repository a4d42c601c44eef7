"""A first schema for a table, for people to correct and agree on.

A draft reads the data, so it is only a proposal. Without ``from_data`` it names the columns and their kinds
and leaves ranges and categories empty; a run refuses these until they are filled in. With ``from_data`` it
proposes what it saw, and marks the schema ``source = "data"`` until the parties confirm it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from uldp.data import values
from uldp.data.values import Value, canonical, cells, is_missing
from uldp.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

FEW_NUMBERS: Final = 6  # a feature of at most so many whole numbers is taken for a category
MANY_TEXTS: Final = 50  # a text column of more values than this is no category
MANY_CLASSES: Final = 20  # a numeric label of more values than this is a number to predict

_ID_NAME: Final = re.compile(r"(^|[^A-Za-z])[iI][dD]$|[a-z](Id|ID)$")
_STAND_IN: Final = "missing"


@dataclass(frozen=True)
class Draft:
    """A tree for ``[data.schema]``, perhaps with empty places; and the columns left out, with the reason.

    The label's column is not repeated here: it is ``label`` of ``[data]``.
    """

    tree: dict[str, Any]
    left_out: Mapping[str, str]

    def to_toml(self, place: str = "data.schema") -> str:
        """The draft as a commented part of an experiment file."""
        top = {key: value for key, value in self.tree.items() if not isinstance(value, dict)}
        lines = [f"[{place}]", *_toml_lines(top), f"[{place}.label]", *_toml_lines(self.tree["label"])]
        for name, column in self.tree["columns"].items():
            lines += [f"[{place}.columns.{_toml_key(name)}]", *_toml_lines(column)]
        lines += [f"# left out: {name} ({why})".replace("\n", " ") for name, why in self.left_out.items()]
        return "\n".join(lines) + "\n"


def draft_schema(frame: pd.DataFrame, user: str, label: str, *, from_data: bool) -> Draft:
    """Propose a schema for this table (or for all silos' tables, one below the other)."""
    for key, column in (("user", user), ("label", label)):
        if column not in frame.columns:
            there = ", ".join(map(str, frame.columns))
            raise DataError(f"no column {column!r}; the table has: {there}", place=f"data.{key}", value=column)
    columns: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    for name in map(str, frame.columns):
        if name in (user, label):
            continue
        seen = _Seen.of(frame[name])
        why = _why_left_out(name, seen)
        if why:
            left_out[name] = why
        else:
            columns[name] = _column(seen, from_data)
    tree = {
        "outside": "error",
        "standardise": "none",
        "source": "data" if from_data else "public",
        "label": _label(_Seen.of(frame[label]), from_data),
        "columns": columns,
    }
    return Draft(tree, left_out)


@dataclass(frozen=True)
class _Seen:
    """What a column holds: distinct values by canonical spelling, in order, and whether some are missing."""

    rows: int
    distinct: tuple[str, ...]
    low: float
    high: float
    numeric: bool
    missing: bool

    @classmethod
    def of(cls, column: pd.Series) -> _Seen:
        present = [cell for cell in cells(column) if not is_missing(cell)]
        distinct = {canonical(cell) for cell in present}
        numbers, unreadable = values.numbers(column)
        numeric = bool(present) and not unreadable.any() and not distinct <= {"true", "false"}
        if not numeric:
            ordered = sorted(distinct)
            return cls(len(present), tuple(ordered), 0.0, 0.0, False, len(present) < len(column))
        low, high = float(np.nanmin(numbers)), float(np.nanmax(numbers))
        ordered = sorted(distinct, key=float)
        return cls(len(present), tuple(ordered), low, high, True, len(present) < len(column))

    @property
    def whole(self) -> bool:
        """Whether all values are whole numbers."""
        return self.numeric and all(value.lstrip("-").isdigit() for value in self.distinct)

    def listed(self) -> list[Value]:
        """The distinct values as a person would write them in TOML."""
        if self.whole:
            return [int(value) for value in self.distinct]
        if self.distinct and set(self.distinct) <= {"true", "false"}:
            return [value == "true" for value in self.distinct]
        return list(self.distinct)

    def range(self) -> list[float]:
        if self.low == self.high:
            return [self.low - 1, self.high + 1]
        return [_outward(self.low, ROUND_FLOOR), _outward(self.high, ROUND_CEILING)]


def _why_left_out(name: str, seen: _Seen) -> str | None:
    """Names, ids, dates and free text would tell who a person is rather than what is to be learned."""
    if _ID_NAME.search(name):
        return "looks like an identifier by its name"
    if not seen.distinct:
        return "has no values"
    if not seen.numeric and len(seen.distinct) == seen.rows and seen.rows > 2:
        return "text that differs in every row, perhaps an identifier"
    if not seen.numeric and len(seen.distinct) > MANY_TEXTS:
        return f"text with {len(seen.distinct)} different values"
    return None


def _column(seen: _Seen, from_data: bool) -> dict[str, Any]:
    few = seen.whole and len(seen.distinct) <= FEW_NUMBERS and 3 * len(seen.distinct) <= seen.rows
    if seen.numeric and not few:
        if not from_data:
            return {"kind": "number", "range": []}
        low, high = seen.range()
        return {"kind": "number", "range": [low, high]} | ({"missing": (low + high) / 2} if seen.missing else {})
    if not from_data:
        return {"kind": "category", "categories": []}
    if not seen.missing:
        return {"kind": "category", "categories": seen.listed()}
    return {"kind": "category", "categories": [*seen.listed(), _STAND_IN], "missing": _STAND_IN}


def _label(seen: _Seen, from_data: bool) -> dict[str, Any]:
    if seen.numeric and not (seen.whole and len(seen.distinct) <= MANY_CLASSES):
        return {"kind": "number", "range": seen.range() if from_data else []}
    return {"kind": "class", "classes": seen.listed() if from_data else []}


def _outward(value: float, rounding: str) -> float:
    """Two significant digits, away from the data: so no person's exact value is repeated."""
    if value == 0:
        return 0.0
    exact = Decimal(repr(value))
    return float(exact.quantize(Decimal(1).scaleb(exact.adjusted() - 1), rounding=rounding))


def _toml_lines(tree: Mapping[str, Any]) -> list[str]:
    return [f"{_toml_key(key)} = {_toml_value(value)}{_comment(key, value)}" for key, value in tree.items()]


def _comment(key: str, value: Any) -> str:
    if value == []:
        what = "[lowest, highest]" if key == "range" else f"the {key}"
        return f"  # fill in: {what} that the parties agree on"
    comments = {
        "outside": 'a value outside its range or categories: "error", or "clip" and count',
        "standardise": '"silo" scales by the data: user-level DP does not hold then',
        "source": '"data": proposed from the data; set "public" once the parties agree on every value',
    }
    return f"  # {comments[key]}" if key in comments else ""


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)


def _toml_value(value: Any) -> str:
    """Texts, numbers, true/false and lists are written alike in JSON and TOML."""
    return json.dumps(value, ensure_ascii=False)
