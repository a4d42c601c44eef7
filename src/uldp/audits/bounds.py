"""Lower bounds on epsilon from what canaries showed, each with what it assumes.

A score says how much a canary's coordinate speaks for its presence. Whatever scores are used, a bound holds; good
scores make it large. A bound at level alpha lies above the true epsilon with probability at most alpha.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from uldp.privacy.accountants import account
from uldp.privacy.events import (
    Composition,
    Event,
    Gaussian,
    Group,
    Joint,
    LocalReports,
    NonPrivate,
    PoissonSampled,
    Repeated,
    Spread,
    flatten,
)
from uldp.privacy.gaussian import AnalyticGaussian, unsampled_mu
from uldp.privacy.pld import MixturePld

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

DELTAS: Final = (0.0001, 0.001, 0.01, 0.04, 0.09, 0.16, 0.25, 0.4)
"""Where the curve of a sampled release is computed. It is the largest of the lines that belong to them."""
GUESSED: Final = 0.2
"""For the one-run bound: of how many canaries a guess is made, half of them "in"."""
_STEPS: Final = 9  # of bisections: the noise up to 1 %


@dataclass(frozen=True)
class Bound:
    """A lower bound on epsilon.

    Args:
        name: Which statistic.
        epsilon: The bound, 0 where it says nothing.
        assumes: What it assumes besides independent coins.
    """

    name: str
    epsilon: float
    assumes: str


@dataclass(frozen=True)
class Measured:
    """A round as it is.

    Args:
        mu: The furthest that a canary moves what is seen, over the noise of all its parts.
        numbers: How many numbers the noise of each part was measured on.
        parts: How many parts there are: one total, or the sums of several silos.
    """

    mu: float
    numbers: int
    parts: int = 1


@dataclass(frozen=True)
class Errors:
    """An adversary who says "in" above a threshold: how often wrongly, of how many, and how often not, of how many."""

    false_in: int
    out: int
    false_out: int
    included: int

    @classmethod
    def of(cls, scores: Array, included: Mask, threshold: float = 0.0) -> Errors:
        said = scores > threshold
        return cls(int((said & ~included).sum()), int((~included).sum()), int((~said & included).sum()), included.sum())

    def upper_bounds(self, level: float) -> tuple[float, float]:
        """Upper Clopper-Pearson bounds of both error rates; both hold with probability at least 1 - ``level``.

        Canaries may have error rates of their own: a sum of independent coins of unequal rates deviates no more than
        one of equal rates (Hoeffding 1956), and a trade-off curve is convex, so the mean rates lie above it too. These
        are the means over all canaries: which of them are in is chance, and errors among a random subset, thinned, are
        again distributed as a sum of independent coins (a uniform subset is strongly Rayleigh).
        """
        return upper_rate(self.false_in, self.out, level / 2), upper_rate(self.false_out, self.included, level / 2)


def upper_rate(hits: int, tries: int, level: float) -> float:
    """The upper Clopper-Pearson bound of a probability."""
    from scipy.stats import beta

    return 1.0 if hits >= tries else float(beta.isf(level, hits + 1, tries - hits))


# --- trade-off curves -------------------------------------------------------------------------------------------------


def scale_noise(event: Event, factor: float) -> Event:
    """``event`` with ``factor`` times the noise."""
    match event:
        case Gaussian(noise_multiplier):
            return Gaussian(noise_multiplier * factor)
        case PoissonSampled(rate, Gaussian(noise_multiplier)):
            return PoissonSampled(rate, Gaussian(noise_multiplier * factor))
        case Group(size, inner, at_most):
            return Group(size, _scaled(inner, factor), at_most)
        case Spread(size, silos):
            return Spread(size, tuple((steps, _scaled(inner, factor)) for steps, inner in silos))
        case Repeated(times, inner):
            return Repeated(times, scale_noise(inner, factor))
        case Joint(always, sampled):
            first, second = scale_noise(always, factor), scale_noise(sampled, factor)
            assert isinstance(first, Gaussian) and isinstance(second, PoissonSampled)
            return Joint(first, second)
        case NonPrivate() | LocalReports():
            return event


def _scaled(event: Gaussian | PoissonSampled, factor: float) -> Gaussian | PoissonSampled:
    scaled = scale_noise(event, factor)
    assert isinstance(scaled, Gaussian | PoissonSampled)
    return scaled


@dataclass(frozen=True)
class Claim:
    """What an adversary is said to see: events and how often, and the delta of the statement.

    ``factor`` is what all noise is multiplied by: 1 for what is claimed.
    """

    composition: tuple[tuple[Event, int], ...]
    delta: float

    @classmethod
    def of(cls, composition: Composition, delta: float) -> Claim:
        return cls(tuple(composition.items()), delta)

    def events(self, factor: float) -> Composition:
        return {scale_noise(event, factor): count for event, count in self.composition}

    def epsilon(self, factor: float = 1.0, delta: float | None = None) -> float:
        """What the accountant says at this size of the noise: exact for a Gaussian, by loss distributions otherwise."""
        accountant = AnalyticGaussian.name if self.gaussian else MixturePld.name
        return account(self.events(factor), delta or self.delta, accountant).value

    @property
    def gaussian(self) -> bool:
        """Whether it is one Gaussian: nothing is sampled."""
        return all(AnalyticGaussian().accepts(event) for event in flatten(dict(self.composition)))

    def false_out(self, false_in: Array, factor: float = 1.0, deltas: Sequence[float] = DELTAS) -> Array:
        """The trade-off curve: the smallest rate of false "out" at these rates of false "in".

        Of Gaussians it is exact. Of sampled ones it is the largest of the lines that the accountant's epsilons at
        ``deltas`` give, in both directions: a curve below the true one, so a point below it refutes the claim all the
        more.
        """
        from scipy.stats import norm

        if self.gaussian:
            return np.asarray(norm.cdf(norm.isf(false_in) - unsampled_mu(self.events(factor))))
        curve = np.zeros_like(false_in)
        for start, slope in self._lines(factor, deltas):
            curve = np.maximum(curve, start - slope * false_in)
        return curve

    def _lines(self, factor: float, deltas: Sequence[float] = DELTAS) -> list[tuple[float, float]]:
        """Lines below the trade-off curve: where they start, and how steeply they fall."""
        lines = []
        for delta in deltas:
            epsilon = self.epsilon(factor, delta)
            if epsilon < 700:  # where exp overflows, the lines say nothing
                lines += [(1 - delta, math.exp(epsilon)), (math.exp(-epsilon) * (1 - delta), math.exp(-epsilon))]
        return lines

    def least_likely(self, factor: float = 1.0) -> Callable[[float], float]:
        """g of a probability r: what happens with r if a canary is in happens with g(r) or more if not, and reversed.

        By the trade-off curve f, g(r) = f(1 - r).
        """
        from scipy.special import ndtr, ndtri

        if self.gaussian:
            mu = unsampled_mu(self.events(factor))
            return lambda likely: float(ndtr(ndtri(likely) - mu))
        starts, slopes = np.array([(0.0, 0.0), *self._lines(factor)]).T
        return lambda likely: float((starts - slopes * (1 - likely)).max())

    def refuted_factor(self, false_in: float, false_out: float) -> float:
        """From which factor of the noise on the point lies below the curve: there is less noise than that."""
        from scipy.stats import norm

        if false_in + false_out >= 1:
            return math.inf
        if self.gaussian:
            return float(unsampled_mu(dict(self.composition)) / (norm.isf(false_in) - norm.ppf(false_out)))
        point = np.array([false_in])
        return largest_unrefuted(lambda factor: false_out < self.false_out(point, factor)[0])


def largest_unrefuted(refuted: Callable[[float], bool]) -> float:
    """The factor between 1/16 and 16, on a logarithmic scale, from which on ``refuted`` holds; infinite if nowhere."""
    low, high = -4.0, 4.0
    if not refuted(2.0**high):
        return math.inf
    # By hand: ``refuted`` is a yes or no, without a sign or size for scipy's root finders, and each call is dear.
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if refuted(2.0**middle) else (middle, high)
    return float(2.0**high)


# --- bounds -----------------------------------------------------------------------------------------------------------


def trade_off(claim: Claim, errors: Errors, level: float) -> Bound:
    """By the trade-off curve of the claimed mechanism with another size of its noise."""
    curve = "of a Gaussian" if claim.gaussian else "of the accountant's privacy loss distributions"
    assumes = f"the trade-off curve {curve}, up to the size of the noise; canaries are independent within a run"
    factor = claim.refuted_factor(*errors.upper_bounds(level))
    return Bound("trade-off, Clopper-Pearson", 0.0 if math.isinf(factor) else claim.epsilon(factor), assumes)


def pure_rates(scores: Array, included: Mask, delta: float, level: float, thresholds: tuple[float, ...]) -> Bound:
    """From the definition of (epsilon, delta)-DP alone: 1 - false out <= e^epsilon false in + delta, and reversed."""
    best = 0.0
    for threshold in thresholds:
        errors = Errors.of(scores, included, threshold)
        false_in, false_out = errors.upper_bounds(level / len(thresholds))
        for hit, wrong in ((1 - false_out, false_in), (1 - false_in, false_out)):
            if hit - delta > wrong > 0:
                best = max(best, math.log((hit - delta) / wrong))
    return Bound("error rates, Clopper-Pearson", best, "canaries are independent within a run")


def one_run(scores: Array, included: Mask, delta: float, level: float) -> Bound:
    """Steinke, Nasr and Jagielski (NeurIPS 2023), Theorem 5.2: guesses about some canaries, of which many are right."""
    assumes = "nothing but independent fair coins: canaries may depend on one another"
    guesses, right = count_right(scores, included, GUESSED)
    epsilon = one_run_epsilon(len(scores), guesses, right, delta, level) if guesses else 0.0
    return Bound("one run", epsilon, assumes)


def count_right(scores: Array, included: Mask, share: float) -> tuple[int, int]:
    """Guesses about this share of the canaries, "in" for the highest scores and "out" for the lowest; how many hold."""
    each = int(share * len(scores) / 2)
    if each == 0:
        return 0, 0
    order = np.argsort(scores, kind="stable")
    return 2 * each, int(included[order[-each:]].sum() + (~included[order[:each]]).sum())


def one_run_epsilon(canaries: int, guesses: int, right: int, delta: float, level: float) -> float:
    """The largest epsilon that so many right guesses refute at ``level``.

    >>> one_run_epsilon(1000, 100, 50, 1e-5, 0.05), round(one_run_epsilon(1000, 100, 100, 0.0, 0.05), 2)
    (0.0, 3.49)
    """
    low, high = 0.0, 40.0
    if one_run_p_value(canaries, guesses, right, low, delta) >= level:
        return 0.0
    for _ in range(40):  # by hand: the lower end is an epsilon that was refuted; a root of scipy's may lie just above
        middle = (low + high) / 2
        refuted = one_run_p_value(canaries, guesses, right, middle, delta) < level
        low, high = (middle, high) if refuted else (low, middle)
    return low


def one_run_p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """P(at least so many right guesses) at most, under (epsilon, delta)-DP.

    Under pure DP the number of right guesses is dominated by Binomial(guesses, e^epsilon / (1 + e^epsilon)). With delta
    it may move up by i with probability 2 m delta / i; the worst i counts.
    """
    from scipy.stats import binom

    accuracy = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(right - 1, guesses, accuracy))
    if delta == 0:
        return tail
    just_below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, accuracy))
    worst = float(np.max(just_below / np.arange(1, right + 1), initial=0.0))
    return min(1.0, tail + 2 * canaries * delta * worst)


def shift_over_noise(claim: Claim, measured: Measured, claimed_mu: float, level: float) -> Bound:
    """From a canary's shift, exact without noise, over the deviation of the noise, by chi-square.

    The canary is the one that moves the view furthest, and which one that is may follow from the noise of the parts: so
    the deviations of all parts hold together.

    Args:
        claim: What is claimed.
        measured: Shift over noise of a round.
        claimed_mu: The same by the event, for somebody who is in the sample.
        level: Of the bound.
    """
    from scipy.stats import chi2

    assumes = "the noise is Gaussian and independent over coordinates and rounds (both are tested below)"
    name, mu, numbers = "shift over noise", measured.mu, measured.numbers
    if numbers < 2 or mu == 0:
        return Bound(name, 0.0, assumes)
    if math.isinf(mu):
        return Bound(name, math.inf, assumes)
    # numbers * measured^2 / true^2 is chi-square: the true deviation is at most this with probability 1 - level.
    most = claimed_mu / mu * math.sqrt(numbers / chi2.ppf(level / measured.parts, numbers))
    return Bound(name, claim.epsilon(max(most, 1e-3)) if most < 1e3 else 0.0, assumes)
