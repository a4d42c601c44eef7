"""How well scores tell members from others: AUC, and the rate of true "in" at a small rate of false "in"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from uldp.audits.bounds import upper_rate

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

FALSE_IN: Final = 0.01
"""The rate of false "in" at which the rate of true "in" is reported."""
RESAMPLES: Final = 400
LEVEL: Final = 0.05


@dataclass(frozen=True)
class Estimate:
    """A number, and an interval that has it with 95 % confidence."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"

    def to_json(self) -> dict[str, Any]:
        return {"value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class Rates:
    """AUC, and the rate of true "in" at a rate of false "in" of 1 %."""

    auc: Estimate
    true_in: Estimate


def rates_of(scores: Array, included: Mask, generator: np.random.Generator) -> Rates:
    """The rates of one threshold for everybody, over all models.

    Scores of one model are not independent, so intervals come from resampling whole models (bootstrap); where nothing
    varies, exact ones for independent guesses (Clopper-Pearson) are wider and count.

    Args:
        scores: (models, users).
        included: (models, users), who was there.
        generator: For resampling.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> coins = generator.random((100, 20)) < 0.5
        >>> rates = rates_of(generator.normal(1.0 * coins), coins, generator)
        >>> abs(rates.auc.value - 0.76) < 0.03, rates.auc.low < 0.76 < rates.auc.high
        (True, True)
    """
    model = np.repeat(np.arange(len(scores)), scores.shape[1])
    place = np.unique(scores.ravel(), return_inverse=True)[1]
    coins = included.ravel().astype(np.float64)
    counts = generator.multinomial(len(scores), np.full(len(scores), 1 / len(scores)), RESAMPLES)
    auc, true_in = _curve(place, coins, np.ones(len(coins)))
    drawn = np.array([_curve(place, coins, weights[model]) for weights in counts.astype(np.float64)])
    exact = _clopper_pearson(true_in, int(coins.sum()))
    return Rates(_between(auc, drawn[:, 0], (auc, auc)), _between(true_in, drawn[:, 1], exact))


def _curve(place: npt.NDArray[np.intp], coins: Array, weights: Array) -> tuple[float, float]:
    """AUC, and the rate of true "in" at ``FALSE_IN`` or less; equal scores are one place."""
    inside = np.bincount(place, weights=weights * coins)
    outside = np.bincount(place, weights=weights * (1 - coins))
    members, others = inside.sum(), outside.sum()
    if members == 0 or others == 0:
        return 0.5, 0.0
    below = np.cumsum(outside) - outside / 2
    false_in, true_in = np.cumsum(outside[::-1]) / others, np.cumsum(inside[::-1]) / members
    allowed = np.searchsorted(false_in, FALSE_IN + 1e-12, side="right")
    auc = float((inside * below).sum() / (members * others))
    return auc, float(true_in[allowed - 1]) if allowed else 0.0


def _between(value: float, drawn: Array, exact: tuple[float, float]) -> Estimate:
    low, high = np.quantile(drawn, [LEVEL / 2, 1 - LEVEL / 2])
    return Estimate(value, float(min(low, exact[0], value)), float(max(high, exact[1], value)))


def _clopper_pearson(rate: float, tries: int) -> tuple[float, float]:
    hits = round(rate * tries)
    return 1 - upper_rate(tries - hits, tries, LEVEL / 2), upper_rate(hits, tries, LEVEL / 2)
