"""Columns that a draft leaves out: who somebody is, what came after, and what nobody could learn from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from uldp.data.draft_columns import ColumnValues
from uldp.data.federation import IntArray
from uldp.data.values import canonical, distinct, is_missing

if TYPE_CHECKING:
    import pandas as pd

MANY_TEXTS: Final = 50  # a text column of more values than this is no category
_MANY_ROWS: Final = 50  # fewer rows say little about what differs in every row
_SAYS_THE_LABEL: Final = 0.99

_ID_NAME: Final = re.compile(r"(^|[^A-Za-z])[iI][dD]$|[a-z](Id|ID)$")
_PERSON_NAME: Final = re.compile(
    r"(^|_|\b)(mrn|ssn|nhs|iban|passport|e?mail|phone|mobile|address|street|(sur|first|last|full|given|family)_?name)"
    r"(_?(no|nr|number))?(_|\b|$)",
    re.IGNORECASE,
)
_OUTCOME_NAME: Final = re.compile(
    r"outcome|died|death|dead|deceased|surviv|censor|(^|_)event|relapse|recurr|readmi|discharge|follow_?up|"
    r"(^|_)status$|(days|time|months|years)_to_|(^|_)target|(^|_)label|prognos",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Doubt:
    """Why a column is left out. ``offer`` says that a commented-out block for it is worth writing down."""

    reason: str
    offer: bool = False


def doubt_about(
    name: str, seen: ColumnValues, column: pd.Series, people: pd.Series | None, labels: pd.Series | None
) -> Doubt | None:
    """Why a column should not be a feature without somebody having thought about it."""
    if _ID_NAME.search(name):
        return Doubt("looks like an identifier by its name")
    if _PERSON_NAME.search(name):
        return Doubt("looks like personal details by its name")
    if not seen.counts:
        return Doubt("has no values")
    if seen.formats() is not None:
        return Doubt("holds dates; use it only if they are known when a prediction is made", offer=True)
    if _OUTCOME_NAME.search(name):
        return Doubt("may be an outcome, or known only after it, by its name", offer=True)
    return _by_content(seen, column, people, labels)


def _by_content(
    seen: ColumnValues, column: pd.Series, people: pd.Series | None, labels: pd.Series | None
) -> Doubt | None:
    differs = len(seen.counts) == seen.rows
    if not seen.numeric and differs and seen.rows > 2:
        return Doubt("text that differs in every row, perhaps an identifier")
    if not seen.numeric and len(seen.counts) > MANY_TEXTS:
        return Doubt("text with many different values")
    if seen.whole and differs and seen.rows >= _MANY_ROWS:
        return Doubt("whole numbers that differ in every row, perhaps an identifier", offer=True)
    if (seen.whole or not seen.numeric) and people is not None and _names_people(column, people):
        return Doubt("has another value for every person, perhaps an identifier", offer=True)
    if labels is not None and _says_label(seen, column, labels):
        return Doubt("says the label almost by itself; perhaps it is an outcome", offer=True)
    return None


def _codes(column: pd.Series) -> IntArray:
    """Equal numbers for equal values, -1 where there is none."""
    cells, rows = distinct(column)
    index: dict[str, int] = {}
    codes = [-1 if is_missing(cell) else index.setdefault(canonical(cell), len(index)) for cell in cells]
    return np.array(codes, dtype=np.int64)[rows]


def _names_people(column: pd.Series, people: pd.Series) -> bool:
    """Whether values and people correspond one to one."""
    pairs = np.unique(np.stack([_codes(column), _codes(people)]), axis=1)
    pairs = pairs[:, (pairs >= 0).all(axis=0)]
    count = pairs.shape[1]
    return count >= _MANY_ROWS and all(len(np.unique(part)) == count for part in pairs)


def _says_label(seen: ColumnValues, column: pd.Series, labels: pd.Series) -> bool:
    """Whether the commonest label of each value is nearly always right, where labels are not nearly always the same."""
    values, classes = _codes(column), _codes(labels)
    known = (values >= 0) & (classes >= 0)
    values, classes = values[known], classes[known]
    few = 10 * len(seen.counts) <= len(values) and 2 <= len(np.unique(classes)) <= MANY_TEXTS
    if not few or len(values) < _MANY_ROWS:
        return False
    table = np.zeros((int(values.max()) + 1, int(classes.max()) + 1), dtype=np.int64)
    np.add.at(table, (values, classes), 1)
    right, base = int(table.max(axis=1).sum()), int(table.sum(axis=0).max())
    return right >= _SAYS_THE_LABEL * len(values) and len(values) - right < (len(values) - base) / 10
