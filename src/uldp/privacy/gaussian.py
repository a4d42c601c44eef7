"""The unsampled Gaussian, exactly: Balle and Wang (ICML 2018).

A composition of Gaussians is one Gaussian, mu^2 = sum of (sensitivity / sigma)^2, and a user with k records moves the
sum by k.
"""

from __future__ import annotations

import math

from uldp.privacy.bisection import bisect
from uldp.privacy.events import Composition, Event, Gaussian, Group, NoisedSum, PoissonSampled, flatten, parameters


def gaussian_delta(epsilon: float, mu: float) -> float:
    """delta(epsilon) of a Gaussian with sensitivity/deviation ``mu``: Balle and Wang, Theorem 8."""
    from scipy.special import log_ndtr

    first = log_ndtr(-epsilon / mu + mu / 2)
    second = epsilon + log_ndtr(-epsilon / mu - mu / 2)
    if second >= first:  # equal up to rounding: the difference is below what float64 shows
        return 0.0
    return float(math.exp(first) * -math.expm1(second - first))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The epsilon of a Gaussian with sensitivity/deviation ``mu``, bisected from the safe side.

    >>> round(gaussian_epsilon(math.sqrt(100) / 5, 1e-5), 3)
    9.997
    """
    if mu == 0 or gaussian_delta(0.0, mu) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(high, mu) > delta:
        high *= 2
    return bisect(
        lambda epsilon: gaussian_delta(epsilon, mu) > delta,
        0.0,
        high,
        close=lambda low, high: high - low <= 1e-12 * max(1.0, high),
    )[1]


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The sensitivity/deviation whose epsilon is ``epsilon``: the inverse of :func:`gaussian_epsilon`.

    >>> round(gaussian_epsilon(gaussian_mu(3.0, 1e-5), 1e-5), 9)
    3.0
    """
    low, high = 0.0, 1.0
    while gaussian_delta(epsilon, high) <= delta:
        low, high = high, high * 2
    return bisect(
        lambda mu: gaussian_delta(epsilon, mu) <= delta, low, high, close=lambda low, high: high - low <= 1e-12 * high
    )[0]


def unsampled_mu(composition: Composition) -> float:
    """mu of ``composition`` if nothing were sampled: exact where nothing is, a bound for everything else."""
    total = 0.0
    for event, count in flatten(composition).items():
        assert isinstance(event, NoisedSum)
        of = parameters(event)
        total += count * (of.max_clips / of.noise_multiplier) ** 2
    return math.sqrt(total)


class AnalyticGaussian:
    """Exact for unsampled Gaussians, a group's too."""

    name = "analytic-gaussian"

    def accepts(self, event: Event) -> bool:
        match event:
            case Gaussian() | PoissonSampled(1.0, _) | Group(_, Gaussian() | PoissonSampled(1.0, _)):
                return True
        return False

    def epsilon(self, composition: Composition, delta: float) -> float:
        return gaussian_epsilon(unsampled_mu(composition), delta)
