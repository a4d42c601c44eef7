"""Shadow models: the same training again and again, each time with another half of the people.

What is kept of a model is how much it speaks, by each statistic, for everybody's membership; the model itself is not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Final

import numpy as np

from uldp._version import __version__
from uldp.attacks.replay import Array, Mask, Replay, ReplayedRound, scores_of_round
from uldp.attacks.targets import Targets
from uldp.errors import ConfigError
from uldp.experiment.build import PreparedExperiment
from uldp.rng import Secrets, Streams
from uldp.runtimes.recording import torch_threads
from uldp.runtimes.result import metric_names

STATISTICS: Final = (
    "loss", "loss, all rounds", "confidence", "confidence, all rounds", "one record", "iterates", "knows all others",
)  # fmt: skip
"""What is kept of a model for everybody, in this order; the larger, the more it speaks for membership."""
MAX_NUMBERS: Final = 30_000_000
"""People times parameters: what everybody's records would add to a round is in memory at once."""
UTILITY_MODELS: Final = 8
"""Models with everybody in them, for the metric."""
_WORST: Final = 50.0
"""Losses are cut off here, so that a model that diverged counts as a bad one."""


@dataclass(frozen=True)
class Shadow:
    """What is kept of a model.

    Args:
        included: (users,), who was there.
        statistics: (statistics, users), in the order of ``STATISTICS``.
    """

    included: Mask
    statistics: Array


@dataclass(frozen=True)
class ShadowTraining:
    """How shadow models of one method are trained: all that a worker needs.

    Args:
        prepared: The experiment, made for the targets' federation.
        targets: The people.
        initial: The model before the first round, which everybody knows.
        seed: Of who is included, and of the noise.
    """

    prepared: PreparedExperiment
    targets: Targets
    initial: Array
    seed: int

    @classmethod
    def of(cls, prepared: PreparedExperiment, targets: Targets, seed: int) -> ShadowTraining:
        """With the initial model of a run. A learner in another process would not know how its module was made.

        Raises:
            ConfigError: Losses compare records, or the model is too large.
        """
        training = cls(prepared, targets, prepared.learner.initial(prepared.streams.child("model")), seed)
        training._check()
        return training

    def _check(self) -> None:
        learner, users = self.prepared.learner, self.targets.federation.users
        if not learner.mean_metrics:
            reason = "the loss of survival times compares people, so nobody has one alone; attack another data set"
            raise ConfigError(reason, location="data")
        if users * learner.dimension > MAX_NUMBERS:
            reason = (
                f"{learner.dimension:,} parameters, at most {MAX_NUMBERS // users:,} with {users} people; take a "
                "smaller model"
            )
            raise ConfigError(reason, location="model.name", value=self.prepared.experiment.model.name)

    @property
    def digest(self) -> str:
        """Of all that a shadow model depends on."""
        plan, run = self.prepared.plan, self.prepared.experiment.run
        parts = [__version__, plan.digest, repr(plan.method), repr(run), str(self.seed)]
        parts += [silo.digest() for silo in self.targets.federation]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def included(self, number: int) -> Mask:
        """Whose records shadow model ``number`` has: everybody's with probability 1/2; all methods have the same."""
        coins = Streams.from_seed(self.seed).child("coins", number).generator()
        return np.asarray(coins.random(self.targets.federation.users) < 0.5)

    def shadow(self, number: int) -> Shadow:
        """Shadow model ``number``."""
        return _observe(self, self._replay(self.included(number), "shadow", number))

    def _replay(self, included: Mask, *name: str | int) -> Replay:
        streams = Streams.from_seed(self.seed).child(*name)
        secrets = Secrets.simulated_from_seed(self.seed).child(*name)
        return Replay(self.prepared, included, self.initial, streams, secrets)

    def utility(self) -> dict[str, float]:
        """Mean test metrics of a few models with everybody in them."""
        everybody = np.ones(self.targets.federation.users, dtype=np.bool_)
        found: dict[str, list[float]] = {}
        for number in range(UTILITY_MODELS):
            *_, last = self._replay(everybody, "everybody", number).rounds()
            for metric, value in self.prepared.learner.evaluate(last.x, self.prepared.federation.test).items():
                found.setdefault(metric, []).append(value)
        return {metric: float(np.mean(found[metric])) for metric in metric_names(found)}


def _observe(training: ShadowTraining, replay: Replay) -> Shadow:
    """Train, and score everybody by every statistic on the way."""
    losses, included = _Losses(training), replay.included
    by_round: list[Array] = []
    iterates = np.zeros((2, len(included)))
    last: ReplayedRound | None = None
    for last in replay.rounds():
        by_round.append(losses.of(last.x))
        iterates += scores_of_round(last, included)
    assert last is not None
    (loss, confidence, one), over_rounds = by_round[-1], np.sum(by_round, axis=0)
    statistics = np.stack([loss, over_rounds[0], confidence, over_rounds[1], one, *iterates])
    return Shadow(included, statistics)


class _Losses:
    """Losses of everybody's records at a model."""

    def __init__(self, training: ShadowTraining) -> None:
        self._learner, self._records = training.prepared.learner, training.targets.records
        self._owners = training.targets.owners
        self._counts = np.bincount(self._owners)
        self._first = np.unique(self._owners, return_index=True)[1]
        self._classes = training.prepared.federation.task.classes

    def of(self, x: Array) -> Array:
        """(3, users): less the mean loss; mean confidence; the confidence of one record."""
        losses = np.nan_to_num(self._learner.record_metrics(x, self._records)[:, 0], nan=_WORST, posinf=_WORST)
        losses = np.clip(losses, 1e-12, _WORST)
        confidence = _confidence(losses) if self._classes else -losses
        return np.stack([-self._mean(losses), self._mean(confidence), confidence[self._first]])

    def _mean(self, values: Array) -> Array:
        return np.asarray(np.bincount(self._owners, weights=values) / self._counts)


def _confidence(losses: Array) -> Array:
    """log(p / (1 - p)) of the label's probability p = exp(-loss): nearly normal over models (Carlini et al. 2022).

    >>> [round(float(value), 2) + 0.0 for value in _confidence(-np.log(np.array([0.2, 0.5, 0.99])))]
    [-1.39, 0.0, 4.6]
    """
    return np.asarray(-np.log(np.expm1(losses)))


# --- many of them -----------------------------------------------------------------------------------------------------

_TRAINING: list[ShadowTraining] = []
"""In a worker, what it trains."""


def _start_worker(training: ShadowTraining) -> None:
    _TRAINING[:] = [training]


def _shadow_in_worker(number: int) -> Shadow:
    with torch_threads(1):
        return _TRAINING[0].shadow(number)


def train_shadows(training: ShadowTraining, numbers: range, workers: int) -> Iterator[Shadow]:
    """Shadow models ``numbers``, in this order; with several workers as many at once."""
    if workers == 1 or len(numbers) < 2:
        with torch_threads(1):
            yield from map(training.shadow, numbers)
        return
    spawned = get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawned, initializer=_start_worker, initargs=(training,)) as pool:
        yield from pool.map(_shadow_in_worker, numbers, chunksize=1)
