"""The best staircase: m and Delta(d) of SRR with the smallest error of the mean over clients.

Only public quantities enter: epsilon, the grid, the number of clients and, if it is known, how far weights spread
around the middle of the range. So the choice costs no privacy.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from uldp.elementary import row_sums
from uldp.errors import require
from uldp.limits import check_whole
from uldp.mechanisms.grid import Grid, offset_moments
from uldp.mechanisms.ranks import RankLaw
from uldp.mechanisms.staircase import StaircaseResponse, largest_delta, staircase_sizes
from uldp.vectors import Vector

MAX_GROUPS: Final = 20
_SEARCH_GRID: Final = 2001  # values at most while searching: the best shape hardly depends on the step
_SHARES: Final = 24


@dataclass(frozen=True)
class BestStaircase:
    """The choice, and the root mean square error of the mean over clients that it gives, in units of weights."""

    groups: int
    delta: float
    rmse: float


@dataclass(frozen=True)
class _Search:
    epsilon: float
    grid: Grid
    spread: float | None
    clients: int

    def rmse(self, groups: int, delta: float) -> float:
        """Exact sums over ranks and over the weights of the grid, for clients who share one weight."""
        law = RankLaw.linear(staircase_sizes(self.grid.size, groups, delta), self.epsilon)
        bias, second = offset_moments(law)
        errors = bias**2 + (second - bias**2) / self.clients
        # Added up in an order of ours: near a tie another processor would choose another staircase.
        return math.sqrt(float(row_sums((errors * self.prior())[None, :], overwrite=True)[0])) / self.grid.scale

    def prior(self) -> Vector:
        """How likely each value of the grid is: all alike, or normal around the middle with deviation ``spread``."""
        if self.spread is None:
            return np.full(self.grid.size, 1.0 / self.grid.size)
        half = (self.grid.size - 1) // 2
        offset = np.arange(-half, half + 1) / (self.grid.scale * self.spread)
        density = np.exp(-0.5 * offset**2)
        return np.asarray(density / density.sum())

    def best(self, groups: int | None) -> tuple[int, float]:
        """The groups, unless they are given, and the share of the largest Delta with the smallest error."""
        most = min(MAX_GROUPS, self.grid.size - 1)
        tried = range(2, most + 1) if groups is None else (groups,)
        return min((self._best_share(number) for number in tried), key=lambda found: found[0])[1:]

    def _best_share(self, groups: int) -> tuple[float, int, float]:
        """Shares on an even grid first, then twice on a finer one around the best."""
        shares: Iterable[float] = [k / _SHARES for k in range(_SHARES + 1)]
        width = 1.0 / _SHARES
        for _ in range(3):
            error, best = min((self.rmse(groups, self.delta(groups, share)), share) for share in shares)
            shares = [min(1.0, max(0.0, best + width * k / 5)) for k in range(-4, 5)]
            width /= 5
        return error, groups, best

    def delta(self, groups: int, share: float) -> float:
        """A share of the largest Delta, rounded so that it is allowed."""
        largest = largest_delta(self.grid.size, groups)
        delta = share * float(largest)
        return delta if delta <= largest else math.nextafter(delta, 0.0)


@functools.lru_cache(maxsize=256)
def best_staircase(
    epsilon: float,
    radius: float = 0.075,
    precision: int = 4,
    *,
    spread: float | None = None,
    clients: int = 100,
    groups: int | None = None,
) -> BestStaircase:
    """m and Delta(d) for the mean of ``clients`` clients who share one weight; with ``groups`` = m given, Delta(d).

    That weight is uniform over the range, or normal around the middle with standard deviation ``spread``.

    >>> best_staircase(5.0).groups
    2
    """
    check_whole(clients, 1, None, "clients", "over how many clients is averaged")
    positive = spread is None or (math.isfinite(spread) and spread > 0)
    require(positive, "spread", spread, "the standard deviation of weights, a positive number or none")
    # Bad settings are refused here.
    StaircaseResponse(epsilon=epsilon, radius=radius, precision=precision, groups=groups or 1, delta=0.0)
    wanted = _Search(epsilon, Grid.of(0.0, radius, precision), spread, clients)
    if groups == 1:
        return BestStaircase(1, 0.0, wanted.rmse(1, 0.0))
    best, share = _Search(epsilon, _coarsen(wanted.grid, groups or 2), spread, clients).best(groups)
    delta = wanted.delta(best, share)
    return BestStaircase(best, delta, wanted.rmse(best, delta))


def _coarsen(grid: Grid, groups: int) -> Grid:
    """The grid over the same range with fewer decimals, as long as it has more values than the search needs."""
    size, scale = grid.size, grid.scale
    while size > max(_SEARCH_GRID, 20 * groups) and scale > 1:
        size, scale = 2 * round((size - 1) / 20) + 1, scale // 10
    return Grid(-(size - 1) // 2, size, scale)
