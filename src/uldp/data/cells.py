"""How the cells of a column are read: which mean "no value", which mean the same, what happens to one outside.

Every rule is a public constant and is applied to one cell at a time, so that no record changes how another is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from uldp.data import values
from uldp.data.federation import IntArray
from uldp.data.findings import ABSENT, CLIPPED, GROUPED, OUTSIDE, REPLACED, UNREADABLE, CellProblem, Mask, Matrix, find
from uldp.data.values import MISSING, UNKNOWN, Value

if TYPE_CHECKING:
    import pandas as pd

OUTSIDE_RULES: Final = ("error", "clip", "missing")
"""What happens to a cell outside its range or list; the first is the default."""


@dataclass(frozen=True)
class CellRules:
    """The rules of one column beyond its range or list.

    Args:
        missing_codes: What is written for "no value", besides the usual words.
        outside: What happens to a cell outside the range or list; empty for the rule of the schema.
        aliases: Other spellings of a category.
        fold_case: Whether capital letters make no difference.
        other: The category that a value on no list counts as.
        factor: By the name of a silo, what its numbers are multiplied with to be in the agreed unit.
    """

    missing_codes: tuple[Value, ...] = ()
    outside: str = ""
    aliases: tuple[tuple[Value, tuple[Value, ...]], ...] = ()
    fold_case: bool = False
    other: Value | None = None
    factor: tuple[tuple[str, float], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The rules that are not the default, as they stand in an experiment file."""
        plain: dict[str, Any] = {
            "missing_codes": list(self.missing_codes),
            "outside": self.outside,
            "aliases": {str(name): list(spellings) for name, spellings in self.aliases},
            "fold_case": self.fold_case,
            "factor": dict(self.factor),
        }
        given = {key: value for key, value in plain.items() if value}
        return given if self.other is None else given | {"other": self.other}

    def spell(self, value: object) -> str:
        """The one spelling by which two cells are compared."""
        text = values.canonical(value)
        return text.casefold() if self.fold_case else text

    def index(self, listed: tuple[Value, ...]) -> dict[str, int]:
        """From every known spelling to its position on the list, or to MISSING."""
        index = {self.spell(code): MISSING for code in self.missing_codes}
        index |= {self.spell(value): position for position, value in enumerate(listed)}
        for name, spellings in self.aliases:
            index |= dict.fromkeys(map(self.spell, spellings), index[self.spell(name)])
        return index

    def codes(self, column: pd.Series, listed: tuple[Value, ...]) -> IntArray:
        """The position of each cell on the list, or MISSING, or UNKNOWN."""
        return values.codes(column, self.index(listed), self.spell)

    def numbers(self, column: pd.Series, silo: str) -> tuple[Matrix, Mask]:
        """The column in the agreed unit, NaN where a value is missing; and which cells are no finite number."""
        numbers, unreadable = values.numbers(column)
        if self.missing_codes:
            coded = self.is_code(column, numbers, unreadable)
            numbers, unreadable = np.where(coded, np.nan, numbers), unreadable & ~coded
        return numbers * dict(self.factor).get(silo, 1.0), unreadable

    def is_code(self, column: pd.Series, numbers: Matrix, unreadable: Mask) -> Mask:
        """Which cells are a code for "no value": numbers are compared as numbers, other cells as text."""
        known = np.array([values.number(code) for code in self.missing_codes])
        coded = np.isin(numbers, known[np.isfinite(known)])
        if unreadable.any():
            spelled = {values.canonical(code).casefold() for code in self.missing_codes}
            different, rows = values.distinct(column)
            texts = np.array([values.canonical(cell).casefold() in spelled for cell in different], dtype=np.bool_)
            coded |= unreadable & texts[rows]
        return np.asarray(coded, dtype=np.bool_)


NO_RULES: Final = CellRules()


@dataclass(frozen=True)
class Limits:
    """A public range, and what is imputed for a missing value."""

    low: float
    high: float
    impute: float | None = None

    def apply(
        self, column: pd.Series, numbers: Matrix, unreadable: Mask, outside: str
    ) -> tuple[Matrix, list[CellProblem]]:
        """The numbers scaled to [-1, 1] and clipped to it, and what was wrong."""
        missing = np.isnan(numbers)
        beyond = ~missing & ~unreadable & ((numbers < self.low) | (numbers > self.high))
        within = f"the agreed range [{self.low:g}, {self.high:g}]"
        if outside == "missing":
            findings = find(REPLACED, column, beyond | unreadable, f"outside {within} or not a number")
            missing |= beyond | unreadable
        else:
            findings = find(UNREADABLE, column, unreadable, "not a finite number")
            findings += find(CLIPPED if outside == "clip" else OUTSIDE, column, beyond, f"outside {within}")
        if self.impute is None:
            findings += find(ABSENT, column, missing, "missing")
        else:
            numbers = np.where(missing, self.impute, numbers)
        return 2 * (np.clip(numbers, self.low, self.high) - self.low) / (self.high - self.low) - 1, findings


def read_listed(
    column: pd.Series, listed: tuple[Value, ...], rules: CellRules, impute: Value | None, outside: str
) -> tuple[IntArray, list[CellProblem]]:
    """The position of each cell on a list of categories, and what was wrong; UNKNOWN stays where it is clipped."""
    codes = rules.codes(column, listed)
    unknown, findings = codes == UNKNOWN, []
    what = "not among the agreed categories"
    if rules.other is not None:
        findings += find(GROUPED, column, unknown, what)
        codes[unknown] = rules.index(listed)[rules.spell(rules.other)]
    elif outside == "missing":
        findings += find(REPLACED, column, unknown, what)
        codes[unknown] = MISSING
    else:
        findings += find(CLIPPED if outside == "clip" else OUTSIDE, column, unknown, what)
    if impute is None:
        findings += find(ABSENT, column, codes == MISSING, "missing")
    else:
        codes[codes == MISSING] = rules.index(listed)[rules.spell(impute)]
    return codes, findings


def factors_for(factors: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    """Factors by silo in one order, whatever the order in the file."""
    return tuple(sorted((name, float(factor)) for name, factor in factors.items()))
