"""What must be said beside an epsilon, as values: a code for programs, a severity, and one sentence for people."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Severity(IntEnum):
    """How much a caveat takes away from the headline."""

    NOTE = 0
    """Stands with the numbers."""
    LIMITS = 1
    """Limits whom, or against whom, the headline holds."""
    WEAKENS = 2
    """Weakens the headline itself, and stands right below it."""


@dataclass(frozen=True)
class Caveat:
    """One sentence of a privacy statement.

    Args:
        code: A short name that stays the same, for programs.
        text: The sentence.
        severity: How much it takes away from the headline.

    Example:
        >>> str(Caveat("rounding", "The noise is floating point."))
        'The noise is floating point.'
    """

    code: str
    text: str
    severity: Severity = Severity.NOTE

    def __str__(self) -> str:
        return self.text
