"""What every way to run an experiment shares: the loop of rounds, and the run directory that is written on the way.

A runtime says how the parties are made and how one exchange happens. Here is when things are written: the ledger before
the model changes, a checkpoint whenever all responses of a round are in, a line of metrics after every round.
"""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Final

import numpy as np

from uldp.crypto.keys import SigningKey
from uldp.errors import ModelError, RunError
from uldp.experiment.build import PreparedExperiment
from uldp.learners.metrics import constant_accuracy, constant_loss
from uldp.privacy.ledger import Ledger
from uldp.privacy.sentences import guarantee, noise_kind
from uldp.privacy.statement import compose
from uldp.rng import Secrets
from uldp.runs import spending
from uldp.runs.directory import RunDirectory
from uldp.runs.people import Population, save_people
from uldp.runs.records import Checkpoint
from uldp.runs.totals import SpentRun
from uldp.runtimes.result import OnRound, Result, RoundReport, write_result
from uldp.sessions.plan import Plan
from uldp.sessions.server import ServerSession, Stage
from uldp.sessions.silo import PartStore
from uldp.vectors import Vector

if TYPE_CHECKING:
    from uldp.privacy.statement import Statement
    from uldp.runs.coefficients import CoefficientTable
    from uldp.runs.description import Description
    from uldp.runs.trained import FittedModel

PROBES: Final = 64
DIVERGED: Final = 100.0
"""How far beyond the label's range a model's outputs for public inputs may lie before its training has diverged."""
_NUMBERS: Final = count(1)
"""Of runs in memory."""


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Sums of floats depend on the number of threads, so it belongs to the configuration."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Silos(ABC):
    """All silos of a simulation, in this process or elsewhere."""

    identities: Sequence[SigningKey] = ()
    """Their long-term keys, where these do not come from the run's secrets."""

    @abstractmethod
    def start(self, prepared: PreparedExperiment, plan: Plan, secrets: Secrets) -> None:
        """Make the silos of a run."""

    @abstractmethod
    def responses(self, requests: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
        """Every silo's response, in any order."""

    @abstractmethod
    def states(self, store: PartStore) -> dict[str, bytes]:
        """The silos' states; ``store`` holds large parts that stay the same."""

    @abstractmethod
    def restore(self, states: Mapping[str, bytes], store: PartStore) -> None:
        """Restore the silos from their states."""

    @property
    @abstractmethod
    def left_out(self) -> int:
        """Rows that were left out since the start."""


class RecordedRun(ABC):
    """One run of an experiment, from its first exchange or its last checkpoint to its result."""

    _secrets: Secrets
    _server: ServerSession

    def __init__(
        self,
        prepared: PreparedExperiment,
        directory: RunDirectory | None,
        on_round: OnRound | None,
        silos: Silos | None = None,
        data: str = "",
    ) -> None:
        """``silos`` are those of a simulation, and ``data`` a digest of their records; a real server has neither."""
        self._prepared = prepared
        self._directory = directory
        self._on_round = on_round
        self._silos = silos
        self._data = data
        self._learner = prepared.learner
        self._history: list[RoundReport] = []
        self._seconds = 0.0
        self._left_out_before = 0
        self._missing: tuple[str, ...] = ()
        self._stopped = False
        self._started = self._within_round = False
        self._over: Result | None = None
        self._under_way = threading.Lock()
        where = f"run {next(_NUMBERS)} of this process" if directory is None else str(directory.path.resolve())
        self._people = Population(where, prepared.experiment, people=prepared.federation.people)
        shape = (PROBES, *prepared.federation.feature_shape)
        self._probe = prepared.streams.child("probe").generator().uniform(-1, 1, shape).astype(np.float32)

    @abstractmethod
    def _make_parties(self, x: Vector, ledger: Ledger) -> None:
        """Set up the server, and other parties that run here, from the run's secrets."""

    @abstractmethod
    def _exchange(self) -> bool:
        """One request to all silos and their responses; False when the experiment is over."""

    def run(self) -> Result:
        """Run to the end, or until ``on_round`` returns True; then it can be called again.

        A run in memory begins once: to begin again would be another run, with other noise.
        """
        if not self._under_way.acquire(blocking=False):
            raise RunError("another thread is training this run", location="result")
        try:
            return self._run()
        finally:
            self._under_way.release()

    def _run(self) -> Result:
        if self._over is not None and self._directory is None:
            return self._over
        if self._within_round and self._directory is None:
            raise RunError("was cut short within a round, and without a directory that is its end", location="result")
        alone = self._directory.lock() if self._directory else nullcontext()
        with torch_threads(self._prepared.experiment.run.threads), alone:
            if self._directory is not None or not self._started:
                self._within_round = True
                self._begin()
                self._started = True
                self._within_round = False
            self._stopped = False
            self._check_model(self._server.model, "before training")
            self._train()
            if self._stopped and self._server.round < self._prepared.plan.rounds:
                return replace(self._result(), continuation=self.run)
            self._over = result = self._finish()
            self._close_silos()
            return result

    def _begin(self) -> None:
        """Make the sessions, and bring them to where the run stopped."""
        prepared, directory = self._prepared, self._directory
        run = prepared.experiment.run
        if directory is not None:
            self._secrets = directory.state.secrets(prepared.experiment)
        else:
            self._secrets = Secrets.from_os() if run.secrets == "os" else Secrets.simulated_from_seed(run.seed)
        ledger = prepared.ledger(directory.log.ledger_entries() if directory else ())
        self._make_parties(prepared.learner.initial(prepared.streams.child("model")), ledger)
        if directory is None:
            return
        directory.check_version()
        checkpoint = directory.state.load_checkpoint()
        if checkpoint is not None:
            self._restore(directory, checkpoint)
        elif directory.finished or ledger.entries:
            raise RunError("its checkpoint is gone; start a new run", location=str(directory.path))
        else:
            # Before the first request: a run that stops within round 1 must not go on with other data or settings.
            save_people(directory, None if self._silos is None else prepared.federation.people)
            self._checkpoint()

    def _train(self) -> None:
        began = time.perf_counter()
        self._within_round = True
        while self._server.stage is Stage.COLLECTED or (not self._server.finished and self._exchange()):
            if self._server.stage is not Stage.COLLECTED:
                continue
            entry = self._server.charge()
            if entry is not None and self._directory is not None:
                self._directory.log.append_ledger(entry)
            self._charge_process()
            self._missing = self._server.missing_silos
            self._server.advance()
            self._check_model(self._server.model, f"after round {self._server.round}")
            now = time.perf_counter()
            self._report(now - began)
            began = now
            if self._stopped:
                return
            self._within_round = True
        self._within_round = False

    def _charge_process(self) -> None:
        """Add this run to what this Python process has released about its people."""
        if (spent := self._spent_run()) is not None:
            spending.charge(spent)

    def _spent_run(self) -> SpentRun | None:
        """All that was released so far; None at a server, which knows nobody's ids."""
        if self._silos is None:
            return None
        prepared, entries = self._prepared, self._server.ledger.entries
        unit, by, without = (
            prepared.plan.release.privacy_unit,
            prepared.background.asserted_by,
            bool(prepared.no_guarantee),
        )
        return SpentRun.of(self._people, entries, unit, by, no_guarantee=without)

    def _checkpoint(self) -> None:
        if self._directory is None:
            return
        self._directory.state.save_checkpoint(
            Checkpoint(
                round=self._server.round,
                digest=self._prepared.plan.digest,
                data=self._data,
                server=self._server.save(),
                silos={} if self._silos is None else self._silos.states(self._directory.state.parts),
                released=[(entry.round, entry.content) for entry in self._server.ledger.entries],
                seconds=self._seconds,
                left_out=self._left_out,
            )
        )

    @property
    def _left_out(self) -> int:
        return self._left_out_before + (0 if self._silos is None else self._silos.left_out)

    def _report(self, seconds: float) -> None:
        """Evaluate, write down, pass it on."""
        self._seconds += seconds
        prepared, ledger, simulated = self._prepared, self._server.ledger, self._secrets.simulated
        unit, reason, by = prepared.plan.release.privacy_unit, prepared.no_guarantee, prepared.background.asserted_by
        epsilon = math.inf if reason else ledger.epsilon().value
        words = guarantee(unit, epsilon, ledger.delta, simulated=simulated, no_guarantee=reason, asserted_by=by)
        metrics = {} if prepared.test is None else self._learner.evaluate(self._server.model, prepared.test)
        progress = (self._server.round, prepared.plan.rounds)
        noise = noise_kind(simulated=simulated)
        report = RoundReport(*progress, metrics, epsilon, seconds, self._missing, noise, words)
        self._history.append(report)
        if self._directory is not None:
            self._directory.log.append_time(report.round, seconds)
            self._directory.log.append_metrics(report.to_json())
        self._within_round = False
        if self._on_round is not None:
            self._stopped = self._on_round(report) is True

    def _restore(self, directory: RunDirectory, checkpoint: Checkpoint) -> None:
        """Continue from ``checkpoint``, if everything is still as it was."""
        wrong = ""
        released = {(entry.round, entry.content) for entry in self._server.ledger.entries}
        if checkpoint.digest != self._prepared.plan.digest:
            wrong = "the settings in experiment.json, or the code that they name, are not those the run began with"
        elif checkpoint.data != self._data:
            wrong = "the data are not those the run began with"
        elif not released.issuperset(checkpoint.released):
            wrong = "ledger.jsonl does not hold all that was released"
        elif set(checkpoint.silos) != set(self._prepared.plan.silos if self._silos is not None else ()):
            wrong = "the checkpoint has other silos"
        if wrong:
            raise RunError(f"{wrong}; restore them, or start a new run", location=str(directory.path))
        self._server.restore(checkpoint.server)
        if self._silos is not None:
            self._silos.restore(checkpoint.silos, directory.state.parts)
        self._seconds, self._left_out_before = checkpoint.seconds, checkpoint.left_out
        lines, rounds = directory.log.cut_metrics(checkpoint.round), self._prepared.plan.rounds
        times = directory.log.times()
        self._history = [RoundReport.from_json(line, rounds, times.get(line["round"], 0.0)) for line in lines]

    def _check_model(self, x: Vector, when: str) -> None:
        """Stop on a model that returns NaN, or numbers far beyond the label's range.

        The probes are public, and the model was released: no record decides whether a run goes on.
        """
        outputs = self._learner.predict(x, self._probe)
        federation = self._prepared.federation
        ranged = federation.task.kind == "regression" and federation.schema is not None  # labels lie within [-1, 1]
        if ranged and np.abs(outputs).max() > DIVERGED:
            raise ModelError(
                f"training has diverged {when}: for public inputs the model returns {np.abs(outputs).max():.3g} times "
                "what the label's range allows; the last checkpoint stays, what was spent stays spent. Lower the "
                'learning rates, or leave them to method.name = "auto"',
                location="method",
            )
        if not np.isfinite(outputs).all():
            raise ModelError(
                f"the model returns NaN or infinity {when}; the last checkpoint stays, what was spent stays spent. "
                "Check the model, lower the learning rates or the clip",
                location="model",
            )

    def _add_holdout(self) -> None:
        """Add what silos measured on the people they hold out to the last round."""
        for last in self._history[-1:]:
            self._history[-1] = replace(last, metrics={**last.metrics, **self._server.metrics})
            if self._directory is not None and self._history[-1] != last:
                self._directory.log.amend_metrics(self._history[-1].to_json())

    def _result(self) -> Result:
        """What is known now."""
        plan, background, simulated = self._prepared.plan, self._prepared.background, self._secrets.simulated
        about = (plan.release, plan.disclosure, self._server.ledger, background)
        summary = compose(
            *about, simulated=simulated, colocated=self._silos is not None, silos_heard=self._server.silos_heard
        )
        federation, test = self._prepared.federation, self._prepared.test
        fitted, description = self._fitted_model(), self._description(summary)
        return Result(
            dataset=self._prepared.federation.name,
            method=self._prepared.experiment.method_name,
            model=self._server.model,
            reports=tuple(self._history),
            statement=summary,
            saturated=self._server.saturated,
            left_out=self._left_out,
            seconds=self._seconds,
            run=None if self._directory is None else str(self._directory.path),
            entries=self._server.ledger.entries,
            spent=self._spent_run(),
            fitted=fitted,
            description=description,
            coefficients=self._coefficients(summary),
            constant_loss=None if test is None else constant_loss(federation.task, test.labels),
            constant_accuracy=None if test is None else constant_accuracy(federation.task, test.labels),
            complete=self._server.round >= plan.rounds,
            silos=tuple(plan.silos),
            users=plan.facts.users,
        )

    def _fitted_model(self) -> FittedModel | None:
        from uldp.learners.torch import TorchLearner
        from uldp.runs.trained import FittedModel

        federation = self._prepared.federation
        if not isinstance(self._learner, TorchLearner):
            return None
        about = federation.task, federation.schema
        return FittedModel(self._learner, *about, self._server.model, federation.feature_shape)

    def _description(self, statement: Statement) -> Description | None:
        """What the tallies say, if that is what was released."""
        from uldp.runs.description import Description

        prepared, heard = self._prepared, self._server.silos_heard
        schema = prepared.federation.schema
        if not prepared.experiment.described_bins or not self._server.round or schema is None:
            return None
        deviation, users = math.sqrt(prepared.plan.release.noise_variance(heard[-1])), prepared.plan.facts.users
        return Description.of(schema, self._server.model, deviation, users, statement, prepared.federation.hashed_ids)

    def _coefficients(self, statement: Statement) -> CoefficientTable | None:
        """What the last totals say about coefficients, if that is what was released."""
        from uldp.methods.newton import NewtonSteps
        from uldp.runs.coefficients import CoefficientTable

        plan, schema = self._prepared.plan, self._prepared.federation.schema
        if not isinstance(plan.method, NewtonSteps) or not self._server.round or schema is None:
            return None
        noise = plan.release.noise_variance(self._server.silos_heard[-1])
        return CoefficientTable.of(schema, plan.method, self._server.model, noise, statement)

    def _finish(self) -> Result:
        self._add_holdout()
        self._charge_process()
        result = self._result()
        if self._directory is not None:
            if not self._directory.finished:
                self._checkpoint()  # of the end: reading the run again computes nothing, and finds the same times
            write_result(self._directory, result)
        return result

    def _close_silos(self) -> None:
        """Close the silos' sessions. All files are written by now: a missing response changes nothing."""
        if self._exchange():
            self._checkpoint()  # reading the run again asks no silo
        if self._directory is not None:
            self._directory.state.forget_secrets()
