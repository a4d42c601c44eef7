"""The noise for a target epsilon, found with the same accountant that will judge the run."""

from __future__ import annotations

import math
from collections.abc import Callable

from uldp.errors import ConfigError
from uldp.privacy.accountants import Composition, account, check_delta

LARGEST_MULTIPLIER = 1e6
SMALLEST_MULTIPLIER = 1e-2


def calibrate(planned: Callable[[float], Composition], epsilon: float, delta: float) -> float:
    """The smallest noise multiplier (to 5 digits, rounded up) with which ``planned`` stays within ``epsilon``.

    ``planned(noise_multiplier)`` gives the whole run's composition, as the method itself states it.
    """
    check_delta(delta)
    if not 0 < epsilon < math.inf:
        raise ConfigError(f"a positive number, not {epsilon}", place="privacy.epsilon", value=epsilon)

    def excess(log_multiplier: float) -> float:
        return account(planned(math.exp(log_multiplier)), delta).value - epsilon

    low = high = 0.0
    while excess(high) > 0:
        low, high = high, high + math.log(2)
        if high > math.log(LARGEST_MULTIPLIER):
            raise ConfigError(
                f"epsilon {epsilon:g} is out of reach even with noise multiplier {LARGEST_MULTIPLIER:g}; "
                "take fewer rounds or a larger epsilon",
                place="privacy.epsilon",
                value=epsilon,
            )
    while low > math.log(SMALLEST_MULTIPLIER) and excess(low) <= 0:
        low, high = low - math.log(2), low
    if excess(low) <= 0:
        return _rounded_up(math.exp(low))
    from scipy.optimize import brentq

    found = _rounded_up(math.exp(brentq(excess, low, high, xtol=1e-6, rtol=1e-6)))
    while excess(math.log(found)) > 0:  # the root may lie a rounding on the wrong side
        found = _rounded_up(found * (1 + 1e-5))
    return found


def _rounded_up(value: float) -> float:
    """``value`` to five significant digits, upwards."""
    step = 10.0 ** (math.floor(math.log10(value)) - 4)
    return float(f"{math.ceil(value / step) * step:.12g}")
