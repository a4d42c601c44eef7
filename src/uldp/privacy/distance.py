"""The epsilon of a view that is near the one which an event describes, by two bounds of how near.

Write P, P' for the view of two neighbouring data sets, and Q, Q' for what the event describes, with Q(A) <= e^eps Q'(A)
+ delta' for every set A.

*Statistical distance* t. P(A) <= Q(A) + t <= e^eps Q'(A) + delta' + t <= e^eps (P'(A) + t) + delta' + t. So the view
has epsilon at delta = delta' + (1 + e^eps) t: nothing where epsilon is large, however small t is.

*Shifted noise.* P is Q with its noise shifted, as by a Gaussian mechanism of noise multiplier 1 / mu: rho-zCDP with
rho = mu^2 / 2, in both directions. zCDP implies P(A) <= e^eps1 Q(A) + delta1 with delta1 = exp(-(eps1 - rho)^2 / (4
rho)) (Bun and Steinke, TCC 2016, Proposition 1.3), which is exp(-(c - mu / 2)^2 / 2) for eps1 = c mu. Three steps, from
P over Q and Q' to P':

    P(A) <= e^eps1 (e^eps (e^eps1 P'(A) + delta1) + delta') + delta1
          = e^(eps + 2 eps1) P'(A) + e^eps1 delta' + (1 + e^(eps1 + eps)) delta1

With c = 41, delta1 is about e^-840: it outweighs e^eps up to an epsilon of 800, and for small mu the rest costs next to
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

TAIL: Final = 41.0
"""c: eps1 = c mu."""
TAIL_SHARE: Final = 2.0**-20
"""The part of delta that may be spent on (1 + e^(eps1 + eps)) delta1."""


@dataclass(frozen=True)
class Distance:
    """How far a view is from what an event describes; of two valid bounds the better one counts.

    ``statistical`` is the statistical distance. ``shift`` is mu: by how many standard deviations the noise is shifted;
    infinite where no such bound is known.
    """

    statistical: float = 0.0
    shift: float = math.inf

    def __add__(self, other: Distance) -> Distance:
        """The distance of both views together: statistical distances add up, and the squares of shifts.

        >>> Distance(0.25, shift=3.0) + Distance(0.5, shift=4.0) + NO_DISTANCE
        Distance(statistical=0.75, shift=5.0)
        """
        if 0.0 in (self.statistical, other.statistical):  # one of them is no distance, whatever its shift says
            return other if self.statistical == 0.0 else self
        return Distance(self.statistical + other.statistical, math.hypot(self.shift, other.shift))

    def times(self, rounds: int) -> Distance:
        """The distance of so many rounds of the same kind."""
        shift = self.shift * math.sqrt(rounds) if rounds else 0.0
        return Distance(self.statistical * rounds, shift)

    def epsilon(self, epsilon_at: Callable[[float], float], delta: float) -> float:
        """The epsilon at ``delta`` of what is so far from a release with ``epsilon_at(delta)``."""
        if self.statistical == 0.0:
            return epsilon_at(delta)
        shifted = account_shifted(epsilon_at, delta, self.shift)
        return min(shifted, account_at_distance(epsilon_at, delta, self.statistical, shifted))


NO_DISTANCE: Final = Distance()


def account_at_distance(
    epsilon_at: Callable[[float], float], delta: float, distance: float, most: float = math.inf
) -> float:
    """The epsilon at ``delta`` of what is within a statistical ``distance`` of a release with ``epsilon_at(delta)``.

    delta' = delta - (1 + e^eps) t depends on the epsilon that is looked for. It is approached from below, slowly where
    there is nearly none: an epsilon above ``most``, which has another bound, is not looked for.

    >>> from uldp.privacy.gaussian import gaussian_epsilon
    >>> account_at_distance(lambda delta: gaussian_epsilon(1.0, delta), 1e-5, 0.0) == gaussian_epsilon(1.0, 1e-5)
    True
    >>> account_at_distance(lambda delta: gaussian_epsilon(1.0, delta), 1e-5, 1e-3)
    inf
    """
    epsilon = epsilon_at(delta)
    while distance and math.isfinite(epsilon):
        epsilon *= 1 + 1e-6
        left = delta - (1 + math.exp(min(epsilon, 700.0))) * distance
        found = epsilon_at(left) if left > 0 else math.inf
        if found <= epsilon:
            break
        epsilon = math.inf if found > most else found
    return epsilon


def account_shifted(epsilon_at: Callable[[float], float], delta: float, mu: float) -> float:
    """The epsilon at ``delta`` of a release with ``epsilon_at(delta)`` whose noise is shifted by ``mu`` deviations.

    >>> from uldp.privacy.gaussian import gaussian_epsilon
    >>> account_shifted(lambda delta: gaussian_epsilon(10.0, delta), 1e-5, 1e-6) / gaussian_epsilon(10.0, 1e-5)
    1.00000...
    """
    if not mu <= 1.0:  # of no use, and eps1 >= rho is needed
        return math.inf
    near = TAIL * mu
    epsilon = epsilon_at(delta * (1 - TAIL_SHARE) * math.exp(-near))
    spent = math.log(2.0) + epsilon + near - (TAIL - mu / 2) ** 2 / 2  # of the tails: log(2 e^(eps + eps1) delta1)
    return epsilon + 2 * near if spent <= math.log(TAIL_SHARE * delta) else math.inf
