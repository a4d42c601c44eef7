"""User ids in one spelling, so that a person is one unit of privacy in all silos.

Ids are read more strictly than other cells. One person under two spellings would be two units, each allowed the whole
clip, and nobody would notice. So spellings that programs change on the way are the same id (7, 7.0 and 007; A1 and a1;
full-width or decomposed letters), and ids that have lost digits, or that another file would write in its own way, are
refused. What no program changes by itself (hyphens, spaces inside, prefixes) is for the parties to agree on, in
``[data.ids]`` (:mod:`uldp.data.id_rules`).
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from numbers import Integral
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from uldp.data import values
from uldp.data.federation import IntArray
from uldp.data.files import column_names
from uldp.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

MISSING_IDS: Final = values.MISSING_WORDS | {"\\n", "(null)", "-", ".", "nat", "#null!"}  # "\n": MySQL's \N, casefolded

_MINUS: Final = "\u2212"
_EXACT: Final = 2.0**53  # below it, every whole number has a float64 of its own
_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)")
_EXPONENT: Final = re.compile(r"[+-]?[0-9]+([.,][0-9]+)?e[+-]?[0-9]+")
_GROUPED: Final = re.compile(r"[+-]?[0-9]{1,3}(,[0-9]{3})+(\.[0-9]*)?")


class Problem(NamedTuple):
    """Why cells cannot be ids, and what to do."""

    what: str
    remedy: str


NO_ID: Final = Problem(
    "rows have no user id",
    "a record that belongs to nobody cannot be protected, so fill in the id or leave the row out",
)
EXPONENT: Final = Problem(
    "ids in exponent notation have lost digits",
    "export the column as text (if these are codes and no numbers, put a letter before every id in all silos)",
)
GROUPED: Final = Problem("ids have commas between their digits", "write the digits without commas")
INEXACT: Final = Problem(
    "ids are fractions, or floats so large that they have lost digits",
    "export the column as text or whole numbers",
)
NOT_UTF8: Final = Problem("ids are bytes that are no UTF-8 text", "store ids as text")
NO_TEXT: Final = Problem("ids are neither text nor whole numbers", "store ids as text")


@dataclass(frozen=True)
class UserIds:
    """The id of every row; and for each id how it was written, but for blanks around it."""

    rows: list[str]
    spellings: Mapping[str, frozenset[str]]


def normalised_ids(
    frame: pd.DataFrame, user: str, location: str, rule: Callable[[str], str | Problem] = str
) -> UserIds:
    """The ids in column ``user`` of a table; ``location`` names the table in errors, ``rule`` reads each once more."""
    if user not in frame.columns:
        there = ", ".join(column_names(frame))
        index = "; it is the index: make it a column with .reset_index()" if user in frame.index.names else ""
        raise DataError(f"no user column {user!r}; the table has: {there}{index}", location=location, value=user)
    return read_ids(frame[user], f"column {user!r}", location, rule)


def read_ids(column: pd.Series, where: str, location: str, rule: Callable[[str], str | Problem] = str) -> UserIds:
    """The ids in a column, or one error that says how many cells are none, and which is the first."""
    cells, rows = values.distinct(column)
    exact = _exact_below(column)
    spelled = (canonical_id(cell, exact) for cell in cells)
    found = [user if isinstance(user, Problem) else rule(user) for user in spelled]
    _refuse_problems(found, rows, where, location)
    ids = [str(user) for user in found]
    spellings: dict[str, set[str]] = {}
    for user, cell in zip(ids, cells, strict=True):
        # A typed number was not written by anybody: it has the one spelling.
        spellings.setdefault(user, set()).add(cell.strip() if isinstance(cell, str) else user)
    return UserIds([ids[row] for row in rows], {user: frozenset(ways) for user, ways in spellings.items()})


def canonical_id(cell: object, exact: float = _EXACT) -> str | Problem:
    """The one spelling of an id, or why the cell is none; floats from ``exact`` up have lost digits.

    >>> {canonical_id(value) for value in (7, 7.0, "7", " 7.0", "007", b"7")}
    {'7'}
    >>> canonical_id("1.23457E+11").what
    'ids in exponent notation have lost digits'
    """
    if isinstance(cell, bytes):
        try:
            cell = cell.decode()
        except UnicodeDecodeError:
            return NOT_UTF8
    if cell is None:
        return NO_ID
    if isinstance(cell, str):
        return _text_id(cell)
    if isinstance(cell, bool | np.bool_):
        return str(cell).lower()
    if isinstance(cell, Integral):
        return str(int(cell))
    if isinstance(cell, Decimal):
        return number_id(f"{cell:f}") if cell.is_finite() else INEXACT
    if not isinstance(cell, float | np.floating):
        return NO_TEXT
    if math.isnan(cell):
        return NO_ID
    return str(int(cell)) if float(cell).is_integer() and abs(float(cell)) < exact else INEXACT


def _text_id(cell: str) -> str | Problem:
    text = folded(cell)
    if text in MISSING_IDS:
        return NO_ID
    if _EXPONENT.fullmatch(text):
        return EXPONENT
    if _GROUPED.fullmatch(text):
        return GROUPED
    if not _NUMBER.fullmatch(text):
        return text
    # "9007199254740992.0" was a float once: only a float writes a whole number with a point.
    whole = number_id(text)
    return INEXACT if "." in text and "." not in whole and abs(Decimal(whole)) >= _EXACT else whole


def folded(text: str) -> str:
    """Letters and digits that look or mean the same become the same; what cannot be seen goes."""
    if text.isascii() and text.isprintable():
        return text.casefold().strip()
    visible = "".join(char for char in text if not _is_invisible(char)).replace(_MINUS, "-")
    # Twice: folding may leave letters that compose again.
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", visible).casefold())
    return "".join(str(unicodedata.decimal(char, char)) for char in folded).strip()


def _is_invisible(char: str) -> bool:
    """Formatting, control characters (such as the zeros that fill a binary column) and variation selectors."""
    category = unicodedata.category(char)
    return category == "Cf" or (category == "Cc" and not char.isspace()) or "\ufe00" <= char <= "\ufe0f"


def number_id(text: str) -> str:
    """No plus, no leading zeros, no zeros behind the point; exact at any length."""
    whole, _, rest = text.lstrip("+-").partition(".")
    whole, rest = whole.lstrip("0") or "0", rest.rstrip("0")
    number = f"{whole}.{rest}" if rest else whole
    return f"-{number}" if text.startswith("-") and number != "0" else number


def _exact_below(column: pd.Series) -> float:
    """2^24 for a column of float32, 2^11 for float16: its cells arrive as float64, but rounded."""
    dtype = getattr(column.dtype, "numpy_dtype", column.dtype)
    if isinstance(dtype, np.dtype) and np.issubdtype(dtype, np.floating):
        return 2.0 ** (np.finfo(dtype).nmant + 1)
    return _EXACT


def _refuse_problems(found: Sequence[str | Problem], rows: IntArray, where: str, location: str) -> None:
    wrong = np.array([isinstance(user, Problem) for user in found], dtype=np.bool_)
    if not wrong.any():
        return
    first = int(np.argmax(wrong[rows]))
    problem = found[rows[first]]
    assert isinstance(problem, Problem)
    count = int(np.array([user == problem for user in found])[rows].sum())
    # The ids themselves are not part of the message: it may end in a log.
    reason = f"{count} {problem.what} in {where} (first: row {first + 1}); {problem.remedy}"
    raise DataError(reason, location=location, value=count)
