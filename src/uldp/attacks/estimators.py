"""Adversaries: from perturbed values of one weight to a guess of the clients' mean weight.

All know the mechanism and its settings, as the server does. They work on many trials at once, and on counts where they
need more than averages: 50,000 reports cost one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from uldp.mechanisms.local import LocalMechanism
from uldp.mechanisms.response import RandomizedResponse
from uldp.mechanisms.two_point import TwoPoint
from uldp.rng import Secrets
from uldp.vectors import Vector

WEIGHTS: Final = 401
"""Candidate weights, evenly over the range."""

_BINS: Final = 400
_PROBES: Final = 1 << 15
_PROBES_AT_ONCE: Final = 1 << 11
_EM_STEPS: Final = 3000
_EM_CHECK: Final = 50
_EM_STILL: Final = 1e-6  # of the range: so little that the mean may move in one step of those at rest


@dataclass(frozen=True)
class Channel:
    """How outputs, put into bins, depend on the weight.

    ``ratios[b, j]`` is P(bin b | weight j) / Q(bin b), where Q is the law of outputs of weights spread evenly over the
    range. Q does not depend on the weight, so ratios are all that likelihoods are about.
    """

    edges: Vector
    weights: Vector
    ratios: Vector

    @classmethod
    def of(cls, mechanism: LocalMechanism, secrets: Secrets) -> Channel:
        """By outputs of the mechanism itself, so that it works for any set of outputs.

        For outputs y drawn from Q, the mean of P(y | w) / Q(y) over those in a bin is P(bin | w) / Q(bin). Bins are
        cut at quantiles: a value that comes often has a bin of its own, so two outputs make two bins.
        """
        weights = np.linspace(mechanism.low, mechanism.high, WEIGHTS)
        probes = np.sort(mechanism.perturb(np.linspace(mechanism.low, mechanism.high, _PROBES), secrets.stream()))
        edges = np.unique(np.quantile(probes, np.arange(1, _BINS) / _BINS, method="lower"))
        edges = edges[edges < probes[-1]]
        bins = np.searchsorted(edges, probes)
        sums = np.zeros((len(edges) + 1, WEIGHTS))
        for start in range(0, _PROBES, _PROBES_AT_ONCE):
            part = slice(start, start + _PROBES_AT_ONCE)
            values, first, times = np.unique(probes[part], return_index=True, return_counts=True)
            chances = np.exp(mechanism.log_likelihood(values, weights))
            chances *= (times / chances.mean(axis=1))[:, None]
            np.add.at(sums, bins[part][first], chances)
        return cls(edges, weights, sums / np.bincount(bins)[:, None])

    def counts(self, outputs: Vector) -> npt.NDArray[np.int64]:
        """How many of the outputs fall into each bin."""
        found = np.searchsorted(self.edges, outputs.reshape(-1))
        return np.bincount(found, minlength=len(self.edges) + 1)


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
class Adversary:
    """``fits`` says against which mechanisms it can be used."""

    name: str
    summary: str
    predict: Predict
    uses_counts: bool
    fits: Callable[[LocalMechanism], bool]


def _two_outputs(mechanism: LocalMechanism) -> bool:
    return isinstance(mechanism, TwoPoint)


def _any(mechanism: LocalMechanism) -> bool:
    return True


def _candidates_are_enough(mechanism: LocalMechanism) -> bool:
    """GRR singles out one value of its grid: candidates between which values lie would miss it."""
    return not (isinstance(mechanism, RandomizedResponse) and mechanism.grid.size > WEIGHTS)


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
    channel = _needed(evidence.channel)
    likelihood = evidence.counts @ np.log(channel.ratios)
    likelihood -= likelihood.mean(axis=1, keepdims=True)
    best = likelihood.argmax(axis=1)
    weights = channel.weights[best]
    # Between candidates: the top of the parabola through the best one and its neighbours.
    inner = (best > 0) & (best < len(channel.weights) - 1)
    rows, middle = np.flatnonzero(inner), best[inner]
    left, top, right = (likelihood[rows, middle + step] for step in (-1, 0, 1))
    bend = 2 * top - left - right
    bent = bend > 1e-12  # a flat top says nothing about where in it the weight is
    step = channel.weights[1] - channel.weights[0]
    weights[rows[bent]] += step * ((right - left)[bent] / (2 * bend[bent]))
    flat = np.ptp(likelihood, axis=1) < 1e-12
    weights[flat] = mechanism.center
    return Guess(weights)


def by_deconvolution(mechanism: LocalMechanism, evidence: Evidence) -> Guess:
    """EM for the law of the clients' weights, without any assumption about it, from the uniform law; then its mean."""
    channel = _needed(evidence.channel)
    law = np.full((len(evidence.counts), len(channel.weights)), 1 / len(channel.weights))
    still = _EM_STILL * (mechanism.high - mechanism.low)
    mean = law @ channel.weights
    for step in range(1, _EM_STEPS + 1):
        law *= (evidence.counts / (law @ channel.ratios.T)) @ channel.ratios
        law /= law.sum(axis=1, keepdims=True)
        if step % _EM_CHECK == 0:
            before, mean = mean, law @ channel.weights
            if np.abs(mean - before).max() < still:
                break
    return Guess(law @ channel.weights)


def _needed(channel: Channel | None) -> Channel:
    if channel is None:
        raise ValueError("this adversary needs counts")
    return channel


ADVERSARIES: Final[Mapping[str, Adversary]] = {
    adversary.name: adversary
    for adversary in (
        Adversary("frequency", "the paper's: how often each of two outputs comes", by_frequency, False, _two_outputs),
        Adversary("mean", "inverts the mean output", by_mean, False, _any),
        Adversary("likelihood", "one likeliest weight of all clients", by_likelihood, True, _candidates_are_enough),
        Adversary("em", "the law of clients' weights by EM", by_deconvolution, True, _candidates_are_enough),
    )
}
