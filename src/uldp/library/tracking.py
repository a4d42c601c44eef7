"""Trackers: callbacks of :func:`uldp.train` that pass on what may be shown of a run, and nothing else.

That is what stands in experiment.json, metrics.jsonl and statement.*: settings, metrics, epsilon beside what it means,
and the statement. No times: one user with many records is visible in them. MLflow and TensorBoard want a time with
everything, and get one and the same: the start of a day that the caller names, else the beginning of 1970.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import IO, Any, Final

from uldp.errors import ConfigError
from uldp.experiment.config import Experiment
from uldp.reports.statement import text
from uldp.runtimes.result import Result, RoundReport

MISSING: Final = "is not installed; pip install 'uldp[tracking]'"


class Tracker(ABC):
    """A callback that also hears of the settings before the first round, and of the result."""

    @abstractmethod
    def begin(self, experiment: Experiment) -> None:
        """Called before training begins, and again before it goes on.

        Args:
            experiment: Its settings.
        """

    @abstractmethod
    def __call__(self, report: RoundReport) -> None:
        """Called after every round.

        Args:
            report: The round's metrics and epsilon.
        """

    @abstractmethod
    def finish(self, result: Result | None) -> None:
        """Called when training ends or pauses.

        Args:
            result: What was trained; None if training failed.
        """


@contextmanager
def track(callbacks: Iterable[object], experiment: Experiment) -> Iterator[Callable[[Result], None]]:
    """Trackers among ``callbacks`` hear of the settings, and of the result that is passed to what this yields."""
    trackers = [callback for callback in callbacks if isinstance(callback, Tracker)]
    results: list[Result] = []
    for tracker in trackers:
        tracker.begin(experiment)
    try:
        yield results.append
    finally:
        for tracker in trackers:
            tracker.finish(results[-1] if results else None)


def settings(experiment: Experiment) -> dict[str, str]:
    """All settings of an experiment as ``section.key``."""
    return dict(_flat(experiment.to_tree()))


def _flat(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        elif value is not None:
            yield f"{above}{key}", value if isinstance(value, str) else json.dumps(value, default=str)


def numbers(report: RoundReport) -> dict[str, float]:
    """Metrics and epsilon of a round. Where the noise can be computed from the seed, the epsilon's name says so."""
    simulated = "_simulated_noise" if report.noise == "simulated" else ""
    found = {**report.metrics, f"epsilon{simulated}": report.epsilon}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _start_of(day: date | None) -> float:
    """Seconds since 1970. Not 0, which MLflow takes for no time and replaces by the time it is."""
    return 0.001 if day is None else datetime.combine(day, time(), UTC).timestamp()


class MlflowTracker(Tracker):
    """Tracks a run with MLflow: settings as parameters, metrics by round, epsilon, and the statement as an artifact.

    Args:
        experiment: The MLflow experiment; it is created if there is none of this name.
        name: The MLflow run's name.
        uri: Where MLflow keeps runs; by default what MLflow is configured for.
        day: The day that MLflow shows as the run's. Without it the run has no time.

    Raises:
        ConfigError: MLflow is not installed; raised when training begins, and nothing was trained.

    Example:
        >>> tracker = MlflowTracker("hospitals", uri="http://localhost:5000")
        >>> tracker.run is None  # until uldp.train(..., callbacks=tracker)
        True
    """

    def __init__(
        self, experiment: str = "uldp", *, name: str | None = None, uri: str | None = None, day: date | None = None
    ) -> None:
        self.experiment, self.name, self.uri = experiment, name, uri
        self.run: str | None = None
        """MLflow's id of the run, once it began."""
        self._time = round(1000 * _start_of(day))
        self._client: Any = None

    def begin(self, experiment: Experiment) -> None:
        try:
            from mlflow import MlflowClient
            from mlflow.entities import Param
        except ModuleNotFoundError:
            raise ConfigError(f"MLflow {MISSING}", location="callbacks") from None
        if self.run is not None:
            self._client.update_run(self.run, status="RUNNING")
            return
        # The client, not mlflow.start_run: that would add who runs which file, and when.
        self._client = MlflowClient(tracking_uri=self.uri)
        known = self._client.get_experiment_by_name(self.experiment)
        number = self._client.create_experiment(self.experiment) if known is None else known.experiment_id
        self.run = str(self._client.create_run(number, start_time=self._time, run_name=self.name).info.run_id)
        self._client.log_batch(self.run, params=[Param(*pair) for pair in settings(experiment).items()])

    def __call__(self, report: RoundReport) -> None:
        from mlflow.entities import Metric, RunTag

        metrics = [Metric(name, value, self._time, report.round) for name, value in numbers(report).items()]
        tags = [RunTag("noise", report.noise), RunTag("guarantee", report.guarantee)]
        self._client.log_batch(self.run, metrics=metrics, tags=tags)

    def finish(self, result: Result | None) -> None:
        if result is not None:
            self._client.log_text(self.run, _statement(result), "statement.txt")
            self._client.log_dict(self.run, result.statement.to_json(), "statement.json")
        self._client.set_terminated(self.run, "FAILED" if result is None else "FINISHED", self._time)


class TensorBoardTracker(Tracker):
    """Tracks a run with TensorBoard: metrics and epsilon as scalars, settings and the statement as texts.

    Args:
        directory: The folder to write to; a run of TensorBoard is a folder.
        day: The day that TensorBoard shows as the run's. Without it the run has no time.

    Raises:
        ConfigError: TensorBoard is not installed; raised when training begins, and nothing was trained.

    Example:
        >>> TensorBoardTracker("logs/first").file.name  # written by uldp.train(..., callbacks=tracker)
        'events.out.tfevents.uldp'
    """

    def __init__(self, directory: Path | str, *, day: date | None = None) -> None:
        # TensorBoard's own writer puts the time, the machine's name and a process id into the name of the file.
        self.file = Path(directory) / "events.out.tfevents.uldp"
        self._time = _start_of(day)
        self._has_started = False

    def begin(self, experiment: Experiment) -> None:
        try:
            import tensorboard.summary  # noqa: F401
        except ModuleNotFoundError:
            raise ConfigError(f"TensorBoard {MISSING}", location="callbacks") from None
        if self._has_started:
            return
        self._has_started = True
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("wb") as file:
            self._write(file, file_version="brain.Event:2")
            lines = [f"| {key} | `{value}` |" for key, value in settings(experiment).items()]
            self._write(file, summary=_text("settings", "\n".join(["| setting | value |", "|---|---|", *lines])))

    def __call__(self, report: RoundReport) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers(report).items()]
        with self.file.open("ab") as file:
            self._write(file, step=report.round, summary=Summary(value=values))
            self._write(file, step=report.round, summary=_text("guarantee", report.guarantee))

    def finish(self, result: Result | None) -> None:
        if result is None:
            return
        indented = "\n".join(f"    {line}" for line in _statement(result).splitlines())
        with self.file.open("ab") as file:
            self._write(file, step=result.rounds, summary=_text("statement", indented))

    def _write(self, file: IO[bytes], **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        RecordWriter(file).write(Event(wall_time=self._time, **content).SerializeToString())


def _statement(result: Result) -> str:
    return "\n".join(text(result.statement)) + "\n"


def _text(name: str, content: str) -> Any:
    from tensorboard.plugins.text.summary import text_pb

    return text_pb(name, content)
