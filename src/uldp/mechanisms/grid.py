"""Mechanisms whose inputs and outputs are the values c - r, ..., c + r in steps of 10^-p.

The output of rank 0 is the input itself, those of ranks 1 and 2 its neighbours, and so on by distance (SRR-FL,
Section 4.3). The masses of ranks do not depend on the input, so no table over inputs is needed.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from uldp.errors import ConfigError
from uldp.limits import check_whole
from uldp.mechanisms.local_mechanism import LocalMechanism
from uldp.mechanisms.ranks import Indices, RankLaw
from uldp.rng import SecretStream
from uldp.vectors import Integers, Vector

MAX_GRID: Final = 1 << 24
_MAX_STEPS: Final = 2.0**50  # three bits below float64's whole numbers: scaling never rounds to a wrong value
_MAX_MATRIX: Final = 401
_SAME_MEAN: Final = 1e-12  # of the range: sums over ranks are off by less, and means that differ differ by more


@dataclass(frozen=True)
class Grid:
    """The values (first, first + 1, ..., first + size - 1) / scale, with scale = 10^p."""

    first: int
    size: int
    scale: int

    @classmethod
    def of(cls, center: float, radius: float, precision: int) -> Grid:
        """The grid around ``center``; center and radius go to the nearest multiple of the step (Section 4.3)."""
        scale = 10 ** min(precision, 400)
        if (abs(center) + radius) * float(min(scale, 10**308)) > _MAX_STEPS:
            too_fine = f"up to {abs(center) + radius:g} need more than the 53 bits of a float"
            raise _steps_refused(center, radius, precision, too_fine)
        half = round(radius * scale)
        if half < 1:
            too_small = f"a radius of {radius:g} is less than a step of 10^-{precision}"
            remedy = "use a larger radius or precision"
            raise ConfigError(f"{too_small}; {remedy}", location="method.radius", value=radius)
        size = 2 * half + 1
        if size > MAX_GRID:
            too_many = f"make {size:,} values of the range, more than {MAX_GRID:,}"
            raise _steps_refused(center, radius, precision, too_many)
        return cls(round(center * scale) - half, size, scale)

    def values(self) -> Vector:
        """All values, rising."""
        return self.value(np.arange(self.size, dtype=np.int32))

    def value(self, indices: Indices, out: Vector | None = None) -> Vector:
        """The decimals nearest to (first + index) / scale, as float64 has them."""
        values: Vector = np.add(indices, float(self.first), out=out)
        values /= float(self.scale)
        return values

    def index(self, clipped: Vector) -> Indices:
        """The index of the value nearest to each weight of the range."""
        steps = clipped * float(self.scale)
        np.rint(steps, out=steps)
        steps -= float(self.first)
        return steps.astype(np.int32)

    def find(self, outputs: Vector) -> tuple[Indices, npt.NDArray[np.bool_]]:
        """The index of each output, and which of them are values of the grid at all."""
        outputs = np.asarray(outputs, dtype=np.float64)
        inside = np.clip(outputs, self.first / self.scale, (self.first + self.size - 1) / self.scale)
        indices = self.index(inside)
        return indices, np.abs(self.value(indices) - outputs) * self.scale < 1e-3


def _steps_refused(center: float, radius: float, precision: int, why: str) -> ConfigError:
    """Steps are too small; the advice is the largest precision that works."""
    limits = (_MAX_STEPS / (abs(center) + radius), (MAX_GRID - 1) / 2 / radius)
    most = math.floor(math.log10(min(limits)))
    remedy = f"use a precision of at most {most}" if most >= 0 else "use a smaller center or radius"
    return ConfigError(f"steps of 10^-{precision} {why}; {remedy}", location="method.precision", value=precision)


def by_distance(indices: Indices, ranks: Indices, size: int) -> Indices:
    """The output of each rank for each input: left and right in turn, and beyond the nearer end one after another.

    >>> by_distance(np.full(5, 1, np.int32), np.arange(5, dtype=np.int32), 5).tolist()
    [1, 0, 2, 3, 4]
    """
    last = size - 1
    # Selections are made with masks, 0 or -1 in all bits (a shifted sign): several times faster than by conditions.
    toward_upper = last - 2 * indices
    flipped = toward_upper >> 31  # the upper end is the nearer one
    np.abs(toward_upper, out=toward_upper)
    toward_upper += ranks
    beyond = np.subtract(last, toward_upper, out=toward_upper)
    beyond >>= 31  # rank > 2 t, where t is the distance to the nearer end
    odd = ranks & 1
    outputs = ranks + odd
    outputs >>= 1
    outputs ^= -odd
    outputs += odd  # minus (rank + 1) / 2 for odd ranks, rank / 2 for even ones
    outputs += indices
    outer = ranks ^ flipped  # beyond, the next value is the rank itself, counted from the nearer end
    outer += flipped & size
    outer -= outputs
    outer &= beyond
    outputs += outer
    return outputs


def rank_of(indices: Indices, outputs: Indices, size: int) -> Indices:
    """The inverse of :func:`by_distance`: the rank of each output for each input."""
    last = size - 1
    both_sides = np.minimum(indices, last - indices)
    offset = outputs - indices
    inner = np.where(offset < 0, -2 * offset - 1, 2 * offset)
    outer = np.where(2 * indices > last, last - outputs, outputs)
    return np.where(np.abs(offset) <= both_sides, inner, outer).astype(np.int32)


@dataclass(frozen=True, kw_only=True)
class DiscreteMechanism(LocalMechanism):
    """Draws a rank and gives out the grid's value of that rank, by distance to the weight."""

    precision: int = 4

    biased: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self.precision, 0, None, "method.precision", "decimals that the grid of weights keeps")
        _ = self.law  # refuse what cannot be drawn from now, not in the middle of a round

    @abstractmethod
    def group_sizes(self) -> tuple[int, ...]:
        """How many ranks share a mass: the likeliest group first. The sum is the size of the grid."""

    @cached_property
    def grid(self) -> Grid:
        return Grid.of(self.center, self.radius, self.precision)

    @cached_property
    def law(self) -> RankLaw:
        return RankLaw.linear(self.group_sizes(), self.epsilon)

    @property
    def low(self) -> float:
        return self.grid.first / self.grid.scale

    @property
    def high(self) -> float:
        return (self.grid.first + self.grid.size - 1) / self.grid.scale

    @property
    def total(self) -> int:
        """The sum of all masses: a probability is a mass divided by it."""
        return self.law.total

    def masses(self) -> Integers:
        """The mass of each rank, the same for all inputs."""
        return self.law.rank_masses()

    def matrix(self) -> Integers:
        """The mass of each output (column) for each input (row), for small grids."""
        size = self.grid.size
        if size > _MAX_MATRIX:
            raise ConfigError(
                f"a matrix of {size} x {size} masses is too large; up to {_MAX_MATRIX} values it is made",
                location="method.precision",
                value=self.precision,
            )
        every = np.arange(size, dtype=np.int32)
        return self.masses()[rank_of(every[:, None], every[None, :], size)]

    def _perturb_block(self, block: Vector, stream: SecretStream) -> None:
        ranks = self.law.sample(len(block), stream)
        self.grid.value(by_distance(self.grid.index(block), ranks, self.grid.size), out=block)

    def mean(self, weights: Vector) -> Vector:
        return np.asarray(self._moments[0][self.grid.index(self._clip(weights))])

    def variance(self, weights: Vector) -> Vector:
        return np.asarray(self._moments[1][self.grid.index(self._clip(weights))])

    def invert_mean(self, means: Vector) -> Vector:
        """The inverse is linear between neighbours; of weights with the same law it is their middle.

        That happens near both ends, within half of the nearest group, and everywhere if there is one group.
        """
        table, values = self._moments[0], self.grid.values()
        new = np.concatenate([[True], np.diff(table) > _SAME_MEAN * (self.high - self.low)])
        first = np.flatnonzero(new)
        last = np.append(first[1:], len(table)) - 1
        return np.asarray(np.interp(means, table[first], (values[first] + values[last]) / 2), dtype=np.float64)

    def log_likelihood(self, outputs: Vector, weights: Vector) -> Vector:
        found, possible = self.grid.find(outputs)
        inputs = self.grid.index(self._clip(weights))
        ranks = rank_of(inputs[None, :], found[:, None], self.grid.size)
        return np.where(possible[:, None], self.law.log_probabilities(ranks), -np.inf)

    @property
    def largest_output(self) -> float:
        return max(self.high - self.center, self.center - self.low)

    @cached_property
    def _moments(self) -> tuple[Vector, Vector]:
        """Mean and variance for each value of the grid, by sums over ranks."""
        mean, second = offset_moments(self.law)
        return self.grid.values() + mean / self.grid.scale, (second - mean * mean) / float(self.grid.scale) ** 2


def offset_moments(law: RankLaw) -> tuple[Vector, Vector]:
    """E[y - i] and E[(y - i)^2] for each input i, in steps of the grid; time and memory linear in the grid.

    An input at distance t from the nearer end has ranks 2k - 1 and 2k at offsets -k and k up to k = t. A larger rank
    j is the value j counted from that end: offset j - t away from it.
    """
    size = law.ranks
    half = (size - 1) // 2
    probability = law.rank_masses() / float(law.total)
    k = np.arange(1, half + 1, dtype=np.float64)
    left, right = probability[1::2], probability[2::2]
    inner_first = np.concatenate([[0.0], np.cumsum(k * (right - left))])
    inner_second = np.concatenate([[0.0], np.cumsum(k * k * (right + left))])
    j = np.arange(size, dtype=np.float64)
    beyond = [_sums_after_even(probability * j**power) for power in range(3)]
    t = np.arange(half + 1, dtype=np.float64)
    outer_first = beyond[1] - t * beyond[0]
    outer_second = beyond[2] - 2 * t * beyond[1] + t * t * beyond[0]
    second = inner_second + outer_second
    lower, upper = inner_first + outer_first, inner_first - outer_first
    return np.concatenate([lower, upper[:-1][::-1]]), np.concatenate([second, second[:-1][::-1]])


def _sums_after_even(terms: Vector) -> Vector:
    """The sum of all terms after the first, the third, the fifth, ...: ranks above 0, 2, 4, ..."""
    from_here = np.concatenate([np.cumsum(terms[::-1])[::-1], [0.0]])
    return np.asarray(from_here[1::2])
