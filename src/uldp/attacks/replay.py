"""One training of a method on some of the people, and what everybody's records would have added to each round.

It trains as a run does: the rows, clips, weights, samples, noise and server's step are those of the method. There are
no messages and no integers, and the noise of a sum is floating point, so that hundreds of trainings take minutes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from uldp.attacks.responses import LocalSteps
from uldp.data.federation import SiloData
from uldp.experiment.build import PreparedExperiment
from uldp.methods.base import State
from uldp.privacy.releases import GaussianSum
from uldp.rng import Secrets, Streams
from uldp.sessions.sampling import RoundSampler
from uldp.vectors import Rows, Vector

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ReplayedRound:
    """A round, as an adversary sees it who has everybody's records and asks whose were there.

    Args:
        total: The noised total that the server got.
        added: (users, parameters), what each user's records would have added to it: exactly where a total is a sum over
            users, else to first order (:mod:`uldp.attacks.responses`).
        noise: Of the total: its variance per parameter, or its covariance matrix.
        x: The model after the round.
    """

    total: Vector
    added: Array
    noise: Array
    x: Vector


class Replay:
    """Trains ``prepared`` on the records of ``included`` users, whose silos ``prepared.federation`` has.

    Args:
        prepared: The experiment, made for a federation of all people.
        included: (users,).
        initial: The model before the first round.
        streams: For the noise of totals.
        secrets: For samples, batches, and the noise inside DP-SGD.
    """

    def __init__(
        self, prepared: PreparedExperiment, included: Mask, initial: Vector, streams: Streams, secrets: Secrets
    ) -> None:
        self.included = included
        self._prepared, self._initial, self._secrets = prepared, initial, secrets
        self._noise = streams.generator()
        self._plan, self._learner = prepared.plan, prepared.learner
        release, counts = self._plan.release, prepared.federation.counts()
        told = None if release.exchange is None else release.exchange.totals(counts)
        mine = [None if told is None else told[index] for index in range(len(counts))]
        self._weights = [release.weights(own, told) for own, told in zip(counts, mine, strict=True)]
        # What a silo selects of a user's records depends on that user's counts alone, whoever else is there.
        self._silos = [
            release.select(silo, told, self._public(index).child("kept"))
            for index, (silo, told) in enumerate(zip(prepared.federation, mine, strict=True))
        ]

    def rounds(self) -> Iterator[ReplayedRound]:
        """The rounds, one after the other."""
        plan, release, facts = self._plan, self._plan.release, self._plan.facts
        sampler = RoundSampler(release, self._secrets)
        state = State(self._initial)
        for round_ in range(1, plan.rounds + 1):
            chosen = sampler.silos(round_)
            here = np.ones(facts.silos, dtype=np.bool_) if chosen is None else chosen
            turn = release.participation.members(facts.users, round_)
            able = np.ones(facts.users, dtype=np.bool_) if turn is None else turn
            sample = sampler.users(round_)
            present = self.included & able if sample is None else self.included & able & sample
            x = plan.method.broadcast(state, facts.in_round(round_, facts.silos))
            total, added, inner = self._contributions(x, round_, present, here)
            added[~able] = 0.0  # groups take turns, which everybody knows
            outer = release.noise_variance(facts.silos)
            total += math.sqrt(outer) * self._noise.standard_normal(len(total))
            state = plan.method.server(state, total, facts.in_round(round_, facts.silos))
            yield ReplayedRound(total, added, _sum_of(inner, outer), state.x)

    def _public(self, silo: int) -> Streams:
        """What everybody knows of a silo's randomness: the order of records, dropout."""
        return self._prepared.streams.child("silo", silo)

    def _contributions(self, x: Vector, round_: int, present: Mask, here: Mask) -> tuple[Vector, Array, Array]:
        """The total, what every user's records add to it, and the noise that is inside it (DP-SGD's)."""
        added, inner = np.zeros((len(present), self._plan.facts.dimension)), np.zeros(())
        if isinstance(self._plan.release, GaussianSum):
            for index in map(int, np.flatnonzero(here)):
                weights = self._weights[index]
                for users, rows in self._rows(x, round_, index, self._silos[index]):
                    added[users] += rows if weights is None else weights[users, None] * rows
            return present.astype(np.float64) @ added, added, inner
        total = np.zeros(self._plan.facts.dimension)
        for index in map(int, np.flatnonzero(here)):
            silo = self._silos[index]
            for _, rows in self._rows(x, round_, index, silo.take(present[silo.users])):
                total += rows.sum(axis=0)
            responses, noise = self._responses(x, round_, index)
            np.add.at(added, silo.users, responses)
            inner = _sum_of(inner, noise)
        return total, added, inner

    def _rows(self, x: Vector, round_: int, index: int, data: SiloData) -> Iterator[tuple[npt.NDArray[np.int64], Rows]]:
        """Rows of a silo; one that is not finite counts as zero, as in a run."""
        plan, streams = self._plan, self._public(index).child("round", round_)
        secrets = self._secrets.child("silo", index, "round", round_)
        for users, rows in plan.release.rows(plan.method, x, data, self._learner, streams, secrets):
            finite = np.isfinite(rows).all(axis=1)
            owners = np.zeros(len(rows), dtype=np.int64) if users is None else users
            yield owners[finite], rows[finite]

    def _responses(self, x: Vector, round_: int, index: int) -> tuple[Array, Array]:
        """What each of a silo's records would add to its model, and the noise of its training."""
        silo, plan = self._silos[index], self._plan
        alone = SiloData(silo.name, silo.features, silo.labels, np.arange(len(silo)))
        gradients = np.zeros((len(silo), plan.facts.dimension))
        for records, rows in self._learner.user_gradients(x, alone, self._public(index).child("round", round_)):
            gradients[records] = rows
        return LocalSteps.of(plan.method, plan.release, len(silo)).respond(gradients)


def _sum_of(one: Array, other: Array | float) -> Array:
    """Of variances or covariance matrices of independent noise."""
    first, second = np.asarray(one), np.asarray(other)
    if first.ndim == second.ndim:
        return np.asarray(first + second)
    matrix, variance = (first, second) if first.ndim else (second, first)
    return np.asarray(matrix + variance * np.eye(len(matrix)))


def scores_of_round(seen: ReplayedRound, included: Mask) -> Array:
    """(2, users): how much a round speaks for everybody's membership.

    First, to an adversary who knows the candidates' records and not who took part: with coins of variance 1/4 and
    Gaussian noise, the log-likelihood ratio of a linear model is that of a ridge regression of the total on what
    everybody would have added. Second, to one who knows of all others whether they took part.
    """
    total, added, variance = _whitened(seen)
    own = np.square(added).sum(axis=1)
    noise = max(variance, 1e-3 * float(own.mean()), 1e-300)
    ridge = _ridge(added, total - added.sum(axis=0) / 2, 4 * noise)
    mean_of_others = included @ added - included[:, None] * added
    known = (added * (total - mean_of_others)).sum(axis=1) - own / 2
    return np.stack([4 * ridge, known / noise])


def _ridge(added: Array, centred: Vector, penalty: float) -> Array:
    """added (added^T added + penalty)^-1 centred, in the smaller one of two spaces."""
    users, width = added.shape
    if width < users:
        return np.asarray(added @ np.linalg.solve(added.T @ added + penalty * np.eye(width), centred))
    return np.asarray(np.linalg.solve(added @ added.T + penalty * np.eye(users), added @ centred))


def _whitened(seen: ReplayedRound) -> tuple[Vector, Array, float]:
    """Total and contributions where the noise has the same variance in all directions, and that variance."""
    if not seen.noise.ndim:
        return seen.total, seen.added, float(seen.noise)
    values, directions = np.linalg.eigh(seen.noise)
    if values[-1] <= 0:
        return seen.total, seen.added, 0.0
    whiten: Array = directions / np.sqrt(np.maximum(values, 1e-9 * values[-1]))
    return seen.total @ whiten, seen.added @ whiten, 1.0
