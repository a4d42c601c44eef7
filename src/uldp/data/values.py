"""Cells of a table, one by one. What a cell means depends on that cell alone.

This matters for privacy, not only for tidiness: a parser that infers a column's type from all rows would let
one person's record change how everybody else's is read.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Hashable, Mapping
from decimal import Decimal
from numbers import Integral, Real
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from uldp.data.federation import IntArray

if TYPE_CHECKING:
    import pandas as pd

Value = str | int | float | bool

MISSING_WORDS: Final = frozenset({"", "na", "n/a", "#n/a", "nan", "-nan", "+nan", "null", "none", "<na>", "?"})
MISSING: Final = -1
UNKNOWN: Final = -2

_LONGEST_NUMBER: Final = 1000  # Python refuses to read whole numbers of more than 4300 digits
_DECIMAL: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)", re.ASCII)


def canonical(value: object) -> str:
    """One spelling for what is the same value: 7, 7.0, "7", " 7 " and "007" agree, and so do True and "true".

    Leading zeros go, because spreadsheets lose them. User ids are read by stricter rules, in ``ids``.

    >>> {canonical(value) for value in (7, 7.0, "7", " 7.0", "007")}
    {'7'}
    """
    if isinstance(value, str):
        return _canonical_text(value)
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, Real | Decimal):
        return _canonical_float(float(value))
    return _canonical_text(value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value))


def is_missing(value: object) -> bool:
    """Whether a cell is empty or holds one of the usual words for "no value"."""
    if isinstance(value, str):
        return value.strip().lower() in MISSING_WORDS
    return value is None or (isinstance(value, float) and math.isnan(value))


def cells(column: pd.Series) -> list[object]:
    """The column as Python values, with None for what pandas or Arrow mark as missing."""
    values: list[object] = column.astype(object).where(column.notna(), None).tolist()
    return values


def distinct(column: pd.Series) -> tuple[list[object], IntArray]:
    """The different cells of a column, and which of them each row holds. 1 and True are not the same cell."""
    if column.dtype == "str":  # a CSV file's cells: pandas does the same, many times faster
        import pandas as pd

        codes, found = pd.factorize(column, use_na_sentinel=False)
        return cells(pd.Series(found)), codes.astype(np.int64)
    seen: dict[tuple[type, object], int] = {}
    different: list[object] = []
    rows = np.empty(len(column), dtype=np.int64)
    for row, cell in enumerate(cells(column)):
        key = (type(cell), cell if isinstance(cell, Hashable) else repr(cell))
        if key not in seen:
            seen[key] = len(different)
            different.append(cell)
        rows[row] = seen[key]
    return different, rows


def numbers(column: pd.Series) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """The column as numbers, NaN where a value is missing; and a mask of cells that are no finite number."""
    from pandas.api.types import is_numeric_dtype

    if is_numeric_dtype(column.dtype):
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
    else:
        plain = _plain_numbers(column)
        values = np.array([number(cell) for cell in cells(column)]) if plain is None else plain
    return values, np.isinf(values)


def number(cell: object) -> float:
    """NaN for a missing cell, infinity for one that is no finite number."""
    try:
        if isinstance(cell, str):  # Python reads "1_000"; a table means something else by it
            return math.inf if "_" in cell else float(cell)
        return math.nan if cell is None else float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan if is_missing(cell) else math.inf


def _plain_numbers(column: pd.Series) -> npt.NDArray[np.float64] | None:
    """The fast path for text cells that are all finite numbers; None where one is not.

    Both paths round correctly, so they agree to the last bit (a test holds them to it): a cell's number does not
    depend on which path the other cells of the column made us take.
    """
    import pyarrow as pa

    if column.dtype != "str":
        return None
    try:
        values: npt.NDArray[np.float64] = pa.array(column, pa.string()).cast(pa.float64()).to_numpy(False)
    except pa.ArrowException:
        return None
    return values if np.isfinite(values).all() else None


def codes(column: pd.Series, index: Mapping[str, int], spell: Callable[[object], str] = canonical) -> IntArray:
    """The position of each cell's value in ``index`` (by the spelling that ``spell`` gives), or MISSING, or UNKNOWN.

    A listed value is never missing: a category may be called "none".
    """
    different, rows = distinct(column)
    return np.array([_code(cell, index, spell) for cell in different], dtype=np.int64)[rows]


def _code(cell: object, index: Mapping[str, int], spell: Callable[[object], str]) -> int:
    if cell is None:
        return MISSING
    return index.get(spell(cell), MISSING if is_missing(cell) else UNKNOWN)


def _canonical_text(value: str) -> str:
    text = unicodedata.normalize("NFC", value).strip()
    if len(text) <= _LONGEST_NUMBER and _DECIMAL.fullmatch(text):
        whole, _, rest = text.partition(".")
        # Whole numbers stay exact: an id of twenty digits does not survive a float.
        return str(int(whole)) if whole.strip("+-") and not rest.strip("0") else _canonical_float(float(text))
    return text.lower() if text.lower() in ("true", "false") else text


def _canonical_float(value: float) -> str:
    # By its shortest text: above 2^53 a float's exact digits are more than any file would spell out.
    return str(int(Decimal(repr(value)))) if value.is_integer() else repr(value)
