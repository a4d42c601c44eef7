"""The piecewise mechanism: likely a value from a window around the weight, else one from the rest of a wider range.

Source: N. Wang, X. Xiao, Y. Yang et al., "Collecting and Analyzing Multidimensional Data with Local Differential
Privacy", ICDE 2019, Algorithm 2. With t = (w - c) / r in [-1, 1] the outputs fill [-C, C], where
C = (e^(eps/2) + 1) / (e^(eps/2) - 1); the window is 1 / (e^(eps/2) + 1) of it and moves with t from end to end, and
its density is e^eps times the density outside.

The paper's outputs are real numbers, and floats in place of them would leak. Here [-C, C] is cut into 2^22 cells
and an output is the middle of a cell: a law of two groups of ranks, the window's cells and the others, drawn exactly.
So the guarantee is exact. The price: t goes to the nearest of about 4 million positions of the window.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final

import numpy as np

from uldp.mechanisms.local_mechanism import LocalMechanism
from uldp.mechanisms.ranks import Indices, RankLaw, exp_below
from uldp.rng import SecretStream
from uldp.vectors import Vector

CELLS: Final = 1 << 22


@dataclass(frozen=True, kw_only=True)
class Piecewise(LocalMechanism):
    """Cells 0 .. CELLS - 1; the window begins at cell ``start(w)`` and has ``window`` cells."""

    name: ClassVar[str] = "piecewise"
    summary: ClassVar[str] = "Wang et al.: mostly a value from a window around the weight, without bias"
    biased: ClassVar[bool] = False

    @cached_property
    def window(self) -> int:
        return max(1, round(CELLS / (exp_below(self.epsilon / 2) + 1)))

    @cached_property
    def law(self) -> RankLaw:
        return RankLaw.linear((self.window, CELLS - self.window), self.epsilon)

    @cached_property
    def cell(self) -> float:
        """The width of a cell such that there is no bias.

        In cells, the mean output is (H - L) h (start + h/2 - CELLS/2) / total, with h the window's cells, H and L the
        masses: the cells' common mass L has its mean in the middle. At start = CELLS - h this must be the radius.
        """
        high, low = self.law.masses
        slope = (high - low) * self.window / self.law.total
        return self.radius / (slope * (CELLS - self.window) / 2)

    def starts(self, weights: Vector) -> Indices:
        """The first cell of the window for each weight."""
        return self._starts(self._clip(weights))

    def _starts(self, clipped: Vector) -> Indices:
        most = CELLS - self.window
        first_cells = (clipped - self.center) * (most / (2 * self.radius))
        first_cells += most / 2
        np.rint(first_cells, out=first_cells)
        return np.clip(first_cells, 0, most, out=first_cells).astype(np.int32)

    def _perturb_block(self, block: Vector, stream: SecretStream) -> None:
        starts = self._starts(block)
        cells = self.law.sample(len(block), stream)
        # Masks, 0 or -1 in all bits, select: ranks of the window go to start + rank, the others fill the cells left of
        # the window and then, as they are, those right of it.
        beyond = cells - self.window
        inside = beyond >> 31
        beyond -= starts
        inside_or_left = beyond >> 31
        starts += self.window
        cells += starts & inside
        cells -= inside_or_left & self.window
        self._values(cells, out=block)

    def _values(self, cells: Indices, out: Vector | None = None) -> Vector:
        values: Vector = np.subtract(cells, (CELLS - 1) / 2, out=out)
        values *= self.cell
        values += self.center
        return values

    def mean(self, weights: Vector) -> Vector:
        most = CELLS - self.window
        offset = (self.starts(weights) - most / 2) * (2 * self.radius / most)
        return np.asarray(self.center + offset, dtype=np.float64)

    def variance(self, weights: Vector) -> Vector:
        """A uniform law over n cells has variance (n^2 - 1) / 12; the output is a mixture of two such laws."""
        high, low = self.law.masses
        share = (high - low) * self.window / self.law.total  # of the window's extra mass
        middle = self.starts(weights) - (CELLS - self.window) / 2
        second = share * ((self.window**2 - 1) / 12 + middle**2) + (1 - share) * (CELLS**2 - 1) / 12
        return np.asarray((second - (share * middle) ** 2) * self.cell**2)

    def log_likelihood(self, outputs: Vector, weights: Vector) -> Vector:
        positions = (np.asarray(outputs, dtype=np.float64) - self.center) / self.cell + (CELLS - 1) / 2
        cells = np.rint(np.clip(positions, 0, CELLS - 1)).astype(np.int32)[:, None]
        possible = (np.abs(self._values(cells[:, 0]) - outputs) < 1e-3 * self.cell)[:, None]
        starts = self.starts(weights)[None, :]
        inside = (cells >= starts) & (cells < starts + self.window)
        high, low = (math.log(mass) - math.log(self.law.total) for mass in self.law.masses)
        return np.where(possible, np.where(inside, high, low), -np.inf)

    @property
    def largest_output(self) -> float:
        return CELLS / 2 * self.cell
