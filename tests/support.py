"""What several tests share: a learner of twenty lines, small federations, a plan for them."""

from __future__ import annotations

import hashlib
from dataclasses import fields, replace
from types import MappingProxyType

import msgspec
import numpy as np

from uldp._version import __version__
from uldp.aggregation import lookup_aggregation
from uldp.aggregation.key_agreement import KeyRequest, SealedSeeds, SiloKey, SiloKeys
from uldp.aggregation.lattice_messages import ANSWERS, LOOK_UP_WEIGHTS, RING_WEIGHTS, TRANSFER
from uldp.aggregation.paillier_messages import BlindedShares, Choices, ChoicesRequest, EncryptedWeights, SealedSeed
from uldp.data.federation import Federation, Records, SiloData, Task
from uldp.methods.base import Method
from uldp.methods.registry import lookup
from uldp.methods.uldp_avg_adjusted import UldpAvgAdjusted
from uldp.privacy.ledger import Ledger
from uldp.privacy.releases import PublicFacts
from uldp.privacy.releases.counts import RecordTotals
from uldp.privacy.releases.sums import IntegerSum
from uldp.protocol import messages as m
from uldp.rng import Secrets, Streams
from uldp.sessions.plan import Plan
from uldp.sessions.server import ServerSession, Stage
from uldp.sessions.silo import SiloSession, signing_key
from uldp.vectors import clip_rows, from_residues

_LATTICE = (*LOOK_UP_WEIGHTS, *RING_WEIGHTS, *TRANSFER, *ANSWERS)
KINDS = tuple(
    dict.fromkeys(
        [
            *m.CORE,
            *(KeyRequest, SiloKey, SiloKeys, SealedSeeds, SealedSeed, BlindedShares, EncryptedWeights),
            *(ChoicesRequest, Choices),
            *(kind for exchange in _LATTICE for kind in (exchange.request, exchange.response)),
        ]
    )
)


def decode(data: bytes, **about) -> m.Message:
    """The body of any message of ours."""
    return m.decode(data, kinds=KINDS, **about)


class TinyLearner:
    """Least squares without an intercept; its gradient is written down by hand."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension

    def initial(self, streams: Streams):
        return streams.generator().normal(size=self.dimension)

    def _gradient(self, x, features, labels):
        return features.T @ (features @ x - labels) / len(labels)

    def _grouped(self, data: SiloData):
        for user in np.unique(data.users):
            rows = data.users == user
            yield user, data.features[rows].astype(float), data.labels[rows].astype(float)

    def user_gradients(self, x, data, streams):
        for user, features, labels in self._grouped(data):
            yield np.array([user]), self._gradient(x, features, labels)[None, :]

    def user_deltas(self, x, data, local, streams):
        for user, features, labels in self._grouped(data):
            local_x = x.copy()
            for _ in range(local.epochs):
                local_x -= local.lr * self._gradient(local_x, features, labels)
            yield np.array([user]), (local_x - x)[None, :]

    def clipped_sums(self, data, clip):
        def total(x, records, step, streams):
            features, labels = data.features[records].astype(float), data.labels[records].astype(float)
            rows = features * (features @ x - labels)[:, None]
            return clip_rows(rows[np.isfinite(rows).all(axis=1)], clip).sum(axis=0)

        return total

    def silo_delta(self, x, data, local, streams):
        if not len(data):
            return np.zeros_like(x)
        everything = SiloData(data.name, data.features, data.labels, np.zeros(len(data), dtype=np.int64))
        return next(self.user_deltas(x, everything, local, streams))[1][0]

    def evaluate(self, x, records):
        return {"loss": float(np.mean((records.features @ x - records.labels) ** 2))}

    mean_metrics = (("loss", 1.0), ("mae", 3.0))

    def record_metrics(self, x, records):
        errors = records.features.astype(float) @ x - records.labels
        return np.stack([errors**2, np.abs(errors)], axis=1)

    def predict(self, x, features):
        return features.astype(float) @ x


def small_federation(users=6, silos=3, dimension=4, records=30, seed=0, scale=1.0) -> Federation:
    generator = np.random.default_rng(seed)

    def draw(count):
        features = (scale * generator.normal(size=(count, dimension))).astype(np.float32)
        return features, (features.sum(axis=1) + generator.normal(size=count)).astype(np.float32)

    parts = []
    for index in range(silos):
        features, labels = draw(records)
        parts.append(SiloData(f"silo-{index}", features, labels, generator.integers(0, users, records)))
    return Federation("small", tuple(parts), users, Task(0), Records(*draw(20)))


NO_OWNERS = MappingProxyType({})
MODEL = {"uldp_version": __version__, "layers": "", "outputs": b""}
"""What greetings say of the model where a plan says nothing."""
SMALL_KEY = 512
"""Bits of the Paillier key in tests: insecure, and fast."""


def make_aggregation(name: str, **limits):
    """The aggregation called ``name``, with a small key; ``packed`` is paillier with several coordinates at a time."""
    if name not in ("paillier", "packed"):
        return lookup_aggregation(name)()
    slots = 2 if name == "packed" else 1
    return lookup_aggregation("paillier")(**{"key_bits": SMALL_KEY, "slots": slots, "max_records": 30, **limits})


def with_paillier_weights(method: Method, paillier) -> Method:
    """``method`` with the weights that ``paillier`` applies under encryption, for aggregations that see counts.

    The weights are its release's: where a plan is changed by hand, it takes both.
    """

    class CappedTotals(RecordTotals):
        def __init__(self, ratios):
            self.ratios = ratios

        def totals(self, counts):
            return super().totals(self.ratios.cap_counts(counts))

        def check(self, counts, told):
            """Totals of capped counts may be smaller than a silo's own count."""

    def openly(release):
        class Openly(type(release)):
            @property
            def exchange(self):
                return None if self.weighting == "uniform" else CappedTotals(paillier.ratios(self))

            def weights(self, counts, told):
                ratios = paillier.ratios(self)
                below = self.facts.silos if told is None else ratios.pseudo_count * told + 1
                return ratios.numerators(counts) / below

        return Openly(**_fields_of(release))

    class OpenMethod(type(method)):
        def release(self, facts):
            return openly(super().release(facts))

    return OpenMethod(**_fields_of(method))


def _fields_of(value) -> dict:
    return {item.name: getattr(value, item.name) for item in fields(value)}


def make_plan(
    method: Method, federation: Federation, dimension=4, aggregation="plain", known=NO_OWNERS, **further
) -> Plan:
    """A plan; ``known`` are further public facts."""
    kind = make_aggregation(aggregation) if isinstance(aggregation, str) else aggregation
    facts = PublicFacts(
        federation.users,
        len(federation.silos),
        dimension,
        kind.rounding,
        task="classification" if isinstance(method, UldpAvgAdjusted) else federation.task.kind,  # wants classes
        residual=kind.residual,
        **known,
    )
    method = method.for_data(federation.counts().sum(axis=0)).for_facts(facts)
    return Plan(
        digest="d" * 64,
        release=method.release(facts),
        rounds=method.rounds,
        method=method,
        aggregation=kind,
        silos=tuple(silo.name for silo in federation.silos),
        **further,
    )


def make_sessions(
    method,
    federation,
    *,
    seed=0,
    budget=None,
    delta=1e-5,
    learner=None,
    secrets=None,
    aggregation="plain",
    min_silos=0,
    owners=NO_OWNERS,
    known=NO_OWNERS,
):
    """A server and its silos, ready for the first message. The silos' signing keys come from the secrets.

    Where the federation holds people out, silos measure at the end. ``owners`` are those of some silos, by name.
    """
    learner = learner or TinyLearner(federation.feature_shape[0])
    plan = make_plan(method, federation, learner.dimension, aggregation, known)
    streams, secrets = Streams.from_seed(seed), secrets or Secrets.simulated_from_seed(seed)
    identities = tuple(signing_key(secrets, index).public for index in range(len(plan.silos)))
    mean_metrics = learner.mean_metrics if federation.holdout else ()
    # The digest stays: tests write messages by hand.
    plan = replace(plan, identities=identities, mean_metrics=mean_metrics, min_silos=min_silos)
    server = ServerSession(plan, learner.initial(streams), Ledger(delta, budget), secrets)
    holdout = federation.holdout or [None] * len(federation.silos)
    silos = {
        silo.name: SiloSession(plan, silo, learner, streams, secrets, holdout=held, owner=owners.get(silo.name))
        for silo, held in zip(federation, holdout, strict=True)
    }
    return server, silos


def hello(silos=3, users=6, dimension=4, **other) -> m.Hello:
    """The handshake of the small federation, or one with other contents."""
    return m.Hello(**{"silos": silos, "users": users, "dimension": dimension, **MODEL, **other})


def awaited(server) -> type[m.Message]:
    """The type of the request that the server waits for responses to, and that the silos get next."""
    name, request = next(iter(server.requests().items()))
    return type(decode(request, experiment=server.plan.digest, silo=name, limit=server.plan.message_limit))


def step_until(request, server, silos) -> None:
    """Exchanges up to the one in which the server sends such a request."""
    while awaited(server) is not request:
        step(server, silos)


def collect_round(server, silos):
    """Exchanges up to a round's total, which is charged and not used yet: the total in units."""
    while True:
        requests, in_round = server.requests(), server.stage is Stage.ROUND
        replies = {name: silos[name].reply(request) for name, request in requests.items()}
        for name, reply in replies.items():
            server.receive(name, reply)
        server.collect()
        if in_round:
            about = {"experiment": server.plan.digest, "limit": server.plan.message_limit}
            bodies = {name: decode(reply, silo=name, **about) for name, reply in replies.items()}
            total = server.side.total({name: body.vector for name, body in bodies.items()})
            # The session goes on with this very total, for it is what it charges.
            assert server.charge().content == hashlib.sha256(m.pack(total)).hexdigest()
            return from_residues(total)


def set_model(server, x) -> None:
    """Let a session go on from another model, as if it had been saved with it."""
    server.restore(msgspec.msgpack.encode({**msgspec.msgpack.decode(server.save()), "x": m.pack(x)}))


def step(server, silos) -> bool:
    """One exchange; False when the experiment is over."""
    requests = server.requests()
    if not requests:
        return False
    for name, request in requests.items():
        server.receive(name, silos[name].reply(request))
    server.collect()
    server.charge()
    server.advance()
    return True


def drive_with_restarts(make):
    """Run ``make()``'s sessions to the end, and after every exchange go on with new ones from the saved states."""
    server, silos = make()
    while step(server, silos):
        saved, states = server.save(), {name: silo.save() for name, silo in silos.items()}
        entries = server.ledger.entries
        server, silos = make()
        server.restore(saved)
        for entry in entries:
            server.ledger.charge(entry)
        for name, state in states.items():
            silos[name].restore(state)
    return server


def drive(server, silos) -> None:
    while step(server, silos):
        pass


def build(name: str, **fields) -> Method:
    """A method by name, with these fields."""
    named = lookup(name)
    return named.method(**{**dict(named.fixed), **fields})


def rows_of(method, x, data, learner, *, streams=None, secrets=None, facts=None, release=None):
    """What one silo sends for the rows of ``method``: clipped, perturbed or trained, as its release has it."""
    facts = facts or PublicFacts(users=int(data.users.max(initial=0)) + 1, silos=1, dimension=len(x))
    release = release or method.release(facts)
    streams, secrets = streams or Streams.from_seed(0), secrets or Secrets.simulated_from_seed(0)
    return list(release.rows(method, x, data, learner, streams, secrets))


def noiseless_total(method, federation, learner, x, sample=None) -> list[int]:
    """The sum over silos of what each silo would send without noise, as Python integers."""
    release = method.release(PublicFacts(federation.users, len(federation.silos), len(x)))
    streams = Streams.from_seed(0)
    counts = federation.counts()
    told = None if release.exchange is None else release.exchange.totals(counts)
    total = [0] * len(x)
    for index, silo in enumerate(federation):
        mine = None if told is None else told[index]
        data = release.select(silo, mine, streams.child("kept", index))
        data = data if sample is None else data.take(sample[data.users])
        secrets = Secrets.simulated_from_seed(0).child("silo", index)
        part = IntegerSum(release.encoding, len(x), release.weights(counts[index], mine))
        for users, rows in release.rows(method, x, data, learner, streams.child("silo", index), secrets):
            part.add(users, rows)
        total = [a + int(b) for a, b in zip(total, part.total, strict=True)]
    return total


def moved(before: list[int], after: list[int]) -> int:
    """The squared distance of two integer vectors, exactly."""
    return sum((a - b) ** 2 for a, b in zip(before, after, strict=True))


def owner_of(method):
    """Which part of a run's directory has a method of this name."""
    from uldp.runs.directory import RunDirectory
    from uldp.runs.records import RunLog, RunState

    return next(part for part in (RunLog, RunState, RunDirectory) if hasattr(part, method))


class Folder:
    """Where a silo keeps large requests."""

    def __init__(self):
        self.parts = {}

    def put(self, data):
        name = hashlib.sha256(data).hexdigest()
        self.parts[name] = data
        return name

    def get(self, name):
        return self.parts[name]
