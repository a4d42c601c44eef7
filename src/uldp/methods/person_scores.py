"""What one person's records say about the coefficients of a linear, logistic or Cox model: score and information.

With the features g of a record (a 1 for the intercept first; Cox models have none), coefficients phi and w = min(1,
c^2 / |g|^2)::

    linear    r = y - g phi, cut off at +-1/2 (a quarter of the range)        score w r g      information w g g'
    logistic  r = y - p, p = 1 / (1 + exp(-g phi))                           score w r g      information w p (1-p) g g'

and of each the mean over a person's records. w follows from features alone, so estimates stay unbiased, as with
Mallows' weights in robust regression; and as |w r g| <= c and |w g g'| <= c^2, nothing has to be clipped.

Cox: one partial likelihood for each person (and silo), a stratum of its own: of the observed events, the features less
their mean over the person's records that are still at risk, and the covariance of these features. With d, how far a
record's features lie from their mean, w = min(1, c^2 / d^2) bounds both by 2 c and c^2 in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from uldp.data.federation import IntArray
from uldp.elementary import Floats, exp, logistic, row_sums

KINDS: Final[Mapping[str, str]] = MappingProxyType(
    {"linear": "regression", "logistic": "classification", "cox": "survival"}
)
"""Kinds of models, and their tasks."""
INFORMATION_WEIGHT: Final = 1.0
"""How long the part of a row with the information may be, where the score may have length 1."""
SQUARES_WEIGHT: Final = 0.35
"""The same of the score's squares: they only say how wide intervals are."""
ROW_NORM: Final = math.sqrt(1 + INFORMATION_WEIGHT**2 + SQUARES_WEIGHT**2)
RESIDUAL: Final = 0.5
"""Residuals of a linear model count up to this, where labels lie from -1 to 1. Symmetric errors leave no bias."""
_EVENTS: Final = 64
"""How many events of a person are looked at together."""
_LENGTH: Final = 3.0
"""c^2 is 1 for an intercept, and the largest squared length of the features divided by this."""


@dataclass(frozen=True)
class ScoreScales:
    """In which units rows hold scores, information and squares of scores: those in which none is longer than 1.

    Args:
        kind: The kind of model.
        feature_norm: A public bound on the length of a record's features.

    Example:
        >>> ScoreScales("logistic", feature_norm=3.0).information
        1.0
    """

    kind: str
    feature_norm: float

    @property
    def length(self) -> float:
        """c."""
        return math.sqrt((self.kind != "cox") + self.feature_norm**2 / _LENGTH)

    @property
    def score(self) -> float:
        return self.length * {"linear": RESIDUAL, "logistic": 1.0, "cox": 2.0}[self.kind]

    @property
    def information(self) -> float:
        return self.length**2 * (0.25 if self.kind == "logistic" else 1.0)

    @property
    def squares(self) -> float:
        return self.score**2


def person_rows(
    records: tuple[Floats, Floats], counts: IntArray, phi: Floats, scales: ScoreScales
) -> npt.NDArray[np.float64]:
    """(people, coefficients + 2 triangles): each person's score, information and squares, none longer than ROW_NORM.

    Args:
        records: Features (records, coefficients) and labels (records,), those of one person after the other's.
        counts: How many records each person has, at least one.
        phi: The coefficients.
        scales: The units.
    """
    scores, information = _PARTS[scales.kind](records, counts, phi, scales.length)
    parts = [
        scores / scales.score,
        information * (INFORMATION_WEIGHT / scales.information),
        _triangle(scores, scores) * (SQUARES_WEIGHT / scales.squares),
    ]
    return np.concatenate(parts, axis=1)


def triangle_size(coefficients: int) -> int:
    """How many numbers a symmetric matrix has."""
    return coefficients * (coefficients + 1) // 2


def matrix_of(triangle: Floats, coefficients: int) -> Floats:
    """The symmetric matrix of a triangle.

    Beside the diagonal a triangle holds sqrt(2) times the entry, so that it is as long as the matrix.

    >>> matrix_of(np.array([1.0, math.sqrt(2), 3.0]), 2).round(6).tolist()
    [[1.0, 1.0], [1.0, 3.0]]
    """
    rows, columns = np.triu_indices(coefficients)
    matrix = np.zeros((coefficients, coefficients))
    matrix[rows, columns] = matrix[columns, rows] = triangle / np.where(rows == columns, 1.0, math.sqrt(2))
    return matrix


def _triangle(left: Floats, right: Floats) -> Floats:
    """(rows, numbers of a symmetric matrix): the products of each row's entries."""
    rows, columns = np.triu_indices(left.shape[1])
    return left[:, rows] * right[:, columns] * np.where(rows == columns, 1.0, math.sqrt(2))


def _regression(records: tuple[Floats, Floats], counts: IntArray, phi: Floats, length: float) -> tuple[Floats, Floats]:
    features, labels = records
    residuals = np.clip(labels - row_sums(features * phi, overwrite=True), -RESIDUAL, RESIDUAL)
    return _means(features, residuals, np.ones(len(labels)), counts, length)


def _classes(records: tuple[Floats, Floats], counts: IntArray, phi: Floats, length: float) -> tuple[Floats, Floats]:
    features, labels = records
    chances = logistic(row_sums(features * phi, overwrite=True))
    return _means(features, labels - chances, chances * (1 - chances), counts, length)


def _means(
    features: Floats, residuals: Floats, curvature: Floats, counts: IntArray, length: float
) -> tuple[Floats, Floats]:
    """The means over each person's records of score and information. A segment's sum depends on its rows alone."""
    starts = np.cumsum(counts) - counts
    squares = row_sums(features * features, overwrite=True)
    weights = np.minimum(1.0, length**2 / np.maximum(squares, 1e-300))
    scores = np.add.reduceat((weights * residuals)[:, None] * features, starts, axis=0) / counts[:, None]
    weighted = (weights * curvature)[:, None] * features
    size = features.shape[1]
    information = np.empty((len(counts), triangle_size(size)))
    first = 0
    for column in range(size):  # a row of the triangle at a time: all at once would be size^2 numbers a record
        factors = np.where(np.arange(column, size) == column, 1.0, math.sqrt(2))
        products = weighted[:, column, None] * features[:, column:] * factors
        information[:, first : first + size - column] = np.add.reduceat(products, starts, axis=0) / counts[:, None]
        first += size - column
    return scores, information


def _survival(records: tuple[Floats, Floats], counts: IntArray, phi: Floats, length: float) -> tuple[Floats, Floats]:
    features, labels = records
    size, ends = features.shape[1], np.cumsum(counts)
    scores, information = np.zeros((len(counts), size)), np.zeros((len(counts), triangle_size(size)))
    for person, (end, count) in enumerate(zip(ends.tolist(), counts.tolist(), strict=True)):
        own = slice(end - count, end)
        scores[person], information[person] = _stratum(features[own], labels[own], phi, length)
    return scores, information


def _stratum(features: Floats, labels: Floats, phi: Floats, length: float) -> tuple[Floats, Floats]:
    """Score and information of one person's partial likelihood, over the number of records (Breslow's for ties)."""
    count, size = features.shape
    times, eta = np.abs(labels), row_sums(features * phi, overwrite=True)
    risks = exp(eta - eta.max())
    centred = features - features.sum(axis=0) / count
    score, information = np.zeros(size), np.zeros(triangle_size(size))
    events = np.flatnonzero(labels > 0)
    for first in range(0, len(events), _EVENTS):
        some = events[first : first + _EVENTS]
        shares = np.where(times >= times[some, None], risks, 0.0)  # (events, records): of those still at risk
        shares /= np.maximum(row_sums(shares), 1e-300)[:, None]
        middles = (shares[:, :, None] * centred).sum(axis=1)
        score += (centred[some] - middles).sum(axis=0)
        information += _triangle(shares.sum(axis=0)[:, None] * centred, centred).sum(axis=0)
        information -= _triangle(middles, middles).sum(axis=0)
    farthest = float(row_sums(centred * centred).max())
    weight = min(1.0, length**2 / max(farthest, 1e-300)) / count
    return weight * score, weight * information


_Parts = Callable[[tuple[Floats, Floats], IntArray, Floats, float], tuple[Floats, Floats]]
_PARTS: Final[Mapping[str, _Parts]] = MappingProxyType({"linear": _regression, "logistic": _classes, "cox": _survival})
