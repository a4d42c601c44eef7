"""All parties in one process. The runtime carries bytes between sessions and writes down what they say."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from uldp.data.federation import Federation, SiloData
from uldp.errors import RunError
from uldp.experiment.build import Prepared, prepare
from uldp.experiment.config import Experiment
from uldp.privacy.ledger import Ledger
from uldp.runs.directory import RunDirectory
from uldp.runtimes.recording import OnRound, RecordedRun, Result
from uldp.runtimes.transcript import SERVER, SHUFFLER, Record
from uldp.sessions.server import ServerSession
from uldp.sessions.shuffler import Shuffler
from uldp.sessions.silo import SiloSession, signing_key
from uldp.vectors import Vector


def run(
    experiment: Experiment | Prepared,
    directory: RunDirectory | str | None = None,
    on_round: OnRound | None = None,
    record: Record | None = None,
) -> Result:
    """Simulate all silos of an experiment here. With a directory the run can be looked at and resumed.

    ``record`` is handed every message as it is delivered, see :mod:`uldp.runtimes.transcript`.

    >>> experiment = Experiment.from_tree({
    ...     "data": {"dataset": "synthetic", "users": 20, "options": {"records": 200}},
    ...     "method": {"name": "uldp-avg-w", "rounds": 2, "local_epochs": 1},
    ...     "privacy": {"noise_multiplier": 5.0},
    ... })
    >>> result = run(experiment)
    >>> round(result.epsilon, 2)
    1.06
    """
    prepared = experiment if isinstance(experiment, Prepared) else prepare(experiment)
    if isinstance(directory, str):
        directory = RunDirectory.create(directory, prepared.experiment)
    return _LocalRun(prepared, directory, on_round, record).go()


def resume(directory: RunDirectory | str, on_round: OnRound | None = None) -> Result:
    """Continue a run from its last checkpoint: the same rounds, the same noise, nothing charged twice."""
    directory = RunDirectory.open(directory) if isinstance(directory, str) else directory
    return _LocalRun(prepare(directory.experiment()), directory, on_round, None).go()


class _LocalRun(RecordedRun):
    """One simulated run."""

    _silos: dict[str, SiloSession]

    def __init__(
        self, prepared: Prepared, directory: RunDirectory | None, on_round: OnRound | None, record: Record | None
    ) -> None:
        super().__init__(prepared, directory, on_round, fingerprint(prepared.federation))
        self._prepared = prepared
        self._record = record or (lambda receiver, sender, message: None)
        self._shuffler: Shuffler | None = None

    def _make_parties(self, x: Vector, ledger: Ledger) -> None:
        prepared, streams = self._prepared, self._prepared.streams
        holdout = prepared.federation.holdout or [None] * len(prepared.plan.silos)
        # All silos are simulated here, so their long-term keys are made here too.
        keys = [signing_key(self._secrets, index) for index in range(len(prepared.plan.silos))]
        plan = prepared.plan.with_identities([key.public for key in keys])
        self._server = ServerSession(plan, x, ledger, self._secrets)
        self._silos = {
            silo.name: SiloSession(
                plan,
                silo,
                prepared.learner,
                streams,
                self._secrets,
                identity=key,
                roster=prepared.federation.roster,
                holdout=held,
            )
            for silo, key, held in zip(prepared.federation, keys, holdout, strict=True)
        }
        if plan.aggregation.shuffles:
            self._shuffler = Shuffler(plan.digest, plan.silos, plan.facts.dimension, self._secrets)

    def _exchange(self) -> bool:
        requests = self._server.requests()
        if not requests:
            return False
        replies: dict[str, bytes] = {}
        for name, request in requests.items():
            self._record(f"silo {name}", SERVER, request)
            reply = self._silos[name].reply(request)
            if self._shuffler is None or not self._server.in_round:
                self._record(SERVER, f"silo {name}", reply)
                self._server.receive(name, reply)
            else:
                self._record(SHUFFLER, f"silo {name}", reply)
                replies[name] = reply
        if self._shuffler is not None and replies:
            limit = self._prepared.plan.message_limit
            for slot, mixed in self._shuffler.mixed(self._server.round + 1, replies, limit).items():
                self._record(SERVER, SHUFFLER, mixed)
                self._server.receive(slot, mixed)
        self._server.collect()
        if self._server.collected:
            # From here on the round needs no silo any more: after a crash it is finished from these very answers.
            self._checkpoint()
        return True

    def _silo_states(self) -> dict[str, bytes]:
        return {name: silo.save() for name, silo in self._silos.items()}

    def _restore_silos(self, states: Mapping[str, bytes]) -> None:
        if set(states) != set(self._silos):
            raise RunError("the checkpoint has other silos; restore them, or start a new run", place="checkpoint")
        for name, state in states.items():
            self._silos[name].restore(state)

    def _left_out_now(self) -> int:
        return sum(silo.left_out for silo in self._silos.values())


def fingerprint(federation: Federation) -> str:
    """A digest of all records. It is kept in ``private`` only: a digest can confirm a guess about the data."""
    test = SiloData("test", federation.test.features, federation.test.labels, np.zeros(len(federation.test), np.int64))
    return hashlib.blake2b(
        "".join(silo.digest() for silo in (*federation.silos, *federation.holdout, test)).encode(), digest_size=32
    ).hexdigest()
