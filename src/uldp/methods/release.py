"""From rows to what leaves a silo: weight, encode, add integers, add noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from uldp.data.federation import IntArray
from uldp.errors import ConfigError, ModelError
from uldp.mechanisms.discrete_gaussian import MAX_SCALE, sample_discrete_gaussian
from uldp.methods.base import Contribution
from uldp.rng import SecretStream
from uldp.vectors import FixedPoint, Integers, Vector

SMOOTHING: Final = 3.0
"""s in the argument of :func:`continuous_multiplier`; 2 exp(-2 pi^2 s^2) is about 1e-77."""

SMALLEST_SHARE: Final = 64.0
"""The smallest deviation, in units, of one silo's share of the noise."""


@dataclass(frozen=True)
class SiloSum:
    """An exact integer sum; how many coordinates were cut off at the range, and how many rows were left out."""

    total: Integers
    saturated: int
    left_out: int


def silo_sum(
    contributions: Iterable[Contribution],
    weights: Vector | None,
    encoding: FixedPoint,
    dimension: int,
    *,
    private: bool = True,
) -> SiloSum:
    """The exact integer sum of all encoded rows.

    A row that is not finite counts as zero. It has to count as *something* of norm at most the clip: an error here
    would tell the world about one user's records. ``left_out`` stays in the silo. Without privacy it is an error.
    """
    total = np.zeros(dimension, dtype=np.int64)
    saturated = left_out = 0
    for users, rows, missing in finite_rows(contributions, dimension, private=private):
        part, cut = encoding.encode_sum(rows, None if weights is None or users is None else weights[users])
        total += part
        left_out += missing
        if encoding.saturate:
            saturated += cut
        else:
            left_out += cut
    return SiloSum(total, saturated, left_out)


def finite_rows(
    contributions: Iterable[Contribution], dimension: int, *, private: bool = True
) -> Iterator[tuple[IntArray | None, Vector, int]]:
    """The rows that are finite, whose they are, and how many were not."""
    for users, rows in contributions:
        if rows.ndim != 2 or rows.shape[1] != dimension:
            raise ModelError(f"rows of shape {rows.shape}, the model has {dimension} parameters", place="method.silo")
        finite = np.isfinite(rows).all(axis=1)
        if not private and not finite.all():
            raise ModelError(
                "local training diverged (NaN or infinity); lower the learning rate", place="method.local_lr"
            )
        if finite.all():
            yield users, rows, 0
        else:
            yield None if users is None else users[finite], rows[finite], int((~finite).sum())


def add_noise(total: Integers, scale: float, stream: SecretStream) -> Integers:
    """``total`` plus exact discrete Gaussian noise of deviation ``scale`` units."""
    if scale == 0:
        return total
    return total + sample_discrete_gaussian(scale, len(total), stream)


def check_share(scale: float) -> None:
    """Refuse noise that cannot be drawn, or a share too small for the sum of the shares to count as one Gaussian."""
    if scale > MAX_SCALE:
        raise ConfigError(
            f"a silo's share of the noise would have a deviation of {scale:.3g} units, at most {float(MAX_SCALE):.3g} "
            "can be drawn; use less noise",
            place="privacy.noise_multiplier",
            value=scale,
        )
    if 0 < scale < SMALLEST_SHARE:
        raise ConfigError(
            f"a silo's share of the noise would have a deviation of {scale:.3g} units; the sum of discrete shares "
            f"counts as one Gaussian from {SMALLEST_SHARE:g} units up; use more noise (or 0 for none)",
            place="privacy.noise_multiplier",
            value=scale,
        )


def continuous_multiplier(scale: float, shares: int, units: int) -> float:
    """The multiplier of a continuous Gaussian that is no more private than the sum of ``shares`` discrete ones.

    Two steps, both by Poisson summation (``docs/errata.md`` has the derivation). Completing the square, the sum of
    discrete shares of deviation ``scale`` is a discrete Gaussian of deviation sqrt(shares) scale, up to a factor
    1 +- 2 exp(-pi^2 scale^2) on every probability. And a discrete Gaussian of variance v is what one gets by rounding a
    continuous N(0, v - s^2) at random to the integers, by a discrete Gaussian of deviation s centred at it, up to a
    factor 1 +- 2 exp(-2 pi^2 s^2): a post-processing, integer shifts included. ``SMALLEST_SHARE`` makes the first
    factor as small as the second.
    """
    return math.sqrt(shares * (scale**2 - SMOOTHING**2)) / units
