"""What every way to run an experiment shares: the loop of rounds, and the run directory that is written on the way.

A runtime says how the parties are made and how one exchange happens. Here is when things are written: the ledger before
the model changes, a checkpoint whenever all responses of a round are in, a line of metrics after every round.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from uldp.errors import ModelError, RunError
from uldp.experiment.build import Prepared
from uldp.privacy.accountants import Composition
from uldp.privacy.ledger import Ledger
from uldp.privacy.sentences import finite_or_none, guarantee, noise_kind, show_epsilon
from uldp.privacy.statement import Statement, compose
from uldp.reports import statement as rendering
from uldp.rng import Secrets
from uldp.runs.directory import RunDirectory
from uldp.runs.people import save_people
from uldp.runs.records import Checkpoint
from uldp.sessions.plan import Plan
from uldp.sessions.server import ServerSession, Stage
from uldp.vectors import Vector

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from uldp.data.federation import FloatArray
    from uldp.data.files import Table
    from uldp.runs.trained import FittedModel

PROBES: Final = 64


@dataclass(frozen=True)
class RoundReport:
    """What is known after a round; handed to ``on_round``.

    Args:
        round: The round, from 1.
        rounds: How many there will be.
        metrics: Of the model on the test set, by name.
        epsilon: Spent so far, against anyone who sees the released models.
        seconds: Since the run began or was resumed.
        missing: The silos that the round had to do without.
        noise: ``simulated`` where whoever knows the seed can compute the noise; else ``secret``.
        guarantee: What ``epsilon`` means, in words.

    Example:
        >>> RoundReport(1, 10, {"accuracy": 0.5}, 0.75, 0.1).shown_epsilon
        '0.75 (simulated noise)'
    """

    round: int
    rounds: int
    metrics: Mapping[str, float]
    epsilon: float
    seconds: float
    missing: tuple[str, ...] = ()
    noise: str = "simulated"
    guarantee: str = ""

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
    """A trained model with its test metrics and its privacy statement. Returned by :func:`uldp.run`.

    Args:
        dataset: The name of the data.
        method: The name of the method.
        model: The model's parameters, a flat vector.
        reports: A report per round.
        statement: Which epsilon holds against which adversary.
        saturated: Coordinates that were cut off at the encoding's range, by methods without a guarantee.
        left_out: Rows that were not finite and counted as zero.
        seconds: Of the whole run.
        run: The run directory, where there is one.
        released: The events of the ledger, for adding up several runs.
        fitted: The model with its preprocessing, ready to predict.
        complete: Whether all rounds were trained.
        total: Epsilon of everything that this Python process released about these people, where it is known.
        continuation: Trains the rounds that are missing, see :meth:`resume`.

    Example:
        >>> from uldp import Experiment, run
        >>> experiment = Experiment.from_tree({
        ...     "data": {"dataset": "synthetic", "users": 20, "options": {"records": 200}},
        ...     "method": {"name": "uldp-avg", "rounds": 2}, "privacy": {"noise_multiplier": 5.0}})
        >>> result = run(experiment)
        >>> result.rounds, round(result.epsilon, 2), sorted(result.metrics)
        (2, 1.06, ['accuracy', 'loss', 'roc_auc'])
    """

    dataset: str
    method: str
    model: Vector
    reports: tuple[RoundReport, ...]
    statement: Statement
    saturated: int
    left_out: int
    seconds: float
    run: str | None = None
    released: Composition = field(default_factory=dict)
    fitted: FittedModel | None = field(default=None, compare=False)
    complete: bool = True
    total: float | None = None
    continuation: Callable[[], Result] | None = field(default=None, compare=False)

    @property
    def metrics(self) -> Mapping[str, float]:
        """Test metrics of the final model."""
        return self.reports[-1].metrics if self.reports else {}

    @property
    def epsilon(self) -> float:
        return self.statement.epsilon

    @property
    def history(self) -> pd.DataFrame:
        """Metrics and epsilon after every round, as a data frame."""
        import pandas as pd

        rows = [{"round": one.round, **one.metrics, "epsilon": one.epsilon} for one in self.reports]
        return pd.DataFrame(rows, columns=None if rows else ["round", "epsilon"]).set_index("round")

    def module(self) -> nn.Module:
        """The trained ``nn.Module``, in evaluation mode. It wants features as the schema makes them."""
        return self._fitted.module()

    def predict(self, data: Table | FloatArray) -> npt.NDArray[Any]:
        """The likeliest class, or the number, for each row of a data frame, a file, or an array of features."""
        return self._fitted.predict(data)

    def predict_proba(self, data: Table | FloatArray) -> npt.NDArray[np.float64]:
        """(rows, classes): the probability of each class, in the order of the schema."""
        return self._fitted.predict_proba(data)

    @property
    def _fitted(self) -> FittedModel:
        if self.fitted is None:
            raise RunError("this result was read without its model", location="result")
        return self.fitted

    def resume(self) -> Result:
        """Train the rounds that are missing after an interruption or a callback's stop."""
        if self.complete or self.continuation is None:
            raise RunError(f"all {self.rounds} rounds were trained; there is nothing to resume", location="result")
        return self.continuation()

    @property
    def rounds(self) -> int:
        """How many rounds were trained."""
        return self.reports[-1].round if self.reports else 0

    def __repr__(self) -> str:
        metrics = "".join(f"{name} {value:.4g}, " for name, value in self.metrics.items())
        return f"<Result: {self.method} on {self.dataset}, {self.rounds} rounds, {metrics}{self.statement.headline()}>"

    def _repr_html_(self) -> str:
        from html import escape

        rows = "".join(f"<tr><td>{escape(name)}</td><td>{value:.4g}</td></tr>" for name, value in self.metrics.items())
        total = "" if self.total is None else f"<p>All runs of this process: epsilon {show_epsilon(self.total)}</p>"
        title = f"{self.method} on {self.dataset}, {self.rounds} rounds"
        return f"<b>{escape(title)}</b><table>{rows}</table><p>{escape(self.statement.headline())}</p>{total}"

    def to_json(self) -> dict[str, Any]:
        """The document of ``uldp run --json``. Epsilon is in the statement only, beside what it means; there is no
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


OnRound = Callable[[RoundReport], object]
"""Called after every round; training ends there if it returns True."""


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

    @abstractmethod
    def start(self, prepared: Prepared, plan: Plan, secrets: Secrets) -> None:
        """Make the silos of a run."""

    @abstractmethod
    def responses(self, requests: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
        """Every silo's response, in any order."""

    @abstractmethod
    def states(self) -> dict[str, bytes]:
        """What they must remember."""

    @abstractmethod
    def restore(self, states: Mapping[str, bytes]) -> None:
        """Bring them to where they were."""

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
        prepared: Prepared,
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
        shape = (PROBES, *prepared.federation.feature_shape)
        self._probe = prepared.streams.child("probe").generator().uniform(-1, 1, shape).astype(np.float32)

    @abstractmethod
    def _make_parties(self, x: Vector, ledger: Ledger) -> None:
        """Set up the server, and whoever else runs here, from the run's secrets."""

    @abstractmethod
    def _exchange(self) -> bool:
        """One request to all silos and their responses; False when the experiment is over."""

    def go(self) -> Result:
        """Run to the end, or until ``on_round`` returns True; then it can be called again."""
        alone = self._directory.locked() if self._directory else nullcontext()
        with torch_threads(self._prepared.experiment.run.threads), alone:
            if self._directory is not None or not self._stopped:
                self._begin()
            self._stopped = False
            self._check_model(self._server.model, "before training")
            self._train()
            if self._stopped and self._server.round < self._prepared.plan.rounds:
                return self._result()
            result = self._finish()
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
            if self._stopped:
                return

    def _checkpoint(self) -> None:
        if self._directory is None:
            return
        self._directory.state.save_checkpoint(
            Checkpoint(
                round=self._server.round,
                digest=self._prepared.plan.digest,
                data=self._data,
                server=self._server.save(),
                silos={} if self._silos is None else self._silos.states(),
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
        unit, why_not, by = prepared.plan.release.privacy_unit, prepared.no_guarantee, prepared.background.asserted_by
        epsilon = math.inf if why_not else ledger.epsilon().value
        words = guarantee(unit, epsilon, ledger.delta, simulated=simulated, no_guarantee=why_not, asserted_by=by)
        metrics = {} if prepared.test is None else self._learner.evaluate(self._server.model, prepared.test)
        progress = (self._server.round, prepared.plan.rounds)
        noise = noise_kind(simulated=simulated)
        report = RoundReport(*progress, metrics, epsilon, seconds, self._missing, noise, words)
        self._history.append(report)
        if self._directory is not None:
            self._directory.log.append_time(report.round, seconds)
            self._directory.log.append_metrics(report.to_json())
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
            self._silos.restore(checkpoint.silos)
        self._seconds, self._left_out_before = checkpoint.seconds, checkpoint.left_out
        lines, rounds = directory.log.cut_metrics(checkpoint.round), self._prepared.plan.rounds
        times = directory.log.times()
        self._history = [RoundReport.from_json(line, rounds, times.get(line["round"], 0.0)) for line in lines]

    def _check_model(self, x: Vector, when: str) -> None:
        """Stop on a model that returns NaN. The probes are public: no record decides whether a run goes on."""
        if not np.isfinite(self._learner.predict(x, self._probe)).all():
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
        from uldp.runs.trained import FittedModel

        plan, background, simulated = self._prepared.plan, self._prepared.background, self._secrets.simulated
        about = (plan.release, plan.disclosure, self._server.ledger, background)
        summary = compose(*about, simulated=simulated, together=self._silos is not None, heard=self._server.heard)
        federation = self._prepared.federation
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
            released=self._server.ledger.composition(),
            fitted=FittedModel(self._learner, federation.task, federation.schema, self._server.model),
            complete=self._server.round >= plan.rounds,
        )

    def _finish(self) -> Result:
        self._add_holdout()
        result = self._result()
        summary = result.statement
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

    def _close_silos(self) -> None:
        """Let the silos go. All is written by now: a Closed that is missing changes nothing."""
        if self._exchange():
            self._checkpoint()  # who reads the run again asks nobody
        if self._directory is not None:
            self._directory.state.forget_secrets()
