"""The noise, or the number of rounds, for a target epsilon: found with the same accountant that will judge the run."""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from collections.abc import Callable

from uldp.errors import ConfigError, require
from uldp.privacy.accountants import account, check_delta
from uldp.privacy.bisection import bisect
from uldp.privacy.distance import NO_DISTANCE, Distance
from uldp.privacy.events import Composition, Event
from uldp.privacy.pld import quick_epsilon

MAX_MULTIPLIER = 1e6
MIN_MULTIPLIER = 1e-2


def calibrate(
    planned: Callable[[float], Composition],
    epsilon: float,
    delta: float,
    distance: Callable[[float], Distance] = lambda noise_multiplier: NO_DISTANCE,
) -> float:
    """The smallest noise multiplier (to 5 digits, rounded up) with which ``planned`` stays within ``epsilon``.

    ``planned(noise_multiplier)`` gives the whole run's composition, as the method itself states it, and ``distance``
    how far the view is from it. A quick bound says where to look, so that the accountant is asked a few times only.
    """
    _check_target(epsilon, delta)

    def excess(noise_multiplier: float) -> float:
        seen = planned(noise_multiplier)
        return distance(noise_multiplier).epsilon(lambda at: account(seen, at).value, delta) - epsilon

    high = _quick_multiplier(lambda noise_multiplier: quick_epsilon(planned(noise_multiplier), delta) <= epsilon)
    while (
        excess(high) > 0
    ):  # without a distance this is MAX_MULTIPLIER: the quick bound is never below the accountant's
        if high >= MAX_MULTIPLIER:
            raise _unreachable_error(account(planned(high), delta).value, epsilon)
        high = min(1.25 * high, MAX_MULTIPLIER)
    low = high
    while excess(low) <= 0:
        if low <= MIN_MULTIPLIER:
            return MIN_MULTIPLIER
        low, high = max(low * 0.8, MIN_MULTIPLIER), low
    from scipy.optimize import brentq

    def log_ratio(log_multiplier: float) -> float:
        reached = excess(math.exp(log_multiplier)) + epsilon
        return math.log(min(max(reached / epsilon, 1e-9), 1e9))

    found = _round_up(math.exp(brentq(log_ratio, math.log(low), math.log(high), xtol=1e-6, rtol=1e-6)))
    while excess(found) > 0:  # the root may lie a rounding on the wrong side
        found = _round_up(found * (1 + 1e-5))
    return found


@functools.lru_cache(maxsize=256)
def rounds_within(event: Event, epsilon: float, delta: float, at_most: int) -> int:
    """The largest number of rounds, up to ``at_most``, whose releases of ``event`` stay within ``epsilon``.

    >>> from uldp.privacy.events import Gaussian
    >>> rounds_within(Gaussian(5.0), 10.0, 1e-5, 1000)
    100
    """
    _check_target(epsilon, delta)
    enough, too_many = _bisect(lambda rounds: quick_epsilon({event: rounds}, delta) <= epsilon, 0, at_most + 1)
    step = 1 + enough // 8
    while enough < at_most:  # the quick bound is a little too large: go on from there in growing steps
        rounds = min(enough + step, at_most)
        if account({event: rounds}, delta).value > epsilon:
            too_many = rounds
            return _bisect(lambda count: account({event: count}, delta).value <= epsilon, enough, too_many)[0]
        enough, step = rounds, 2 * step
    return enough


def _bisect(holds: Callable[[int], bool], low: int, high: int) -> tuple[int, int]:
    """Neighbours between ``low``, which holds, and ``high``, which counts as not holding."""
    enough = low + bisect_left(range(low + 1, high), True, key=lambda count: not holds(count))
    return enough, enough + 1


def _quick_multiplier(holds: Callable[[float], bool]) -> float:
    """A noise multiplier that ``holds``, not much larger than needed; the largest there is if none does."""
    high = 1.0
    while not holds(high) and high < MAX_MULTIPLIER:
        high = min(high * 4, MAX_MULTIPLIER)
    low = min(1.0, high)
    while low > MIN_MULTIPLIER and holds(low):
        low, high = max(low / 4, MIN_MULTIPLIER), low
    return bisect(
        lambda multiplier: not holds(multiplier), low, high, close=lambda low, high: high <= 1.01 * low, geometric=True
    )[1]


def _check_target(epsilon: float, delta: float) -> None:
    check_delta(delta)
    require(0 < epsilon < math.inf, "privacy.epsilon", epsilon, "a positive number")


def _unreachable_error(closest: float, epsilon: float) -> ConfigError:
    return ConfigError(
        f"epsilon {epsilon:g} is out of reach: the closest there is, with noise multiplier {MAX_MULTIPLIER:g}, is "
        f"{closest:.4g}; take fewer rounds or a larger epsilon",
        location="privacy.epsilon",
        value=epsilon,
    )


def _round_up(value: float) -> float:
    """``value`` to five significant digits, upwards."""
    step = 10.0 ** (math.floor(math.log10(value)) - 4)
    return float(f"{math.ceil(value / step) * step:.12g}")
