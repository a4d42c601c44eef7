"""Weights w_su >= 0 with sum_s w_su <= 1, from the user's own counts only (ULDP-FL, Section 4, Eq. 3, made safe).

Eq. 3 sets w_su = n_su / N_u. Two things must be settled before that can run, in the clear or under encryption alike:
how large N_u may be, and what a user without records is. Here

* a silo reports at most c_su = min(n_su, floor(N_max / |S|)) records of a user, so that N_u = sum_s c_su <= N_max;
* a user counts one g-th of a record that nobody holds: w_su = g c_su / (g N_u + 1), with g = 16 unless set otherwise.

So a user without records has weight 0 by the same formula as all others, nothing is divided by zero, and whoever
inverts g N_u + 1 under encryption cannot tell an absent user from a present one. The price is a factor
g N_u / (g N_u + 1): with g = 16 it is 6 % for a user with one record, 0.6 % for one with ten. A smaller g makes the
common multiple of all denominators shorter, and with it ``paillier`` faster.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from uldp.data.federation import IntArray
from uldp.vectors import Vector

WEIGHTINGS: Final = ("uniform", "records")
GHOST: Final = 16
LARGEST_GHOST: Final = 1024


def uniform_weights(users: int, silos: int) -> Vector:
    """w_su = 1 / |S|."""
    return np.full(users, 1.0 / silos)


def count_cap(max_records: int, silos: int) -> int:
    """The largest count of one user that one silo reports."""
    return max_records // silos


def record_weights(counts: IntArray, totals: IntArray, ghost: int = GHOST) -> Vector:
    """w_su from one silo's capped counts c_su and the totals N_u.

    >>> record_weights(np.array([3, 0]), np.array([4, 0])).round(3)
    array([0.738, 0.   ])
    """
    return ghost * counts.astype(np.float64) / (ghost * totals.astype(np.float64) + 1)


class Ratios(Protocol):
    """Weights as ratios of whole numbers, w_su = numerator_su / sum_s share_su: what can be computed encrypted."""

    def numerators(self, counts: IntArray) -> IntArray:
        """For all users, from one silo's capped counts."""

    def shares(self, counts: IntArray, silo: int) -> IntArray:
        """This silo's part of every user's denominator."""

    def denominators(self) -> Iterable[int]:
        """All that a denominator can be."""


def common_multiple(ratios: Ratios) -> int:
    """C_LCM: every possible denominator divides it."""
    return math.lcm(*ratios.denominators())


@dataclass(frozen=True)
class RecordRatios:
    """w_su = g c_su / (g N_u + 1); the first silo holds everybody's part of a record."""

    cap: int
    silos: int
    ghost: int = GHOST

    def numerators(self, counts: IntArray) -> IntArray:
        return self.ghost * counts

    def shares(self, counts: IntArray, silo: int) -> IntArray:
        return self.ghost * counts + (1 if silo == 0 else 0)

    def denominators(self) -> Iterable[int]:
        return (self.ghost * total + 1 for total in range(self.cap * self.silos + 1))


@dataclass(frozen=True)
class UniformRatios:
    """w_su = 1 / |S|."""

    silos: int

    def numerators(self, counts: IntArray) -> IntArray:
        return np.ones_like(counts)

    def shares(self, counts: IntArray, silo: int) -> IntArray:
        return np.ones_like(counts)

    def denominators(self) -> Iterable[int]:
        return (self.silos,)
