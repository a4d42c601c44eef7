"""Likelihood ratios for membership, calibrated on shadow models (LiRA).

Carlini, Chien, Nasr, Song, Terzis, Tramer: "Membership Inference Attacks From First Principles", S&P 2022, with users
in the place of records: models are attacked with others as their shadow models, in folds. (To leave out one model at
a time would let each model's score depend on all other coins, and pulls the AUC of scores without a signal below 1/2.)
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

FOLDS: Final = 5
FEW: Final = 64
"""With fewer models the two variances of a user are taken to be the same, as the paper does."""


def likelihood_ratios(statistic: Array, included: Mask) -> Array:
    """(models, users): the log-likelihood ratio of "in" against "out", by normal laws fitted to models of other folds.

    Args:
        statistic: (models, users).
        included: (models, users), who was in which model. It is used of other folds only.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> coins = generator.random((200, 1)) < 0.5
        >>> ratios = likelihood_ratios(generator.normal(3.0 * coins), coins)
        >>> float(np.mean((ratios > 0) == coins)) > 0.9
        True
    """
    spread = statistic.std(axis=0)
    values = (statistic - statistic.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    fold = np.arange(len(values)) % FOLDS
    ratios: Array = np.empty(values.shape)
    for number in range(FOLDS):
        mine = fold == number
        ratios[mine] = _ratios(values[mine], values[~mine], included[~mine])
    return ratios


_FLOOR: Final = 1e-6  # of variances whose mean is 1: a statistic that never varies decides, but not infinitely


def _ratios(values: Array, shadows: Array, included: Mask) -> Array:
    means, variances, numbers = zip(*(_moments(shadows, side) for side in (included, ~included)), strict=True)
    if len(shadows) < FEW:
        both = (variances[0] * numbers[0] + variances[1] * numbers[1]) / (numbers[0] + numbers[1])
        variances = (both, both)
    logs = [
        -((values - mean) ** 2) / (2 * np.maximum(variance, _FLOOR)) - np.log(np.maximum(variance, _FLOOR)) / 2
        for mean, variance in zip(means, variances, strict=True)
    ]
    return np.asarray(logs[0] - logs[1])


def _moments(values: Array, side: Mask) -> tuple[Array, Array, Array]:
    """For every user: mean, variance and number of the models on this side."""
    counted = side.astype(np.float64)
    number = np.maximum(counted.sum(axis=0), 1.0)
    mean = (counted * values).sum(axis=0) / number
    return mean, (counted * (values - mean) ** 2).sum(axis=0) / number, number
