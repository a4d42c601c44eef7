"""All parties in one process. The runtime carries bytes between sessions and writes down what they say."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from uldp.data.federation import Federation, SiloData
from uldp.errors import ModelError, RunError
from uldp.experiment.build import Prepared, prepare, statement
from uldp.experiment.config import Experiment
from uldp.privacy.accountants import Composition
from uldp.privacy.statement import Statement, finite_or_none
from uldp.rng import Secrets
from uldp.runs.directory import Checkpoint, RunDirectory
from uldp.runtimes.transcript import SERVER, SHUFFLER, Record
from uldp.sessions.server import ServerSession
from uldp.sessions.shuffler import Shuffler
from uldp.sessions.silo import SiloSession, signing_key
from uldp.vectors import Vector

PROBES = 64


@dataclass(frozen=True)
class RoundReport:
    """What is known after a round."""

    round: int
    rounds: int
    metrics: Mapping[str, float]
    epsilon: float
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return {
            "round": self.round,
            "metrics": dict(self.metrics),
            "epsilon": finite_or_none(self.epsilon),
            "seconds": round(self.seconds, 6),
        }

    @classmethod
    def from_json(cls, line: dict[str, Any], rounds: int) -> RoundReport:
        try:
            epsilon = math.inf if line["epsilon"] is None else float(line["epsilon"])
            metrics = {str(name): float(value) for name, value in line["metrics"].items()}
            return cls(int(line["round"]), rounds, metrics, epsilon, float(line["seconds"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(f"cannot read the metrics {line!r}", place="metrics.jsonl") from error


@dataclass(frozen=True)
class Result:
    """A trained model with its test metrics and its privacy statement."""

    dataset: str
    method: str
    model: Vector
    history: tuple[RoundReport, ...]
    statement: Statement
    saturated: int
    left_out: int
    seconds: float
    run: str | None = None
    released: Composition = field(default_factory=dict)
    """The events of the ledger, for adding up several runs."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """Test metrics of the final model."""
        return self.history[-1].metrics if self.history else {}

    @property
    def epsilon(self) -> float:
        return self.statement.epsilon

    def to_json(self) -> dict[str, Any]:
        """The document of ``uldp run --json``."""
        return {
            "run": self.run,
            "dataset": self.dataset,
            "method": self.method,
            "rounds": self.history[-1].round if self.history else 0,
            "metrics": dict(self.metrics),
            "epsilon": finite_or_none(self.epsilon),
            "delta": self.statement.delta,
            "seconds": round(self.seconds, 3),
            "saturated": self.saturated,
            "statement": self.statement.to_json(),
        }


OnRound = Callable[[RoundReport], None]


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


class _LocalRun:
    """One simulated run."""

    _secrets: Secrets
    _server: ServerSession
    _silos: dict[str, SiloSession]

    def __init__(
        self, prepared: Prepared, directory: RunDirectory | None, on_round: OnRound | None, record: Record | None
    ) -> None:
        self._prepared = prepared
        self._directory = directory
        self._on_round = on_round
        self._record = record or (lambda receiver, sender, message: None)
        self._learner = prepared.learner
        self._history: list[RoundReport] = []
        self._seconds = 0.0
        self._left_out_before = 0
        self._shuffler: Shuffler | None = None
        self._data = fingerprint(prepared.federation)
        shape = (PROBES, *prepared.federation.feature_shape)
        self._probe = prepared.streams.child("probe").generator().uniform(-1, 1, shape).astype(np.float32)

    def go(self) -> Result:
        import torch

        # Sums of floats depend on the number of threads, so it belongs to the configuration.
        threads = torch.get_num_threads()
        torch.set_num_threads(self._prepared.experiment.run.threads)
        try:
            with self._directory.locked() if self._directory else nullcontext():
                self._begin()
                self._check_model(self._server.model, "before training")
                self._train()
                return self._finish()
        finally:
            torch.set_num_threads(threads)

    def _begin(self) -> None:
        """Make the sessions, and bring them to where the run stopped."""
        prepared, directory = self._prepared, self._directory
        experiment, streams = prepared.experiment, prepared.streams
        self._secrets = directory.secrets(experiment) if directory else _secrets_in_memory(experiment)
        ledger = prepared.ledger(directory.ledger_entries() if directory else ())
        x = prepared.learner.initial(streams.child("model"))
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
            )
            for silo, key in zip(prepared.federation, keys, strict=True)
        }
        if plan.aggregation.shuffles:
            self._shuffler = Shuffler(plan.digest, plan.silos, plan.facts.dimension, self._secrets)
        if directory is None:
            return
        checkpoint = directory.load_checkpoint()
        if checkpoint is not None:
            self._restore(directory, checkpoint)
        elif directory.finished or ledger.entries:
            raise RunError("its checkpoint is gone; start a new run", place=str(directory.path))
        else:
            # Before the first question: a run that stops within round 1 must not go on with other data or settings.
            self._checkpoint()

    def _train(self) -> None:
        began = time.perf_counter()
        while self._server.collected or self._exchange():
            if not self._server.collected:
                continue
            entry = self._server.charge()
            if entry is not None and self._directory is not None:
                self._directory.append_ledger(entry)
            self._server.advance()
            self._check_model(self._server.model, f"after round {self._server.round}")
            now = time.perf_counter()
            self._report(now - began)
            began = now

    def _exchange(self) -> bool:
        """One question to all silos; False when the experiment is over."""
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

    def _checkpoint(self) -> None:
        if self._directory is None:
            return
        self._directory.save_checkpoint(
            Checkpoint(
                round=self._server.round,
                digest=self._prepared.plan.digest,
                data=self._data,
                server=self._server.save(),
                silos={name: silo.save() for name, silo in self._silos.items()},
                released=[(entry.round, entry.content) for entry in self._server.ledger.entries],
                seconds=self._seconds,
                left_out=self._left_out,
            )
        )

    @property
    def _left_out(self) -> int:
        return self._left_out_before + sum(silo.left_out for silo in self._silos.values())

    def _report(self, seconds: float) -> None:
        """Evaluate, write down, tell."""
        self._seconds += seconds
        report = RoundReport(
            self._server.round,
            self._prepared.plan.method.rounds,
            self._learner.evaluate(self._server.model, self._prepared.federation.test),
            math.inf if self._prepared.void else self._server.ledger.epsilon().value,
            seconds,
        )
        self._history.append(report)
        if self._directory is not None:
            self._directory.append_metrics(report.to_json())
        if self._on_round is not None:
            self._on_round(report)

    def _restore(self, directory: RunDirectory, checkpoint: Checkpoint) -> None:
        """Continue from ``checkpoint``, if everything is still as it was."""
        wrong = ""
        released = {(entry.round, entry.content) for entry in self._server.ledger.entries}
        if checkpoint.digest != self._prepared.plan.digest:
            wrong = "the settings in experiment.json are not those the run began with"
        elif checkpoint.data != self._data:
            wrong = "the data are not those the run began with"
        elif set(checkpoint.silos) != set(self._silos):
            wrong = "the checkpoint has other silos"
        elif not released.issuperset(checkpoint.released):
            wrong = "ledger.jsonl does not hold all that was released"
        if wrong:
            raise RunError(f"{wrong}; restore them, or start a new run", place=str(directory.path))
        self._server.restore(checkpoint.server)
        for name, state in checkpoint.silos.items():
            self._silos[name].restore(state)
        self._seconds, self._left_out_before = checkpoint.seconds, checkpoint.left_out
        lines, rounds = directory.keep_metrics(checkpoint.round), self._prepared.plan.method.rounds
        self._history = [RoundReport.from_json(line, rounds) for line in lines]

    def _check_model(self, x: Vector, when: str) -> None:
        """Stop on a model that returns NaN. The probes are public: no record decides whether a run goes on."""
        if not np.isfinite(self._learner.predict(x, self._probe)).all():
            raise ModelError(
                f"the model returns NaN or infinity {when}; the last checkpoint is kept, what was spent stays spent. "
                "Check the model, lower the learning rates or the clip",
                place="model",
            )

    def _finish(self) -> Result:
        prepared = self._prepared
        summary = statement(prepared.plan, self._server.ledger, prepared.federation, simulated=self._secrets.simulated)
        result = Result(
            dataset=prepared.federation.name,
            method=prepared.experiment.method_name,
            model=self._server.model,
            history=tuple(self._history),
            statement=summary,
            saturated=self._server.saturated,
            left_out=self._left_out,
            seconds=self._seconds,
            run=None if self._directory is None else str(self._directory.path),
            released=self._server.ledger.composition(),
        )
        if self._directory is not None:
            schema = prepared.federation.schema
            self._directory.save_model(result.model, None if schema is None else schema.to_dict())
            if not self._directory.finished:
                self._checkpoint()  # of the end: who reads the run again computes nothing, and finds the same times
                self._directory.write_json("statement.json", summary.to_json())
                self._directory.write_text("statement.txt", "\n".join(summary.lines()) + "\n")
                title = f"Privacy of {result.method} on {result.dataset}"
                self._directory.write_text("statement.html", summary.page(title))
                self._directory.write_json("result.json", result.to_json())
            self._directory.forget_secrets()
        return result


def _secrets_in_memory(experiment: Experiment) -> Secrets:
    if experiment.run.secrets == "os":
        return Secrets.from_os()
    return Secrets.simulated_from_seed(experiment.run.seed)


def fingerprint(federation: Federation) -> str:
    """A digest of all records. It is kept in ``private`` only: a digest can confirm a guess about the data."""
    test = SiloData("test", federation.test.features, federation.test.labels, np.zeros(len(federation.test), np.int64))
    return hashlib.blake2b(
        "".join(silo.digest() for silo in (*federation.silos, test)).encode(), digest_size=32
    ).hexdigest()
