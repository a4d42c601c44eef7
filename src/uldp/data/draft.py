"""A first schema for a table, for people to correct and agree on.

A draft reads the data, so it is only a proposal. Without ``from_data`` it names the columns and their kinds
and leaves ranges and categories empty; a run refuses these until they are filled in. With ``from_data`` it
proposes what it saw, and marks the schema ``source = "data"`` until the parties confirm it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from uldp.data.values import Value, canonical, distinct, is_missing, number
from uldp.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

FEW_NUMBERS: Final = 6  # a feature of at most so many whole numbers is taken for a category
MANY_TEXTS: Final = 50  # a text column of more values than this is no category
MANY_CLASSES: Final = 20  # a numeric label of more values than this is a number to predict

_ID_NAME: Final = re.compile(r"(^|[^A-Za-z])[iI][dD]$|[a-z](Id|ID)$")
_IMPUTED: Final = "missing"


@dataclass(frozen=True)
class Draft:
    """A tree for ``[data.schema]``, perhaps with empty places; and the columns left out, with the reason.

    The label's column is not repeated here: it is ``label`` of ``[data]``.
    """

    tree: dict[str, Any]
    left_out: Mapping[str, str]

    def to_toml(self, location: str = "data.schema") -> str:
        """The draft as a commented part of an experiment file."""
        lines = ["# Kinds, and columns left out, are guesses from the files: check every one."]
        lines += [f"# left out: {toml_key(name)} ({why})" for name, why in self.left_out.items()]
        return schema_toml(self.tree, location) + "\n".join(lines) + "\n"


def schema_toml(tree: Mapping[str, Any], location: str = "data.schema") -> str:
    """A schema's tree as a commented part of an experiment file."""
    top = {key: value for key, value in tree.items() if not isinstance(value, dict)}
    lines = [f"[{location}]", *_toml_lines(top), f"[{location}.label]", *_toml_lines(tree["label"])]
    for name, column in tree["columns"].items():
        lines += [f"[{location}.columns.{toml_key(name)}]", *_toml_lines(column)]
    if "statistics" in tree:
        lines += [f"[{location}.statistics]", *_toml_lines(tree["statistics"])]
    return "\n".join(lines) + "\n"


def draft_silos(
    silos: Mapping[str, pd.DataFrame],
    user: str,
    label: str,
    *,
    from_data: bool,
    test: tuple[str, pd.DataFrame] | None = None,
) -> Draft:
    """Propose a schema for the silos' tables, by name. A column must be in all of them, and in the test table."""
    import pandas as pd

    tables = dict([*silos.items(), *([test] if test else [])])
    for location, table in tables.items():
        for column in (user, label) if location in silos else (label,):
            _need_column(table, column, location)
    names = dict.fromkeys(name for table in silos.values() for name in table.columns)
    common = [name for name in names if name == user or all(name in table.columns for table in tables.values())]
    draft = draft_schema(
        pd.concat([table[common] for table in silos.values()], ignore_index=True), user, label, from_data=from_data
    )
    partial = {name: "is not in every table" for name in names if name not in common}
    return replace(draft, left_out={**draft.left_out, **partial})


def draft_schema(frame: pd.DataFrame, user: str, label: str, *, from_data: bool) -> Draft:
    """Propose a schema for one table."""
    _need_column(frame, user, "data.user")
    _need_column(frame, label, "data.label")
    columns: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    for name in map(str, frame.columns):
        if name in (user, label):
            continue
        seen = _ColumnValues.of(frame[name])
        why = _why_left_out(name, seen)
        if why:
            left_out[name] = why
        else:
            columns[name] = _column(seen, from_data)
    tree = {
        "outside": "error",
        "standardise": "none",
        "source": "data" if from_data else "public",
        "label": _label(_ColumnValues.of(frame[label]), from_data),
        "columns": columns,
    }
    return Draft(tree, left_out)


def _need_column(table: pd.DataFrame, column: str, location: str) -> None:
    if column not in table.columns:
        there = ", ".join(map(str, table.columns))
        raise DataError(f"no column {column!r}; the table has: {there}", location=location, value=column)


@dataclass(frozen=True)
class _ColumnValues:
    """What a column holds: distinct values by canonical spelling, in order, and whether some are missing."""

    rows: int
    distinct: tuple[str, ...]
    low: float
    high: float
    numeric: bool
    missing: bool

    @classmethod
    def of(cls, column: pd.Series) -> _ColumnValues:
        cells, rows = distinct(column)
        present = np.array([not is_missing(cell) for cell in cells], dtype=np.bool_)[rows]
        values = {canonical(cell) for cell in cells if not is_missing(cell)}
        # Asked of the canonical texts: True is a number to Python, "true" is none.
        numbers = {value: number(value) for value in values}
        numeric = bool(values) and all(map(math.isfinite, numbers.values()))
        return cls(
            rows=int(present.sum()),
            distinct=tuple(sorted(values, key=numbers.__getitem__ if numeric else None)),
            low=min(numbers.values()) if numeric else 0.0,
            high=max(numbers.values()) if numeric else 0.0,
            numeric=numeric,
            missing=not present.all(),
        )

    @property
    def whole(self) -> bool:
        """Whether all values are whole numbers."""
        return self.numeric and all(value.lstrip("-").isdigit() for value in self.distinct)

    def list_values(self) -> list[Value]:
        """The distinct values as a person would write them in TOML."""
        if self.whole:
            return [int(value) for value in self.distinct]
        if self.distinct and set(self.distinct) <= {"true", "false"}:
            return [value == "true" for value in self.distinct]
        return list(self.distinct)

    def range(self) -> list[float]:
        """Two digits beyond the data, so that no person's exact value is repeated; empty if no float is beyond.

        That hides little: a range taken from the data stays one, and the draft says so.
        """
        largest = Decimal(repr(max(abs(self.low), abs(self.high))))
        step = Decimal(1).scaleb(max(largest.adjusted() - 1, -300) if largest else 0)
        below = (Decimal(repr(self.low)) / step).to_integral_value(ROUND_CEILING) - 1
        above = (Decimal(repr(self.high)) / step).to_integral_value(ROUND_FLOOR) + 1
        low, high = float(below * step), float(above * step)
        return [low, high] if math.isfinite(high - low) else []


def _why_left_out(name: str, seen: _ColumnValues) -> str | None:
    """Names, ids, dates and free text would reveal who a person is rather than what is to be learned."""
    if _ID_NAME.search(name):
        return "looks like an identifier by its name"
    if not seen.distinct:
        return "has no values"
    if not seen.numeric and len(seen.distinct) == seen.rows and seen.rows > 2:
        return "text that differs in every row, perhaps an identifier"
    if not seen.numeric and len(seen.distinct) > MANY_TEXTS:
        return "text with many different values"
    return None


def _column(seen: _ColumnValues, from_data: bool) -> dict[str, Any]:
    few = seen.whole and len(seen.distinct) <= FEW_NUMBERS and 3 * len(seen.distinct) <= seen.rows
    if seen.numeric and not few:
        if not from_data:
            return {"kind": "number", "range": []}
        limits = seen.range()
        return {"kind": "number", "range": limits} | ({"missing": sum(limits) / 2} if seen.missing and limits else {})
    if not from_data:
        return {"kind": "category", "categories": []}
    if not seen.missing:
        return {"kind": "category", "categories": seen.list_values()}
    imputed = [] if _IMPUTED in seen.distinct else [_IMPUTED]
    return {"kind": "category", "categories": [*seen.list_values(), *imputed], "missing": _IMPUTED}


def _label(seen: _ColumnValues, from_data: bool) -> dict[str, Any]:
    if seen.numeric and not (seen.whole and len(seen.distinct) <= MANY_CLASSES):
        return {"kind": "number", "range": seen.range() if from_data else []}
    return {"kind": "class", "classes": seen.list_values() if from_data else []}


def _toml_lines(tree: Mapping[str, Any]) -> list[str]:
    return [f"{toml_key(key)} = {toml_value(value)}{_comment(key, value)}" for key, value in tree.items()]


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


def toml_key(key: str) -> str:
    """A key of a TOML file, quoted where it must be; on one line whatever is in it."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else toml_value(key)


def toml_value(value: Any) -> str:
    """Texts, numbers, true/false and lists are written alike in JSON and TOML, but for the character DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
