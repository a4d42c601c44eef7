"""Weights as ratios of whole numbers, which is what can be applied under encryption (``paillier``).

Eq. 3 divides by N_u. Under encryption the division is a multiplication with an inverse, which needs two things: a
public bound on N_u, so that one common multiple C_LCM of all denominators exists, and a denominator that is never zero,
for whoever inverts it would see who is absent. So here, and only here,

* a silo counts at most c_su = min(n_su, floor(N_max / |S|)) records of a user, and N_u = sum_s c_su <= N_max;
* every user has a pseudo-count of 1/g record that no silo holds: w_su = g c_su / (g N_u + 1).

A user without records then is an ordinary case with weight 0. The price of the pseudo-count is a factor
g N_u / (g N_u + 1): with g = 16 it is 6 % for a user with one record and 0.6 % for one with ten. A smaller g makes
C_LCM shorter, so that a larger N_max fits the key. The price of the cap is that the weights of users with more records
become more even than Eq. 3 has them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from uldp.data.federation import IntArray
from uldp.vectors import Vector

PSEUDO_COUNT: Final = 16
MAX_PSEUDO_COUNT: Final = 1024


class Ratios(Protocol):
    """w_su = numerator_su / sum_s share_su."""

    def numerators(self, counts: IntArray) -> IntArray:
        """For all users, from one silo's record counts."""

    def shares(self, counts: IntArray, silo: int) -> IntArray:
        """This silo's part of every user's denominator."""

    def denominators(self) -> Iterable[int]:
        """All that a denominator can be."""


def common_multiple(ratios: Ratios, max_bits: int) -> int:
    """C_LCM, which every possible denominator divides; 0 if it has more than ``max_bits`` bits."""
    multiple = 1
    for denominator in ratios.denominators():
        multiple = math.lcm(multiple, denominator)
        if multiple.bit_length() > max_bits:
            return 0
    return multiple


@dataclass(frozen=True)
class RecordRatios:
    """w_su = g c_su / (g N_u + 1); the first silo adds everybody's 1."""

    cap: int
    silos: int
    pseudo_count: int = PSEUDO_COUNT

    def cap_counts(self, counts: IntArray) -> IntArray:
        """c_su = min(n_su, cap)."""
        return np.minimum(counts, self.cap)

    def numerators(self, counts: IntArray) -> IntArray:
        return self.pseudo_count * self.cap_counts(counts)

    def shares(self, counts: IntArray, silo: int) -> IntArray:
        return self.numerators(counts) + (1 if silo == 0 else 0)

    def denominators(self) -> Iterable[int]:
        return (self.pseudo_count * total + 1 for total in range(self.cap * self.silos + 1))


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


def weights_in_the_clear(ratios: Ratios, counts: IntArray) -> Vector:
    """w_su of all silos and users, for those who hold all counts (silos, users)."""
    numerators = np.stack([ratios.numerators(each) for each in counts])
    shares = np.stack([ratios.shares(each, silo) for silo, each in enumerate(counts)])
    return np.asarray(numerators / shares.sum(axis=0))
