"""Staircase randomized response (SRR).

Source: M. Varun, S. Feng, H. Wang, S. Sural, Y. Hong, "Towards Accurate and Stronger Local Differential Privacy for
Federated Learning with Staircase Randomized Response", CODASPY 2024, Sections 4.2 to 4.4.

The outputs, ordered by distance to the weight, are cut into m groups whose sizes grow by Delta(d) (Eq. 4 to 6), and
probabilities fall linearly from group to group (Eq. 7 and 8). Departures, see docs/errata.md S1 and S2: sizes are
whole numbers that sum to the grid's size exactly, masses are integers, and one group is the uniform law.

SRR is biased toward the middle of the range, and with m = 10 it does not come near the weight for any epsilon; choose
m and Delta with :func:`uldp.mechanisms.choose.best_staircase`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar, Self

from uldp.errors import ConfigError, require
from uldp.limits import check_whole
from uldp.mechanisms.grid import DiscreteMechanism, Grid


@dataclass(frozen=True, kw_only=True)
class StaircaseResponse(DiscreteMechanism):
    """SRR with ``groups`` = m and ``delta`` = Delta(d), by how much each group is larger than the one before."""

    groups: int = 10
    delta: float = 20.0

    name: ClassVar[str] = "srr"
    summary: ClassVar[str] = "staircase randomized response: nearer values are likelier, in m steps"

    def group_sizes(self) -> tuple[int, ...]:
        check_whole(self.groups, 1, None, "method.groups", "into how many groups the outputs are cut")
        return staircase_sizes(self.grid.size, self.groups, self.delta)

    def widened(self, radius: float) -> Self:
        """Groups grow with the range, so that each remains the same part of it."""
        size = Grid.of(self.center, radius, self.precision).size
        return replace(self, radius=radius, delta=self.delta * size / self.grid.size)


def largest_delta(size: int, groups: int) -> Fraction:
    """The largest Delta(d) that leaves the nearest group one value. Eq. 5 stops where it is empty."""
    return Fraction(2 * (size - groups), groups * (groups - 1))


def staircase_sizes(size: int, groups: int, delta: float) -> tuple[int, ...]:
    """Whole numbers nearest to Eq. 6 with sum ``size``, by largest remainders; ties go to the farther group.

    >>> staircase_sizes(1501, 10, 20.0)
    (60, 80, 100, 120, 140, 160, 180, 200, 220, 241)
    """
    if groups > size:
        remedy = f"use at most {size} (with delta_sizes = 0), or a larger precision"
        too_many = f"{size} values cannot be cut into {groups} groups; {remedy}"
        raise ConfigError(too_many, location="method.groups", value=groups)
    valid = not isinstance(delta, bool) and isinstance(delta, int | float) and math.isfinite(delta) and delta >= 0
    require(valid, "method.delta_sizes", delta, "by how much groups grow, a number from 0 up")
    if groups == 1:
        return (size,)
    largest = largest_delta(size, groups)
    if Fraction(delta) > largest:
        shown = f"{math.floor(largest * 1000) / 1000:g}"  # rounded down, so that what is advised is taken
        rule = f"at most {shown} with {groups} groups of {size} values, so that the nearest group keeps a value"
        remedy = f"use {'0' if groups == size else 'less'}, or fewer groups"
        raise ConfigError(f"{rule}, not {delta:g}; {remedy}", location="method.delta_sizes", value=delta)
    first = (Fraction(2 * size, groups) - (groups - 1) * Fraction(delta)) / 2
    wanted = [first + j * Fraction(delta) for j in range(groups)]
    sizes = [math.floor(quota) for quota in wanted]
    order = sorted(range(groups), key=lambda j: (wanted[j] - sizes[j], j), reverse=True)
    for j in order[: size - sum(sizes)]:
        sizes[j] += 1
    return tuple(sizes)
