"""A bound from guesses in one run on the curve of the claimed mechanism: canaries may depend on one another.

Mahloujifar, Melis and Chaudhuri, "Auditing f-differential privacy in one run" (ICML 2025), in the form that is proved
here. An adversary makes k guesses about m fair coins. Let p_j be the probability that j of them are right, f the
trade-off curve of adding or removing one canary, others being as they may, and g(r) = f(1 - r): whatever happens with
probability r when a coin fell one way happens with at least g(r) when it fell the other way.

Fix a coin and all others, and take the event that its guess is "in" and that c or more guesses are right if this one
is. Of its two sides one is "right here, at least c right" and the other "wrong here, at least c - 1 right"; the same
holds for the guess "out". g is convex, so averages over guesses, coins and others obey it as well::

    r_c = 1/m sum_(j >= c) j p_j          right guesses where c or more are right, per coin
    h_c = 1/m sum_(j >= c) (k - j) p_j    wrong guesses there
    h_(c-1) >= g(r_c)

By definition h_(c-1) >= h_c, too, r_(c-1) - r_c = (c - 1) / (k - c + 1) (h_(c-1) - h_c), and r_0 + h_0 = k / m. Suppose
P(c* or more are right) >= level. Start with all of that at c*, that is r = level c* / m and h = level (k - c*) / m, and
let h grow no more than it must down to c = 0. This makes r_0 + h_0 smallest: write (a, b) for how much more r and h are
than that in truth. At the start a >= 0, a + b >= 0, and a >= b j / (k - j) with j = c*; each step keeps all three, with
the j of the step. If the smallest sum exceeds k / m, so many right guesses had a probability below the level.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from uldp.audits.bounds import Array, Bound, Claim, Mask, count_right, largest_unrefuted

GUESSED: Final = 0.1
"""Of how many canaries a guess is made, half of them "in"."""


def one_run_curve(claim: Claim, scores: Array, included: Mask, level: float) -> Bound:
    """The bound, as the epsilon of the claimed mechanism with another size of its noise."""
    curve = "of a Gaussian" if claim.gaussian else "of the accountant's privacy loss distributions"
    assumes = f"the trade-off curve {curve}, up to the size of the noise; canaries may depend on one another"
    guesses, right = count_right(scores, included, GUESSED)

    def refuted(factor: float) -> bool:
        return is_improbable(claim.least_likely(factor), len(scores), guesses, right, level)

    factor = largest_unrefuted(refuted) if guesses else math.inf
    return Bound("one run, trade-off", 0.0 if math.isinf(factor) else claim.epsilon(factor), assumes)


def is_improbable(
    least_likely: Callable[[float], float], canaries: int, guesses: int, right: int, level: float
) -> bool:
    """Whether so many right guesses, or more, have a probability below ``level``; ``least_likely`` is g.

    >>> is_improbable(lambda r: r, 1000, 100, 90, 0.01)  # epsilon 0: nobody can tell a coin
    True
    >>> is_improbable(lambda r: r, 1000, 100, 50, 0.01)
    False
    """
    most = guesses / canaries * (1 + 1e-9)
    r, h = level * right / canaries, level * (guesses - right) / canaries
    for count in range(right, 0, -1):
        wrong = max(h, least_likely(min(r, 1.0)))
        r, h = r + (count - 1) / (guesses - count + 1) * (wrong - h), wrong
        if r + h > most:
            return True
    return False
