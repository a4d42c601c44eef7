"""Cases of ``uldp bench train``: our trainer against a plain loop over users, same work, same run, wall time.

The loop is what simple published code does: for each user one copy of the model and one optimiser of torch, one step
per batch. It runs at its best number of threads. Where its full work would take minutes, it is timed on a random
sample of the users' trainings and scaled by the number of optimiser steps; the case says so.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import torch
from torch import nn

from uldp.bench.machine import Case, PeakMemory, Say, matrix_flops, run_process, silent, thread_options, time_call
from uldp.bench.versus import comparison
from uldp.data.allocate import allocate
from uldp.data.federation import SiloData, Task
from uldp.learners.base import LocalTraining, Vector
from uldp.learners.models import build_model
from uldp.learners.torch import TorchLearner
from uldp.rng import Streams
from uldp.runtimes.recording import torch_threads


@dataclass(frozen=True)
class Workload:
    """One round of all silos. ``loop_trainings``: how many trainings of the loop are timed (0: all of them)."""

    name: str
    model: str
    feature_shape: tuple[int, ...]
    classes: int
    records: int
    users: int
    silos: int
    epochs: int
    batch_size: int = 64
    loop_trainings: int = 0
    repeats: int = 5
    scope: str = ""
    check_memory: bool = False

    @property
    def local(self) -> LocalTraining:
        return LocalTraining(epochs=self.epochs, lr=0.01, batch_size=self.batch_size)


CREDITCARD: Final = Workload(
    "creditcard-like", "creditcard", (30,), 2, records=25_000, users=1000, silos=5, epochs=30, loop_trainings=200
)
HEART: Final = Workload("heart-like", "logistic", (13,), 2, records=486, users=200, silos=4, epochs=50, batch_size=4)
MNIST: Final = Workload(
    "mnist-like", "cnn", (1, 28, 28), 10, records=6_000, users=1000, silos=5, epochs=5, loop_trainings=200,
    scope="1,000 of the 10,000 users (6,000 of 60,000 records) and 5 of the 50 epochs, on both sides",
    check_memory=True,
)  # fmt: skip
WORKLOADS: Final = (CREDITCARD, HEART, MNIST)


@dataclass(frozen=True)
class LoopProblem:
    """A workload with its data and its model."""

    work: Workload
    silos: tuple[SiloData, ...]
    learner: TorchLearner
    x: Vector
    streams: Streams
    trainings: tuple[tuple[int, int], ...] = field(repr=False)

    def steps(self, training: tuple[int, int]) -> int:
        """Optimiser steps of one user in one silo."""
        silo, user = training
        records = int((self.silos[silo].users == user).sum())
        return self.work.epochs * -(-records // self.work.batch_size)


def run_case(work: Workload, say: Say = silent) -> Case:
    """One case: both sides several times in turn, the best time of each."""
    say(f"{work.name}: preparing")
    problem = make_problem(work)
    chosen, factor = _sample(problem)
    loop_threads = _best_threads(problem, chosen[: max(3, len(chosen) // 20)])
    training = problem.learner.training(work.feature_shape)
    flops = sum(map(len, problem.silos)) * work.epochs * training.flops
    ours, baseline, peak, rate = [], [], 0.0, 0.0
    for repeat in range(work.repeats):
        say(f"{work.name}: run {repeat + 1} of {work.repeats}")
        rate = max(rate, matrix_flops())
        with PeakMemory() as memory:
            ours.append(time_call(lambda: run_ours(problem)))
        peak = max(peak, memory.peak_mb)
        baseline.append(factor * _timed_loop(problem, chosen, loop_threads))
    case = {
        **comparison(work.name, min(ours), min(baseline), peak, flops, rate),
        "threads": torch.get_num_threads(),
        "baseline_threads": loop_threads,
        "trainings": len(problem.trainings),
        "baseline_trainings": len(chosen),
        "path": training.path,
    }
    if work.check_memory:
        say(f"{work.name}: memory at 1,000 and 10,000 users")
        case["growth_mb_1000_users"] = _growth_in_fresh_process(1000)
        case["growth_mb_10000_users"] = _growth_in_fresh_process(10_000)
    case["note"] = _note(work, case)
    return case


def make_problem(work: Workload) -> LoopProblem:
    """Random data of the workload's shape, allocated by the papers' Zipf rule."""
    streams = Streams.from_seed(0).child("bench", work.name)
    generator = streams.child("data").generator()
    labels = generator.integers(work.classes, size=work.records).astype(np.int64)
    features = generator.standard_normal((work.records, *work.feature_shape), dtype=np.float32)
    users, places = allocate(labels, work.users, work.silos, "zipf", streams.child("allocation"))
    silos = tuple(
        SiloData(str(s), features[places == s], labels[places == s], users[places == s]) for s in range(work.silos)
    )
    task = Task(classes=work.classes)
    learner = TorchLearner(build_model(work.model, work.feature_shape, task), task)
    trainings = tuple((s, int(user)) for s, silo in enumerate(silos) for user in np.unique(silo.users))
    return LoopProblem(work, silos, learner, learner.initial(streams), streams, trainings)


def run_ours(problem: LoopProblem) -> int:
    """All silos' user deltas; returns the number of rows."""
    rows = 0
    for number, silo in enumerate(problem.silos):
        streams = problem.streams.child("silo", number)
        for users, _ in problem.learner.user_deltas(problem.x, silo, problem.work.local, streams):
            rows += len(users)
    return rows


def run_loop(problem: LoopProblem, trainings: Sequence[tuple[int, int]]) -> int:
    """The plain loop over these trainings (silo, user); returns the number of rows."""
    local, rows = problem.work.local, 0
    for number, user in trainings:
        silo = problem.silos[number]
        mine = np.flatnonzero(silo.users == user)
        features, labels = torch.from_numpy(silo.features[mine]), torch.from_numpy(silo.labels[mine])
        model = copy.deepcopy(problem.learner.module).train()
        before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        optimizer = torch.optim.SGD(model.parameters(), lr=local.lr, weight_decay=local.weight_decay)
        for _ in range(local.epochs):
            order = torch.randperm(len(labels))
            for first in range(0, len(labels), local.batch_size):
                batch = order[first : first + local.batch_size]
                optimizer.zero_grad()
                _loop_loss(model(features[batch]), labels[batch]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        delta = nn.utils.parameters_to_vector(model.parameters()).detach() - before
        rows += int(delta.ndim)
    return rows


def _loop_loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if outputs.shape[1] == 1:
        return nn.functional.binary_cross_entropy_with_logits(outputs.squeeze(1), labels.float())
    return nn.functional.cross_entropy(outputs, labels)


def memory_growth(users: int) -> float:
    """Megabytes by which memory rises above the data while one silo with this number of users trains the CNN."""
    work = replace(MNIST, name=f"memory-{users}", records=3 * users, users=users, silos=1, epochs=1)
    problem = make_problem(work)
    with PeakMemory() as memory:
        run_ours(problem)
    return memory.growth_mb


def _growth_in_fresh_process(users: int) -> float:
    """:func:`memory_growth` where no memory is left over from earlier work, which would hide the growth."""
    code = f"from uldp.bench.plain_loop import memory_growth; print(memory_growth({users}))"
    return float(run_process([sys.executable, "-c", code], f"memory-{users}"))


def _sample(problem: LoopProblem) -> tuple[list[tuple[int, int]], float]:
    """Trainings that the loop is timed on, and the factor from their steps to all steps."""
    everything = list(problem.trainings)
    wanted = problem.work.loop_trainings
    if not wanted or wanted >= len(everything):
        return everything, 1.0
    picked = problem.streams.child("sample").generator().choice(len(everything), size=wanted, replace=False)
    chosen = [everything[i] for i in picked]
    factor = sum(map(problem.steps, everything)) / sum(map(problem.steps, chosen))
    return chosen, factor


def _best_threads(problem: LoopProblem, few: Sequence[tuple[int, int]]) -> int:
    """The number of threads at which the loop is fastest, tried on a few trainings."""
    times = {threads: min(_timed_loop(problem, few, threads) for _ in range(2)) for threads in thread_options()}
    return min(times, key=lambda threads: times[threads])


def _timed_loop(problem: LoopProblem, trainings: Sequence[tuple[int, int]], threads: int) -> float:
    with torch_threads(threads), torch.random.fork_rng(devices=[]):
        return time_call(lambda: run_loop(problem, trainings))


def _note(work: Workload, case: Case) -> str:
    """What was measured, in a sentence or two."""
    text = (
        f"{case['trainings']} trainings of {work.epochs} epochs, {case['flops'] / 1e9:.3g} GFLOP; "
        f"{case['threads']} threads, the loop (one process) at its best with {case['baseline_threads']}; "
        f"best of {work.repeats} runs of each side"
    )
    if case["baseline_trainings"] < case["trainings"]:
        text += f"; the loop was timed on {case['baseline_trainings']} random trainings and scaled by steps"
    if work.scope:
        text += f"; {work.scope}"
    if "growth_mb_10000_users" in case:
        text += (
            f"; memory rises by {case['growth_mb_1000_users']:.0f} MB with 1,000 users in a silo, "
            f"by {case['growth_mb_10000_users']:.0f} MB with 10,000"
        )
    return text
