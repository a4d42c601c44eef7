"""Standardised coordinates of a linear model, and what the server estimates them from: totals with known noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from uldp.elementary import exp, log, logistic, power, row_sums
from uldp.learners.base import Rows
from uldp.methods.recipe import LinearRecipe
from uldp.vectors import Vector

HEAD: Final = 4
"""How many numbers come before the vectors of packed coordinates."""
MIN_VARIANCE: Final = 1e-30
"""So that totals without noise have a finite precision."""
MIN_SQUARE: Final = 1e-4
"""The smallest mean square of features, where a schema scales them to [-1, 1]."""
HEADROOM: Final = 2.5
"""How many times their usual length rows of squares may have before they are clipped."""


class RowContent(IntEnum):
    """What the rows of a round are."""

    MEANS = 0
    SPREADS = 1
    STEPS = 2


@dataclass(frozen=True)
class Coordinates:
    """What silos need besides the model to make their rows.

    Args:
        content: What rows are.
        length: What rows are divided by before they are clipped to 1.
        centre: The means of the features, then of the outputs' labels.
        spread: Of each feature.
        of_features: Whether rows of means and of spreads are about features.
        of_labels: Whether they are about labels.
    """

    content: RowContent
    length: float
    centre: Vector
    spread: Vector
    of_features: bool = True
    of_labels: bool = True

    def packed(self) -> Vector:
        """As one vector, to be sent behind the model."""
        head = [float(self.content), self.length, float(self.of_features), float(self.of_labels)]
        return np.concatenate([head, self.centre, self.spread])

    @classmethod
    def unpack(cls, values: Vector, features: int) -> Coordinates:
        """What :meth:`packed` made. A content that a server makes up is taken for the last one."""
        content = RowContent(int(values[0])) if values[0] in (0.0, 1.0) else RowContent.STEPS
        head, centre, spread = np.split(values, [HEAD, len(values) - features])
        return cls(content, float(head[1]), centre, spread, bool(head[2]), bool(head[3]))

    def moments(self, rows: Rows) -> Vector:
        """Rows of moments, as they are released; the numbers behind the moments stay as they are but for the length."""
        changed = np.array(rows, dtype=np.float64)
        size, features = len(self.centre), len(self.spread)
        if self.content is RowContent.MEANS:
            with _made_up():
                changed[:, :size] -= self.centre
        if not self.of_features:
            changed[:, :features] = 0.0
        if not self.of_labels:
            changed[:, features:size] = 0.0
        with _made_up():
            return changed / self.length

    @property
    def outputs(self) -> int:
        """How many outputs the model has."""
        return len(self.centre) - len(self.spread)

    def standardised(self, rows: Rows) -> Vector:
        """Rows of a model of f, as those of a model of (f - c) / s; the numbers behind the model stay as they are but
        for the length."""
        changed = np.array(rows, dtype=np.float64)
        features, outputs = len(self.spread), self.outputs
        weights = changed[:, : outputs * features].reshape(len(rows), outputs, features)  # a view
        bias = changed[:, outputs * features :][:, :outputs]
        with _made_up():
            weights -= bias[:, :, None] * self.centre[:features]
            weights /= self.spread
            return changed / self.length

    def restored(self, step: Vector) -> Vector:
        """A step of a model of (f - c) / s as that of a model of f with the same outputs."""
        features, outputs = len(self.spread), self.outputs
        weights = step[: outputs * features].reshape(outputs, features) / self.spread
        bias = step[outputs * features :] - row_sums(weights * self.centre[:features], overwrite=True)
        return np.concatenate([weights.ravel(), bias])


@dataclass(frozen=True)
class MomentEstimate:
    """The mean over people of a row of moments, from the totals of several rounds.

    Args:
        values: A number for each feature and each output.
        variance: Of the noise in each of them.

    Example:
        >>> MomentEstimate(np.array([3.0, 1.0]), 1.0).shrunk(1)  # a feature, a label: what remains of each
        array([2.66666667, 0.        ])
    """

    values: Vector
    variance: float

    @classmethod
    def from_sums(cls, sums: Mapping[str, Vector]) -> MomentEstimate:
        """From sums over rounds: of estimates by their precisions (1 / variance), and of the precisions.

        Args:
            sums: Both, by name.
        """
        precision = float(sums["precision"][0])
        return cls(sums["estimate"] / precision, 1 / precision)

    def shrunk(self, features: int) -> Vector:
        """The values, those of features and of outputs each times their share of signal (James and Stein's factor).

        Args:
            features: How many there are.
        """
        parts = np.split(self.values, [features])
        return np.concatenate([_shrink(part, self.variance) for part in parts])

    def squares_length(self, features: int, most: float, of_labels: bool) -> float:
        """How long rows of squares are, as far as it is known: far enough above what they seem to be.

        Args:
            features: How many there are.
            most: What the recipe begins with, for one number.
            of_labels: Whether rows are also about labels.
        """
        of_features = max(0.0, _mean(self.values[:features])) + 2 * math.sqrt(self.variance / features)
        seen = math.sqrt(features) * of_features
        if of_labels:
            seen += max(0.0, float(self.values[features])) + 2 * math.sqrt(self.variance)
        return min(most * math.sqrt(features + of_labels), max(HEADROOM * seen, 0.1 * most * math.sqrt(features)))

    def spreads(self, features: int, recipe: LinearRecipe) -> Vector:
        """Each feature's spread, from mean squares: where nothing but noise is seen, they are all equal.

        Args:
            features: How many there are.
            recipe: The constants.
        """
        squares, variance = self.values[:features], self.variance
        usual = recipe.usual_spread**2
        doubt = variance / features / (variance / features + (usual / 2) ** 2)
        mean = max((1 - doubt) * _mean(squares) + doubt * usual, MIN_SQUARE)
        squares = np.maximum(mean + _shrink(squares - mean, variance), recipe.least_spread**2 * mean)
        return np.asarray(math.sqrt(mean) * power(squares / mean, recipe.equalised / 2))

    def errors(self, features: int, recipe: LinearRecipe) -> float:
        """How far numbers to predict lie from their mean, from mean squares; where noise hides them, as far as usual.

        Args:
            features: How many there are.
            recipe: The constants.
        """
        noise = math.sqrt(self.variance)
        if noise > recipe.usual_error**2:
            return recipe.usual_error
        return math.sqrt(max(float(self.values[features]), noise, MIN_SQUARE))


def expected_labels(bias: Vector, task: str) -> Vector:
    """What a model without weights predicts: the means of the labels.

    >>> expected_labels(np.array([0.0]), "classification")
    array([0.5])
    """
    if task == "regression":
        return bias
    if len(bias) == 1:
        return logistic(bias)
    chances = exp(bias - bias.max())
    return np.asarray(chances / row_sums(chances[None, :])[0])


def bias_for(labels: Vector, task: str, least: float) -> Vector:
    """The bias of a model that predicts these means of the labels; no class is rarer than ``least``.

    >>> bias_for(np.array([0.9, 0.05, 0.05]), "classification", 0.01).round(3)
    array([ 1.927, -0.963, -0.963])
    """
    if task == "regression":
        return labels
    least = min(least, 0.5)
    if len(labels) == 1:
        chance = np.clip(labels, least, 1 - least)
        return np.asarray(log(chance) - log(1 - chance))
    logs = log(np.maximum(labels, least))
    return np.asarray(logs - row_sums(logs[None, :])[0] / len(logs))


def error_scale(labels: Vector) -> float:
    """The root mean square of label minus share, where classes have these shares; at least 0.4 of that of equal shares.

    A clip in proportion to less than that would cut off what the few records of a rare class say.

    >>> round(error_scale(np.array([0.1])), 6), error_scale(np.array([0.01]))
    (0.3, 0.2)
    """
    shares = np.clip(labels, 0.0, 1.0)
    own = math.sqrt(float(row_sums((shares * (1 - shares))[None, :])[0]))
    equal = 0.5 if len(labels) == 1 else math.sqrt(1 - 1 / len(labels))
    return max(own, 0.4 * equal)


def _made_up() -> np.errstate:
    """Coordinates that a server makes up can make a row long, or no number: it is clipped, or counts as zero."""
    return np.errstate(over="ignore", invalid="ignore", divide="ignore")


def _mean(values: Vector) -> float:
    return float(row_sums(np.array(values[None, :]))[0]) / max(1, len(values))


def _shrink(values: Vector, variance: float) -> Vector:
    energy = _mean(values * values)
    return values * (max(0.0, 1 - variance / energy) if energy > 0 else 0.0)
