"""``uldp bench train --case scaling``: the time of one user's optimiser step, as the problem grows.

One setting changes at a time; the others stay at those of the smaller MLP round of :data:`BASE`. Threads are compared
in turn, so that other work slows both alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from uldp.bench.machine import Case, Say, random_silo, thread_options, timed
from uldp.data.federation import Task
from uldp.learners.base import LocalTraining
from uldp.learners.models import build_model
from uldp.learners.torch import TorchLearner
from uldp.rng import Streams

FEATURES: Final = 30
_TASK: Final = Task(classes=2)
_LOCAL: Final = LocalTraining(epochs=5, lr=0.01, batch_size=64)
Measured = dict[str, Any]


@dataclass(frozen=True)
class Point:
    """One problem: users, records per user, width of the MLP; ``threads`` None is torch's default."""

    users: int = 1000
    records: int = 16
    width: int = 30
    threads: int | None = None

    @property
    def steps(self) -> int:
        """Optimiser steps of all users."""
        return self.users * _LOCAL.epochs * -(-self.records // _LOCAL.batch_size)


BASE: Final = Point()
SERIES: Final = (
    ("users", (100, 1000, 10_000)),
    ("records", (4, 16, 64, 256)),
    ("width", (10, 30, 100, 300)),
)


def run_case(
    say: Say = lambda text: None,
    base: Point = BASE,
    series: Sequence[tuple[str, Sequence[int]]] = SERIES,
    repeats: int = 3,
) -> Case:
    points = []
    for setting, values in series:
        for value in values:
            say(f"scaling: {setting} {value}")
            problem = _Problem(replace(base, **{setting: value}))
            problem.run()
            best = min(timed(problem.run) for _ in range(repeats))
            points.append({"setting": setting, "value": value, **problem.measured(best)})
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


def _threads(base: Point, repeats: int) -> list[Measured]:
    """One thread, and all of torch's, in turn."""
    problems = [_Problem(replace(base, threads=n)) for n in thread_options()]
    times = [[timed(problem.run) for problem in problems] for _ in range(repeats + 1)][1:]
    return [
        {"setting": "threads", "value": problem.point.threads, **problem.measured(min(seconds))}
        for problem, seconds in zip(problems, zip(*times, strict=True), strict=True)
    ]


class _Problem:
    """Random data for a point, and a learner."""

    def __init__(self, point: Point) -> None:
        self.point = point
        self._streams = Streams.from_seed(0).child("bench", "scaling")
        self._data = random_silo(self._streams, point.users, point.records, (FEATURES,), _TASK.classes)
        module = build_model("creditcard", (FEATURES,), _TASK, {"width": point.width, "dropout": 0.0})
        self._learner = TorchLearner(module, _TASK, threads=point.threads)
        self._x = self._learner.initial(self._streams)

    def run(self) -> int:
        """Train all users; returns the number of rows."""
        return sum(len(rows) for _, rows in self._learner.user_deltas(self._x, self._data, _LOCAL, self._streams))

    def measured(self, seconds: float) -> Measured:
        flops = self._learner.training((FEATURES,)).flops * len(self._data) * _LOCAL.epochs
        return {
            "parameters": self._learner.dimension,
            "seconds": seconds,
            "us_per_user_step": 1e6 * seconds / self.point.steps,
            "gflops": 1e-9 * flops / seconds,
        }
