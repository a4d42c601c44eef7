"""Weights w_su >= 0 with sum_s w_su <= 1, from the user's own counts only (ULDP-FL, Section 4, Eq. 3).

Eq. 3 sets w_su = n_su / N_u; a user without records has weight 0. The sensitivity bound rests on sum_s w_su <= 1, so a
weight is rounded *down* to a multiple of 2^-31. Such numbers and their sums are exact in float64, and the sum of the
rounded weights is at most the sum of the true ones: 1, without tolerance.

Under ``paillier`` nobody may divide by N_u; what is used there instead is in :mod:`uldp.aggregation.ratios`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from uldp.data.federation import IntArray
from uldp.vectors import Vector

WEIGHTINGS: Final = ("uniform", "records")
MAX_COUNT: Final = 2**31
"""The largest number of records of one user in one silo. It is what 64-bit integers allow; more are refused."""
_STEPS: Final = 2**31


def uniform_weights(users: int, silos: int) -> Vector:
    """w_su = 1 / |S|, rounded down."""
    return np.full(users, _STEPS // silos / _STEPS)


def record_weights(counts: IntArray, totals: IntArray) -> Vector:
    """w_su = n_su / N_u, rounded down, from one silo's counts n_su and the totals N_u.

    >>> record_weights(np.array([3, 0]), np.array([4, 0]))
    array([0.75, 0.  ])
    """
    # n_su <= 2^31, so the product is below 2^63 and the division is one of integers.
    return np.asarray(counts.astype(np.int64) * _STEPS // np.maximum(totals, 1) / _STEPS)
