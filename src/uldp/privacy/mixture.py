"""One release as a mixture of Gaussians: what it shows about a user who owns k records, each sampled with rate q.

With the user, j ~ Binomial(k, q) of the records are in the batch and move the sum by at most j; without, it is moved by
nothing. So the release is dominated by the pair P = sum_j w_j N(j, sigma^2) and Q = N(0, sigma^2), in both directions
(Ganesh 2024; Choquette-Choo et al. 2023, Corollary 4.7). Moving weight to a larger j never helps the user, so weights
are rounded towards larger j wherever rounding is needed. One record, or no sampling, are the simplest mixtures.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from uldp.privacy.events import NoisedSum, Parameters, parameters

Array = npt.NDArray[np.float64]

LADDER = 256
"""Exact up to so many different j; beyond, neighbours are rounded up to one."""

CELLS = 2_000_000
"""The largest table (points times different j) that is worth its time."""

SKETCH_POINTS = 2000

FAR = 40.0
"""So many standard deviations away there is nothing."""

SMALL = 1e-14
"""More than what float64 loses in a sum of probabilities."""


@dataclass(frozen=True, eq=False)
class Mixture:
    """P = sum_j exp(log_weights_j) N(lengths_j, deviation^2) against Q = N(0, deviation^2)."""

    deviation: float
    lengths: Array
    log_weights: Array
    lumped: bool = False
    """Whether all longer shifts count as the longest. Then P has complex zeros closer to the line, and steps shrink."""

    @property
    def step(self) -> float:
        """Of sums that stand for integrals."""
        return _step(self.deviation) / (max(1.0, float(self.lengths[-1])) if self.lumped else 1.0)

    def loss(self, x: Array) -> Array:
        """log P(x) / Q(x), which grows with x and is convex."""
        total = np.full_like(x, -np.inf)
        for length, log_weight in zip(self.lengths, self.log_weights, strict=True):
            total = np.logaddexp(total, log_weight + length * (2 * x - length) / (2 * self.deviation**2))
        return total

    def _loss_and_slope(self, x: Array) -> tuple[Array, Array]:
        terms = self.log_weights + self.lengths * (2 * x[:, None] - self.lengths) / (2 * self.deviation**2)
        peak = terms.max(axis=1)
        shares = np.exp(terms - peak[:, None])
        total = shares.sum(axis=1)
        return peak + np.log(total), shares @ self.lengths / total / self.deviation**2

    def _invert_loss(self, losses: Array) -> Array:
        """x with ``loss(x) = losses``, or -infinity where the loss is larger everywhere that counts.

        Newton's method from the right: the loss is convex, so it never oversteps.
        """
        some = self.lengths > 0
        lengths, log_weights = self.lengths[some], self.log_weights[some]
        # Each term alone is at most the loss, so it reaches the value further to the right.
        x: Array = ((losses[:, None] - log_weights) * self.deviation**2 / lengths + lengths / 2).min(axis=1)
        moving = np.arange(len(x))
        for _ in range(200):
            loss, slope = self._loss_and_slope(x[moving])
            step = (loss - losses[moving]) / np.maximum(slope, 1e-300)
            x[moving] -= np.maximum(step, 0)
            moving = moving[(step > 1e-13 * self.deviation) & (x[moving] > -FAR * self.deviation)]
            if not len(moving):
                break
        x[x <= -FAR * self.deviation] = -np.inf
        return x

    def profile_if_left(self, epsilons: Array) -> Profile:
        """What an adversary gains if a user leaves: the hockey-stick divergences of P from Q."""
        from scipy.special import log_ndtr, ndtr

        x = self._invert_loss(epsilons)
        weights = np.exp(self.log_weights)
        above, below = (ndtr(sign * (self.lengths - x[:, None]) / self.deviation) @ weights for sign in (1, -1))
        q_above, q_below = (np.exp(epsilons + log_ndtr(sign * x / self.deviation)) for sign in (-1, 1))
        return Profile(above - q_above, below + q_above, q_below - below)

    def profile_if_came(self, epsilons: Array) -> Profile:
        """What an adversary gains if a user comes: the hockey-stick divergences of Q from P."""
        from scipy.special import log_ndtr, logsumexp, ndtr

        x = self._invert_loss(-epsilons)
        above, below = (
            np.exp(
                epsilons
                + logsumexp(self.log_weights + log_ndtr(sign * (self.lengths - x[:, None]) / self.deviation), axis=1)
            )
            for sign in (1, -1)
        )
        q_above, q_below = (ndtr(sign * x / self.deviation) for sign in (-1, 1))
        return Profile(q_below - below, q_above + below, above - q_above)

    def renyi(self, orders: Array) -> tuple[Array, Array]:
        """Renyi divergences of P from Q (a user leaves) and of Q from P (a user comes), by the trapezoidal rule.

        The rule is exact up to float64 for such integrands: the step is a quarter of the noise, and half of sigma^2,
        which keeps away from the complex zeros of P at distance pi sigma^2. The range covers order * longest, beyond
        which nothing lies. An order whose table would be too large gets infinity: a bound, if a useless one.
        """
        if len(self.lengths) == 1:
            rho = orders * (self.lengths[0] / self.deviation) ** 2 / 2
            return rho, rho
        longest, step, margin = float(self.lengths[-1]), self.step, 12 * self.deviation
        size = (2 * orders * longest + 2 * margin) / step
        feasible = size * len(self.lengths) <= CELLS
        left, came = np.full_like(orders, np.inf), np.full_like(orders, np.inf)
        if not feasible.any():
            return left, came
        half_width = float(orders[feasible].max()) * longest + margin
        x: Array = np.arange(-math.ceil(half_width / step), math.ceil(half_width / step) + 1, dtype=np.float64) * step
        loss, log_q = self.loss(x), _log_density(x, self.deviation) + math.log(step)
        for i in np.flatnonzero(feasible):
            order = float(orders[i])
            inside = slice(*np.searchsorted(x, [-order * longest - margin, order * longest + margin]))
            left[i] = _log_sum(log_q[inside] + order * loss[inside]) / (order - 1)
            came[i] = _log_sum(log_q[inside] + (1 - order) * loss[inside]) / (order - 1)
        return left, came

    def truncate(self, log_tail: float) -> Mixture:
        """The upper weights that sum to less than ``exp(log_tail)`` moved to the longest j; the lower ones to the rest.

        >>> from uldp.privacy.events import Gaussian, Group, PoissonSampled
        >>> mixture_of(Group(100, PoissonSampled(0.01, Gaussian(1.0)))).truncate(-20.0).lengths[-2:]
        array([ 11., 100.])
        """
        below = np.logaddexp.accumulate(self.log_weights)
        above = np.logaddexp.accumulate(self.log_weights[::-1])[::-1]
        first = int(np.searchsorted(below, log_tail))
        last = len(above) - int(np.searchsorted(above[::-1], log_tail)) - 1
        lengths, log_weights = self.lengths[first : last + 1].copy(), self.log_weights[first : last + 1].copy()
        log_weights[0] = below[first]
        if last + 1 < len(above):
            lengths, log_weights = np.append(lengths, self.lengths[-1]), np.append(log_weights, above[last + 1])
        return Mixture(self.deviation, lengths, log_weights, self.lumped)

    def sketches(self, log_tail: float) -> tuple[Sketch, Sketch] | None:
        """The loss if a user leaves, and if a user comes, but for ``exp(log_tail)``; None for too large a table."""
        body = self.lengths[:-1] if len(self.lengths) > 1 and self.log_weights[-1] < log_tail else self.lengths
        step, margin = self.step, math.sqrt(2 * (5 - log_tail)) * self.deviation
        if (body[-1] + 2 * margin) / step * len(self.lengths) > CELLS:
            return None
        x: Array = np.arange(-math.ceil(margin / step), math.ceil((body[-1] + margin) / step) + 1, dtype=np.float64)
        x *= step
        loss, log_q = self.loss(x), _log_density(x, self.deviation) + math.log(step)
        log_p = log_q + loss
        p, tail = np.exp(log_p), math.exp(log_tail)
        likely = (np.cumsum(p) > tail) & (np.cumsum(p[::-1])[::-1] > tail)
        inside = slice(0, int(np.searchsorted(x, margin)) + 1)
        return _sketch(loss[likely], log_p[likely]), _sketch(-loss[inside][::-1], log_q[inside][::-1])


@dataclass(frozen=True, eq=False)
class Profile:
    """delta(epsilon) three times, each with all its digits where it is small.

    ``gained`` is delta, ``missed`` is 1 - delta, ``beyond`` is delta - (1 - exp(epsilon)).
    """

    gained: Array
    missed: Array
    beyond: Array


@dataclass(frozen=True, eq=False)
class Sketch:
    """Where the loss of one release lies, roughly: values in ascending order and the logs of their probabilities.

    Good for choosing tilts, windows and dots; no bound rests on it.
    """

    losses: Array
    log_probabilities: Array

    def tilt(self, tilt: float) -> tuple[float, Array]:
        """log E exp(tilt * loss), and the probabilities in proportion to which it is made up."""
        logs = self.log_probabilities + tilt * self.losses
        peak = float(logs.max())
        shares = np.exp(logs - peak)
        total = float(shares.sum())
        return peak + math.log(total), shares / total


def _sketch(losses: Array, log_probabilities: Array) -> Sketch:
    every = math.ceil(len(losses) / SKETCH_POINTS)
    chosen = np.unique(np.append(np.arange(0, len(losses), every), len(losses) - 1))
    return Sketch(losses[chosen], log_probabilities[chosen] + math.log(every))


@functools.lru_cache(maxsize=256)
def mixture_of(event: NoisedSum) -> Mixture:
    """The mixture that dominates ``event``."""
    of = parameters(event)
    if of.sample_rate == 1:
        return Mixture(of.noise_multiplier, np.array([float(of.max_clips)]), np.zeros(1))
    mixture = _binomial(of)
    if of.max_clips == of.size:
        return mixture
    short = mixture.lengths < of.max_clips  # all that would move the sum further move it so far
    rest = np.logaddexp.reduce(mixture.log_weights[~short])
    lengths = np.append(mixture.lengths[short], of.max_clips)
    return Mixture(of.noise_multiplier, lengths, np.append(mixture.log_weights[short], rest), lumped=True)


def _binomial(of: Parameters) -> Mixture:
    """Every sampled record of the user counts."""
    from scipy.stats import binom

    counts = np.arange(of.size + 1)
    log_weights = binom.logpmf(counts, of.size, of.sample_rate)
    log_weights -= np.logaddexp.reduce(log_weights)  # logpmf is good to some ten digits only
    if len(counts) <= LADDER:
        return Mixture(of.noise_multiplier, counts.astype(np.float64), log_weights)
    low, high = (int(edge) for edge in binom.ppf([1e-26, 1 - 1e-15], of.size, of.sample_rate))
    high = min(of.size, high + (high - low) // 2)
    body = np.arange(low, high, max(1, math.ceil((high - low) / (LADDER - 32))))
    sparse = np.minimum(np.ceil(np.geomspace(max(high, 1), of.size, 32)), of.size).astype(np.int64)
    rungs = np.unique(np.concatenate([body, sparse]))
    starts = np.concatenate([[0], rungs[:-1] + 1])  # rung i stands for all counts above rung i - 1
    return Mixture(of.noise_multiplier, rungs.astype(np.float64), np.logaddexp.reduceat(log_weights, starts))


def _step(deviation: float) -> float:
    return min(deviation / 4, deviation**2 / 2)


def _log_density(x: Array, deviation: float) -> Array:
    return np.asarray(-((x / deviation) ** 2) / 2 - math.log(deviation * math.sqrt(2 * math.pi)))


def _log_sum(terms: Array) -> float:
    peak = float(terms.max())
    return peak + math.log(float(np.exp(terms - peak).sum())) + SMALL
