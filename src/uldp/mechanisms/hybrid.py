"""The hybrid mechanism: a coin chooses between the piecewise and the two-point mechanism for each weight.

Source: N. Wang, X. Xiao, Y. Yang et al., "Collecting and Analyzing Multidimensional Data with Local Differential
Privacy", ICDE 2019, Section III-C. The coin shows piecewise with probability 1 - e^(-eps/2), and never up to
eps = 0.61, where two points have the smaller worst variance. Both are epsilon-private and the coin does not know the
weight, so the mixture is epsilon-private whatever the coin's bias.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final

import numpy as np

from uldp.mechanisms.local_mechanism import LocalMechanism
from uldp.mechanisms.piecewise import Piecewise
from uldp.mechanisms.ranks import DRAW_BITS, exp_below, uniform_draws
from uldp.mechanisms.two_point import TwoPoint
from uldp.rng import SecretStream
from uldp.vectors import Vector

_TWO_POINTS_UP_TO: Final = 0.61


@dataclass(frozen=True, kw_only=True)
class Hybrid(LocalMechanism):
    """``share``: how often the piecewise mechanism is used."""

    name: ClassVar[str] = "hybrid"
    summary: ClassVar[str] = "Wang et al.: piecewise or two-point by a coin, without bias"
    biased: ClassVar[bool] = False

    @cached_property
    def share(self) -> float:
        return float(1 - 1 / exp_below(self.epsilon / 2)) if self.epsilon > _TWO_POINTS_UP_TO else 0.0

    @cached_property
    def piecewise(self) -> Piecewise:
        return Piecewise(epsilon=self.epsilon, center=self.center, radius=self.radius)

    @cached_property
    def two_point(self) -> TwoPoint:
        return TwoPoint(epsilon=self.epsilon, center=self.center, radius=self.radius)

    def _perturb_block(self, block: Vector, stream: SecretStream) -> None:
        pieces = block.copy()
        self.two_point._perturb_block(block, stream)
        if self.share:
            self.piecewise._perturb_block(pieces, stream)
            coins = uniform_draws(len(block), stream) < self.share * 2.0**DRAW_BITS
            np.copyto(block, pieces, where=coins)

    def mean(self, weights: Vector) -> Vector:
        return self.share * self.piecewise.mean(weights) + (1 - self.share) * self.two_point.mean(weights)

    def variance(self, weights: Vector) -> Vector:
        """Both have the same mean, so the variances mix like the laws."""
        return self.share * self.piecewise.variance(weights) + (1 - self.share) * self.two_point.variance(weights)

    def log_likelihood(self, outputs: Vector, weights: Vector) -> Vector:
        points = self.two_point.log_likelihood(outputs, weights) + math.log1p(-self.share)
        if not self.share:
            return points
        pieces = self.piecewise.log_likelihood(outputs, weights) + math.log(self.share)
        return np.logaddexp(points, pieces)

    @property
    def largest_output(self) -> float:
        pieces = self.piecewise.largest_output if self.share else 0.0
        return max(pieces, self.two_point.largest_output)
