"""Residual and Embedding: what they compute, what they refuse, and that odd numbers reach nobody else's memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from twin import STREAMS, collect, make_silo

from uldp.data.federation import Task
from uldp.errors import ConfigError, ModelError
from uldp.learners.base import LocalTraining
from uldp.learners.blocks import Embedding, Residual
from uldp.learners.checks import check_model
from uldp.learners.torch import SlowTrainingWarning, TorchLearner

LOCAL = LocalTraining(epochs=2, lr=0.1, batch_size=4)
WILD = [-1.0, -1e-30, 4.0, 3.9999998, 1e9, 2.0**31, 2.0**63, 1e30, -3e38, -0.0]


def model(categories=4, dimension=3):
    torch.manual_seed(0)
    return nn.Sequential(Embedding(categories, dimension, columns=2), nn.Linear(2 * dimension + 1, 2))


def test_unknown_categories_are_zeros_and_no_place_in_memory():
    """A number that is no category touches neither the table nor other users; kernels and loop agree on all of them."""
    data = make_silo([3] * len(WILD), (3,), Task(2))
    data.features[:] = np.abs(data.features)
    good, found = None, []
    for path in ("kernels", "loop"):
        learner = TorchLearner(model(), Task(2), path=path, dtype="float64", threads=1)
        x = learner.initial(STREAMS)
        if path == "kernels":
            good = collect(learner.user_deltas(x, data, LOCAL, STREAMS))
            for user, value in enumerate(WILD[1::2]):
                data.features[data.users == 2 * user, :2] = value
        rows = collect(learner.user_deltas(x, data, LOCAL, STREAMS))
        sums = learner.clipped_sums(data, 0.7)(x, np.arange(len(data)), 0, STREAMS)
        found.append([*(rows[user] for user in sorted(rows)), sums, learner.predict(x, data.features)])
        for user in range(1, len(WILD), 2):
            assert path == "loop" or np.array_equal(rows[user], good[user])
    for ours, theirs in zip(*found, strict=True):
        assert np.isfinite(ours).all()
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)  # kernels clip 1e-5 below the clip


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("path", ["kernels", "loop"])
def test_a_category_that_is_not_a_number_makes_a_row_that_counts_as_zero(path, value):
    learner = TorchLearner(model(), Task(2), path=path)
    data = make_silo([3, 2, 4], (3,), Task(2))
    x = learner.initial(STREAMS)
    good = collect(learner.user_deltas(x, data, LOCAL, STREAMS))
    data.features[np.flatnonzero(data.users == 1)[0], 1] = value
    bad = collect(learner.user_deltas(x, data, LOCAL, STREAMS))
    assert not np.isfinite(bad[1]).all()
    for user in (0, 2):
        np.testing.assert_array_equal(bad[user], good[user])
    mine = np.flatnonzero(data.users == 1)[:1]
    assert not learner.clipped_sums(data, 1.0)(x, mine, 0, STREAMS).any()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Embedding(0, 3), "categories"),
        (lambda: Embedding(3, 2.5), "dimension"),
        (lambda: Embedding(3, 2, columns=0), "columns"),
    ],
)
def test_sizes_that_are_none_are_refused(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (lambda: nn.Sequential(Residual(nn.Linear(3, 1)), nn.Linear(3, 2)), r"\(3,\) into \(1,\); they must keep"),
        (lambda: nn.Sequential(Embedding(3, 2, columns=4), nn.Linear(8, 2)), "at least 4 column"),
    ],
)
def test_blocks_that_do_not_fit_the_features_are_refused_in_one_sentence(module, says):
    with pytest.raises(ModelError, match=says) as refused:
        check_model(module(), (3,))
    assert "\n" not in str(refused.value)


def test_an_embedding_behind_other_layers_goes_by_autograd():
    """Nothing is differentiated through a number of a category: layers before it would have no gradient."""
    module = nn.Sequential(nn.Linear(3, 3), Embedding(4, 2), nn.Linear(6, 2))
    with pytest.warns(SlowTrainingWarning, match=r"no kernel for Embedding\(4, 2, columns=None\) behind other layers"):
        assert TorchLearner(module, Task(2)).training((3,)).path == "loop"


class Idle(nn.Module):
    """One of its parameters takes no part."""

    def __init__(self):
        super().__init__()
        self.linear, self.idle = nn.Linear(3, 2), nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.linear(x)


@pytest.mark.filterwarnings("ignore:the model cannot be trained by kernels")
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_parameters_without_a_gradient_stay_where_they_are(optimizer):
    learner = TorchLearner(Idle(), Task(2))
    names = list(dict(Idle().named_parameters()))
    assert names[0] == "idle"
    data, local = make_silo([3, 2], (3,), Task(2)), LocalTraining(epochs=2, lr=0.1, optimizer=optimizer)
    x = learner.initial(STREAMS)
    for rows in (
        collect(learner.user_deltas(x, data, local, STREAMS)),
        collect(learner.user_gradients(x, data, STREAMS)),
        {0: learner.clipped_sums(data, 1.0)(x, np.arange(5), 0, STREAMS)},
    ):
        for row in rows.values():
            assert not row[:4].any()
            assert row[4:].any()


def test_rows_of_a_table_that_nobody_looks_up_stay_where_they_are():
    learner = TorchLearner(model(categories=9), Task(2))
    data = make_silo([3, 2], (3,), Task(2))
    data.features[:, :2] = data.users[:, None]
    x = learner.initial(STREAMS)
    for user, row in collect(learner.user_deltas(x, data, LOCAL, STREAMS)).items():
        table = row[:27].reshape(9, 3)
        assert table[user].any()
        assert not np.delete(table, user, 0).any()
