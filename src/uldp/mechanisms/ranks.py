"""A law of ranks: integer masses that are equal within groups and fall from group to group, and exact draws from it.

A local mechanism orders its outputs by the input: rank 0 is the likeliest. If the masses of ranks do not depend on the
input, and the largest is at most e^epsilon times the smallest, then the mechanism is epsilon-locally private whatever
the order. So all that has to be proved is about a few integers.

Masses sum to at most 2^53. A draw is a uniform 53-bit number, refused from the sum of masses up; then every rank has
its mass of numbers, exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from typing import Final

import numpy as np
import numpy.typing as npt

from uldp.errors import ConfigError
from uldp.rng import SecretStream
from uldp.vectors import Integers, Vector

Indices = npt.NDArray[np.int32]

DRAW_BITS: Final = 53
"""Whole numbers up to 2^53 are exact in float64, whose arithmetic is the fastest there is."""

_EXP_BITS: Final = 128
_MIN_MASS: Final = 1 << 10  # then rounding moves no probability by more than 0.1 %, and 0.1 % of draws are refused
_FEW_GROUPS: Final = 100  # so few are found faster by comparing with all than by bisection


def exp_below(epsilon: float) -> Fraction:
    """A rational number at most e^epsilon, and by less than one part in 2^120 so.

    The Taylor series, each term rounded down. All terms are positive, so leaving out the rest rounds down as well.
    """
    x = Fraction(epsilon)
    total = term = 1 << _EXP_BITS
    order = 0
    while term:
        order += 1
        term = term * x.numerator // (x.denominator * order)
        total += term
    return Fraction(total, 1 << _EXP_BITS)


def uniform_draws(count: int, stream: SecretStream) -> Vector:
    """Uniform whole numbers below 2^53, as floats."""
    words = stream.words(count)
    words >>= np.uint64(64 - DRAW_BITS)
    return words.view(np.int64).astype(np.float64)


@dataclass(frozen=True)
class RankLaw:
    """Group j holds ``sizes[j]`` ranks, and each of them has the mass ``masses[j]``."""

    sizes: tuple[int, ...]
    masses: tuple[int, ...]

    @classmethod
    def linear(cls, sizes: Sequence[int], epsilon: float) -> RankLaw:
        """The largest masses with a linear fall from floor(e^epsilon s) in the first group to s in the last.

        SRR-FL, Eq. 7 and 8, in integers. One group has one mass: there the equations say 0/0.
        """
        ratio = exp_below(epsilon) if len(sizes) > 1 else Fraction(1)
        steps = max(1, len(sizes) - 1)
        weights = [1 + (ratio - 1) * (steps - j) / steps for j in range(len(sizes))]
        # The masses are these weights times ``smallest``, rounded down: their sum cannot exceed 2^53.
        relative = sum(size * weight for size, weight in zip(sizes, weights, strict=True))
        smallest = (1 << DRAW_BITS) * relative.denominator // relative.numerator
        if smallest < _MIN_MASS:
            too_fine = f"epsilon {epsilon:g} over {sum(sizes)} outputs needs probabilities finer than 2^-{DRAW_BITS}"
            remedy = "use a smaller epsilon or a smaller precision"
            raise ConfigError(f"{too_fine}; {remedy}", location="method.epsilon_weight", value=epsilon)
        largest = smallest * ratio.numerator // ratio.denominator
        fall = largest - smallest
        return cls(tuple(sizes), tuple(smallest + fall * (steps - j) // steps for j in range(len(sizes))))

    @property
    def ranks(self) -> int:
        return sum(self.sizes)

    @cached_property
    def total(self) -> int:
        """The sum of the masses of all ranks."""
        return sum(size * mass for size, mass in zip(self.sizes, self.masses, strict=True))

    def rank_masses(self) -> Integers:
        """The mass of each rank."""
        return np.repeat(np.array(self.masses, dtype=np.int64), self.sizes)

    def log_probabilities(self, ranks: Indices) -> Vector:
        """The logarithm of each rank's probability."""
        ends = np.cumsum(self.sizes)
        logs = np.log(np.array(self.masses, dtype=np.float64)) - np.log(float(self.total))
        return np.asarray(logs[np.searchsorted(ends, ranks, side="right")])

    def sample(self, count: int, stream: SecretStream) -> Indices:
        """``count`` ranks, drawn exactly.

        In group j the rank of the draw u is floor((u - shift_j) / mass_j), see ``_shifts``. The float quotient is the
        right one: let n be the next whole number above x / a. Up to rank n the draws end at shift + n a <= 2^53, so
        n a <= 2^53, and x / a <= n - 1/a <= n - n 2^-53 is too far from n to be rounded to it.
        """
        draws = self._draws(count, stream)
        groups = self._groups(draws)
        draws -= np.take(self._shifts, groups, mode="clip")
        draws /= np.take(self._divisors, groups, mode="clip")
        return draws.astype(np.int32)

    def _draws(self, count: int, stream: SecretStream) -> Vector:
        """Uniform whole numbers below the total: those from it up are drawn again."""
        draws = uniform_draws(count, stream)
        while count and draws.max() >= self.total:
            refused = np.flatnonzero(draws >= self.total)
            draws[refused] = uniform_draws(len(refused), stream)
        return draws

    def _groups(self, draws: Vector) -> npt.NDArray[np.intp]:
        if len(self._inner_starts) > _FEW_GROUPS:
            return np.searchsorted(self._inner_starts, draws, side="right")
        groups = np.zeros(len(draws), dtype=np.uint8)
        for start in self._inner_starts:
            groups += (draws >= start).view(np.uint8)
        return groups.astype(np.intp)

    @cached_property
    def _inner_starts(self) -> Vector:
        """Where the draws of the second and further groups begin."""
        parts = [size * mass for size, mass in zip(self.sizes, self.masses, strict=True)]
        return np.array(list(accumulate(parts))[:-1], dtype=np.float64)

    @cached_property
    def _divisors(self) -> Vector:
        return np.array(self.masses, dtype=np.float64)

    @cached_property
    def _shifts(self) -> Vector:
        """Where each group's draws begin, less its own mass for every rank before it: from 0 up, for masses fall."""
        shifts = [0]
        first_rank = 0
        for j in range(1, len(self.sizes)):
            first_rank += self.sizes[j - 1]
            shifts.append(shifts[-1] + first_rank * (self.masses[j - 1] - self.masses[j]))
        return np.array(shifts, dtype=np.float64)
