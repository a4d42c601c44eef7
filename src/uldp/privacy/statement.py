"""The privacy statement: for whom which epsilon holds, and what it does not cover. Part of every result."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Exposure:
    """What one kind of observer faces: if a person is left out, and if a person's records are replaced by others."""

    who: str
    sees: str
    epsilon: float
    replaced: float

    def to_json(self) -> dict[str, Any]:
        return {
            "who": self.who,
            "sees": self.sees,
            "epsilon": finite_or_none(self.epsilon),
            "epsilon_if_replaced": finite_or_none(self.replaced),
        }

    def line(self) -> str:
        return (
            f"{self.who} sees {self.sees}: epsilon {show_epsilon(self.epsilon)} "
            f"({show_epsilon(self.replaced)} if records are replaced instead of left out)."
        )


@dataclass(frozen=True)
class Statement:
    """An (epsilon, delta) guarantee in words and numbers. ``epsilon`` is the outside world's.

    ``void`` says why there is no guarantee although noise was added; it is empty where there is one.
    """

    unit: str | None
    epsilon: float
    delta: float
    accountant: str
    rounds: int
    simulated: bool
    exposures: tuple[Exposure, ...]
    caveats: tuple[str, ...]
    void: str = ""
    first: int = 0
    """How many of the caveats weaken the headline and so stand right below it."""

    def headline(self) -> str:
        """The one sentence."""
        if self.unit is None:
            return "No privacy: this method bounds nobody's influence and adds no noise."
        if self.void:
            return f"NO GUARANTEE: {self.void}."
        if math.isinf(self.epsilon):
            return "NO PRIVACY: the noise is zero, so epsilon is infinite."
        secret = "" if not self.simulated else ", had its noise been secret (it is simulated here)"
        return (
            f"{self.unit.capitalize()}-level DP with epsilon {self.epsilon:.4g} at delta {self.delta:g} against "
            f"whoever sees the model of every round: all records of any one {self.unit}, in all silos together, "
            f"could have been left out (add/remove, {self.rounds} rounds, {self.accountant}){secret}."
        )

    def lines(self) -> list[str]:
        """The statement for people."""
        lines = [self.headline(), *self.caveats[: self.first]]
        if self.unit is not None and math.isfinite(self.epsilon):
            lines += [exposure.line() for exposure in self.exposures]
        return lines + list(self.caveats[self.first :])

    def to_json(self) -> dict[str, Any]:
        return {
            "headline": self.headline(),
            "unit": self.unit,
            "neighbours": "add or remove all records of one user, |U| public",
            "epsilon": finite_or_none(self.epsilon),
            "delta": self.delta,
            "accountant": self.accountant,
            "rounds": self.rounds,
            "noise": "simulated" if self.simulated else "secret",
            "exposures": [exposure.to_json() for exposure in self.exposures],
            "caveats": list(self.caveats),
        }


def finite_or_none(value: float) -> float | None:
    """JSON has no infinity: null stands for "no bound"."""
    return value if math.isfinite(value) else None


def show_epsilon(epsilon: float) -> str:
    """Epsilon for people.

    >>> show_epsilon(9.99726), show_epsilon(math.inf)
    ('9.997', 'infinite')
    """
    return f"{epsilon:.4g}" if math.isfinite(epsilon) else "infinite"
