"""Several methods on the same federation and seeds, side by side. What was trained already is not trained again."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from uldp.errors import RunError
from uldp.experiment.build import prepare
from uldp.experiment.config import Experiment
from uldp.privacy.accountants import account
from uldp.privacy.events import Event
from uldp.privacy.statement import finite_or_none
from uldp.runs.directory import RunDirectory
from uldp.runtimes.local import OnRound, Result, run

SETTINGS = "comparison.json"


@dataclass(frozen=True)
class Compared:
    """One method's runs, one per seed."""

    method: str
    results: tuple[Result, ...]

    @property
    def epsilon(self) -> float:
        """Of one run."""
        return max(result.epsilon for result in self.results)

    @property
    def metrics(self) -> dict[str, tuple[float, float]]:
        """Mean and standard deviation over the seeds, of metrics that every run has."""
        names = [name for name in self.results[0].metrics if all(name in result.metrics for result in self.results)]
        return {name: _mean_deviation([result.metrics[name] for result in self.results]) for name in names}

    @property
    def seconds(self) -> float:
        return statistics.fmean(result.seconds for result in self.results)

    def to_json(self) -> dict[str, Any]:
        first = self.results[0]
        return {
            "method": self.method,
            "dataset": first.dataset,
            "repeats": len(self.results),
            "rounds": first.history[-1].round if first.history else 0,
            "metrics": {name: mean for name, (mean, _) in self.metrics.items()},
            "deviations": {name: deviation for name, (_, deviation) in self.metrics.items()},
            "epsilon": finite_or_none(self.epsilon),
            "delta": first.statement.delta,
            "seconds": round(self.seconds, 3),
            "statement": first.statement.to_json(),
            "runs": [result.to_json() for result in self.results],
        }


OnRun = Callable[[Experiment], AbstractContextManager[OnRound | None]]
"""Wraps each run: a progress bar, for instance."""


def compare(
    experiments: Mapping[str, Sequence[Experiment]], folder: RunDirectory, on_run: OnRun = lambda _: nullcontext()
) -> tuple[Compared, ...]:
    """Run (or resume, or only read) every experiment below ``folder``; experiments are grouped by method."""
    settings = {name: [experiment.digest() for experiment in group] for name, group in experiments.items()}
    _claim(folder, settings)
    compared = []
    for name, group in experiments.items():
        results = []
        for experiment in group:
            path = folder.path / name.replace(":", "-") / f"seed-{experiment.run.seed}"
            directory = RunDirectory(path)
            if not (path / "experiment.json").exists():
                directory = RunDirectory.create(path, experiment)
            with on_run(experiment) as on_round:
                results.append(run(prepare(experiment), directory, on_round))
        compared.append(Compared(name, tuple(results)))
    return tuple(compared)


def total_epsilon(compared: Sequence[Compared]) -> float:
    """What all runs together cost a person whose records were in all of them, at one run's delta."""
    events: Counter[Event] = Counter()
    for method in compared:
        for result in method.results:
            if math.isinf(result.epsilon):
                return math.inf
            events.update(result.released)
    return account(events, min(method.results[0].statement.delta for method in compared)).value


def _claim(folder: RunDirectory, settings: dict[str, list[str]]) -> None:
    """Take an empty folder, or one that was begun with the same settings; methods and seeds may be added to it."""
    file = folder.path / SETTINGS
    if file.exists():
        begun = folder.read_json(SETTINGS)
        if any(_differ(begun.get(name, []), digests) for name, digests in settings.items()):
            raise RunError(
                "holds another comparison; choose another directory, or repeat its settings to go on with it",
                place=str(folder.path),
                value=str(folder.path),
            )
        longest = {name: max(begun.get(name, []), settings.get(name, []), key=len) for name in {**begun, **settings}}
        if longest != begun:
            folder.write_json(SETTINGS, longest)
        return
    RunDirectory.check_free(folder.path)
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{error.strerror}", place=str(folder.path), value=str(folder.path)) from error
    folder.write_json(SETTINGS, settings)


def _differ(begun: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether the seeds that both have were planned with other settings."""
    return any(one != other for one, other in zip(begun, wanted, strict=False))


def _mean_deviation(values: Sequence[float]) -> tuple[float, float]:
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0
