"""Runs with canaries through the real sessions, and what is seen of them in the dummy coordinates."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from uldp.aggregation.base import Accumulator, BoundSecrets, RoundRequest, SiloSide, SiloUpdate
from uldp.audits.canaries import Canaries, CanaryLearner, CanaryMethod, Mask
from uldp.data.federation import Federation, IntArray, LabelArray, SiloData, Task
from uldp.errors import ConfigError
from uldp.experiment.build import PreparedExperiment
from uldp.privacy.ledger import Entry, Ledger
from uldp.privacy.releases import rebuild_release
from uldp.protocol import messages as m
from uldp.rng import Secrets, Streams
from uldp.sessions.plan import Plan
from uldp.sessions.server import ServerSession, Stage
from uldp.sessions.shuffler import Shuffler
from uldp.sessions.silo import Owner, SiloSession, signing_key
from uldp.vectors import Residues, Rows, Vector, from_residues

Array = npt.NDArray[np.float64]
OnRound = Callable[[], None]
Charge = Callable[[Entry], None]
Exchange = Callable[[Mapping[str, bytes]], Mapping[str, bytes]]
"""Carries requests to the silos that they are for, and brings back their replies."""
Connect = Callable[[Mapping[str, SiloSession]], AbstractContextManager[Exchange]]
"""Puts a run's silo sessions where an exchange reaches them."""

PEOPLE: Final = 20
"""Synthetic people whose updates go beside the canaries'."""
RECORDS: Final = 2
"""Records of such a person in each of two silos."""
LEAST_NOISE: Final = 0.0101
"""Of each silo, where an aggregation needs noise for its ciphertexts (lattice): little more than it asks for."""


@dataclass(frozen=True)
class Seen:
    """What a run showed in the dummy coordinates, in the units of the model.

    Args:
        included: (silos, canaries): whose records were there.
        totals: (rounds, dummies).
        silo_sums: (silos, rounds, dummies), each silo's noised sum before it was protected; None where the aggregation
            never has it in the clear.
        sent: (silos, rounds, dummies), what the server got from each silo as residues; None for ciphertexts.
        sample: (rounds, canaries): who was sampled; None for everybody, or where nobody knows.
        sizes: How many users were sampled in each round, canaries and others; None as above.
        model: (rounds, parameters), the totals of the model's own coordinates.
    """

    included: Mask
    totals: Array
    silo_sums: Array | None
    sent: Residues | None
    sample: Mask | None
    sizes: IntArray | None
    model: Array


@contextmanager
def in_process(sessions: Mapping[str, SiloSession]) -> Iterator[Exchange]:
    """Silos' sessions that are called where they are."""
    yield lambda requests: {name: sessions[name].reply(request) for name, request in requests.items()}


@dataclass(frozen=True)
class AuditSetup:
    """An experiment with canaries in it, ready to be run any number of times.

    Args:
        prepared: The experiment that is audited.
        people: Who takes part beside the canaries.
        canaries: The canaries.
        connect: How requests come to the silos; a federation's transport, or calls.
    """

    prepared: PreparedExperiment
    people: Federation
    canaries: Canaries
    connect: Connect = in_process

    def plan(self, *, noise_multiplier: float | None = None, rounds: int | None = None) -> Plan:
        """The plan with canaries; with other noise, and with other ``rounds``, everything else being the same."""
        plan = self.prepared.plan
        facts = self.canaries.facts(plan.facts)
        method = plan.method if rounds is None else replace(plan.method, rounds=rounds)
        method = method if noise_multiplier is None else replace(method, noise_multiplier=noise_multiplier)
        layers = self.prepared.learner.layer_sizes
        watched = CanaryMethod.wrap(method, layers, plan.facts, self.canaries.dummies)
        release = rebuild_release(watched.release(facts))
        release.check()
        digest = hashlib.sha256(
            f"audit {plan.digest} {facts!r} {noise_multiplier} {method.rounds}".encode()
        ).hexdigest()
        return replace(plan, digest=digest, release=release, rounds=method.rounds, method=watched, mean_metrics=())

    def quiet_plans(self, rounds: int | None) -> tuple[float, list[Plan]]:
        """Two plans without noise, or with the least that the aggregation allows; and its deviation in the total."""
        try:
            return 0.0, [self.plan(noise_multiplier=0.0, rounds=rounds) for _ in range(2)]
        except ConfigError:
            least = LEAST_NOISE * math.sqrt(len(self.canaries.counts))
            plans = [self.plan(noise_multiplier=least, rounds=rounds) for _ in range(2)]
            return math.sqrt(plans[0].release.noise_variance(plans[0].facts.silos)), plans

    def run(
        self,
        plan: Plan,
        included: Mask,
        secrets: Secrets,
        *,
        ledger: Ledger | None = None,
        charge: Charge = lambda entry: None,
        on_round: OnRound = lambda: None,
    ) -> Seen:
        """One run with these canaries. ``charge`` gets every entry before the round's total is used."""
        federation = self.canaries.join(self.people, included)
        learner = CanaryLearner(self.prepared.learner, self.canaries)
        keys = [signing_key(secrets, index) for index in range(len(plan.silos))]
        plan = plan.with_identities([key.public for key in keys])
        streams = self.prepared.streams
        x = learner.initial(streams.child("model"))
        server = ServerSession(plan, x, ledger or Ledger(self.prepared.experiment.privacy.delta), secrets)
        watch = _Watch(plan, self.canaries)
        sessions = {}
        for silo, key in zip(federation.silos, keys, strict=True):
            owner = Owner(key, federation.roster)
            sessions[silo.name] = session = SiloSession(plan, silo, learner, streams, secrets, owner=owner)
            session.side = watch.watch_side(session.side, plan.silos.index(silo.name))
        shuffler = None
        if plan.aggregation.shuffles:
            shuffler = Shuffler(plan.digest, plan.silos, plan.facts.dimension, secrets)
        with self.connect(sessions) as exchange:
            while requests := server.requests():
                replies = exchange(requests)
                if in_round := server.stage is Stage.ROUND:
                    watch.sent.append([replies[name] for name in plan.silos])
                if shuffler is not None and in_round:
                    replies = shuffler.shuffle(server.round + 1, replies, plan.message_limit)
                for name, reply in replies.items():
                    server.receive(name, reply)
                server.collect()
                if (entry := server.charge()) is not None:
                    charge(entry)
                    watch.record_sample(server)
                    on_round()
                server.advance()
        return watch.collect(included, server)


class _Watch:
    """Collects what passes by."""

    def __init__(self, plan: Plan, canaries: Canaries) -> None:
        self._plan, self._canaries = plan, canaries
        self.noised: list[tuple[int, SiloUpdate]] = []
        self.sent: list[list[bytes]] = []
        self._samples: list[Mask] = []
        self._sizes: list[int] = []

    def watch_side(self, side: SiloSide, index: int) -> SiloSide:
        return _WatchedSide(side, lambda update: self.noised.append((index, update)))

    def record_sample(self, server: ServerSession) -> None:
        sampling = self._plan.release.user_sampling
        sample = server.sampler.users(server.round + 1) if sampling.by_server else None
        if sample is not None:
            self._samples.append(sample[self._canaries.users :])
            self._sizes.append(int(sample.sum()))

    def collect(self, included: Mask, server: ServerSession) -> Seen:
        method, own = self._plan.method, self._canaries.dimension
        assert isinstance(method, CanaryMethod)
        totals = np.array(method.totals)
        sums, sent = self._silo_sums(server), self._sent_residues()
        return Seen(
            included,
            totals[:, own:],
            None if sums is None else sums[:, :, own:],
            None if sent is None else sent[:, :, own:],
            np.array(self._samples) if self._samples else None,
            np.array(self._sizes) if self._sizes else None,
            totals[:, :own],
        )

    def _silo_sums(self, server: ServerSession) -> Array | None:
        """What each silo's own sum was, noise included, as that silo can compute it.

        Where it is a ciphertext (lattice, paillier), the server's key opens it here: what a silo knows of its own rows
        and noise comes to the same.
        """
        encoding = self._plan.release.encoding
        if not self.noised or any(not update.noised_sum for _, update in self.noised):
            return None
        by_silo: list[list[Vector]] = [[] for _ in self._plan.silos]
        for index, update in self.noised:
            residues = server.side.total({self._plan.silos[index]: update.noised_sum})
            by_silo[index].append(encoding.decode(from_residues(residues)))
        return np.array(by_silo)

    def _sent_residues(self) -> Residues | None:
        plan = self._plan
        found: list[list[Residues]] = [[] for _ in plan.silos]
        for replies in self.sent:
            for index, reply in enumerate(replies):
                about = {"silo": plan.silos[index], "limit": plan.message_limit, "handshake": plan.hello}
                body = m.decode(reply, experiment=plan.digest, kinds=plan.kinds, **about)  # type: ignore[arg-type]
                if not isinstance(body, m.Update) or len(body.vector) != 8 * plan.facts.dimension:
                    return None
                found[index].append(m.unpack_residues(body.vector, plan.facts.dimension, "audit"))
        return np.array(found)


class _WatchedSide(SiloSide):
    """A silo's side of the aggregation, which does what it does while its noised sums are written down."""

    def __init__(self, side: SiloSide, on_update: Callable[[SiloUpdate], None]) -> None:
        self._side, self._on_update = side, on_update

    def respond(self, body: m.Message) -> m.Message:
        return self._side.respond(body)

    def check_request(self, request: RoundRequest) -> None:
        self._side.check_request(request)

    def accumulator(self, weights: Vector | None, request: RoundRequest) -> Accumulator:
        return _WatchedAccumulator(self._side.accumulator(weights, request), self._on_update)

    def protect_metrics(self, residues: Residues, request: RoundRequest) -> Residues:
        return self._side.protect_metrics(residues, request)

    def repeat_update(self, noised_sum: bytes, request: RoundRequest) -> bytes:
        return self._side.repeat_update(noised_sum, request)


class _WatchedAccumulator(Accumulator):
    def __init__(self, accumulator: Accumulator, on_update: Callable[[SiloUpdate], None]) -> None:
        self._accumulator, self._on_update = accumulator, on_update

    def add(self, users: IntArray | None, rows: Rows) -> None:
        self._accumulator.add(users, rows)

    def release(self, bound_secrets: BoundSecrets) -> SiloUpdate:
        update = self._accumulator.release(bound_secrets)
        self._on_update(update)
        return update


def synthetic_people(federation: Federation, streams: Streams) -> Federation:
    """People who do not exist, in silos of the same names and shape. Nobody's record is needed for them."""
    generator = streams.child("people").generator()
    silos, number = len(federation.silos), min(PEOPLE, federation.users)
    owners: list[list[int]] = [[] for _ in federation.silos]
    for user in range(number):
        for index in {user % silos, (user + user // silos) % silos}:
            owners[index] += [user] * RECORDS
    made = []
    for silo, users in zip(federation.silos, owners, strict=True):
        features = generator.uniform(-1, 1, (len(users), *silo.features.shape[1:])).astype(np.float32)
        labels = _labels(federation.task, len(users), generator)
        made.append(SiloData(silo.name, features, labels, np.array(users, dtype=np.int64)))
    return replace(federation, silos=tuple(made), holdout=(), people=None)


def _labels(task: Task, number: int, generator: np.random.Generator) -> LabelArray:
    if task.kind == "classification":
        return generator.integers(0, task.classes, number).astype(np.int64)
    drawn = generator.uniform(-1, 1, number).astype(np.float32)
    return np.where(drawn == 0, np.float32(0.5), drawn).astype(np.float32)


def audit_secrets(seed: int, run: int | str) -> Secrets:
    """Keys of an audit's run. They follow from the seed, and are used as secret ones would be.

    Simulated secrets address noise by the round alone. What is to be audited is the noise of real runs, which is bound
    to everything that it covers.
    """
    name = f"uldp audit, seed {seed}, run {run}".encode()
    return Secrets.from_key(hashlib.sha256(name).digest())
