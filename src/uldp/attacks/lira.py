"""Likelihood ratios for membership, calibrated on shadow models (LiRA).

Carlini, Chien, Nasr, Song, Terzis, Tramer: "Membership Inference Attacks From First Principles", S&P 2022, with users
in the place of records: every model is attacked with all others as its shadow models.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

FEW: Final = 64
"""With fewer models the two variances of a user are taken to be the same, as the paper does."""


def likelihood_ratios(statistic: Array, included: Mask) -> Array:
    """(models, users): the log-likelihood ratio of "in" against "out", by normal laws fitted to the other models.

    Args:
        statistic: (models, users).
        included: (models, users), who was in which model. It is used of the other models only.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> coins = generator.random((200, 1)) < 0.5
        >>> ratios = likelihood_ratios(generator.normal(3.0 * coins), coins)
        >>> float(np.mean((ratios > 0) == coins)) > 0.9
        True
    """
    centred = statistic - statistic.mean(axis=0)
    scale = centred.std(axis=0)
    centred = centred / np.where(scale > 0, scale, 1.0)
    means, variances, numbers = zip(*(_others(centred, side) for side in (included, ~included)), strict=True)
    if len(statistic) < FEW:
        both = (variances[0] * numbers[0] + variances[1] * numbers[1]) / (numbers[0] + numbers[1])
        variances = (both, both)
    logs = [
        -((centred - mean) ** 2) / (2 * np.maximum(variance, _FLOOR)) - np.log(np.maximum(variance, _FLOOR)) / 2
        for mean, variance in zip(means, variances, strict=True)
    ]
    return np.asarray(logs[0] - logs[1])


_FLOOR: Final = 1e-6  # of variances whose mean is 1: a statistic that never varies decides, but not infinitely


def _others(values: Array, side: Mask) -> tuple[Array, Array, Array]:
    """For every model and user: mean, variance and number of the other models on this side."""
    counted = side.astype(np.float64)
    number = np.maximum(counted.sum(axis=0) - counted, 1.0)
    mean = ((counted * values).sum(axis=0) - counted * values) / number
    square = ((counted * values**2).sum(axis=0) - counted * values**2) / number
    return mean, np.maximum(square - mean**2, 0.0), number
