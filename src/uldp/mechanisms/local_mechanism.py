"""Local mechanisms: each client perturbs each weight itself, before anybody else sees it.

The guarantee is pure epsilon-local differential privacy for *one* weight in one round: for any two values w and w' of
the weight and any output y, P(y | w) <= e^epsilon P(y | w'). Every mechanism here holds it exactly. Outputs come from
a fixed finite set, probabilities are integer masses below 2^53, their ratio is checked against a lower bound of
e^epsilon in integers, and draws are exact (:mod:`uldp.mechanisms.ranks`). A client who sends n weights spends n
epsilon; that sum is not made here.

Weights are clipped to [c - r, c + r] first. A mechanism that trusted its input would be deterministic outside.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Self

import numpy as np

from uldp.errors import ConfigError, ModelError, require
from uldp.rng import SecretStream
from uldp.vectors import MAX_LIMIT, MIN_LIMIT, Vector

MIN_EPSILON: Final = 1e-6
MAX_EPSILON: Final = 20.0

_BLOCK: Final = 1 << 15  # weights at once: the arrays of a step stay in the cache, and calls cost little beside them


@dataclass(frozen=True, kw_only=True)
class LocalMechanism(ABC):
    """Perturbs weights one by one, independently and with the same law."""

    epsilon: float
    center: float = 0.0
    radius: float = 0.075

    name: ClassVar[str]
    summary: ClassVar[str]
    biased: ClassVar[bool]

    def __post_init__(self) -> None:
        what = "the epsilon of one weight, whose probabilities are whole multiples of 2^-53"
        _check_number("method.epsilon_weight", self.epsilon, MIN_EPSILON, MAX_EPSILON, what)
        what = "half the width of the range of weights, such as 0.075"
        _check_number("method.radius", self.radius, MIN_LIMIT, MAX_LIMIT, what)
        what = "the middle of the range of weights, such as 0"
        _check_number("method.center", self.center, -MAX_LIMIT, MAX_LIMIT, what)

    @property
    def low(self) -> float:
        """The lower end of the range of weights."""
        return self.center - self.radius

    @property
    def high(self) -> float:
        """The upper end of the range of weights."""
        return self.center + self.radius

    def widened(self, radius: float) -> Self:
        """The same mechanism over a wider range, with the same epsilon.

        Args:
            radius: Half the width of that range.
        """
        return replace(self, radius=radius)

    def perturb(self, weights: Vector, stream: SecretStream) -> Vector:
        """One output for each weight. Nothing is drawn from the stream if a weight is not finite."""
        weights = np.asarray(weights, dtype=np.float64)
        flat = np.ascontiguousarray(weights).reshape(-1)
        _check_weights(flat)
        outputs = np.empty_like(flat)
        low, high = self.low, self.high
        for start in range(0, len(flat), _BLOCK):
            block = outputs[start : start + _BLOCK]
            np.clip(flat[start : start + _BLOCK], low, high, out=block)
            self._perturb_block(block, stream)
        return outputs.reshape(weights.shape)

    @abstractmethod
    def _perturb_block(self, block: Vector, stream: SecretStream) -> None:
        """Replace clipped weights by their outputs, in place."""

    @abstractmethod
    def mean(self, weights: Vector) -> Vector:
        """E[y | w] for each weight."""

    @abstractmethod
    def variance(self, weights: Vector) -> Vector:
        """Var[y | w] for each weight."""

    def invert_mean(self, means: Vector) -> Vector:
        """The weight whose outputs have this mean, within the range: the mean itself where there is no bias."""
        return np.clip(means, self.low, self.high)

    @abstractmethod
    def log_likelihood(self, outputs: Vector, weights: Vector) -> Vector:
        """log P(output | weight), one row for each output and one column for each candidate weight.

        An output that the mechanism never gives has minus infinity.
        """

    @property
    @abstractmethod
    def largest_output(self) -> float:
        """A bound on abs(y - c)."""

    def _clip(self, weights: Vector) -> Vector:
        weights = np.asarray(weights, dtype=np.float64)
        _check_weights(weights)
        return np.clip(weights, self.low, self.high)


def _check_number(location: str, value: float, least: float, most: float, what: str) -> None:
    finite = not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)
    require(finite, location, value, "a finite number")
    if not least <= value <= most:
        raise ConfigError(f"from {least:g} to {most:g}, not {value!r}: {what}", location=location, value=value)


def _check_weights(weights: Vector) -> None:
    finite = np.isfinite(weights)
    if not finite.all():
        bad = int(finite.size - np.count_nonzero(finite))
        raise ModelError(
            f"{bad} of {finite.size} weights are not finite, so they cannot be perturbed; lower the learning rate",
            location="weights",
            value=float(weights[~finite][0]),
        )
