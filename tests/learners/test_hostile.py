"""Models and users that try to get past the rules: one user's records must not reach another's row, nor an error."""

import copy
import tracemalloc

import numpy as np
import pytest
import torch
from torch import nn

from uldp.data.federation import SiloData, Task
from uldp.errors import ModelError
from uldp.learners.base import LocalTraining
from uldp.learners.checks import check_model
from uldp.learners.models import build_model
from uldp.learners.torch import TorchLearner
from uldp.rng import Streams

STREAMS = Streams.from_seed(0)
LOCAL = LocalTraining(epochs=2, lr=0.1, batch_size=4)


def silo(counts, features=3, seed=0, classes=2):
    generator = np.random.default_rng(seed)
    users = np.repeat(np.arange(len(counts)), counts)
    x = generator.normal(size=(len(users), features)).astype(np.float32)
    return SiloData("s", x, generator.integers(0, classes, len(users)), users)


def rows(learner, data, local=LOCAL):
    found = {}
    for users, deltas in learner.user_deltas(learner.initial(STREAMS), data, local, STREAMS):
        found.update(zip(users.tolist(), deltas, strict=True))
    return found


class Tokens(nn.Module):
    """Takes the first feature for a number of a token, as somebody's model might."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.table(x[:, 0].abs().long()))


@pytest.mark.filterwarnings("ignore:the model cannot be trained by kernels")
def test_a_record_outside_a_table_reaches_no_other_user_and_raises_nothing():
    data = silo([2, 2, 2, 2])
    data.features[:, 0] = np.arange(8)
    learner = TorchLearner(Tokens(), Task(2))
    good = rows(learner, data)
    data.features[4, 0] = 60.0  # user 2 holds a token that is not in the table
    bad = rows(learner, data)
    assert np.isnan(bad[2]).all()
    assert all((bad[user] == good[user]).all() for user in (0, 1, 3))


class Moody(nn.Module):
    """Raises on a large record."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        try:
            large = bool((x.detach() > 1e6).any())
        except RuntimeError:  # under vmap there is no single answer
            large = False
        if large:
            raise ValueError("too large for me")
        return self.linear(x)


@pytest.mark.filterwarnings("ignore:the model cannot be trained by kernels")
def test_a_model_that_raises_on_one_users_record_stops_nobody():
    data = silo([3, 3, 3])
    learner = TorchLearner(Moody(), Task(2), path="loop")
    good = rows(learner, data)
    data.features[4] = 1e7
    bad = rows(learner, data)
    assert np.isnan(bad[1]).all()
    assert (bad[0] == good[0]).all()
    assert (bad[2] == good[2]).all()


class Remembers(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.mean = 0.0

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean()
        return self.linear(x - self.mean)


class Couples(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.linear, self.gate, self.how = nn.Linear(3, 2), nn.Parameter(torch.zeros(1)), how

    def forward(self, x):
        return self.linear(self.how(self, x))


COUPLINGS = {
    "centred in training": lambda self, x: x - x.mean(0) if self.training else x,
    "sorted": lambda self, x: x.sort(0).values,
    "behind a closed gate": lambda self, x: x + self.gate * x.mean(0),
    "neighbours": lambda self, x: x + 0.01 * torch.roll(x, 1, 0),
    "running maximum": lambda self, x: x.cummax(0).values,
}


@pytest.mark.parametrize("how", COUPLINGS.values(), ids=COUPLINGS)
def test_models_that_couple_records_are_refused(how):
    with pytest.raises(ModelError, match="depends on the other records"):
        check_model(Couples(how), (3,))


def test_models_that_remember_are_refused():
    with pytest.raises(ModelError, match="remembers earlier records"):
        check_model(Remembers(), (3,))


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (lambda: nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)), "returns shape"),
        (lambda: nn.Sequential(nn.LazyLinear(2)), "lazy layers"),
        (lambda: nn.Sequential(nn.Linear(4, 2)), "cannot be applied"),
    ],
)
def test_other_models_that_cannot_be_used_give_one_sentence(model, says):
    with pytest.raises(ModelError, match=says) as refused:
        TorchLearner(model(), Task(2)).training((3,))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["logistic", "mlp", "creditcard", "cnn"])
def test_harmless_models_pass(name):
    check_model(
        build_model(name, (1, 8, 8) if name == "cnn" else (30,), Task(2)), (1, 8, 8) if name == "cnn" else (30,)
    )


@pytest.mark.filterwarnings("ignore:the model cannot be trained by kernels")
def test_hooks_are_not_left_out():
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    hooked = copy.deepcopy(module)
    hooked[0].register_forward_hook(lambda layer, inputs, output: 3.0 * output)
    assert TorchLearner(module, Task(2)).training((3,)).path == "kernels"
    assert TorchLearner(hooked, Task(2)).training((3,)).path == "loop"
    hooked = copy.deepcopy(module)
    hooked[0].register_full_backward_pre_hook(lambda layer, gradients: tuple(3.0 * g for g in gradients))
    assert TorchLearner(hooked, Task(2)).training((3,)).path == "loop"


def test_one_user_with_very_many_records_does_not_take_everybodys_memory():
    """Orders of records are kept for users of like size only: 1,000 small users pay nothing for a large one."""
    data = silo([5] * 1000 + [20_000])
    learner = TorchLearner(build_model("logistic", (3,), Task(2)), Task(2), memory_mb=16)
    rows(learner, silo([1]))  # compiles, or loads what is compiled
    tracemalloc.start()
    found = rows(learner, data, LocalTraining(epochs=1, lr=0.01, batch_size=4))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found) == 1001
    assert peak < 150 * 2**20


def test_rows_of_users_with_several_batches_do_not_depend_on_neighbours():
    counts = [5, 9, 17, 40, 6, 70, 3, 1, 130]
    data = silo(counts)
    learner = TorchLearner(build_model("mlp", (3,), Task(2), {"hidden": [5]}), Task(2))
    whole = rows(learner, data)
    for gone in range(len(counts)):
        left = rows(learner, data.take(data.users != gone))
        assert all((left[user] == whole[user]).all() for user in left)
