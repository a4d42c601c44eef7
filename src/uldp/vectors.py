"""The one numeric path of every sum: clip in float64, encode each row as integers, add integers.

Why integers. A user's clipped and weighted row is truncated toward zero to whole multiples of a public step (a
*fixed-point unit*), and only integers are added. Truncation never enlarges a norm, integer sums are exact, and sums
modulo 2^64 are the same in whatever order they are taken. So removing a user moves the sum by at most ``clip``
*exactly*, not up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from uldp.elementary import row_sums
from uldp.errors import ConfigError, require

Vector = npt.NDArray[np.float64]
Rows = npt.NDArray[np.float64] | npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Residues = npt.NDArray[np.uint64]
"""Integers modulo 2^64."""

FRACTION_BITS: Final = 24
"""The clip is 2^24 fixed-point units: truncation costs a user at most 2^-24 of the clip in each coordinate."""

MIN_LIMIT: Final = 1e-30
MAX_LIMIT: Final = 1e30

NOISE_DEVIATIONS: Final = 40.0
"""Noise beyond 40 standard deviations has probability below 1e-340: room enough in every range check."""

_BLOCK: Final = 1 << 22  # elements of float64 work space: bounds memory whatever the number of users
_SQUARES: Final = 1 << 17  # squares at once, or one row's


def rounding_margin(dimension: int) -> float:
    """A relative margin that covers all float64 rounding between a row and its integers.

    With u = 2^-53: the computed norm of d numbers is off by at most (d/2 + 2) u relative, the quotient, the weight, the
    products and the scale by a few u more. (d + 16) 2^-52 is more than twice their sum.
    """
    return (dimension + 16) * 2.0**-52


def clip_rows(rows: Rows, clip: float) -> Vector:
    """Every row scaled down to L2 norm at most ``clip``, in float64 and from the safe side of rounding.

    A row that is not finite stays so; the sum leaves such rows out (``uldp.privacy.releases.sums``).

    >>> clip_rows(np.array([[3.0, 4.0], [0.3, 0.4]]), 1.0).round(6)
    array([[0.6, 0.8],
           [0.3, 0.4]])
    """
    clipped = np.array(rows, dtype=np.float64, order="C")  # always a copy
    limit = clip * (1.0 - rounding_margin(clipped.shape[1]))
    norms = _row_norms(clipped)
    factors = np.divide(limit, norms, out=np.ones_like(norms), where=norms > limit)
    with np.errstate(invalid="ignore"):  # infinity times zero
        clipped *= factors[:, None]
    return clipped


def _row_norms(rows: Vector) -> Vector:
    """L2 norms. Each row is added up by itself: no user's clip factor depends on who else is there."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.sqrt(_square_sums(rows))


def _square_sums(rows: Vector) -> Vector:
    count, dimension = rows.shape
    block = min(count, max(1, _SQUARES // max(1, dimension)))
    squares, sums = np.empty((block, dimension)), np.empty(count)
    for start in range(0, count, max(1, block)):
        part = rows[start : start + block]
        np.multiply(part, part, out=squares[: len(part)])
        sums[start : start + block] = row_sums(squares[: len(part)], overwrite=True)
    return sums


@dataclass(frozen=True)
class FixedPoint:
    """Numbers as whole multiples of ``limit / 2^bits``.

    Args:
        limit: A bound on the L2 norm of a clipped row, or with ``saturate`` on every coordinate.
        bits: How many bits encode the limit.
        saturate: Coordinates beyond the limit are cut off there.

    Raises:
        ConfigError: A limit whose square would vanish or overflow.

    Example:
        >>> FixedPoint(limit=1.0).integer_limit == 2**24
        True
    """

    limit: float
    bits: int = FRACTION_BITS
    saturate: bool = False

    def __post_init__(self) -> None:
        require(
            MIN_LIMIT <= self.limit <= MAX_LIMIT,
            "method.clip",
            self.limit,
            f"between {MIN_LIMIT:g} and {MAX_LIMIT:g}, so that squares neither vanish nor overflow",
        )

    @property
    def integer_limit(self) -> int:
        """The limit as an encoded integer, that is, in fixed-point units."""
        return 1 << self.bits

    def check_range(self, terms: float, noise_std: float = 0.0) -> None:
        """Refuse a sum of ``terms`` rows, with noise of standard deviation ``noise_std``, that could overflow."""
        largest = terms * self.integer_limit + NOISE_DEVIATIONS * noise_std
        if not largest < 2.0**63:
            raise ConfigError(
                f"a sum of {terms:.0f} terms with noise of {noise_std:.3g} fixed-point units needs "
                f"{math.log2(largest):.1f} bits, 63 are there; use less noise or fewer users",
                location="privacy.noise_multiplier",
                value=noise_std,
            )

    def encode_sum(self, rows: Vector, weights: Vector | None = None) -> tuple[Integers, int]:
        """The sum over rows of trunc(weight * row / unit), and how much was cut off to keep the limit.

        What is cut off: coordinates beyond the limit where the encoding saturates, else whole rows longer than it.
        """
        total = np.zeros(rows.shape[1], dtype=np.int64)
        cut = 0
        for integers, cut_off in self._encode_blocks(rows, weights):
            total += integers.sum(axis=0)
            cut += cut_off
        return total, cut

    def encode_rows(self, rows: Vector) -> tuple[Integers, int]:
        """trunc(row / unit) for every row, and how much was cut off to keep the limit."""
        blocks = list(self._encode_blocks(rows, None))
        integers = [block for block, _ in blocks] or [np.zeros(rows.shape, dtype=np.int64)]
        return np.concatenate(integers), sum(cut for _, cut in blocks)

    def _encode_blocks(self, rows: Vector, weights: Vector | None) -> Iterator[tuple[Integers, int]]:
        """Block by block: the integers, and how much was cut off."""
        count, dimension = rows.shape
        scale = self.integer_limit / self.limit
        block = max(1, _BLOCK // max(1, dimension))
        for start in range(0, count, block):
            part = rows[start : start + block]
            factors = scale if weights is None else (weights[start : start + block] * scale)[:, None]
            scaled = part * factors
            if self.saturate:
                cut = int((np.abs(scaled) > self.integer_limit).sum())
                np.clip(scaled, -self.integer_limit, self.integer_limit, out=scaled)
            np.trunc(scaled, out=scaled)
            if not self.saturate:
                long = ~self._within_limit(scaled, None if weights is None else weights[start : start + block])
                cut = int(long.sum())
                scaled[long] = 0.0
            yield scaled.astype(np.int64), cut

    def _within_limit(self, integers: Vector, weights: Vector | None) -> npt.NDArray[np.bool_]:
        """Which rows of whole numbers are no longer than weight * limit: the bound itself, checked once more.

        Squares of whole numbers and their sums are exact below 2^53, and the bound is 2^48. The square of a weight may
        be rounded, by at most half of 2^-52, so it is taken a little smaller. A clipped row always passes, for its
        margin is larger; this keeps the promise even if an argument about rounding were wrong.
        """
        squares = _square_sums(integers)
        if weights is None:
            return np.asarray(squares <= float(self.integer_limit) ** 2)
        return np.asarray(squares <= (weights * self.integer_limit) ** 2 * (1 - 2.0**-52))

    def decode(self, total: Integers) -> Vector:
        """Fixed-point units back to numbers."""
        return total.astype(np.float64) * (self.limit / self.integer_limit)

    def to_json(self) -> dict[str, Any]:
        return {"limit": self.limit, "bits": self.bits, "saturate": self.saturate}


def to_residues(total: Integers) -> Residues:
    """Signed integers as residues modulo 2^64."""
    return total.view(np.uint64)


def from_residues(residues: Residues) -> Integers:
    """Residues modulo 2^64 as signed integers, right for every total within the checked range."""
    return residues.view(np.int64)
