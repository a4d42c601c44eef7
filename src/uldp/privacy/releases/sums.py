"""From rows to what leaves a silo: weight, encode, add integers, add noise."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, overload

import numpy as np

from uldp.data.federation import IntArray
from uldp.errors import ConfigError, ModelError, require
from uldp.mechanisms.discrete_gaussian import MAX_SCALE, sample_discrete_gaussian
from uldp.rng import SecretStream
from uldp.vectors import MAX_LIMIT, MIN_LIMIT, FixedPoint, Integers, Rows, Vector

Contribution = tuple[IntArray | None, Rows]
"""Users and one row for each; ``None`` for a row that belongs to the silo as a whole."""

SMOOTHING: Final = 3.0
"""s in the argument of :func:`continuous_multiplier`; 2 exp(-2 pi^2 s^2) is about 1e-77."""

MIN_SHARE: Final = 64.0
"""The smallest standard deviation, in fixed-point units, of one silo's share of the noise."""


class IntegerSum:
    """The exact integer sum of encoded rows.

    A row that is not finite counts as zero. It has to count as *something* of norm at most the clip: an error here
    would reveal something about one user's records. Without privacy it is an error. ``saturated`` counts coordinates
    that were cut off at the range, ``left_out`` rows that count as zero; the latter stays in the silo.
    """

    def __init__(self, encoding: FixedPoint, dimension: int, weights: Vector | None, *, private: bool = True) -> None:
        self._encoding, self._dimension, self._weights, self._private = encoding, dimension, weights, private
        self.total: Integers = np.zeros(dimension, dtype=np.int64)
        self.saturated = 0
        self.left_out = 0

    def add(self, users: IntArray | None, rows: Rows) -> None:
        """Add rows of these users, each times the user's weight; None for rows that have none."""
        users, finite, missing = finite_rows(users, rows, self._dimension)
        if missing and not self._private:
            raise ModelError(
                "local training diverged (NaN or infinity); lower the learning rate", location="method.local_lr"
            )
        weights = None if self._weights is None or users is None else self._weights[users]
        part, cut = self._encoding.encode_sum(finite, weights)
        self.total += part
        self.left_out += missing
        if self._encoding.saturate:
            self.saturated += cut
        else:
            self.left_out += cut


@overload
def finite_rows(users: IntArray, rows: Rows, dimension: int) -> tuple[IntArray, Vector, int]: ...
@overload
def finite_rows(users: IntArray | None, rows: Rows, dimension: int) -> tuple[IntArray | None, Vector, int]: ...


def finite_rows(users: IntArray | None, rows: Rows, dimension: int) -> tuple[IntArray | None, Vector, int]:
    """The rows that are finite, whose they are, and how many are not."""
    check_rows(rows, dimension)
    rows = np.asarray(rows, dtype=np.float64)
    finite = np.isfinite(rows).all(axis=1)
    if finite.all():
        return users, rows, 0
    return None if users is None else users[finite], rows[finite], int((~finite).sum())


def check_rows(rows: Rows, dimension: int) -> None:
    """Refuse rows that are not of the model's length."""
    if rows.ndim != 2 or rows.shape[1] != dimension:
        raise ModelError(f"rows of shape {rows.shape}, the model has {dimension} parameters", location="method.silo")


def single_row(contributions: Iterable[Contribution], dimension: int) -> Rows:
    """The one row that a silo sends as a whole, as a matrix of one row."""
    parts = list(contributions)
    if len(parts) != 1 or parts[0][0] is not None or parts[0][1].shape != (1, dimension):
        raise ModelError(
            f"one vector of {dimension} numbers for the silo, (None, rows of shape (1, {dimension})), is expected",
            location="method.silo",
        )
    return parts[0][1]


def require_limit(location: str, value: float) -> None:
    """Refuse a clip or a range whose squares would vanish or overflow."""
    wanted = f"a number from {MIN_LIMIT:g} to {MAX_LIMIT:g}"
    require(MIN_LIMIT <= value <= MAX_LIMIT, location, value, wanted)


def add_noise(total: Integers, scale: float, stream: SecretStream) -> Integers:
    """``total`` plus exact discrete Gaussian noise of standard deviation ``scale``, in fixed-point units."""
    if scale == 0:
        return total
    return total + sample_discrete_gaussian(scale, len(total), stream)


def check_share(scale: float) -> None:
    """Refuse noise that cannot be drawn, or a share too small for the sum of the shares to count as one Gaussian."""
    if scale > MAX_SCALE:
        raise ConfigError(
            f"a silo's share of the noise would have a deviation of {scale:.3g} fixed-point units, at most "
            f"{float(MAX_SCALE):.3g} can be drawn; use less noise",
            location="privacy.noise_multiplier",
            value=scale,
        )
    if 0 < scale < MIN_SHARE:
        raise ConfigError(
            f"a silo's share of the noise would have a deviation of {scale:.3g} fixed-point units; the sum of discrete "
            f"shares counts as one Gaussian from {MIN_SHARE:g} up; use more noise (or 0 for none)",
            location="privacy.noise_multiplier",
            value=scale,
        )


def continuous_multiplier(scale: float, shares: int, integer_limit: int) -> float:
    """The multiplier of a continuous Gaussian that is no more private than the sum of ``shares`` discrete ones.

    Two steps, both by Poisson summation (``docs/errata.md`` has the derivation). Completing the square, the sum of
    discrete shares of deviation ``scale`` is a discrete Gaussian of deviation sqrt(shares) scale, up to a factor
    1 +- 2 exp(-pi^2 scale^2) on every probability. And a discrete Gaussian of variance v is what one gets by rounding a
    continuous N(0, v - s^2) at random to the integers, by a discrete Gaussian of deviation s centred at it, up to a
    factor 1 +- 2 exp(-2 pi^2 s^2): a post-processing, integer shifts included. ``MIN_SHARE`` makes the first
    factor as small as the second.
    """
    return math.sqrt(shares * (scale**2 - SMOOTHING**2)) / integer_limit
