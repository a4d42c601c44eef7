"""Canary users: made-up people whose updates lie in dummy coordinates behind the model.

Canary k has coordinate k to itself. Its update is far longer than the clip, so it passes clip, weights and integer
encoding like everybody's and comes out as long as the method lets it. No other user touches that coordinate, and no
canary touches the model. A few more coordinates stay silent: nobody moves them, and they show the noise alone.

The dummy coordinates are cut off before the server's step. Where an update belongs to a user (or to a record, which is
clipped by itself), training is what it would be without canaries. Where a whole silo sends one vector (``uldp-naive``,
local DP) it is disturbed: there is one clip, or one range, for the model and the dummies together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from uldp.data.federation import Federation, FloatArray, IntArray, LabelArray, Records, SiloData
from uldp.learners.base import ClippedSums, Learner, LocalTraining, Rows
from uldp.methods.base import Method, State
from uldp.privacy.releases import ClippedSilo, Contribution, LocalPerturbation, PublicFacts, Release, RoundFacts
from uldp.rng import Streams
from uldp.vectors import Vector, clip_rows

Mask = npt.NDArray[np.bool_]

FAR: Final = 1e6
"""In clips: longer than any clip, and below what a range of fixed-point numbers refuses."""
SILENT: Final = 200
"""Coordinates that nobody moves."""
SHAPES: Final = ("spread", "one silo", "uneven")
_BLOCK: Final = 1 << 21  # numbers of rows that are made at once


@dataclass(frozen=True)
class Canaries:
    """Who the canaries are: ``counts`` (silos, canaries) of their records, and the model's own number of parameters.

    ``length`` is how long their updates are before the clip. Where a silo sends one vector for all of its records, the
    first canary alone decides its direction; with ``each`` every canary decides the sign of its own coordinate.
    """

    counts: IntArray
    users: int
    dimension: int
    length: float
    each: bool = False

    @property
    def number(self) -> int:
        return int(self.counts.shape[1])

    @property
    def dummies(self) -> int:
        """How many coordinates are appended to the model."""
        return self.number + SILENT

    @property
    def shapes(self) -> IntArray:
        """The shape of every canary, an index of ``SHAPES``."""
        return _shapes(self.number)

    def coins(self, streams: Streams) -> Mask:
        """Who is included: each with probability 1/2. Where clients perturb by themselves, in each silo anew."""
        shape = (len(self.counts), self.number) if self.each else (1, self.number)
        drawn = streams.generator().random(shape) < 0.5
        return np.broadcast_to(drawn, self.counts.shape)

    def join(self, federation: Federation, included: Mask) -> Federation:
        """``federation`` with the canaries that are included; |U| grows by all of them."""
        silos = []
        for silo, counts, here in zip(federation.silos, self.counts, included, strict=True):
            owners = np.repeat(np.arange(self.number), np.where(here, counts, 0))
            features = np.zeros((len(owners), *silo.features.shape[1:]), dtype=np.float32)
            labels: LabelArray = np.ones(len(owners), dtype=silo.labels.dtype)
            joined = Records.joined([Records(silo.features, silo.labels), Records(features, labels)])
            users = np.concatenate([silo.users, self.users + owners])
            silos.append(SiloData(silo.name, joined.features, joined.labels, users))
        return replace(federation, silos=tuple(silos), users=self.users + self.number, holdout=())

    def facts(self, facts: PublicFacts) -> PublicFacts:
        """The public facts with canaries in."""
        return replace(facts, users=self.users + self.number, dimension=self.dimension + self.dummies)


def _shapes(number: int) -> IntArray:
    """Half of the canaries are spread, a quarter each are in one silo and uneven."""
    return np.array([0, 1, 0, 2], dtype=np.int64)[np.arange(number) % 4]


def canaries_for(release: Release, number: int) -> Canaries:
    """Canaries in the three shapes, with as many records as the release lets count."""
    silos = release.facts.silos
    widest = getattr(release, "max_silos", 0) or silos
    most = max(1, getattr(release, "group_size", None) or 1, getattr(release, "max_items", 0))
    counts = np.zeros((silos, number), dtype=np.int64)
    for canary, shape in enumerate(_shapes(number)):
        first = canary % silos
        where = [(first + step) % silos for step in range(min(widest, silos))]
        if release.privacy_unit == "record":
            counts[first, canary] = 1
        elif shape == 0 or isinstance(release, ClippedSilo | LocalPerturbation):
            counts[where, canary] = most
        elif shape == 1:
            counts[first, canary] = most * silos
        else:
            counts[where[:2], canary] = [3 * most, most][: len(where)]
    facts = release.facts
    length = FAR * getattr(release, "clip", 1.0)
    return Canaries(counts, facts.users, facts.dimension, length, each=isinstance(release, LocalPerturbation))


class CanaryLearner:
    """A learner of the model and, behind it, of the canaries' coordinates."""

    def __init__(self, learner: Learner, canaries: Canaries) -> None:
        self._learner, self._canaries = learner, canaries

    @property
    def dimension(self) -> int:
        return self._canaries.dimension + self._canaries.dummies

    @property
    def mean_metrics(self) -> tuple[tuple[str, float], ...]:
        return ()

    def _split_canaries(self, x: Vector, data: SiloData) -> tuple[Vector, SiloData, IntArray]:
        """The model, the people's records, and the canaries that have some."""
        people = data.users < self._canaries.users
        return x[: self._canaries.dimension], data.take(people), np.unique(data.users[~people]) - self._canaries.users

    def _pad(self, rows: Rows) -> Vector:
        padded: Vector = np.zeros((len(rows), self.dimension))
        padded[:, : self._canaries.dimension] = rows
        return padded

    def _rows(self, canaries: IntArray, length: float) -> Iterator[tuple[IntArray, Rows]]:
        """One row for each of these canaries, in blocks that fit into memory."""
        block = max(1, _BLOCK // self.dimension)
        for start in range(0, len(canaries), block):
            some = canaries[start : start + block]
            rows = np.zeros((len(some), self.dimension))
            rows[np.arange(len(some)), self._canaries.dimension + some] = length
            yield self._canaries.users + some, rows

    def initial(self, streams: Streams) -> Vector:
        return np.asarray(self._pad(self._learner.initial(streams)[None])[0])

    def user_deltas(
        self, x: Vector, data: SiloData, local: LocalTraining, streams: Streams
    ) -> Iterator[tuple[IntArray, Rows]]:
        model, people, canaries = self._split_canaries(x, data)
        for users, rows in self._learner.user_deltas(model, people, local, streams):
            yield users, self._pad(rows)
        yield from self._rows(canaries, self._canaries.length)

    def user_gradients(self, x: Vector, data: SiloData, streams: Streams) -> Iterator[tuple[IntArray, Rows]]:
        model, people, canaries = self._split_canaries(x, data)
        for users, rows in self._learner.user_gradients(model, people, streams):
            yield users, self._pad(rows)
        yield from self._rows(canaries, -self._canaries.length)

    def user_moments(self, data: SiloData, centre: Vector | None) -> Iterator[tuple[IntArray, Rows]]:
        _, people, canaries = self._split_canaries(np.zeros(0), data)
        for users, rows in self._learner.user_moments(people, centre):
            yield users, self._pad(rows)
        yield from self._rows(canaries, self._canaries.length)

    def clipped_sums(self, data: SiloData, clip: float) -> ClippedSums:
        """Records are clipped inside the learner: the model's by the real one, a canary's here."""
        users, dimension = self._canaries.users, self._canaries.dimension
        mine = np.flatnonzero(data.users < users)
        of_people = self._learner.clipped_sums(data.take(mine), clip)
        index = np.full(len(data), -1, dtype=np.int64)
        index[mine] = np.arange(len(mine))
        pull = clip_rows(np.array([[-self._canaries.length]]), clip)[0, 0]

        def total(x: Vector, records: IntArray, step: int, streams: Streams) -> Vector:
            people = records[data.users[records] < users]
            summed: Vector = self._pad(of_people(x[:dimension], index[people], step, streams)[None])[0]
            canaries = data.users[records][data.users[records] >= users] - users
            np.add.at(summed, dimension + canaries, pull)
            return summed

        return total

    def silo_delta(self, x: Vector, data: SiloData, local: LocalTraining, streams: Streams) -> Vector:
        model, people, canaries = self._split_canaries(x, data)
        row: Vector = self._pad(self._learner.silo_delta(model, people, local, streams)[None])[0]
        signs = np.full(self._canaries.number, -1.0)
        signs[canaries] = 1.0
        pulled = slice(0, None if self._canaries.each else 1)
        row[self._canaries.dimension :][: self._canaries.number][pulled] = self._canaries.length * signs[pulled]
        return row

    def evaluate(self, x: Vector, records: Records) -> Mapping[str, float]:
        return {}

    def record_metrics(self, x: Vector, records: Records) -> Vector:
        return np.zeros((len(records), 0))

    def predict(self, x: Vector, features: FloatArray) -> npt.NDArray[np.float64]:
        return self._learner.predict(x[: self._canaries.dimension], features)


@dataclass(frozen=True, kw_only=True)
class CanaryMethod(Method):
    """A method with canaries behind its model. ``totals`` are the decoded totals that the server got, one per round.

    The method itself is the one that is audited, in the silo and on the server; the server's part gets the model's
    coordinates alone.
    """

    audited: Method
    facts: PublicFacts
    totals: list[Vector] = field(default_factory=list, repr=False, compare=False)

    def release(self, facts: PublicFacts) -> Release:
        return self.audited.release(facts)

    def silo(self, x: Vector, data: SiloData, learner: Learner, streams: Streams) -> Iterator[Contribution]:
        return self.audited.silo(x, data, learner, streams)

    def broadcast(self, state: State, facts: RoundFacts) -> Vector:
        own = self.facts.dimension
        known = self.facts.in_round(facts.round, facts.silos_heard)
        x = self.audited.broadcast(State(state.x[:own], state.memory), known)
        return np.concatenate([x[:own], state.x[own:], x[own:]])

    def server(self, state: State, total: Vector, facts: RoundFacts) -> State:
        self.totals.append(total)
        own = self.facts.dimension
        known = self.facts.in_round(facts.round, facts.silos_heard)
        after = self.audited.server(State(state.x[:own], state.memory), total[:own], known)
        return State(np.concatenate([after.x, state.x[own:]]), after.memory)

    @classmethod
    def wrap(cls, method: Method, layers: tuple[int, ...], facts: PublicFacts, dummies: int) -> CanaryMethod:
        """``method`` for a model whose last tensor is longer by the dummies."""
        widened = method.for_model((*layers[:-1], layers[-1] + dummies))
        settings: dict[str, Any] = {"rounds": method.rounds, "noise_multiplier": method.noise_multiplier}
        return cls(audited=widened, facts=facts, **settings)
