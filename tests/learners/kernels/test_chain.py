"""A module whose own forward only hands features from layer to layer is trained by kernels, exactly as its layers."""

import warnings
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from uldp.data.federation import SiloData, Task
from uldp.errors import ModelError
from uldp.learners.base import LocalTraining
from uldp.learners.kernels.chain import unroll
from uldp.learners.kernels.forms import NoKernelError
from uldp.learners.torch import SlowTrainingWarning, TorchLearner
from uldp.rng import Streams

STREAMS = Streams.from_seed(3)
LOCAL = LocalTraining(epochs=2, lr=0.1, batch_size=2)


class Layers(nn.Module):
    """Declared in another order than they are used in."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 2)
        self.first = nn.Linear(3, 4)


class Chain(Layers):
    def forward(self, x):
        return self.last(functional.dropout(torch.relu(self.first(x)), 0.25, self.training))


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), nn.GELU())])
        self.rest = Chain()

    def forward(self, x):
        for block in self.blocks:
            x = block(x).tanh()
        return self.rest(x)


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(1, 2, 3)
        self.dense = nn.Linear(8, 3)

    def forward(self, x):
        x = functional.relu(functional.max_pool2d(self.convolution(x), 2))
        return self.dense(x.view(x.size(0), -1))


class AsRows(Images):
    def forward(self, x):
        x = functional.max_pool2d(functional.silu(self.convolution(x)), kernel_size=2, stride=2)
        return self.dense(x.reshape((x.shape[0], 8)))


def silo(*shape, classes=2):
    generator = np.random.default_rng(1)
    users = np.repeat(np.arange(4), 3)
    features = generator.normal(size=(12, *shape)).astype(np.float32)
    return SiloData("here", features, generator.integers(0, classes, 12), users)


def updates(module, data, task):
    learner = TorchLearner(module, task, path="kernels", threads=1)
    x = learner.initial(STREAMS)
    return learner, np.concatenate([rows for _, rows in learner.user_deltas(x, data, LOCAL, STREAMS)])


def ordered_as(module, chain, rows):
    """Rows of the chain's parameters in the order of the module's."""
    starts, position = {}, 0
    for parameter in chain.parameters():
        starts[id(parameter)] = range(position, position + parameter.numel())
        position += parameter.numel()
    return rows[:, [place for parameter in module.parameters() for place in starts[id(parameter)]]]


@pytest.mark.parametrize(
    ("kind", "shape", "classes"), [(Chain, (3,), 2), (Nested, (3,), 2), (Images, (1, 6, 6), 3), (AsRows, (1, 6, 6), 3)]
)
def test_kernels_train_it_bit_for_bit_as_its_layers(kind, shape, classes):
    torch.manual_seed(0)
    module, data = kind(), silo(*shape, classes=classes)
    chain = unroll(module, shape)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner, rows = updates(module, data, Task(classes))
        _, expected = updates(chain, data, Task(classes))
    assert learner.training(shape).layers == ()  # none of its code runs on records
    assert (rows == ordered_as(module, chain, expected)).all() and np.abs(rows).max() > 0


def test_kernels_agree_with_autograd():
    torch.manual_seed(0)
    module, data = Images(), silo(1, 6, 6, classes=3)
    _, rows = updates(module, data, Task(3))
    loop = TorchLearner(module, Task(3), path="loop")
    expected = [row for _, row in loop.user_deltas(loop.initial(STREAMS), data, LOCAL, STREAMS)]
    assert rows == pytest.approx(np.concatenate(expected), abs=1e-5)


class NoGradient(Layers):
    def forward(self, x):
        with torch.no_grad():
            hidden = self.first(x)
        return self.last(hidden)


class OtherInEvaluation(Layers):
    def forward(self, x):
        scores = self.last(self.first(x))
        return scores if self.training else scores.tanh()


class AlwaysDrops(Layers):
    def forward(self, x):
        return self.last(functional.dropout(self.first(x), 0.5, True))


class TakesTurns(Layers):
    calls = 0

    def forward(self, x):
        self.calls += 1
        scores = self.last(self.first(x))
        return scores if self.calls % 2 else scores.relu()


class ByItsData(Layers):
    def forward(self, x):
        return self.last(self.first(x if x.sum() > 0 else -x))


class Swallows(Layers):
    def forward(self, x):
        with suppress(Exception):
            x = -x if bool(x.sum() > 0) else x
        return self.last(self.first(x))


class ByParameters(Layers):
    def forward(self, x):
        return self.last(self.first(x)) * (1 + self.last.bias)


class Skips(Layers):
    def forward(self, x):
        hidden = self.first(x)
        return self.last(hidden + hidden.relu())


class Twice(Layers):
    def forward(self, x):
        self.first(x)
        return self.last(self.first(x))


class Softplus(Layers):
    def forward(self, x):
        return self.last(functional.softplus(self.first(x)))


class More(Layers):
    def forward(self, x, mask=None):
        return self.last(self.first(x))


class Pair(Layers):
    def forward(self, x):
        return self.last(self.first(x)), x


class MixesRecords(Layers):
    def forward(self, x):
        return self.last(self.first(x).reshape(4, -1).reshape(-1, 4))


NO_CHAINS = [
    NoGradient, OtherInEvaluation, AlwaysDrops, TakesTurns, ByItsData, Swallows, ByParameters, Skips, Twice, Softplus,
    More, Pair, MixesRecords,
]  # fmt: skip


@pytest.mark.parametrize("kind", NO_CHAINS)
def test_what_is_no_chain_of_layers_has_no_kernel(kind):
    with pytest.raises(NoKernelError, match=f"no kernel for {kind.__name__}, whose forward "):
        unroll(kind(), (3,))


def test_a_module_that_never_uses_a_layer_has_no_kernel():
    class Idle(Layers):
        def forward(self, x):
            return self.first(x)

    with pytest.warns(SlowTrainingWarning, match="some parameters are not used"):
        TorchLearner(Idle(), Task(4)).training((3,))


def test_the_warning_says_what_to_do():
    with pytest.warns(SlowTrainingWarning, match=r"forward uses softplus\).*Write the model as an nn\.Sequential"):
        TorchLearner(Softplus(), Task(2)).training((3,))


def test_recording_leaves_the_module_as_it_was():
    module = TakesTurns()
    with pytest.raises(NoKernelError):
        unroll(module, (3,))
    assert module.calls == 0


class OwnSoftmax(Layers):
    def forward(self, x):
        scores = self.last(self.first(x)).exp()
        return scores / scores.sum(1, keepdim=True)


class DeadUnits(Layers):
    """A ReLU at the end that is zero for every record."""

    def forward(self, x):
        return (self.last(self.first(x)) - 1e6).relu()


@pytest.mark.filterwarnings("ignore:the model cannot be trained by kernels")
@pytest.mark.parametrize(
    ("module", "task"),
    [
        (nn.Sequential(nn.Linear(3, 1), nn.Sigmoid()), Task(2)),
        (nn.Sequential(nn.Linear(3, 4), nn.Softmax(dim=1)), Task(4)),
        (OwnSoftmax(), Task(2)),
    ],
)
def test_probabilities_are_refused_with_the_remedy(module, task):
    with pytest.raises(ModelError, match=r"^model: its outputs lie between 0 and 1 .* leave the model's own out"):
        TorchLearner(module, task).training((3,))


@pytest.mark.filterwarnings("ignore:the model cannot be trained by kernels")
@pytest.mark.parametrize(
    ("module", "task"),
    [
        (nn.Sequential(nn.Linear(3, 4), nn.LogSoftmax(dim=1)), Task(4)),  # the loss leaves it as it is
        (nn.Sequential(nn.Linear(3, 2), nn.ReLU()), Task(2)),
        (nn.Sequential(nn.Linear(3, 2), nn.Tanh()), Task(2)),
        (nn.Sequential(nn.Linear(3, 1), nn.Sigmoid()), Task(0)),  # a number
        (DeadUnits(), Task(2)),
    ],
)
def test_other_outputs_are_not(module, task):
    TorchLearner(module, task).training((3,))


def test_neither_is_a_last_layer_of_zeros():
    module = nn.Linear(3, 2)
    nn.init.zeros_(module.weight), nn.init.zeros_(module.bias)
    TorchLearner(module, Task(2)).training((3,))
