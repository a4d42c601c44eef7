"""The experiments that the fuzzer runs once, and every place of theirs that it comes back to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from uldp.experiment.build import PreparedExperiment, prepare
from uldp.experiment.config import Experiment
from uldp.privacy.ledger import Entry
from uldp.rng import Secrets
from uldp.runtimes.simulation import simulated_plan
from uldp.sessions.plan import Plan
from uldp.sessions.server import ServerSession, Stage
from uldp.sessions.shuffler import Shuffler
from uldp.sessions.silo import Owner, ReleaseGuard, SiloSession, signing_key

_KEY: Final = {"name": "paillier", "key_bits": 512, "slots": 1, "max_records": 30}
_LATTICE: Final = {"name": "lattice", "max_records": 30}
_AVG: Final = {"name": "uldp-avg-w"}
CASES: Final[Mapping[str, Mapping[str, Any]]] = {
    "plain, no guarantee": {"method": {"name": "fedavg"}, "privacy": {}, "aggregation": {"name": "plain"}},
    "plain, silos picked": {"method": {"name": "central-sub-dp", "fraction": 0.7}, "aggregation": {"name": "plain"}},
    "masked, weights": {"method": _AVG, "run": {"evaluate_silos": True}, "data": {"holdout": 0.3}},
    "masked, sampled": {"method": {"name": "uldp-avg", "sample_rate": 0.5}, "aggregation": {"min_silos": 2}},
    "lattice": {"method": _AVG, "aggregation": _LATTICE},
    "lattice, sampled": {"method": {**_AVG, "sample_rate": 0.5}, "aggregation": {**_LATTICE, "min_silos": 2}},
    "lattice, private sampling": {
        "method": {**_AVG, "sample_rate": 0.5, "sampling": "private"},
        "aggregation": _LATTICE,
    },
    "paillier": {"method": _AVG, "aggregation": _KEY},
    "paillier, sampled": {"method": {**_AVG, "sample_rate": 0.5}, "aggregation": _KEY},
    "private sampling": {"method": {**_AVG, "sample_rate": 0.5, "sampling": "private"}, "aggregation": _KEY},
    "shuffled": {"method": {"name": "srr-fl"}, "privacy": {}, "aggregation": {"name": "shuffled"}},
}


@dataclass(frozen=True)
class Place:
    """All parties before an exchange, and what it genuinely comes to."""

    entries: tuple[Entry, ...]
    server: bytes
    silos: Mapping[str, bytes]
    requests: Mapping[str, bytes]
    replies: Mapping[str, bytes]
    """What the silos respond."""
    taken: Mapping[str, bytes]
    """What the server gets: the same, unless a shuffler is in between."""
    after: bytes


class Case:
    """One kind of experiment, and every place of its run."""

    def __init__(self, sections: Mapping[str, Mapping[str, Any]]) -> None:
        tree: dict[str, Any] = {
            "data": {"dataset": "synthetic", "users": 6, "silos": 3, "options": {"records": 90}},
            "model": {"name": "logistic"},
            "method": {"rounds": 2},
            "privacy": {"noise_multiplier": 5.0},
            "aggregation": {"name": "masked"},
            "run": {"threads": 1},
        }
        merged = {key: {**value, **sections.get(key, {})} for key, value in tree.items()}
        if "privacy" in sections:
            merged["privacy"] = dict(sections["privacy"])
        self.prepared: PreparedExperiment = prepare(Experiment.from_tree(merged))
        self.secrets = Secrets.simulated_from_seed(0)
        self.plan: Plan = simulated_plan(self.prepared, self.secrets)
        facts = self.plan.facts
        self.shuffler = Shuffler(self.plan.digest, self.plan.silos, facts.dimension, self.secrets)
        self.places = list(self._recorded())
        self.messages = [
            one for location in self.places for one in (*location.requests.values(), *location.replies.values())
        ]

    def server(self, location: Place | None = None) -> ServerSession:
        """A server, or one at ``location`` that has made its requests."""
        streams, entries = self.prepared.streams, location.entries if location else ()
        x = self.prepared.learner.initial(streams.child("model"))
        session = ServerSession(self.plan, x, self.prepared.ledger(entries), self.secrets)
        if location is not None:
            session.restore(location.server)
            session.requests()
        return session

    def silo(self, name: str, guard: ReleaseGuard, location: Place | None = None) -> SiloSession:
        """A silo, or one at ``location``."""
        index = self.plan.silos.index(name)
        session = SiloSession(
            self.plan,
            self.prepared.data(name),
            self.prepared.learner,
            self.prepared.streams,
            self.secrets,
            holdout=self.prepared.holdout(name),
            owner=Owner(identity=signing_key(self.secrets, index), guard=guard),
        )
        if location is not None:
            session.restore(location.silos[name])
        return session

    def _recorded(self) -> Iterator[Place]:
        """Run it. Where a round can be repeated without a silo, the second one is."""
        server = self.server()
        silos = {name: self.silo(name, ReleaseGuard()) for name in self.plan.silos}
        repeat = self.plan.may_repeat
        while True:
            before, states = server.save(), {name: silo.save() for name, silo in silos.items()}
            entries, requests = server.ledger.entries, server.requests()
            if not requests:
                return
            replies = {name: silos[name].reply(request) for name, request in requests.items()}
            if repeat and server.stage is Stage.ROUND and server.round == 1:
                repeat = False
                server.exclude(self.plan.silos[-1:])
                continue
            taken = self.mixed(replies, server.round + 1) if server.stage is Stage.ROUND else replies
            for name, reply in taken.items():
                server.receive(name, reply)
            server.collect()
            yield Place(entries, before, states, requests, replies, taken, server.save())
            server.charge()
            server.advance()

    def mixed(self, replies: Mapping[str, bytes], round_: int) -> Mapping[str, bytes]:
        """What the server gets of a round's updates."""
        if not self.plan.aggregation.shuffles:
            return replies
        return self.shuffler.shuffle(round_, replies, self.plan.message_limit)
