"""What the paper on subject-level DP claims, and the noise it adds for it. NOT BOUNDS: for comparing with what holds.

Marathe and Kanani, "Subject Granular Differential Privacy in Federated Learning". A group of Z items is to be covered
at (epsilon, delta), so single items are at (epsilon / Z, delta / (Z exp((Z - 1) epsilon / Z))), and the noise is found
for those by the moments accountant (Abadi et al., CCS 2016).
"""

from __future__ import annotations

import functools
import math

import numpy as np

from uldp.errors import ConfigError
from uldp.privacy.accountants import account
from uldp.privacy.calibrate import MAX_MULTIPLIER, MIN_MULTIPLIER
from uldp.privacy.events import Group, NonPrivate, sampled_gaussian
from uldp.privacy.rdp import log_moments

_ORDERS = np.unique(np.concatenate([np.arange(2.0, 64.0), np.round(np.geomspace(64, 8192, 48))]))


def item_target(epsilon: float, delta: float, size: int) -> tuple[float, float]:
    """(epsilon, delta) of single items for which groups of ``size`` are at the given ones, by Theorem 3.1.

    >>> item_target(2.0, 1e-5, 1)
    (2.0, 1e-05)
    """
    return epsilon / size, delta / size * math.exp(-(size - 1) * epsilon / size)


def moments_epsilon(noise_multiplier: float, rate: float, steps: int, delta: float) -> float:
    """The moments accountant: the smallest over whole lambda of (steps alpha(lambda) + log 1/delta) / lambda."""
    if rate == 1:
        log_moment = _ORDERS * (_ORDERS - 1) / (2 * noise_multiplier**2)
    else:
        log_moment = log_moments(rate, noise_multiplier, _ORDERS)
    return float(np.min((steps * log_moment - math.log(delta)) / (_ORDERS - 1)))


@functools.lru_cache(maxsize=4096)
def published_noise(epsilon: float, delta: float, size: int, rate: float, steps: int) -> float:
    """sigma_Z: the noise multiplier that the paper takes for a largest group of ``size`` items in a batch."""
    target, target_delta = item_target(epsilon, delta, size)
    if target_delta == 0:
        raise ConfigError(
            f"a group of {size} items asks for a delta below what a float can hold; take a smaller batch or epsilon",
            location="batch_size",
            value=size,
        )

    def excess(log_multiplier: float) -> float:
        return math.log(moments_epsilon(math.exp(log_multiplier), rate, steps, target_delta) / target)

    low, high = math.log(MIN_MULTIPLIER), math.log(MAX_MULTIPLIER)
    if excess(high) > 0:
        raise ConfigError(
            f"no noise reaches epsilon {target:.3g} at delta {target_delta:.3g}, which a group of {size} items asks "
            "for; take a smaller batch or a larger epsilon",
            location="epsilon",
            value=epsilon,
        )
    from scipy.optimize import brentq

    return math.exp(low if excess(low) <= 0 else float(brentq(excess, low, high, xtol=1e-7)))


def item_epsilon(
    noise_multiplier: float,
    rate: float,
    steps: int,
    delta: float,
    *,
    items: int = 1,
    silos: int = 1,
    at_most: int | None = None,
) -> float:
    """What a subject with ``items`` items in each of ``silos`` silos faces: ``steps`` steps of DP-SGD in each."""
    step = sampled_gaussian(noise_multiplier, rate)
    several = step if isinstance(step, NonPrivate) else Group(items, step, at_most)
    return account({several: steps * silos}, delta).value
