"""Renyi differential privacy: the accounting of the papers, here for their figures and as a second opinion.

``rho(alpha)`` is the Renyi divergence of order alpha between a run with and without one user. It adds up over releases
(Mironov, CSF 2017) and becomes an epsilon by Lemma 2 of ULDP-FL (Balle et al., AISTATS 2020)::

    epsilon = rho + log((alpha - 1) / alpha) - (log delta + log alpha) / (alpha - 1),   the smallest over alpha
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from uldp.privacy.events import Composition, Event, Gaussian, Group, NoisedSum, PoissonSampled, flatten, parameters
from uldp.privacy.mixture import Array, mixture_of

MAX_ORDER = 1 << 20


def gaussian_rdp(noise_multiplier: float, orders: Array, sensitivity: float = 1.0) -> Array:
    """rho(alpha) = alpha sensitivity^2 / (2 sigma^2)."""
    return orders * (sensitivity / noise_multiplier) ** 2 / 2


def sampled_gaussian_rdp(sample_rate: float, noise_multiplier: float, orders: Array) -> Array:
    """rho(alpha) of the Poisson-sampled Gaussian: Mironov, Talwar and Zhang (2019), Section 3.3.

    For whole orders exp((alpha - 1) rho) is the sum over i of binomial(alpha, i) (1 - q)^(alpha - i) q^i
    exp(i (i - 1) / (2 sigma^2)). (alpha - 1) rho is convex in alpha, so between two whole orders the chord is a bound;
    where the integral itself is cheap, it is taken instead.
    """
    below = np.floor(orders)
    share = orders - below
    at_below = log_moments(sample_rate, noise_multiplier, below)
    at_above = log_moments(sample_rate, noise_multiplier, np.ceil(orders))
    chord = ((1 - share) * at_below + share * at_above) / (orders - 1)
    exact, _ = mixture_of(PoissonSampled(sample_rate, Gaussian(noise_multiplier))).renyi(orders)
    return np.minimum(chord, exact)


def log_moments(sample_rate: float, noise_multiplier: float, orders: Array) -> Array:
    """(alpha - 1) rho(alpha) for whole orders."""
    known = {order: _log_moment(sample_rate, noise_multiplier, int(order)) for order in np.unique(orders)}
    return np.array([known[order] for order in orders])


@functools.lru_cache(maxsize=1 << 14)
def _log_moment(sample_rate: float, noise_multiplier: float, order: int) -> float:
    if order < 2:
        return 0.0
    from scipy.special import gammaln, logsumexp

    # The terms of i = 0 and 1 and the -1 of every other term make exactly 1: what remains has no cancellation.
    i = np.arange(2, order + 1, dtype=np.float64)
    choose = gammaln(order + 1) - gammaln(i + 1) - gammaln(order - i + 1)
    exponent = i * (i - 1) / (2 * noise_multiplier**2)
    excess = exponent + np.log(-np.expm1(-exponent))
    terms = choose + i * math.log(sample_rate) + (order - i) * math.log1p(-sample_rate) + excess
    return float(np.logaddexp(0.0, logsumexp(terms)))


def composed_rdp(composition: Composition, orders: Array) -> Array:
    """rho(alpha) of everything in ``composition``, one record or one user at a time."""
    total = np.zeros_like(orders)
    for event, count in flatten(composition).items():
        assert isinstance(event, NoisedSum)
        of = parameters(event)
        if of.sample_rate == 1:
            total += count * gaussian_rdp(of.noise_multiplier, orders, of.size)
        else:
            assert of.size == 1, "a group of sampled records has no such curve"
            total += count * sampled_gaussian_rdp(of.sample_rate, of.noise_multiplier, orders)
    return total


def convert_rdp(rho: Array, orders: Array, delta: float) -> Array:
    """Lemma 2 of ULDP-FL, order by order."""
    return np.asarray(rho + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1))


def orders_between(lowest: float, highest: float) -> Array:
    """Orders from ``lowest`` to ``highest``: fine fractions near 1, all whole orders to 128, then steps of 2 %."""
    fractions = 1 + np.geomspace(1e-3, 31, 400)
    whole = np.arange(2, 129, dtype=np.float64)
    count = max(1, math.ceil(math.log(max(highest / 128, 1.0)) / math.log(1.02)))
    coarse = np.round(np.geomspace(128, max(highest, 128), count + 1))
    near = np.arange(math.ceil(lowest), math.ceil(lowest) + 64, dtype=np.float64)
    orders = np.unique(np.concatenate([fractions, whole, coarse, near]))
    return orders[(orders >= lowest) & (orders <= max(highest, lowest))]


def smallest_over_orders(bound: Callable[[Array], Array], lowest: float) -> float:
    """The smallest ``bound`` over orders from ``lowest`` on; more orders are tried while the last one is the best."""
    highest = max(512.0, 4 * lowest)
    while True:
        values = bound(orders_between(lowest, highest))
        best = int(np.argmin(values))
        if best < len(values) - 1 or highest >= MAX_ORDER:
            return max(0.0, float(values[best]))
        highest *= 8


def has_curve(event: Event) -> bool:
    """Whether ``event`` is about one record or user, or a group without sampling, which is one larger record."""
    match event:
        case Gaussian() | PoissonSampled() | Group(1, _) | Group(_, Gaussian()):
            return True
    return False


class Rdp:
    """The papers' accountant, for Gaussians and Poisson-sampled Gaussians. Sound, some 5 to 10 % above the truth."""

    name = "rdp"

    def accepts(self, event: Event) -> bool:
        return has_curve(event)

    def epsilon(self, composition: Composition, delta: float) -> float:
        return smallest_over_orders(
            lambda orders: convert_rdp(composed_rdp(composition, orders), orders, delta), lowest=1 + 1e-3
        )
