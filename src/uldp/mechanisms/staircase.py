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
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from uldp.errors import ConfigError
from uldp.mechanisms.grid import DiscreteMechanism
from uldp.mechanisms.local_mechanism import check_whole


@dataclass(frozen=True, kw_only=True)
class StaircaseResponse(DiscreteMechanism):
    """SRR with ``groups`` = m and ``delta`` = Delta(d), by how much each group is larger than the one before."""

    groups: int = 10
    delta: float = 20.0

    name: ClassVar[str] = "srr"
    summary: ClassVar[str] = "staircase randomized response: nearer values are likelier, in m steps"

    def group_sizes(self) -> tuple[int, ...]:
        check_whole("method.groups", self.groups, 1, "into how many groups the outputs are cut")
        return staircase_sizes(self.grid.size, self.groups, self.delta)


def largest_delta(size: int, groups: int) -> Fraction:
    """The largest Delta(d) that leaves the nearest group one value. Eq. 5 stops where it is empty."""
    return Fraction(2 * (size - groups), groups * (groups - 1))


def _shown(largest: Fraction) -> str:
    """Rounded down, so that what is advised is taken."""
    return f"{math.floor(largest * 1000) / 1000:g}"


def staircase_sizes(size: int, groups: int, delta: float) -> tuple[int, ...]:
    """Whole numbers nearest to Eq. 6 with sum ``size``, by largest remainders; ties go to the farther group.

    >>> staircase_sizes(1501, 10, 20.0)
    (60, 80, 100, 120, 140, 160, 180, 200, 220, 241)
    """
    if groups > size:
        raise ConfigError(
            f"{size} values cannot be cut into {groups} groups; use at most {size} (with delta_sizes = 0), or a larger "
            "precision",
            location="method.groups",
            value=groups,
        )
    if isinstance(delta, bool) or not isinstance(delta, int | float) or not math.isfinite(delta) or delta < 0:
        raise ConfigError(
            f"by how much groups grow, a number from 0 up, not {delta!r}", location="method.delta_sizes", value=delta
        )
    if groups == 1:
        return (size,)
    largest = largest_delta(size, groups)
    if Fraction(delta) > largest:
        raise ConfigError(
            f"at most {_shown(largest)} with {groups} groups of {size} values, so that the nearest group keeps a "
            f"value, not {delta:g}; use {'0' if groups == size else 'less'}, or fewer groups",
            location="method.delta_sizes",
            value=delta,
        )
    first = (Fraction(2 * size, groups) - (groups - 1) * Fraction(delta)) / 2
    wanted = [first + j * Fraction(delta) for j in range(groups)]
    sizes = [math.floor(quota) for quota in wanted]
    order = sorted(range(groups), key=lambda j: (wanted[j] - sizes[j], j), reverse=True)
    for j in order[: size - sum(sizes)]:
        sizes[j] += 1
    return tuple(sizes)
