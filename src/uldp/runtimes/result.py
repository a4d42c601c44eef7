"""What training gives: a report after every round, and at the end a model with its metrics and its statement."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from uldp.errors import ConfigError, RunError, format_value
from uldp.privacy.ledger import Entry
from uldp.privacy.sentences import finite_or_none, show_epsilon
from uldp.privacy.statement import Statement
from uldp.reports import statement as rendering
from uldp.runs import spending
from uldp.runs.directory import RunDirectory
from uldp.runs.people import save_people
from uldp.runs.totals import SpentRun
from uldp.vectors import Vector

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from torch import nn

    from uldp.audits.result import Audit
    from uldp.data.federation import FloatArray
    from uldp.data.files import Table
    from uldp.runs.coefficients import CoefficientTable
    from uldp.runs.description import Description
    from uldp.runs.trained import FittedModel

METRIC_ORDER: Final = (
    "pr_auc",  # there only if a class is publicly known to be rare: accuracy says little then
    "recall_at_precision",
    "accuracy",
    "c_index",
    "roc_auc",
    "balanced_accuracy",
    "r2",
    "mae",
    "loss",
)


def metric_names(metrics: Mapping[str, object]) -> list[str]:
    """Metrics in the order in which people want them; the first one where there is room for one.

    What silos measured on their hold-out people comes last: only the last round has it.

    >>> metric_names({"loss": 0.3, "roc_auc": 0.9, "accuracy": 0.8})
    ['accuracy', 'roc_auc', 'loss']
    >>> metric_names({"loss": 0.3, "accuracy": 0.97, "pr_auc": 0.2})[0]
    'pr_auc'
    """

    def position(name: str) -> tuple[bool, int, str]:
        return name.startswith("holdout_"), METRIC_ORDER.index(name) if name in METRIC_ORDER else -1, name

    return sorted(metrics, key=position)


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

    @property
    def shown_metric(self) -> str:
        """The metric that is shown where there is room for one; empty if there is none."""
        return "".join(f"{name} {self.metrics[name]:.4g}" for name in metric_names(self.metrics)[:1])

    def to_json(self) -> dict[str, Any]:
        """What may be shown of it. The time is not: one user with many records is visible in it."""
        privacy = {"epsilon": finite_or_none(self.epsilon), "noise": self.noise, "guarantee": self.guarantee}
        line = {"round": self.round, "metrics": dict(self.metrics), "privacy": privacy}
        return {**line, "missing": list(self.missing)} if self.missing else line

    @classmethod
    def from_json(cls, line: dict[str, Any], rounds: int, seconds: float = 0.0) -> RoundReport:
        """The report in a line of ``metrics.jsonl``.

        Args:
            line: The line's tree.
            rounds: How many rounds the run has in all.
            seconds: How long the round took, if that is known.

        Raises:
            RunError: The line is damaged.
        """
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
    """A trained model with its test metrics and its privacy statement. Returned by :func:`uldp.train`.

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
        entries: The ledger: what was released.
        spent: The same for adding up several runs, with whose records were used.
        fitted: The model with its preprocessing, ready to predict.
        constant_loss: The test loss of always predicting the test set's base rates, or its mean label.
        constant_accuracy: The test accuracy of always predicting its most frequent class.
        description: What the data look like, where that was asked for instead of a model.
        coefficients: Coefficients with their uncertainty, likewise.
        complete: Whether all rounds were trained.
        silos: The names of the silos, which are public.
        users: |U|, which is public.
        continuation: Trains the rounds that are missing, see :meth:`resume`.

    Example:
        >>> from uldp import train
        >>> result = train("synthetic", method="uldp-avg", noise_multiplier=5.0, rounds=2)
        >>> result.rounds, round(result.epsilon, 2), sorted(result.metrics)
        (2, 1.06, ['accuracy', 'balanced_accuracy', 'loss', 'roc_auc'])
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
    entries: tuple[Entry, ...] = ()
    spent: SpentRun | None = field(default=None, compare=False)
    fitted: FittedModel | None = field(default=None, compare=False)
    constant_loss: float | None = None
    constant_accuracy: float | None = None
    description: Description | None = None
    coefficients: CoefficientTable | None = None
    complete: bool = True
    silos: tuple[str, ...] = ()
    users: int | None = None
    continuation: Callable[[], Result] | None = field(default=None, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: no times (one user with many records is visible in them), and nothing to resume with."""
        reports = tuple(replace(report, seconds=0.0) for report in self.reports)
        return {**vars(self), "reports": reports, "seconds": 0.0, "continuation": None}

    @property
    def metrics(self) -> Mapping[str, float]:
        """Test metrics of the final model."""
        return self.reports[-1].metrics if self.reports else {}

    @property
    def constant_model_note(self) -> str:
        """Says so where the model is no better on the test set than a constant; empty where it is, or without one.

        A classifier may have a worse loss and still be right more often: its probabilities are then too sure.
        """
        loss, accuracy = self.metrics.get("loss"), self.metrics.get("accuracy")
        if loss is None or self.constant_loss is None or loss < self.constant_loss:
            return ""
        losses = f"test loss {loss:.4g}; always predicting the test set's mean has {self.constant_loss:.4g}"
        if accuracy is None or self.constant_accuracy is None or accuracy <= self.constant_accuracy:
            return f"NO BETTER THAN THE BASE RATE: {losses}"
        return (
            f"PROBABILITIES NO BETTER THAN THE BASE RATE: {losses}. Predicted classes are right more often (accuracy "
            f"{accuracy:.4g}, of the most frequent class {self.constant_accuracy:.4g})"
        )

    @property
    def epsilon(self) -> float:
        """Against anyone who sees the released models of this run; what it means is in ``statement``."""
        return self.statement.epsilon

    @property
    def total(self) -> float | None:
        """Epsilon of all that this Python process has released about these people until now, at this run's delta.

        None where nobody knows it: the silos are elsewhere. ``uldp.total`` explains it, and adds up run directories.
        """
        return None if self.spent is None else spending.related_runs(self.spent).epsilon(self.statement.delta)

    @property
    def rounds(self) -> int:
        """How many rounds were trained."""
        return self.reports[-1].round if self.reports else 0

    @property
    def history(self) -> pd.DataFrame:
        """Metrics and epsilon after every round, as a data frame."""
        import pandas as pd

        rows = [{"round": one.round, **one.metrics, "epsilon": one.epsilon} for one in self.reports]
        return pd.DataFrame(rows, columns=None if rows else ["round", "epsilon"]).set_index("round")

    def summary(self) -> dict[str, Any]:
        """One row of a table of results: ``pandas.DataFrame([result.summary() for result in results])``."""
        statement = self.statement
        privacy = {
            "epsilon": self.epsilon,
            "delta": statement.delta,
            "unit": statement.privacy_unit,
            "noise": statement.noise,
        }
        return {"data": self.dataset, "method": self.method, "rounds": self.rounds, **self.metrics, **privacy}

    def module(self) -> nn.Module:
        """The trained ``nn.Module``, in evaluation mode. It wants features as the schema makes them."""
        return self._fitted.module()

    def predict(self, data: Table | FloatArray) -> npt.NDArray[Any]:
        """The likeliest class, or the number, for each row.

        Args:
            data: A data frame or a file, which the schema turns into features, or an array of features.

        Returns:
            One label per row.

        Raises:
            InputError: The run kept no model, or the rows do not fit the schema.
        """
        return self._fitted.predict(data)

    def predict_proba(self, data: Table | FloatArray) -> npt.NDArray[np.float64]:
        """The probability of each class.

        Args:
            data: As for :meth:`predict`.

        Returns:
            (rows, classes), classes in the order of the schema.

        Raises:
            InputError: The run kept no model, or the rows do not fit the schema, or there are no classes.
        """
        return self._fitted.predict_proba(data)

    @property
    def _fitted(self) -> FittedModel:
        if self.fitted is None:
            why = "this run was read without its model; hand the module over: uldp.load(path, model=module)"
            raise RunError(why, location="result")
        return self.fitted

    def resume(self) -> Result:
        """Train the rounds that are missing after an interruption or a callback's stop.

        Raises:
            RunError: There is nothing to resume.
        """
        if self.continuation is None:
            reason = "all rounds were trained" if self.complete else "the run is over"
            raise RunError(f"{reason} ({self.rounds}); there is nothing to resume", location="result")
        return self.continuation()

    def plot(self, metric: str = "") -> Figure:
        """Test metric and epsilon over the rounds, as a matplotlib figure (``.savefig(path)`` writes it).

        Args:
            metric: Which metric; the first one by default.

        Raises:
            ConfigError: There is no such metric.
        """
        from uldp.reports.figures import comparison_figure
        from uldp.runtimes.compare import MethodRuns

        return comparison_figure([MethodRuns(self.method, (self,))], checked_metric(metric, self.metrics))

    def save(self, path: Path | str) -> Path:
        """Write a run directory: ``uldp.load(path)`` and the command line read it.

        Args:
            path: A folder that does not exist yet, or is empty.

        Returns:
            The path.

        Raises:
            RunError: The folder is taken, or cannot be written.
        """
        if not isinstance(path, Path | str):
            raise ConfigError(f"the path of a folder, not {format_value(path)}", location="path")
        if self.spent is None:
            raise RunError("it belongs to a federation, whose server has written a run directory", location="result")
        RunDirectory.check_free(path)
        target = Path(path)
        partial = RunDirectory.next_free(target.parent, f".{target.name}.partial")
        try:
            directory = RunDirectory.create(partial, self.spent.people.experiment)
            for entry in self.entries:
                directory.log.append_ledger(entry)
            for report in self.reports:
                directory.log.append_time(report.round, report.seconds)
                directory.log.append_metrics(report.to_json())
            save_people(directory, self.spent.people.people)
            write_result(directory, self)
            with suppress(OSError):
                target.rmdir()  # an empty folder; another one is not free
            partial.rename(target)
        except OSError as error:
            raise RunError(f"cannot be written: {error.strerror}", location=str(path)) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return target

    def report(self, path: Path | str, *, audit: Audit | None = None, force: bool = False) -> Path:
        """Write a page about this run that may be shown, and a model card (``.md``) beside it.

        Args:
            path: A file that ends in ``.html``.
            audit: What :func:`uldp.audit` found about the same experiment, to stand in the page.
            force: Replace files that are there.

        Returns:
            The path.

        Raises:
            RunError: A file is there already, or cannot be written.
        """
        from uldp.runtimes.reporting import view_of_result, write_run_report

        return write_run_report(
            view_of_result(self, None if audit is None else audit.to_json()), path, force=force
        ).page

    def __repr__(self) -> str:
        metrics = "".join(f"{name} {value:.4g}, " for name, value in self.metrics.items())
        alarm = f"{self.constant_model_note}, " if self.constant_model_note else ""
        about = f"{self.method} on {self.dataset}, {self.rounds} rounds"
        return f"<Result: {about}, {alarm}{metrics}{self.statement.headline()}>"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{escape(name)}</td><td>{value:.4g}</td></tr>" for name, value in self.metrics.items())
        lines = [*([self.constant_model_note] * bool(self.constant_model_note)), *rendering.summary(self.statement)]
        if (total := self.total) is not None:
            simulated = " (some of it simulated)" if self.statement.simulated else ""
            lines.append(f"All runs of this process about these people: epsilon {show_epsilon(total)}{simulated}.")
        title = f"{self.method} on {self.dataset}, {self.rounds} rounds"
        return f"<b>{escape(title)}</b><table>{rows}</table>" + "".join(f"<p>{escape(line)}</p>" for line in lines)

    def to_json(self) -> dict[str, Any]:
        """The document of ``uldp run --json``. Epsilon is in the statement only, beside what it means; there is no
        time in it, for the document may be shown."""
        return {
            "run": self.run,
            "dataset": self.dataset,
            "method": self.method,
            "rounds": self.rounds,
            "silos": list(self.silos),
            "users": self.users,
            "metrics": dict(self.metrics),
            "constant_loss": self.constant_loss,
            "constant_accuracy": self.constant_accuracy,
            "no_better": self.constant_model_note,
            "saturated": self.saturated,
            "statement": self.statement.to_json(),
        }


def checked_metric(metric: str, metrics: Mapping[str, object]) -> str:
    """The metric of this name, or the first one."""
    if not metrics:
        raise ConfigError("there are no metrics: no round was trained", location="metric")
    known = metric_names(metrics)
    if metric and metric not in known:
        raise ConfigError(f"one of {', '.join(known)}, not {format_value(metric)}", location="metric", value=metric)
    return metric or known[0]


def write_result(directory: RunDirectory, result: Result) -> None:
    """Model, statement and result of a run that has come to its end."""
    fitted, statement = result.fitted, result.statement
    if fitted is not None:
        directory.save_model(result.model, None if fitted.schema is None else fitted.schema.to_dict())
    if directory.finished:
        return
    if result.description is not None:
        directory.write_json("description.json", result.description.to_json())
    if result.coefficients is not None:
        directory.write_json("coefficients.json", result.coefficients.to_json())
    if fitted is not None:
        directory.write_json("task.json", {"features": list(fitted.feature_shape), **asdict(fitted.task)})
    directory.write_json("statement.json", statement.to_json())
    directory.write_text("statement.txt", "\n".join(rendering.text(statement)) + "\n")
    directory.write_text("statement.html", rendering.page(statement, f"Privacy of {result.method} on {result.dataset}"))
    directory.write_json("result.json", result.to_json())


OnRound = Callable[[RoundReport], object]
"""Called after every round; training ends there if it returns True."""
