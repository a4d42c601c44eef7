"""A small federation of real parts: prepared parties, silo processes in this process, and a transport with faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import msgspec
from tests.support import decode

from uldp.crypto.keys import SigningKey
from uldp.experiment.build import PreparedExperiment
from uldp.experiment.config import Experiment
from uldp.experiment.parties import prepare_server, prepare_silo
from uldp.protocol import messages as m
from uldp.rng import Secrets
from uldp.runs.directory import RunDirectory
from uldp.runs.files import stored_key
from uldp.runtimes.serving import Clock, FailedResponse, Patience, ServedRun
from uldp.runtimes.silo_process import SiloProcess

SILOS = ("silo-1", "silo-2", "silo-3")


def signing_key_from(file: Path | str) -> SigningKey:
    """A silo's long-term key, made in ``file`` once."""
    return SigningKey(Secrets.from_key(stored_key(Path(file))))


def saved_state(session) -> dict:
    """All that a session saves."""
    return msgspec.msgpack.decode(session.save())


def experiment(**sections) -> Experiment:
    """A rehearsal that takes a moment; sections are merged into it."""
    tree = {
        "data": {"dataset": "synthetic", "users": 8, "silos": 3, "options": {"records": 90}},
        "model": {"name": "logistic"},
        "method": {"name": "uldp-avg-w", "rounds": 3, "local_epochs": 1},
        "privacy": {"noise_multiplier": 5.0},
        "aggregation": {"name": "masked"},
        "run": {"threads": 1},
    }
    return Experiment.from_tree({key: {**value, **sections.get(key, {})} for key, value in tree.items()})


@lru_cache(maxsize=64)
def _parties(tree: str) -> tuple[PreparedExperiment, dict[str, PreparedExperiment]]:
    import json

    built = Experiment.from_tree(json.loads(tree))
    silos = {name: prepare_silo(built, name, rehearsal=True) for name in SILOS}
    return prepare_server(built, rehearsal=True), silos


def parties(built: Experiment) -> tuple[PreparedExperiment, dict[str, PreparedExperiment]]:
    """PreparedExperiment once for all tests with the same experiment: they are frozen."""
    import json

    return _parties(json.dumps(built.to_tree(), sort_keys=True))


def with_identities(folder: Path, secrets="os", **sections) -> Experiment:
    """An experiment with secrets from the operating system, and keys in ``folder`` whose public halves stand in it."""
    keys = {name: signing_key_from(folder / f"{name}.key").public.hex() for name in SILOS}
    aggregation = {**sections.pop("aggregation", {}), "identities": keys}
    return experiment(aggregation=aggregation, run={"threads": 1, "secrets": secrets}, **sections)


@dataclass
class FakeTime:
    """A clock that only the transport and the pauses move."""

    time: float = 0.0

    def clock(self) -> Clock:
        return Clock(now=lambda: self.time, sleep=self.pass_by)

    def pass_by(self, seconds: float) -> None:
        self.time += seconds


Fault = Callable[["World", str, bytes], "bytes | FailedResponse"]


@dataclass
class World:
    """All silos of an experiment in one process, each with its folder; and what the transport brought.

    ``fault`` is asked for every message instead of the silo and may ask the silo itself. ``keys``: a folder with the
    silos' signing keys, where the experiment names them.
    """

    folder: Path
    built: Experiment
    fault: Fault | None = None
    keys: Path | None = None
    policy: object = None
    time: FakeTime = field(default_factory=FakeTime)
    exchanges: int = 0
    sent: list[tuple[str, bytes, bytes]] = field(default_factory=list)
    """(silo, request, reply) of everything that left a silo."""
    running: dict[str, SiloProcess] = field(default_factory=dict)

    def silo(self, name: str) -> SiloProcess:
        """The silo's process; started if it is not running."""
        if name not in self.running:
            identity = None if self.keys is None else signing_key_from(self.keys / f"{name}.key")
            prepared = parties(self.built)[1][name]
            self.running[name] = SiloProcess(
                prepared, self.folder / name, "unix:/unused", identity=identity, policy=self.policy
            )
        return self.running[name]

    def kill(self, name: str) -> None:
        """What a silo had in memory is gone."""
        if name in self.running:
            self.running.pop(name).close()

    def ask(self, name: str, request: bytes) -> bytes | FailedResponse:
        header, body = self.silo(name).respond({"kind": "request"}, request)
        if header["kind"] == "refused":
            return FailedResponse(body.decode(), refused=True)
        self.sent.append((name, request, body))
        return body

    def exchange(self, requests, timeout):
        self.exchanges += 1
        asked = self.fault or (lambda world, name, request: world.ask(name, request))
        answers = {name: asked(self, name, request) for name, request in requests.items()}
        if any(isinstance(answer, FailedResponse) for answer in answers.values()):
            self.time.pass_by(timeout)
        return answers

    def serving(self, on_missing="stop", **further) -> ServedRun:
        path = self.folder / "run"
        directory = RunDirectory.open(path) if (path / "experiment.json").exists() else None
        directory = directory or RunDirectory.create(path, self.built)
        patience = further.pop("patience", Patience(seconds=60, attempt=20, pause=1, on_missing=on_missing))
        server = parties(self.built)[0]
        return ServedRun(server, directory, self, patience=patience, clock=self.time.clock(), **further)

    def close(self) -> None:
        for name in list(self.running):
            self.kill(name)


def away(gone, rounds, plan):
    """Some silo does not respond in these rounds."""

    def fault(made, name, request):
        body = decode(request, experiment=plan.digest, silo=name, limit=plan.message_limit)
        if name == gone and isinstance(body, m.UpdateRequest) and body.round in rounds:
            return FailedResponse("no response")
        return made.ask(name, request)

    return fault
