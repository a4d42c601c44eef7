"""The two-point mechanism: each weight becomes one of two values, so that the mean is the weight.

Source: L. Sun, J. Qian, X. Chen, "LDP-FL: Practical Private Aggregation in Federated Learning with Local Differential
Privacy", IJCAI 2021; before, J. Duchi, M. Jordan, M. Wainwright, "Minimax Optimal Procedures for Locally Private
Estimation", JASA 113, 2018. Outputs are c +- A with A = r (e^epsilon + 1) / (e^epsilon - 1), and
P(c + A) = 1/2 + (w - c) / (2 A).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final

import numpy as np

from uldp.mechanisms.local_mechanism import LocalMechanism
from uldp.mechanisms.ranks import DRAW_BITS, exp_below, uniform_draws
from uldp.rng import SecretStream
from uldp.vectors import Integers, Vector

_ALL: Final = 1 << DRAW_BITS


@dataclass(frozen=True, kw_only=True)
class TwoPoint(LocalMechanism):
    """The upper value has ``threshold`` of 2^53 equally likely draws, the lower one the rest."""

    name: ClassVar[str] = "two-point"
    summary: ClassVar[str] = "LDP-FL, Duchi et al.: one of two values outside the range, without bias"
    biased: ClassVar[bool] = False

    @cached_property
    def distance(self) -> float:
        """A: how far from c both outputs are."""
        power = exp_below(self.epsilon)
        return self.radius * float((power + 1) / (power - 1))

    @cached_property
    def smallest_mass(self) -> int:
        """At least 2^53 / (e^epsilon + 1), rounded up.

        Both masses stay between s = this and 2^53 - s, so their ratio is at most (2^53 - s) / s = 2^53 / s - 1
        <= e^epsilon. ``exp_below`` only makes s larger.
        """
        return math.ceil(_ALL / (exp_below(self.epsilon) + 1))

    def thresholds(self, weights: Vector) -> Integers:
        """The mass of the upper value for each weight; the sum of both is 2^53."""
        return self._thresholds(self._clip(weights)).astype(np.int64)

    def _thresholds(self, clipped: Vector) -> Vector:
        """Whole numbers up to 2^53, exact as floats."""
        masses = (clipped - self.center) * (_ALL / 2 / self.distance)
        masses += _ALL / 2
        np.rint(masses, out=masses)
        return np.clip(masses, float(self.smallest_mass), float(_ALL - self.smallest_mass), out=masses)

    def _perturb_block(self, block: Vector, stream: SecretStream) -> None:
        upper = uniform_draws(len(block), stream) < self._thresholds(block)
        # A table of two looked up by 0 or 1; both values are the same whatever the weight.
        np.take(self._outputs, upper.view(np.int8), out=block, mode="clip")

    @cached_property
    def _outputs(self) -> Vector:
        return np.array([self.center - self.distance, self.center + self.distance])

    def mean(self, weights: Vector) -> Vector:
        return self._clip(weights)

    def variance(self, weights: Vector) -> Vector:
        offset = self._clip(weights) - self.center
        return self.distance**2 - offset**2

    def log_likelihood(self, outputs: Vector, weights: Vector) -> Vector:
        upper = np.log(self._thresholds(self._clip(weights)) / _ALL)
        lower = np.log(1 - self._thresholds(self._clip(weights)) / _ALL)
        offset = (np.asarray(outputs, dtype=np.float64) - self.center)[:, None]
        possible = np.abs(np.abs(offset) - self.distance) <= 1e-9 * (self.distance + abs(self.center))
        return np.where(possible, np.where(offset > 0, upper, lower), -np.inf)

    @property
    def largest_output(self) -> float:
        return self.distance * (1 + 2.0**-50)
