"""What every way to run an experiment shares: the loop of rounds, and the run directory that is written on the way.

A runtime says how the parties are made and how one exchange happens. Here is when things are written: the ledger before
the model changes, a checkpoint whenever all answers of a round are in, a line of metrics after every round.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from uldp.data.people import People
from uldp.errors import ModelError, RunError
from uldp.experiment.build import Prepared
from uldp.experiment.config import Experiment
from uldp.privacy.accountants import Composition
from uldp.privacy.ledger import Ledger
from uldp.privacy.sentences import finite_or_none, guarantee, noise_kind, show_epsilon
from uldp.privacy.statement import Statement, compose
from uldp.reports import statement as rendering
from uldp.rng import Secrets
from uldp.runs.directory import RunDirectory
from uldp.runs.people import keep_people
from uldp.runs.records import Checkpoint
from uldp.sessions.server import ServerSession, Stage
from uldp.vectors import Vector

PROBES: Final = 64


@dataclass(frozen=True)
class RoundReport:
    """What is known after a round."""

    round: int
    rounds: int
    metrics: Mapping[str, float]
    epsilon: float
    seconds: float
    missing: tuple[str, ...] = ()
    """The silos that the round had to do without."""
    noise: str = "simulated"
    """``simulated`` where whoever knows the seed can compute the noise; else ``secret``."""
    guarantee: str = ""
    """What ``epsilon`` means, in words."""

    @property
    def shown_epsilon(self) -> str:
        """Epsilon so far, for people."""
        simulated = self.noise == "simulated" and math.isfinite(self.epsilon)
        return show_epsilon(self.epsilon) + (" (simulated noise)" if simulated else "")

    def to_json(self) -> dict[str, Any]:
        """What may be shown of it. The time is not: one user with many records is visible in it."""
        privacy = {"epsilon": finite_or_none(self.epsilon), "noise": self.noise, "guarantee": self.guarantee}
        line = {"round": self.round, "metrics": dict(self.metrics), "privacy": privacy}
        return {**line, "missing": list(self.missing)} if self.missing else line

    @classmethod
    def from_json(cls, line: dict[str, Any], rounds: int, seconds: float = 0.0) -> RoundReport:
        try:
            privacy = line["privacy"]
            epsilon = math.inf if privacy["epsilon"] is None else float(privacy["epsilon"])
            metrics = {str(name): float(value) for name, value in line["metrics"].items()}
            missing = tuple(str(name) for name in line.get("missing", ()))
            words = (str(privacy["noise"]), str(privacy["guarantee"]))
            return cls(int(line["round"]), rounds, metrics, epsilon, seconds, missing, *words)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(f"cannot read the metrics {line!r}", location="metrics.jsonl") from error


@dataclass(frozen=True, repr=False)
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

    @property
    def rounds(self) -> int:
        """How many rounds were trained."""
        return self.history[-1].round if self.history else 0

    def __repr__(self) -> str:
        metrics = "".join(f"{name} {value:.4g}, " for name, value in self.metrics.items())
        return f"<Result: {self.method} on {self.dataset}, {self.rounds} rounds, {metrics}{self.statement.headline()}>"

    def to_json(self) -> dict[str, Any]:
        """The document of ``uldp run --json``. Epsilon stands in the statement only, beside what it means; there is no
        time in it, for the document may be shown."""
        return {
            "run": self.run,
            "dataset": self.dataset,
            "method": self.method,
            "rounds": self.rounds,
            "metrics": dict(self.metrics),
            "saturated": self.saturated,
            "statement": self.statement.to_json(),
        }


OnRound = Callable[[RoundReport], None]


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


class RecordedRun(ABC):
    """One run of an experiment, from its first exchange or its last checkpoint to its result."""

    _secrets: Secrets
    _server: ServerSession
    together: bool = True
    """Whether all parties run in one place."""

    def __init__(
        self,
        prepared: Prepared,
        directory: RunDirectory | None,
        on_round: OnRound | None,
        data: str,
        people: People | None = None,
    ) -> None:
        self._prepared = prepared
        self._people = people
        self._directory = directory
        self._on_round = on_round
        self._data = data
        self._learner = prepared.learner
        self._history: list[RoundReport] = []
        self._seconds = 0.0
        self._left_out_before = 0
        self._missing: tuple[str, ...] = ()
        shape = (PROBES, *prepared.federation.feature_shape)
        self._probe = prepared.streams.child("probe").generator().uniform(-1, 1, shape).astype(np.float32)

    @abstractmethod
    def _make_parties(self, x: Vector, ledger: Ledger) -> None:
        """Set up the server, and whoever else runs here, from the run's secrets."""

    @abstractmethod
    def _exchange(self) -> bool:
        """One question to all silos and their answers; False when the experiment is over."""

    def _silo_states(self) -> dict[str, bytes]:
        """What the silos that run here must remember."""
        return {}

    def _restore_silos(self, states: Mapping[str, bytes]) -> None:
        """Bring the silos that run here to where they were."""
        if states:
            raise RunError("the checkpoint has other silos; restore them, or start a new run", location="checkpoint")

    def _left_out_now(self) -> int:
        """Rows that were left out since the run was begun or resumed, as far as it is known here."""
        return 0

    def go(self) -> Result:
        """Run to the end."""
        alone = self._directory.locked() if self._directory else nullcontext()
        with torch_threads(self._prepared.experiment.run.threads), alone:
            self._begin()
            self._check_model(self._server.model, "before training")
            self._train()
            result = self._finish()
            self._say_goodbye()
            return result

    def _begin(self) -> None:
        """Make the sessions, and bring them to where the run stopped."""
        prepared, directory = self._prepared, self._directory
        experiment = prepared.experiment
        self._secrets = directory.state.secrets(experiment) if directory else _secrets_in_memory(experiment)
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
            # Before the first question: a run that stops within round 1 must not go on with other data or settings.
            keep_people(directory, self._people)
            self._checkpoint()

    def _train(self) -> None:
        began = time.perf_counter()
        while self._server.stage is Stage.COLLECTED or (not self._server.over and self._exchange()):
            if self._server.stage is not Stage.COLLECTED:
                continue
            entry = self._server.charge()
            if entry is not None and self._directory is not None:
                self._directory.log.append_ledger(entry)
            self._missing = self._server.absent
            self._server.advance()
            self._check_model(self._server.model, f"after round {self._server.round}")
            now = time.perf_counter()
            self._report(now - began)
            began = now

    def _checkpoint(self) -> None:
        if self._directory is None:
            return
        self._directory.state.save_checkpoint(
            Checkpoint(
                round=self._server.round,
                digest=self._prepared.plan.digest,
                data=self._data,
                server=self._server.save(),
                silos=self._silo_states(),
                released=[(entry.round, entry.content) for entry in self._server.ledger.entries],
                seconds=self._seconds,
                left_out=self._left_out,
            )
        )

    @property
    def _left_out(self) -> int:
        return self._left_out_before + self._left_out_now()

    def _report(self, seconds: float) -> None:
        """Evaluate, write down, tell."""
        self._seconds += seconds
        prepared, ledger, simulated = self._prepared, self._server.ledger, self._secrets.simulated
        test, why_not = prepared.test, prepared.no_guarantee
        epsilon = math.inf if why_not else ledger.epsilon().value
        words = guarantee(
            prepared.plan.release.unit,
            epsilon,
            ledger.delta,
            simulated=simulated,
            no_guarantee=why_not,
            asserted_by=prepared.background.asserted_by,
        )
        report = RoundReport(
            self._server.round,
            prepared.plan.rounds,
            {} if test is None else self._learner.evaluate(self._server.model, test),
            epsilon,
            seconds,
            self._missing,
            noise_kind(simulated=simulated),
            words,
        )
        self._history.append(report)
        if self._directory is not None:
            self._directory.log.append_time(report.round, seconds)
            self._directory.log.append_metrics(report.to_json())
        if self._on_round is not None:
            self._on_round(report)

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
        if wrong:
            raise RunError(f"{wrong}; restore them, or start a new run", location=str(directory.path))
        self._server.restore(checkpoint.server)
        self._restore_silos(checkpoint.silos)
        self._seconds, self._left_out_before = checkpoint.seconds, checkpoint.left_out
        lines, rounds = directory.log.keep_metrics(checkpoint.round), self._prepared.plan.rounds
        times = directory.log.times()
        self._history = [RoundReport.from_json(line, rounds, times.get(line["round"], 0.0)) for line in lines]

    def _check_model(self, x: Vector, when: str) -> None:
        """Stop on a model that returns NaN. The probes are public: no record decides whether a run goes on."""
        if not np.isfinite(self._learner.predict(x, self._probe)).all():
            raise ModelError(
                f"the model returns NaN or infinity {when}; the last checkpoint is kept, what was spent stays spent. "
                "Check the model, lower the learning rates or the clip",
                location="model",
            )

    def _statement(self) -> Statement:
        plan = self._prepared.plan
        return compose(
            plan.release,
            plan.disclosure,
            self._server.ledger,
            self._prepared.background,
            simulated=self._secrets.simulated,
            together=self.together,
            heard=self._server.heard,
        )

    def _add_holdout(self) -> None:
        """What silos measured on the people they hold out stands with the last round."""
        found = self._server.metrics
        if not found or not self._history:
            return
        last = self._history[-1]
        self._history[-1] = replace(last, metrics={**last.metrics, **found})
        if self._directory is not None and self._history[-1] != last:
            self._directory.log.amend_metrics(self._history[-1].to_json())

    def _finish(self) -> Result:
        self._add_holdout()
        summary = self._statement()
        result = Result(
            dataset=self._prepared.federation.name,
            method=self._prepared.experiment.method_name,
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
            schema = self._prepared.federation.schema
            self._directory.save_model(result.model, None if schema is None else schema.to_dict())
            if not self._directory.finished:
                self._checkpoint()  # of the end: who reads the run again computes nothing, and finds the same times
                self._directory.write_json("statement.json", summary.to_json())
                self._directory.write_text("statement.txt", "\n".join(rendering.text(summary)) + "\n")
                title = f"Privacy of {result.method} on {result.dataset}"
                self._directory.write_text("statement.html", rendering.page(summary, title))
                self._directory.write_json("result.json", result.to_json())
        return result

    def _say_goodbye(self) -> None:
        """Let the silos go. All is written by now: a goodbye that is missing changes nothing."""
        if self._exchange():
            self._checkpoint()  # who reads the run again asks nobody
        if self._directory is not None:
            self._directory.state.forget_secrets()


def _secrets_in_memory(experiment: Experiment) -> Secrets:
    if experiment.run.secrets == "os":
        return Secrets.from_os()
    return Secrets.simulated_from_seed(experiment.run.seed)
