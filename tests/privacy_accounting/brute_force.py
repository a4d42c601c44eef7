"""Slow twins: hockey-stick divergences by plain numerical integration, from nothing but the definition."""

import math

import numpy as np
from scipy.stats import binom, norm


def bisected(delta_of, delta, high=1.0):
    """The smallest epsilon with ``delta_of(epsilon) <= delta``."""
    while delta_of(high) > delta:
        high *= 2
    low = 0.0
    if delta_of(0.0) <= delta:
        return 0.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle) > delta else (low, middle)
    return high


def densities(size, rate, sigma, points, reach=8.0):
    """With and without a user of ``size`` records, each in the batch with probability ``rate``: P, Q and the step."""
    x = np.linspace(-reach * sigma, size + reach * sigma, points)
    weights = binom.pmf(np.arange(size + 1), size, rate)
    p = sum(weight * norm.pdf(x, j, sigma) for j, weight in enumerate(weights))
    return p, norm.pdf(x, 0, sigma), x[1] - x[0]


def epsilons_of(p, q, step, delta):
    """Epsilon if the user leaves, and if the user comes."""
    return tuple(
        bisected(lambda epsilon, a=a, b=b: float(np.maximum(a - math.exp(epsilon) * b, 0).sum() * step), delta)
        for a, b in ((p, q), (q, p))
    )


def one_step(size, rate, sigma, delta):
    p, q, step = densities(size, rate, sigma, 400_001)
    return epsilons_of(p, q, step, delta)


def two_steps(size, rate, sigma, delta):
    p, q, step = densities(size, rate, sigma, 1201, reach=6.5)
    return epsilons_of(np.outer(p, p), np.outer(q, q), step**2, delta)


def replaced_one_step(size, rate, sigma, delta):
    """Epsilon of one pair: the user's records all pull one way, or all the other way."""
    x = np.linspace(-size - 8 * sigma, size + 8 * sigma, 400_001)
    weights = binom.pmf(np.arange(size + 1), size, rate)
    p = sum(weight * norm.pdf(x, j, sigma) for j, weight in enumerate(weights))
    return max(epsilons_of(p, p[::-1], x[1] - x[0], delta))
