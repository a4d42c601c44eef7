"""delta(epsilon) of composed releases without any grid of losses: an inverse Laplace transform along the saddle point.

With K(z) = log E exp(z L) of one release, for every t > 0::

    delta(epsilon) = 1 / (2 pi)  integral over w of  exp(n K(z) - z epsilon) / (z (z + 1)),   z = t + i w

K is integrated over the noise itself. No discretised loss, no tilt of float64's range and no bound is shared with
the accountant; what is computed is the truth up to quadrature, on neither side of it.
"""

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import logsumexp
from scipy.stats import binom, norm


class Reference:
    """One release repeated; ``left`` says in which direction. Losses of less than 1e-9 of ``delta`` are left out."""

    def __init__(self, size, rate, sigma, count, left, delta, per_deviation=32):
        lengths = np.arange(size + 1) if rate < 1 else np.array([size])
        logs = binom.logpmf(lengths, size, rate) if rate < 1 else np.zeros(1)
        lengths, logs = lengths[logs > -250], logs[logs > -250]
        step = min(sigma, sigma**2) / per_deviation
        x = np.arange(-16 * sigma, lengths[-1] + 16 * sigma, step)
        loss = np.full_like(x, -np.inf)
        for length, log in zip(lengths, logs, strict=True):
            loss = np.logaddexp(loss, log + length * (2 * x - length) / (2 * sigma**2))
        log_q = -((x / sigma) ** 2) / 2 + math.log(step / (sigma * math.sqrt(2 * math.pi)))
        self.count = count
        losses, logs = (loss, log_q + loss) if left else (-loss[::-1], log_q[::-1])
        likely = np.cumsum(np.exp(logs[::-1]))[::-1] > 1e-9 * delta / count
        self.losses, self.logs, self.delta = losses[likely], logs[likely], delta

    def moments(self, tilt):
        logs = self.logs + tilt * self.losses
        shares = np.exp(logs - logs.max())
        total = shares.sum()
        mean = shares @ self.losses / total
        return (
            self.count * (logs.max() + math.log(total)),
            self.count * mean,
            self.count * (shares @ (self.losses - mean) ** 2 / total),
        )

    def saddle_point(self):
        low, high = -16.0, 16.0
        while high - low > 1e-2:
            tilt = math.exp((low + high) / 2)
            log_moment, mean, variance = self.moments(tilt)
            log_delta = log_moment - tilt * mean - math.log1p(tilt * (1 + tilt) * math.sqrt(2 * math.pi * variance))
            low, high = ((low + high) / 2, high) if log_delta > math.log(self.delta) else (low, (low + high) / 2)
        return math.exp(low)

    def epsilon(self, frequencies=20_000):
        """The truth, up to quadrature: some 1e-9 of it."""
        tilt = self.saddle_point()
        log_moment, mean, variance = self.moments(tilt)
        shares = np.exp(self.logs + tilt * self.losses - log_moment / self.count)
        heavy = shares > 1e-18
        shares, losses = shares[heavy], self.losses[heavy] - mean / self.count
        # Spacing of frequencies d: the sum over them is delta at epsilon plus that at epsilon +- 2 pi / d, weighted by
        # exp(+- 2 pi t / d). 24 deviations and 60 / t away there is nothing.
        spacing = 2 * math.pi / (24 * math.sqrt(variance) + 60 / tilt)
        terms, start = [], 0
        while start < frequencies:
            w = np.arange(start, start + 100) * spacing
            powers = (np.exp(1j * np.outer(w, losses)) @ shares) ** self.count
            terms.append(powers / ((tilt + 1j * w) * (tilt + 1 + 1j * w)))
            start += 100
            if np.abs(terms[-1]).max() < 1e-15 * abs(terms[0][0]):
                break
        else:
            raise ValueError("the characteristic function does not decay: too few releases for this reference")
        series = np.concatenate(terms)
        series[0] /= 2
        w = np.arange(len(series)) * spacing

        def log_delta_of(epsilon):
            value = (series * np.exp(-1j * w * (epsilon - mean))).sum().real * spacing / math.pi
            return math.log(max(value, 1e-300)) + log_moment - tilt * epsilon

        reach = 12 * math.sqrt(variance)
        low, high = max(0.0, mean - reach), mean + reach
        while high - low > 1e-12 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if log_delta_of(middle) > math.log(self.delta) else (low, middle)
        if math.exp(math.log(self.delta) - log_moment + tilt * high) < 1e-6 * np.abs(series).sum() * spacing:
            raise ValueError("nothing but cancellation")
        return high


def epsilon_of_one(size, rate, sigma, delta, left):
    """Of a single release, where the loss crosses epsilon at one point: P(x > c) - exp(epsilon) Q(x > c)."""
    lengths = np.arange(size + 1)
    logs = binom.logpmf(lengths, size, rate)

    def loss(x):
        return logsumexp(logs + lengths * (2 * x - lengths) / (2 * sigma**2))

    def delta_at(x):
        sign = 1 if left else -1
        log_p = logsumexp(logs + norm.logsf(sign * (x - lengths) / sigma))
        log_q = norm.logsf(sign * x / sigma)
        gain, loses = (log_p, loss(x) + log_q) if left else (log_q, log_p - loss(x))
        return math.exp(gain) * -math.expm1(min(loses - gain, 0.0))

    low, high = -30 * sigma, size + 30 * sigma
    x = brentq(lambda x: delta_at(x) - delta, low, high, xtol=1e-14, rtol=1e-14)
    return max(0.0, loss(x) if left else -loss(x))


def true_epsilon(size, rate, sigma, count, delta, **options):
    """The worse of both directions."""
    if count == 1 and rate < 1:
        return max(epsilon_of_one(size, rate, sigma, delta, left) for left in (True, False))
    return max(Reference(size, rate, sigma, count, left, delta, **options).epsilon() for left in (True, False))
