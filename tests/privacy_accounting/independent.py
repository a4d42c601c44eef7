"""An accountant of our own for the tests, from first principles: nothing here is imported from ``uldp.privacy``.

Gaussians: delta(epsilon) in fifty digits. Everything else: the loss of one release is put on a grid twice, every value
rounded up and every value rounded down, and composed by convolution. The true epsilon lies between the two.
"""

from __future__ import annotations

import mpmath
import numpy as np
from scipy.signal import fftconvolve
from scipy.stats import binom, norm

TAIL = 1e-13
"""Of every convolution this much is cut off at each end: to the safe side above, to the other side below."""


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Epsilon of N(mu, 1) against N(0, 1)."""
    with mpmath.workdps(50):
        m = mpmath.mpf(mu)

        def excess(epsilon):
            gained = mpmath.ncdf(m / 2 - epsilon / m) - mpmath.exp(epsilon) * mpmath.ncdf(-m / 2 - epsilon / m)
            return gained - mpmath.mpf(delta)

        low, high = mpmath.mpf(0), mpmath.mpf(1)
        if excess(low) <= 0:
            return 0.0
        while excess(high) > 0:
            high *= 2
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) > 0 else (low, middle)
        return float(high)


class Losses:
    """Probabilities of the losses ``(first + i) * step``, and of infinity; rounded up, or down."""

    def __init__(self, first: int, probabilities, infinity: float, *, up: bool) -> None:
        self.first, self.probabilities, self.infinity, self.up = first, probabilities, infinity, up

    def cut(self) -> Losses:
        """Without the far ends."""
        p = self.probabilities
        low, high = int(np.searchsorted(np.cumsum(p), TAIL)), len(p) - int(np.searchsorted(np.cumsum(p[::-1]), TAIL))
        kept, infinity = p[low:high].copy(), self.infinity
        if self.up:
            kept[0] += p[:low].sum()
            infinity += p[high:].sum()
        else:
            kept[-1] += p[high:].sum()
        return Losses(self.first + low, kept, infinity, up=self.up)

    def plus(self, other: Losses) -> Losses:
        """Of two releases, one after the other."""
        together = np.maximum(fftconvolve(self.probabilities, other.probabilities), 0)
        infinity = 1 - (1 - self.infinity) * (1 - other.infinity)
        return Losses(self.first + other.first, together, infinity, up=self.up).cut()

    def times(self, number: int) -> Losses:
        """Of so many releases."""
        if number == 1:
            return self
        half = self.times(number // 2)
        whole = half.plus(half)
        return whole.plus(self) if number % 2 else whole

    def epsilon(self, delta: float, step: float) -> float:
        values = (self.first + np.arange(len(self.probabilities))) * step

        def at(epsilon):
            over = values > epsilon
            return self.infinity + (self.probabilities[over] * -np.expm1(epsilon - values[over])).sum()

        if at(0.0) <= delta:
            return 0.0
        low, high = 0.0, float(values[-1]) + step
        if self.infinity > delta:
            return float("inf")
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if at(middle) > delta else (low, middle)
        return high


def one_release(sigma: float, rate: float, size: int, step: float, *, left: bool, up: bool) -> Losses:
    """The loss of sum_j Binomial(size, rate)_j N(j, sigma^2) against N(0, sigma^2), or reversed."""
    weights = binom.pmf(np.arange(size + 1), size, rate)
    x = np.linspace(-9 * sigma, size + 9 * sigma, 100_001)
    exponents = [np.log(w) + j * (2 * x - j) / (2 * sigma**2) for j, w in enumerate(weights) if w > 1e-300]
    loss = np.logaddexp.reduce(exponents)
    if left:
        cumulative = sum(w * norm.cdf(x, j, sigma) for j, w in enumerate(weights))
    else:
        loss, cumulative = -loss[::-1], norm.sf(x[::-1], 0, sigma)
    inside = np.diff(cumulative)
    index = np.ceil(loss[1:] / step) if up else np.floor(loss[:-1] / step)
    index, first = index.astype(np.int64), int(index.min())
    probabilities = np.bincount(index - first, weights=np.maximum(inside, 0))
    ends = float(cumulative[0]), float(1 - cumulative[-1])
    if up:
        probabilities[0] += ends[0]
    else:
        probabilities[-1] += ends[1]
    return Losses(first, probabilities, ends[1] if up else 0.0, up=up).cut()


def bracket(sigma: float, rate: float, size: int, number: int, delta: float, step: float) -> tuple[float, float]:
    """Between these two lies the epsilon of ``number`` releases."""
    found = [
        max(
            one_release(sigma, rate, size, step, left=left, up=up).times(number).epsilon(delta, step)
            for left in (True, False)
        )
        for up in (False, True)
    ]
    return found[0], found[1]
