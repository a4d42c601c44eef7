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
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from uldp.errors import ConfigError, ModelError
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
        _check_number("method.epsilon_weight", self.epsilon)
        _check_number("method.center", self.center)
        _check_number("method.radius", self.radius)
        if not MIN_EPSILON <= self.epsilon <= MAX_EPSILON:
            raise ConfigError(
                f"from {MIN_EPSILON:g} to {MAX_EPSILON:g}, not {self.epsilon!r}: the epsilon of one weight, "
                "whose probabilities are whole multiples of 2^-53",
                location="method.epsilon_weight",
                value=self.epsilon,
            )
        if not MIN_LIMIT <= self.radius <= MAX_LIMIT:
            raise ConfigError(
                f"from {MIN_LIMIT:g} to {MAX_LIMIT:g}, not {self.radius!r}: half the width of the range of "
                "weights, such as 0.075",
                location="method.radius",
                value=self.radius,
            )
        if abs(self.center) > MAX_LIMIT:
            raise ConfigError(
                f"from {-MAX_LIMIT:g} to {MAX_LIMIT:g}, not {self.center!r}: the middle of the range of "
                "weights, such as 0",
                location="method.center",
                value=self.center,
            )

    @property
    def low(self) -> float:
        """The lower end of the range of weights."""
        return self.center - self.radius

    @property
    def high(self) -> float:
        """The upper end of the range of weights."""
        return self.center + self.radius

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

    def _clipped(self, weights: Vector) -> Vector:
        weights = np.asarray(weights, dtype=np.float64)
        _check_weights(weights)
        return np.clip(weights, self.low, self.high)


def _check_number(location: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"a finite number, not {value!r}", location=location, value=value)


def check_whole(location: str, value: object, smallest: int, what: str) -> None:
    """Refuse what is not a whole number from ``smallest`` up."""
    if isinstance(value, bool) or not isinstance(value, int) or value < smallest:
        raise ConfigError(f"{what}, a whole number from {smallest} up, not {value!r}", location=location, value=value)


def _check_weights(weights: Vector) -> None:
    finite = np.isfinite(weights)
    if not finite.all():
        bad = int(finite.size - np.count_nonzero(finite))
        raise ModelError(
            f"{bad} of {finite.size} weights are not finite, so they cannot be perturbed; lower the learning rate",
            location="weights",
            value=float(weights[~finite][0]),
        )
