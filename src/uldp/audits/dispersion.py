"""Whether counts vary as binomial ones do. Exact where counts are small: there chi-square alarms far too often."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from uldp.data.federation import IntArray

_LONGEST: Final = 1 << 22
"""Of the law of a sum of squares, in numbers; a longer one is nearly a gamma law."""
_FAR: Final = 40.0
"""In standard deviations: beyond it lies less than 1e-13, even of the square of one normal number."""


def dispersion_p_value(counts: IntArray, tries: IntArray | int, rate: float) -> float:
    """Two-sided, of D = sum_i (x_i - c_i)^2 for independent x_i of Binomial(n_i, q), c_i being n_i q rounded.

    Args:
        counts: The x_i.
        tries: The n_i; one number for all, or as many as there are counts.
        rate: q.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> dispersion_p_value(generator.binomial(100, 0.05, 20), 100, 0.05) > 0.01
        True
        >>> dispersion_p_value(np.full(20, 5), 100, 0.05) < 1e-6  # a size that does not vary
        True
    """
    each = np.broadcast_to(tries, counts.shape)
    observed = int(np.square(counts - np.rint(each * rate).astype(np.int64)).sum())
    numbers, times = np.unique(each, return_counts=True)
    mean, deviation = _moments(numbers, times, rate)
    length = math.ceil(mean + _FAR * deviation) + 2
    if length <= _LONGEST:
        law = _law(numbers, times, rate, length)
        at_least, at_most = law[min(observed, length) :].sum(), law[: observed + 1].sum()
    else:
        from scipy.stats import gamma

        shaped = gamma((mean / deviation) ** 2, scale=deviation**2 / mean)
        at_least, at_most = shaped.sf(observed), shaped.cdf(observed)
    return float(min(1.0, 2 * min(at_least, at_most)))


def _moments(numbers: IntArray, times: IntArray, rate: float) -> tuple[float, float]:
    """Mean and standard deviation of D."""
    variance, off = numbers * rate * (1 - rate), numbers * rate - np.rint(numbers * rate)
    fourth = variance * (1 + 3 * variance - 6 * rate * (1 - rate))  # central moments of a binomial
    third = variance * (1 - 2 * rate)
    of_square = fourth - variance**2 + 4 * off * third + 4 * off**2 * variance
    return float(times @ (variance + off**2)), math.sqrt(float(times @ of_square))


def _law(numbers: IntArray, times: IntArray, rate: float, length: int) -> npt.NDArray[np.float64]:
    """P(D = 0), P(D = 1), ...: characteristic functions are multiplied. What lies beyond ``length`` wraps around."""
    from scipy.stats import binom

    size = 1 << length.bit_length()
    product = np.ones(size // 2 + 1, dtype=np.complex128)
    for number, power in zip(numbers, times, strict=True):
        centre, widest = round(float(number) * rate), math.isqrt(size - 1)
        values = np.arange(max(0, centre - widest), min(int(number), centre + widest) + 1)
        one = np.bincount((values - centre) ** 2, weights=binom.pmf(values, number, rate), minlength=size)
        product *= np.fft.rfft(one) ** int(power)
    return np.maximum(np.fft.irfft(product, size), 0.0)
