"""What is wrong with the cells of a table: how many, in which columns, in which row first. Never what they say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from uldp.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

Matrix = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

UNREADABLE: Final = "unreadable"
ABSENT: Final = "missing"
OUTSIDE: Final = "outside"
CLIPPED: Final = "clipped"
REPLACED: Final = "taken as missing:"
GROUPED: Final = "taken as another category:"
UNLABELLED: Final = "unlabelled"
LEFT_OUT: Final = "left out:"
NOTES: Final = (CLIPPED, REPLACED, GROUPED)
"""Kinds of findings that refuse nothing; all others do."""


@dataclass(frozen=True)
class CellProblem:
    """What is wrong with some cells of one column, by row.

    The text names no value: it may end in a log, and who holds the table can look.
    """

    kind: str
    column: str
    wrong: Mask
    expected: str

    @property
    def count(self) -> int:
        return int(self.wrong.sum())

    @property
    def text(self) -> str:
        """How many cells, and in which row the first of them is."""
        return f"{self.count} {self.expected} in column {self.column!r} (first: row {int(np.argmax(self.wrong)) + 1})"

    def among(self, rows: Mask) -> CellProblem:
        """The same problem of these rows only."""
        return CellProblem(self.kind, self.column, self.wrong & rows, self.expected)


def find(kind: str, column: pd.Series, wrong: Mask, expected: str) -> list[CellProblem]:
    """One finding for the cells marked in ``wrong``, none if there are none."""
    return [CellProblem(kind, str(column.name), wrong, expected)] if wrong.any() else []


def kept_rows(findings: Sequence[CellProblem], rows: int) -> Mask:
    """Which rows have a label."""
    kept = np.ones(rows, dtype=np.bool_)
    for finding in findings:
        if finding.kind == LEFT_OUT:
            kept &= ~finding.wrong
    return kept


def judge(findings: Sequence[CellProblem], location: str, rows: Mask | None = None) -> None:
    """Raise for the gravest kind of finding about these rows, naming every column that has it."""
    remedies = {
        UNREADABLE: "correct these cells, or change the column's kind or list in the schema",
        ABSENT: "set missing = <an agreed constant> for the column in the schema or leave the rows out",
        UNLABELLED: 'every row needs its label, so leave these rows out (missing = "drop" for the label does that)',
        OUTSIDE: 'correct these cells, widen the schema, or set its outside = "clip" (or "missing")',
    }
    considered = findings if rows is None else [finding.among(rows) for finding in findings]
    for kind, remedy in remedies.items():
        found = [finding for finding in considered if finding.kind == kind and finding.count]
        if found:
            texts = ", ".join(finding.text for finding in found)
            raise DataError(f"{texts}; {remedy}", location=location, value=sum(one.count for one in found))
