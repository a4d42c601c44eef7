"""The benchmark's two sides do the same work, and a case says what it measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from uldp.bench.machine import PeakMemory, matrix_flops
from uldp.bench.plain_loop import WORKLOADS, Workload, make_problem, run_case, run_loop, run_ours
from uldp.learners.base import LocalTraining


def small(work: Workload) -> Workload:
    return replace(work, records=60, users=20, silos=2, epochs=2, check_memory=False)


@pytest.mark.parametrize("work", WORKLOADS, ids=lambda work: work.name)
def test_both_sides_train_the_same_users(work):
    problem = make_problem(small(work))
    assert run_ours(problem) == run_loop(problem, problem.trainings) == len(problem.trainings)
    assert problem.learner.training(work.feature_shape).path == "kernels"


def test_the_shapes_are_those_of_the_papers():
    dimensions = {work.name: make_problem(small(work)).learner.dimension for work in WORKLOADS}
    assert dimensions == {"creditcard-like": 5012, "heart-like": 14, "mnist-like": 21840}
    assert [(w.local.epochs, w.local.batch_size) for w in WORKLOADS[:2]] == [(30, 64), (50, 4)]


def test_a_case_carries_what_the_command_prints():
    case = run_case(replace(small(WORKLOADS[0]), loop_trainings=5, repeats=1))
    assert case["ratio"] == pytest.approx(case["baseline"] / case["ours"])
    assert case["unit"] == "s" and case["peak_mb"] > 10 and 0 < case["flops_share"] < 1.5
    assert case["flops"] == 60 * 2 * 6 * (5 * 900 + 60)
    assert case["baseline_trainings"] == 5 and "5 random trainings" in case["note"]


def test_the_machine_is_measured():
    assert matrix_flops(sizes=(64, 128), seconds=0.01) > 0
    with PeakMemory() as memory:
        block = np.ones(8_000_000)
        assert block.sum() > 0
    assert 40 < memory.growth_mb < 300


def test_local_training_of_the_cases_is_plain_sgd():
    assert all(work.local.optimizer == LocalTraining().optimizer == "sgd" for work in WORKLOADS)
