"""The inference attack of SRR-FL (CODASPY 2024, Section 3 and Appendix), by simulation.

In each round all clients perturb one weight and send it. The server stores everything and guesses the clients' mean
weight. Clients differ by a fixed normal offset, and in each round the mean is moved by an independent uniform
shift within the tolerance. The error is the distance to the mean of the last round, as a part of the range.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from uldp.attacks.estimators import Channel, Evidence, LocalAdversary
from uldp.errors import ConfigError, require
from uldp.mechanisms.local_mechanism import LocalMechanism
from uldp.rng import Secrets, Streams
from uldp.vectors import Vector

MAX_TRIAL: Final = 10**7
MAX_TRIALS: Final = 10**5
_MAX_ROUNDS_OF_ALL: Final = 5 * 10**7  # memory: some numbers for each round of each trial


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Who sends what, and how often it is played.

    ``offset`` is the clients' mean weight less the centre, ``spread`` the standard deviation between clients,
    ``tolerance`` the most by which a round moves the mean: all in units of the weights. The paper does not say which
    weight it attacked; 0.3 of [-1, 1] was chosen because it fits the numbers recorded in docs/errata.md S4.
    """

    clients: int = 1000
    rounds: int = 50
    offset: float = 0.3
    spread: float = 0.00548
    tolerance: float = 0.01
    trials: int = 500

    def __post_init__(self) -> None:
        for location, count in (("--clients", self.clients), ("--rounds", self.rounds), ("--trials", self.trials)):
            require(count >= 1, location, count, "a whole number from 1 up")
        if self.clients * self.rounds > MAX_TRIAL:
            reason = f"{self.clients:,} clients in {self.rounds:,} rounds send more than {MAX_TRIAL:,} values"
            raise ConfigError(reason, location="--clients", value=self.clients)
        most = min(MAX_TRIALS, _MAX_ROUNDS_OF_ALL // self.rounds)
        if self.trials > most:
            reason = f"at most {most:,} trials of {self.rounds:,} rounds, not {self.trials:,}"
            raise ConfigError(reason, location="--trials", value=self.trials)
        for location, value in (("--spread", self.spread), ("--tolerance", self.tolerance)):
            require(math.isfinite(value) and value >= 0, location, value, "a number from 0 up")

    def weights(self, mechanism: LocalMechanism, streams: Streams) -> Vector:
        """One row for each round, one column for each client, within the range."""
        draw = streams.generator()
        clients = self.spread * draw.standard_normal(self.clients)
        shifts = self.tolerance * draw.uniform(-1, 1, self.rounds)
        mean = mechanism.center + self.offset
        return np.clip(mean + clients[None, :] + shifts[:, None], mechanism.low, mechanism.high)


@dataclass(frozen=True)
class Outcome:
    """How far off an adversary is: ``errors`` of each trial, as parts of the range."""

    mechanism: str
    adversary: str
    epsilon: float
    errors: Vector
    confidence: float | None

    @property
    def error(self) -> float:
        return float(self.errors.mean())

    @property
    def standard_error(self) -> float | None:
        """None if one trial is all there is."""
        trials = len(self.errors)
        return float(self.errors.std(ddof=1)) / math.sqrt(trials) if trials > 1 else None

    def to_json(self) -> dict[str, Any]:
        return {
            "mechanism": self.mechanism,
            "adversary": self.adversary,
            "epsilon": self.epsilon,
            "error_percent": 100 * self.error,
            "standard_error": None if self.standard_error is None else 100 * self.standard_error,
            "confidence": self.confidence,
        }


def attack(
    mechanism: LocalMechanism, adversaries: Iterable[LocalAdversary], scene: Scene, streams: Streams, secrets: Secrets
) -> list[Outcome]:
    """One outcome for each adversary that fits the mechanism. All see the same reports."""
    if not abs(scene.offset) <= mechanism.radius:
        reason = f"a weight within {mechanism.low:g} and {mechanism.high:g}, not {mechanism.center + scene.offset:g}"
        raise ConfigError(reason, location="--weight", value=mechanism.center + scene.offset)
    fitting = [adversary for adversary in adversaries if adversary.fits(mechanism)]
    if not fitting:
        return []
    evidence, truths = _collect(mechanism, fitting, scene, streams, secrets)
    outcomes = []
    for adversary in fitting:
        guess = adversary.predict(mechanism, evidence)
        errors = np.abs(guess.weights - truths) / (mechanism.high - mechanism.low)
        confidence = None if guess.confidence is None else float(guess.confidence.mean())
        outcomes.append(Outcome(mechanism.name, adversary.name, mechanism.epsilon, errors, confidence))
    return outcomes


def _collect(
    mechanism: LocalMechanism, adversaries: Sequence[LocalAdversary], scene: Scene, streams: Streams, secrets: Secrets
) -> tuple[Evidence, Vector]:
    """What the server sees in all trials, and the true means of the last rounds."""
    counted = any(adversary.uses_counts for adversary in adversaries)
    channel = Channel.of(mechanism, secrets.child("probes")) if counted else None
    shape = (scene.trials, scene.rounds)
    averages, uppers, truths = np.empty(shape), np.empty(shape), np.empty(scene.trials)
    counts = np.empty((scene.trials, len(channel.edges) + 1 if channel else 0))
    halves = np.empty(shape, dtype=np.intp)
    for trial in range(scene.trials):
        weights = scene.weights(mechanism, streams.child("trial", trial, "weights"))
        outputs = mechanism.perturb(weights, secrets.child("trial", trial).stream())
        averages[trial], uppers[trial] = outputs.mean(axis=1), (outputs > mechanism.center).mean(axis=1)
        halves[trial] = streams.child("trial", trial, "halves").generator().permutation(scene.rounds)
        truths[trial] = weights[-1].mean()
        if channel:
            counts[trial] = channel.counts(outputs) / outputs.size
    return Evidence(averages, uppers, counts, channel, halves), truths
