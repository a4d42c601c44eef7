"""Logits adjusted to the labels of the user who is trained: kernels, the loop, and what the adjustment means."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.learners.twin import make_silo
from torch import nn

from uldp.data.federation import Task
from uldp.errors import ConfigError
from uldp.learners.base import LocalTraining
from uldp.learners.torch import TorchLearner
from uldp.methods.uldp_avg_adjusted import UldpAvgAdjusted
from uldp.privacy.releases import PublicFacts
from uldp.rng import Streams

STREAMS = Streams.from_seed(2)
COUNTS = (1, 3, 17, 90)
CASES = pytest.mark.parametrize(("classes", "outputs"), [(4, 4), (2, 2), (2, 1), (11, 11)])


def net(outputs, hidden=True):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, outputs)) if hidden else nn.Linear(5, outputs)


def silo_of(classes):
    """Users who have few of the classes each."""
    silo = make_silo(COUNTS, (5,), Task(classes))
    return replace(silo, labels=(silo.labels // 2 + silo.users) % classes)


def deltas(model, classes, local, data, path="kernels", x=None):
    learner = TorchLearner(model, Task(classes), dtype="float64", path=path, threads=1)
    x = learner.initial(STREAMS) if x is None else x
    found = list(learner.user_deltas(x, data, local, STREAMS))
    order = np.argsort(np.concatenate([users for users, _ in found]))
    return np.concatenate([rows for _, rows in found])[order], x


@CASES
@pytest.mark.parametrize("hidden", [True, False])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_kernels_and_autograd_agree(classes, outputs, hidden, optimizer):
    local = LocalTraining(3, 0.05, 8, optimizer, pseudo_count=0.3)
    rows = [deltas(net(outputs, hidden), classes, local, silo_of(classes), path)[0] for path in ("kernels", "loop")]
    assert np.abs(rows[0] - rows[1]).max() < 1e-11 and np.abs(rows[0]).max() > 1e-3


@CASES
@pytest.mark.parametrize("pseudo_count", [0.01, 1.0])
def test_a_row_is_that_of_plain_training_with_the_logarithms_of_the_own_shares_in_the_bias(
    classes, outputs, pseudo_count
):
    model, data = net(outputs), silo_of(classes)
    adjusted, x = deltas(model, classes, LocalTraining(2, 0.1, 8, pseudo_count=pseudo_count), data)
    for user in range(len(COUNTS)):
        own = data.take(data.users == user)
        counts = np.bincount(own.labels, minlength=classes) + pseudo_count
        logs = np.log(counts / counts.sum())
        shifted = x.copy()
        shifted[-outputs:] += logs if outputs > 1 else logs[1] - logs[0]
        plain, _ = deltas(model, classes, LocalTraining(2, 0.1, 8), own, x=shifted)
        assert np.abs(adjusted[user] - plain[0]).max() < 1e-12


def test_a_row_does_not_depend_on_the_labels_of_other_users():
    data, local = silo_of(4), LocalTraining(2, 0.1, 8, pseudo_count=0.1)
    other = replace(data, labels=np.where(data.users == 2, data.labels, (data.labels + 1) % 4))
    for path in ("kernels", "loop"):
        rows = [deltas(net(4), 4, local, one, path)[0] for one in (data, other)]
        assert (rows[0][2] == rows[1][2]).all() and (rows[0][3] != rows[1][3]).any()


def test_many_pseudo_counts_leave_the_plain_loss():
    data = silo_of(4)
    plain, _ = deltas(net(4), 4, LocalTraining(2, 0.1, 8), data)
    nearly, _ = deltas(net(4), 4, LocalTraining(2, 0.1, 8, pseudo_count=1e9), data)
    assert np.abs(plain - nearly).max() < 1e-6


def test_users_of_one_class_say_little_about_which_one_it_is():
    """Of plain training that is most of what they say."""
    data = make_silo((40,), (5,), Task(4))
    data = replace(data, labels=np.full(len(data), 3))
    plain, _ = deltas(net(4), 4, LocalTraining(2, 0.1, 8), data)
    adjusted, _ = deltas(net(4), 4, LocalTraining(2, 0.1, 8, pseudo_count=0.1), data)
    assert np.linalg.norm(adjusted) < 0.05 * np.linalg.norm(plain)


def test_a_label_that_is_no_class_costs_the_user_the_row_and_nobody_else():
    data = silo_of(4)
    broken = replace(data, labels=np.where(data.users == 1, 9, data.labels))
    local = LocalTraining(2, 0.1, 8, pseudo_count=0.5)
    rows, expected = deltas(net(4), 4, local, broken)[0], deltas(net(4), 4, local, data)[0]
    assert np.isnan(rows[1]).any() and (rows[[0, 2, 3]] == expected[[0, 2, 3]]).all()


@pytest.mark.parametrize("pseudo_count", [0.0, -1.0, float("inf"), float("nan")])
def test_a_pseudo_count_is_positive(pseudo_count):
    with pytest.raises(ConfigError, match="pseudo_count"):
        UldpAvgAdjusted(pseudo_count=pseudo_count)


def test_a_task_without_classes_is_refused():
    with pytest.raises(ConfigError, match="take 'uldp-avg-w' for regression"):
        UldpAvgAdjusted(noise_multiplier=1.0).release(PublicFacts(users=5, silos=2, dimension=3, task="regression"))
