"""exp, log, tanh, sine, cosine and sums in float64 that are the same bits on every processor and with every C library.

numpy and the C library choose among several implementations by the processor's instruction set, and those differ in the
last bits. Here every function is a few additions, subtractions, multiplications and divisions of whole arrays, which
IEEE 754 rounds in one way only, in the order in which they are written. What trains and evaluates a model takes these
(``learners.kernels.maths`` has the like for compiled code), so that a run on one machine predicts it on another.

Errors are relative, found by comparison with 40 digits, and tested. NaN gives NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# log 2 in two parts; the first has 21 trailing zeros, so that its product with an exponent is exact.
_LOG2_HIGH: Final = 6.93147180369123816490e-1
_LOG2_LOW: Final = 1.90821492927058770002e-10
_INVERSE_LOG2: Final = 1.4426950408889634
_BLOCK: Final = 1 << 13  # numbers at once: the arrays of a step stay in the cache
_TURN: Final = 6.283185307179586  # 2 pi

# Taylor series as Horner's rule takes them, the highest power first. Quotients of whole numbers are rounded correctly.
_EXP_TAIL: Final = tuple(1 / math.factorial(k) for k in range(14, 1, -1))
_LOG_TAIL: Final = tuple(2 / (2 * k + 1) for k in range(12, 0, -1))
_SIN_TAIL: Final = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(9, 0, -1))
_COS_TAIL: Final = tuple((-1) ** k / math.factorial(2 * k) for k in range(9, 0, -1))


def _polynomial(x: Floats, coefficients: Sequence[float]) -> Floats:
    total: Floats = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total *= x
        total += coefficient
    return total


def _reduce(x: Floats) -> tuple[Floats, npt.NDArray[np.int32]]:
    """x = r + n log 2 with |r| <= (log 2) / 2: (exp(r) - 1, n)."""
    n = np.rint(x * _INVERSE_LOG2)
    r = (x - n * _LOG2_HIGH) - n * _LOG2_LOW
    return r + r * r * _polynomial(r, _EXP_TAIL), n.astype(np.int32)


def exp(x: npt.ArrayLike) -> Floats:
    """exp(x), to 3e-16; infinity above 710, 0 below -746."""
    given = np.asarray(x, dtype=np.float64)
    unknown = np.isnan(given)
    with np.errstate(over="ignore", under="ignore"):
        excess, n = _reduce(np.clip(np.where(unknown, 0.0, given), -746.0, 710.0))
        return np.where(unknown, given, np.ldexp(1.0 + excess, n))


def log(x: npt.ArrayLike) -> Floats:
    """log(x), to 4e-16; minus infinity at 0, NaN below.

    x = m 2^e with m from sqrt(1/2) to sqrt(2), and log m = 2 atanh(s) = 2 (s + s^3 / 3 + ...), s = (m - 1) / (m + 1).
    """
    given = np.asarray(x, dtype=np.float64)
    usual = (given > 0) & (given < math.inf)
    m, e = np.frexp(np.where(usual, given, 1.0))
    small = m < math.sqrt(0.5)
    m, e = np.where(small, 2 * m, m), np.where(small, e - 1, e)
    s = (m - 1.0) / (m + 1.0)
    square = s * s
    found = e * _LOG2_HIGH + (2.0 * s + (s * square * _polynomial(square, _LOG_TAIL) + e * _LOG2_LOW))
    special = np.where(given == 0, -math.inf, np.where(given > 0, given, math.nan))
    return np.where(usual, found, special)


def log1p(x: npt.ArrayLike) -> Floats:
    """log(1 + x) for x from 0 up, to 6e-16: what is lost in 1 + x is made up for by a factor (W. Kahan)."""
    given = np.asarray(x, dtype=np.float64)
    total = 1.0 + given
    usual = (total > 1.0) & (total < math.inf)
    change = np.where(usual, total - 1.0, 1.0)
    return np.where(usual, log(total) * (np.where(usual, given, 1.0) / change), given)


def tanh(x: npt.ArrayLike) -> Floats:
    """tanh(x) = E / (E + 2) with E = exp(2 |x|) - 1, to 6e-16."""
    given = np.asarray(x, dtype=np.float64)
    excess, n = _reduce(2.0 * np.where(np.abs(given) < 20.0, np.abs(given), 20.0))
    power = np.ldexp(1.0, n)
    excess = power * excess + (power - 1.0)
    return np.where(np.isnan(given), given, np.copysign(excess / (excess + 2.0), given))


def power(base: npt.ArrayLike, exponent: float) -> Floats:
    """base^exponent for positive bases, as exp(exponent log base): to 4e-16 (1 + |exponent log base|)."""
    return exp(exponent * log(base))


def logistic(x: npt.ArrayLike) -> Floats:
    """1 / (1 + exp(-x)), to 5e-16."""
    return np.asarray(1.0 / (1.0 + exp(-np.asarray(x, dtype=np.float64))))


def sine_cosine(turns: Floats) -> tuple[Floats, Floats]:
    """(sin(2 pi t), cos(2 pi t)) for t from 0 to 1, to 4e-16 of the larger one.

    Whole eighths of a turn come off without rounding; what is left is at most pi / 4.
    """
    quarters = np.rint(4.0 * turns)
    angle = _TURN * (turns - quarters / 4.0)
    square = angle * angle
    sine = angle + angle * square * _polynomial(square, _SIN_TAIL)
    cosine = 1.0 + square * _polynomial(square, _COS_TAIL)
    quarter = quarters.astype(np.int64) & 3
    odd = (quarter & 1).astype(np.bool_)
    first, second = np.where(odd, cosine, sine), np.where(odd, sine, cosine)
    return np.where(quarter >= 2, -first, first), np.where((quarter == 1) | (quarter == 2), -second, second)


def normal_pairs(first: npt.NDArray[np.uint64], second: npt.NDArray[np.uint64]) -> Floats:
    """Standard normal numbers from pairs of uniform whole numbers below 2^53, by Box and Muller's transform.

    Twice as many as pairs. The largest is 8.57; beyond lies a mass of 1e-17.
    """
    pairs = len(first)
    numbers = np.empty(2 * pairs)
    for start in range(0, pairs, _BLOCK):
        part = slice(start, min(start + _BLOCK, pairs))
        radius = np.sqrt(
            -2.0 * log((first[part] + np.uint64(1)).astype(np.float64) * 2.0**-53)
        )  # (0, 1]: no logarithm of zero
        sine, cosine = sine_cosine(second[part].astype(np.float64) * 2.0**-53)
        numbers[part] = radius * cosine
        numbers[pairs:][part] = radius * sine
    return numbers


def row_sums(rows: Floats, *, overwrite: bool = False) -> Floats:
    """The sum of each row, by adding the second half of the columns to the first until one is left.

    ``np.sum`` adds in an order of its own, which is no promise of numpy's; besides, this one's error grows with the
    logarithm of the number of columns only, and no row depends on another one.

    >>> row_sums(np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 1.0]]))
    array([6., 1.])
    """
    sums = rows if overwrite else rows.copy()
    width = sums.shape[1]
    if not width:
        return np.zeros(len(sums))
    while width > 1:
        half = (width + 1) // 2
        sums[:, : width - half] += sums[:, half:width]
        width = half
    return sums[:, 0].copy()


def mean(values: npt.NDArray[Any]) -> float:
    """The mean of numbers, whose sum is rounded once and so has no order; NaN where it is not finite."""
    try:
        total = math.fsum(values.tolist())
    except (OverflowError, ValueError):  # beyond all floats, or infinity less infinity
        return math.nan
    return total / len(values)
