"""``uldp bench train --case scaling``: the time of one user's optimiser step, as the problem grows.

One setting changes at a time; the others stay at those of the smaller MLP round of :data:`BASE`. Threads are compared
in turn, so that other work slows both alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch

from uldp.bench.machine import Case, Say, TrainingJob, silent, thread_options, time_call
from uldp.data.federation import Task
from uldp.learners.base import LocalTraining

FEATURES: Final = 30
_TASK: Final = Task(classes=2)
_LOCAL: Final = LocalTraining(epochs=5, lr=0.01, batch_size=64)
Timing = dict[str, Any]


@dataclass(frozen=True)
class ScalingPoint:
    """One problem: users, records per user, width of the MLP; ``threads`` None is torch's default."""

    users: int = 1000
    records: int = 16
    width: int = 30
    threads: int | None = None

    @property
    def steps(self) -> int:
        """Optimiser steps of all users."""
        return self.users * _LOCAL.epochs * -(-self.records // _LOCAL.batch_size)


BASE: Final = ScalingPoint()
SERIES: Final = (("users", (100, 1000, 10_000)), ("records", (4, 16, 64, 256)), ("width", (10, 30, 100, 300)))


def run_case(
    say: Say = silent, base: ScalingPoint = BASE, series: Sequence[tuple[str, Sequence[int]]] = SERIES, repeats: int = 3
) -> Case:
    points = []
    for setting, values in series:
        for value in values:
            say(f"scaling: {setting} {value}")
            problem = _problem(replace(base, **{setting: value}))
            _train(problem)
            best = min(time_call(partial(_train, problem)) for _ in range(repeats))
            points.append(_measure(problem, setting, value, best))
    say("scaling: threads")
    points += _threads(base, repeats)
    most = points[-1]
    return {
        "name": "scaling",
        "kind": "scaling",
        "unit": "s",
        "points": points,
        "threads": torch.get_num_threads(),
        "threads_ratio": points[-2]["seconds"] / most["seconds"] if most["value"] > 1 else 1.0,
        "note": (
            f"five dense layers without dropout, {_LOCAL.epochs} epochs of batches of {_LOCAL.batch_size}, otherwise "
            f"{base.users:,} users with {base.records} records each, width {base.width}, {torch.get_num_threads()} "
            f"threads; best of {repeats} runs"
        ),
    }


def _threads(base: ScalingPoint, repeats: int) -> list[Timing]:
    """One thread, and all of torch's, in turn."""
    problems = [_problem(replace(base, threads=n)) for n in thread_options()]
    times = [[time_call(partial(_train, problem)) for problem in problems] for _ in range(repeats + 1)][1:]
    return [
        _measure(problem, "threads", problem.work.threads, min(seconds))
        for problem, seconds in zip(problems, zip(*times, strict=True), strict=True)
    ]


def _problem(point: ScalingPoint) -> TrainingJob[ScalingPoint]:
    size, model = (point.users, point.records), {"width": point.width, "dropout": 0.0}
    return TrainingJob.random("scaling", point, size, (FEATURES,), _TASK, "creditcard", model, point.threads)


def _train(problem: TrainingJob[ScalingPoint]) -> None:
    """Train all users."""
    for _ in problem.learner.user_deltas(problem.x, problem.data, _LOCAL, problem.streams):
        pass


def _measure(problem: TrainingJob[ScalingPoint], setting: str, value: int | None, seconds: float) -> Timing:
    flops = problem.learner.training((FEATURES,)).flops * len(problem.data) * _LOCAL.epochs
    return {
        "setting": setting,
        "value": value,
        "parameters": problem.learner.dimension,
        "seconds": seconds,
        "us_per_user_step": 1e6 * seconds / problem.work.steps,
        "gflops": 1e-9 * flops / seconds,
    }
