"""Adversaries: from perturbed values of one weight to a guess of the clients' mean weight.

All know the mechanism and its settings, as the server does. They work on many trials at once, and on counts where they
need more than averages: 50,000 reports cost one pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from uldp.mechanisms.local_mechanism import LocalMechanism
from uldp.mechanisms.response import RandomizedResponse
from uldp.mechanisms.two_point import TwoPoint
from uldp.rng import Secrets
from uldp.vectors import Vector

WEIGHTS: Final = 401
"""Candidate weights, evenly over the range."""

_BINS: Final = 400
_DRAWN: Final = 1 << 20
_PROBES: Final = 1 << 15
_PROBES_AT_ONCE: Final = 1 << 11
_SAME_LIKELIHOOD: Final = 1e-12  # per report: sums over bins are off by less
_EM_EVERY: Final = 4  # EM takes every fourth candidate: finer laws cannot be told apart
_EM_STEPS: Final = 2000
_EM_CHECK: Final = 50
_EM_TRIALS: Final = 6
_EM_STILL: Final = 1e-5  # of the range: when so many steps move no mean by more, EM has arrived


@dataclass(frozen=True)
class Channel:
    """How outputs, put into bins, depend on the weight.

    ``ratios[b, j]`` is P(bin b | weight j) up to a factor of the bin alone, which no likelihood depends on.
    """

    edges: Vector
    weights: Vector
    ratios: Vector

    @classmethod
    def of(cls, mechanism: LocalMechanism, secrets: Secrets) -> Channel:
        """Made of outputs of the mechanism itself, so that it works for any set of outputs.

        Bins are cut at quantiles: a value that comes often has a bin of its own, so two outputs make two bins.
        """
        weights = np.linspace(mechanism.low, mechanism.high, WEIGHTS)
        drawn = np.sort(mechanism.perturb(np.linspace(mechanism.low, mechanism.high, _DRAWN), secrets.stream()))
        edges = np.unique(np.quantile(drawn, np.arange(1, _BINS) / _BINS, method="lower"))
        edges = edges[edges < drawn[-1]]
        ratios = np.zeros((len(edges) + 1, WEIGHTS))
        values, times = _probes(drawn)
        for start in range(0, len(values), _PROBES_AT_ONCE):
            part = slice(start, start + _PROBES_AT_ONCE)
            chances = np.exp(mechanism.log_likelihood(values[part], weights))
            if times is not None:
                chances *= (times[part] / chances.mean(axis=1))[:, None]
            np.add.at(ratios, np.searchsorted(edges, values[part]), chances)
        return cls(edges, weights, ratios / ratios.mean(axis=1, keepdims=True))

    def counts(self, outputs: Vector) -> npt.NDArray[np.int64]:
        """How many of the outputs fall into each bin."""
        found = np.searchsorted(self.edges, outputs.reshape(-1))
        return np.bincount(found, minlength=len(self.edges) + 1)


def _probes(drawn: Vector) -> tuple[Vector, npt.NDArray[np.int64] | None]:
    """Outputs to sum P(y | w) over, and how often each counts: None if they are all that there are.

    Where there are too many, evenly chosen ones of those drawn take their place. They follow the law Q of outputs of
    evenly spread weights, so the sum of P(y | w) / Q(y) over those in a bin is P(bin | w), up to a factor.
    """
    values = np.unique(drawn)
    if len(values) <= _PROBES:
        return values, None
    return np.unique(drawn[:: len(drawn) // _PROBES], return_counts=True)


@dataclass(frozen=True)
class Evidence:
    """What the server has after the last round, one row for each trial."""

    averages: Vector  # of each round's reports
    uppers: Vector  # the share of each round's reports above the centre
    counts: Vector  # the share of all reports in each bin
    channel: Channel | None
    halves: npt.NDArray[np.intp]  # the rounds in random order: its first and second half are the split


@dataclass(frozen=True)
class Guess:
    """The predicted mean weight of each trial, and how sure the adversary is of it (0 to 100), where it says so."""

    weights: Vector
    confidence: Vector | None = None


Predict = Callable[[LocalMechanism, Evidence], Guess]


@dataclass(frozen=True)
class LocalAdversary:
    """``misfit`` says why it cannot be used against a mechanism, and what would help; nothing where it can."""

    name: str
    summary: str
    predict: Predict
    uses_counts: bool
    misfit: Callable[[LocalMechanism], str] = lambda mechanism: ""

    def fits(self, mechanism: LocalMechanism) -> bool:
        return not self.misfit(mechanism)


def _two_outputs(mechanism: LocalMechanism) -> str:
    return "" if isinstance(mechanism, TwoPoint) else "it counts two outputs, which only two-point has"


def _tells_apart(candidates: int) -> Callable[[LocalMechanism], str]:
    """GRR singles out one value of its grid: fewer candidates than values would miss most of them."""

    def misfit(mechanism: LocalMechanism) -> str:
        if not isinstance(mechanism, RandomizedResponse) or mechanism.grid.size <= candidates:
            return ""
        least = 2 * mechanism.radius + 1 <= candidates
        precision = math.floor(math.log10((candidates - 1) / (2 * mechanism.radius))) if least else None
        remedy = "a smaller radius" if precision is None else f"precision {precision}"
        return f"it tries {candidates} weights and the grid has {mechanism.grid.size:,} values; use {remedy}"

    return misfit


def by_frequency(mechanism: LocalMechanism, evidence: Evidence) -> Guess:
    """SRR-FL, Section 3.1: Eq. 2 on all rounds, and the confidence score (Eq. 10) from two halves of the rounds."""
    scale = mechanism.radius / np.tanh(mechanism.epsilon / 2)  # r (e^epsilon + 1) / (e^epsilon - 1)
    predicted = mechanism.center + scale * (2 * evidence.uppers.mean(axis=1) - 1)
    half = evidence.uppers.shape[1] // 2
    if not half:
        return Guess(predicted)
    shuffled = np.take_along_axis(evidence.uppers, evidence.halves, axis=1)
    first, second = shuffled[:, :half].mean(axis=1), shuffled[:, half : 2 * half].mean(axis=1)
    apart = np.abs(2 * scale * (first - second)) / (2 * mechanism.radius)
    return Guess(predicted, 1 / (0.01 + apart))


def by_mean(mechanism: LocalMechanism, evidence: Evidence) -> Guess:
    """The weight whose outputs have the average of all reports as their mean."""
    return Guess(mechanism.invert_mean(evidence.averages.mean(axis=1)))


def by_likelihood(mechanism: LocalMechanism, evidence: Evidence) -> Guess:
    """The one weight of all clients under which the reports are likeliest."""
    channel = evidence.channel
    assert channel is not None  # of an adversary that uses counts
    likelihood = evidence.counts @ np.log(channel.ratios)
    best = likelihood >= likelihood.max(axis=1, keepdims=True) - _SAME_LIKELIHOOD
    first, last = best.argmax(axis=1), len(channel.weights) - 1 - best[:, ::-1].argmax(axis=1)
    weights = (channel.weights[first] + channel.weights[last]) / 2  # nothing tells equally likely ones apart
    # Between candidates: the top of the parabola through the best one and its neighbours.
    rows = np.flatnonzero((first == last) & (first > 0) & (last < len(channel.weights) - 1))
    left, top, right = (likelihood[rows, first[rows] + step] for step in (-1, 0, 1))
    step = channel.weights[1] - channel.weights[0]
    weights[rows] += step * (right - left) / (2 * (2 * top - left - right))
    return Guess(weights)


def by_deconvolution(mechanism: LocalMechanism, evidence: Evidence) -> Guess:
    """EM for the law of the clients' weights, without any assumption about it, from the uniform law; then its mean."""
    channel = evidence.channel
    assert channel is not None  # of an adversary that uses counts
    weights, ratios = channel.weights[::_EM_EVERY], np.ascontiguousarray(channel.ratios[:, ::_EM_EVERY])
    # A few trials at a time: each block stops when it may, and products so small are not spread over threads.
    blocks = np.array_split(evidence.counts, -(-len(evidence.counts) // _EM_TRIALS))
    still = _EM_STILL * (mechanism.high - mechanism.low)
    return Guess(np.concatenate([_mean_by_em(shares, weights, ratios, still) for shares in blocks]))


def _mean_by_em(shares: Vector, weights: Vector, ratios: Vector, still: float) -> Vector:
    """The mean of the likeliest law of weights, for each row of shares of bins."""
    law = np.full((len(shares), len(weights)), 1 / len(weights))
    mean = law @ weights
    for _ in range(_EM_STEPS // _EM_CHECK):
        for _ in range(_EM_CHECK):
            law *= (shares / (law @ ratios.T)) @ ratios
        before, mean = mean, law @ weights
        if np.abs(mean - before).max() < still:
            break
    return mean


ADVERSARIES: Final[Mapping[str, LocalAdversary]] = {
    adversary.name: adversary
    for adversary in (
        LocalAdversary(
            "frequency", "the paper's: how often each of two outputs comes", by_frequency, False, _two_outputs
        ),
        LocalAdversary("mean", "inverts the mean output", by_mean, False),
        LocalAdversary("likelihood", "one likeliest weight of all clients", by_likelihood, True, _tells_apart(WEIGHTS)),
        LocalAdversary(
            "em", "the law of clients' weights by EM", by_deconvolution, True, _tells_apart(WEIGHTS // _EM_EVERY)
        ),
    )
}
