"""Composition of many pure epsilon-DP releases, and the numerics that it shares with shuffling."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from uldp.errors import require
from uldp.limits import check_whole
from uldp.privacy.bisection import bisect
from uldp.privacy.mixture import Array

MIN_GAIN = 1e-3
"""An epsilon that composition or shuffling lowers by less than this share counts as not lowered."""

TAIL = 1e-6
"""The share of delta that each cut tail of a binomial distribution may take."""

ROUNDING = 1e-9
"""What float64 may lose in a sum of binomial probabilities, relatively and generously."""

MAX_RELEASES = 10**9
"""That are composed, for the sake of time. Beyond, epsilons are added up."""

TOLERANCE = 1e-8
"""How much larger than the bound itself, relatively, an epsilon found by bisection may be."""


def advanced_composition(epsilon: float, times: int, slack: float) -> float:
    """The epsilon of ``times`` adaptive eps-DP releases at a delta of ``slack``: the smallest there is.

    Kairouz, Oh and Viswanath (ICML 2015): nothing is worse than ``times`` randomized responses, whose loss is
    (2 l - times) eps with l ~ Bin(times, e^eps / (e^eps + 1)). Where every release has a delta of its own, these add
    to ``slack``.

    >>> round(advanced_composition(0.1, 1000, 1e-5), 2)
    17.79
    """
    require(0 < epsilon < math.inf, "epsilon", epsilon, "a positive number")
    require(0 < slack < 1, "privacy.delta", slack, "a number between 0 and 1")
    check_whole(times, 1, MAX_RELEASES, "times")
    hits, weights = likely_outcomes(times, 1 / (1 + math.exp(-epsilon)), TAIL * slack)
    losses = (2 * hits - times) * epsilon

    def delta(target: float) -> float:
        above = float(weights @ -np.expm1(np.minimum(target - losses, 0.0)))
        return above * (1 + ROUNDING) + 2 * TAIL * slack

    return smallest(delta, slack, times * epsilon)


def likely_outcomes(trials: int, probability: float, tail: float) -> tuple[Array, Array]:
    """The outcomes of a binomial distribution and their probabilities, but for at most ``tail`` on either side.

    The cut is Hoeffding's, so that it needs no numeric quantile.
    """
    from scipy.stats import binom

    mean, half_width = trials * probability, math.sqrt(trials * math.log(1 / tail) / 2)
    low, high = max(0, math.floor(mean - half_width)), min(trials, math.ceil(mean + half_width))
    outcomes = np.arange(low, high + 1, dtype=np.float64)
    return outcomes, np.asarray(binom.pmf(outcomes, trials, probability), dtype=np.float64)


def smallest(delta_of: Callable[[float], float], delta: float, highest: float) -> float:
    """The smallest epsilon with ``delta_of`` at most ``delta``, rounded up; ``highest`` counts as holding."""
    if delta_of(0.0) <= delta:
        return 0.0
    return bisect(
        lambda epsilon: not delta_of(epsilon) <= delta,
        0.0,
        highest,
        close=lambda low, high: high - low <= TOLERANCE * high,
    )[1]
