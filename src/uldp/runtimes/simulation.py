"""Simulation: all parties in one place. The runtime passes bytes between sessions and writes the run directory.

A :class:`Silos` object computes the silos, by default in this process, one after the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np

from uldp.crypto.keys import SigningKey
from uldp.data.federation import Federation, SiloData
from uldp.experiment.build import PreparedExperiment, prepare
from uldp.experiment.config import Experiment
from uldp.privacy.ledger import Ledger
from uldp.rng import Secrets
from uldp.runs.directory import RunDirectory
from uldp.runtimes.recording import RecordedRun, Silos
from uldp.runtimes.result import OnRound, Result
from uldp.runtimes.transcript import SERVER, SHUFFLER, Record
from uldp.sessions.plan import Plan
from uldp.sessions.server import ServerSession, Stage
from uldp.sessions.shuffler import Shuffler
from uldp.sessions.silo import Owner, PartStore, SiloSession, signing_key
from uldp.vectors import Vector


class InProcessSilos(Silos):
    """All silos in this process.

    Args:
        identities: Their long-term keys, whose public halves the experiment lists; by default they come from the run's
            secrets.
    """

    def __init__(self, identities: Sequence[SigningKey] = ()) -> None:
        self.identities = tuple(identities)

    def start(self, prepared: PreparedExperiment, plan: Plan, secrets: Secrets) -> None:
        known = dict(zip(plan.silos, self.identities, strict=True)) if self.identities else {}
        self._sessions = {name: silo_session(prepared, plan, secrets, name, known.get(name)) for name in plan.silos}

    def responses(self, requests: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
        for name, request in requests.items():
            yield name, self._sessions[name].reply(request)

    def states(self, store: PartStore) -> dict[str, bytes]:
        return {name: session.save(store) for name, session in self._sessions.items()}

    def restore(self, states: Mapping[str, bytes], store: PartStore) -> None:
        for name, state in states.items():
            if state:  # a silo without requests so far has none
                self._sessions[name].restore(state, store)

    @property
    def left_out(self) -> int:
        return sum(session.left_out for session in self._sessions.values())


def simulated_plan(prepared: PreparedExperiment, secrets: Secrets, identities: Sequence[SigningKey] = ()) -> Plan:
    """The plan with the public keys of the simulated silos; it has them already where their keys are given."""
    if identities:
        return prepared.plan
    keys = (signing_key(secrets, index) for index in range(len(prepared.plan.silos)))
    return prepared.plan.with_identities([key.public for key in keys])


def silo_session(
    prepared: PreparedExperiment, plan: Plan, secrets: Secrets, name: str, identity: SigningKey | None = None
) -> SiloSession:
    """The session of one simulated silo; its long-term key comes from the secrets, if none is given."""
    owner = Owner(identity or signing_key(secrets, plan.silos.index(name)), prepared.federation.roster)
    data, holdout = prepared.data(name), prepared.holdout(name)
    return SiloSession(plan, data, prepared.learner, prepared.streams, secrets, holdout=holdout, owner=owner)


def run(
    experiment: Experiment | PreparedExperiment,
    directory: RunDirectory | Path | str | None = None,
    on_round: OnRound | None = None,
    record: Record | None = None,
    silos: Silos | None = None,
) -> Result:
    """Simulate all silos of an experiment here; :func:`uldp.train` is the call for people.

    Args:
        experiment: The settings, or what :func:`uldp.prepare` made of them.
        directory: A run directory to write to, or one to continue.
        on_round: Called with a :class:`uldp.RoundReport` after every round; training ends there if it returns True.
        record: Called with every message as it is delivered, see :mod:`uldp.runtimes.transcript`.
        silos: Where the silos are computed; by default in this process.

    Returns:
        The trained model with its metrics and its privacy statement.
    """
    prepared = experiment if isinstance(experiment, PreparedExperiment) else prepare(experiment)
    if isinstance(directory, Path | str):
        directory = RunDirectory.create(directory, prepared.experiment)
    with nullcontext() if directory is None else directory.discard_unless_started():
        return LocalRun(prepared, directory, on_round, record, silos or InProcessSilos()).run()


class LocalRun(RecordedRun):
    """One simulated run. If ``on_round`` stops it, :meth:`run` goes on."""

    def __init__(
        self,
        prepared: PreparedExperiment,
        directory: RunDirectory | None,
        on_round: OnRound | None,
        record: Record | None,
        silos: Silos,
    ) -> None:
        super().__init__(prepared, directory, on_round, silos, fingerprint(prepared.federation))
        self._record = record or (lambda receiver, sender, message: None)
        self._here = silos
        self._shuffler: Shuffler | None = None

    def _make_parties(self, x: Vector, ledger: Ledger) -> None:
        secrets = self._secrets
        plan = simulated_plan(self._prepared, secrets, self._here.identities)
        self._server = ServerSession(plan, x, ledger, secrets)
        self._here.start(self._prepared, plan, secrets)
        if plan.aggregation.shuffles:
            self._shuffler = Shuffler(plan.digest, plan.silos, plan.facts.dimension, secrets)

    def _exchange(self) -> bool:
        if not (requests := self._server.requests()):
            return False
        for name, request in requests.items():
            self._record(f"silo {name}", SERVER, request)
        replies: dict[str, bytes] = {}
        for name, reply in self._here.responses(requests):
            if self._shuffler is None or self._server.stage is not Stage.ROUND:
                self._record(SERVER, f"silo {name}", reply)
                self._server.receive(name, reply)
            else:
                self._record(SHUFFLER, f"silo {name}", reply)
                replies[name] = reply
        if self._shuffler is not None and replies:
            limit = self._prepared.plan.message_limit
            for slot, mixed in self._shuffler.shuffle(self._server.round + 1, replies, limit).items():
                self._record(SERVER, SHUFFLER, mixed)
                self._server.receive(slot, mixed)
        self._server.collect()
        if self._server.stage is Stage.COLLECTED:
            # From here on no silo is needed to finish the round: after a crash it continues from these responses.
            self._checkpoint()
        return True


def fingerprint(federation: Federation) -> str:
    """A digest of all records. It is stored in ``private`` only: a digest can confirm a guess about the data."""
    test = SiloData("test", federation.test.features, federation.test.labels, np.zeros(len(federation.test), np.int64))
    digests = "".join(silo.digest() for silo in (*federation.silos, *federation.holdout, test))
    return hashlib.blake2b(digests.encode(), digest_size=32).hexdigest()
