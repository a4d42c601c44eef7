"""The trainer agrees with the slow twin in float64: every model, every path, every optimiser."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from twin import STREAMS, collect, gradient_of_user, make_silo, train_user

from uldp.data.federation import Task
from uldp.learners.base import LocalTraining
from uldp.learners.blocks import Embedding, Residual
from uldp.learners.models import build_model
from uldp.learners.torch import TorchLearner
from uldp.rng import Streams

TWO, THREE, TEN, NUMBER, SURVIVAL = Task(2), Task(3), Task(10), Task(0), Task(0, survival=True)
COUNTS = [3, 1, 0, 9, 2, 6, 5, 1, 4, 11]  # user 2 has nothing here; with batches of 4 some have several

MODELS = {
    "logistic": ("logistic", (13,), TWO, {}),
    "logistic-3": ("logistic", (5,), THREE, {}),
    "logistic-images": ("logistic", (1, 4, 4), TEN, {}),
    "linear": ("linear", (6,), NUMBER, {}),
    "cox": ("cox", (6,), SURVIVAL, {}),
    "mlp": ("mlp", (7,), THREE, {"hidden": [9, 5], "dropout": 0.3, "norm": "layer"}),
    "mlp-group-gelu": ("mlp", (7,), NUMBER, {"hidden": [9], "norm": "group", "activation": "gelu"}),
    "mlp-tanh-images": ("mlp", (2, 4, 3), TWO, {"hidden": [6], "activation": "tanh"}),
    "mlp-leaky": ("mlp", (4,), TWO, {"hidden": [6, 5], "activation": "leaky-relu", "dropout": 0.9}),
    "cnn-digits": ("cnn", (1, 8, 8), TEN, {"dropout2d": 0.25}),
    "cnn-mnist": ("cnn", (1, 28, 28), TEN, {}),
    "cnn-colour": ("cnn", (3, 17, 19), THREE, {"channels": [4, 5], "hidden": 8}),
    "creditcard": ("creditcard", (30,), TWO, {}),
    "two-layer": ("mnist-two-layer", (1, 9, 8), TEN, {}),
}
VGG = {
    "vgg-cifar": ("vgg-cifar", (3, 8, 8), TEN, {}),
    "vgg-cifar-dropout": ("vgg-cifar", (3, 8, 9), THREE, {"groups": 4, "dropout": 0.5}),
    "vgg-medical": ("vgg-medical", (1, 16, 17), THREE, {"dropout": 0.2}),
    "medical-cnn": ("medical-cnn", (1, 16, 17), THREE, {}),
}
LOCALS = {
    "sgd": LocalTraining(epochs=3, lr=0.1, batch_size=4),
    "sgd-decay": LocalTraining(epochs=2, lr=0.1, batch_size=4, weight_decay=0.05),
    "adam": LocalTraining(epochs=3, lr=0.01, batch_size=4, optimizer="adam"),
    "adam-decay": LocalTraining(epochs=2, lr=0.01, batch_size=64, optimizer="adam", weight_decay=0.05),
    "momentum": LocalTraining(epochs=3, lr=0.05, batch_size=4, momentum=0.9, weight_decay=0.05),
    "adamw": LocalTraining(epochs=3, lr=0.01, batch_size=4, optimizer="adamw", weight_decay=0.05),
}


class Unknown(nn.Module):
    """A module without kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.last = nn.Linear(5, 3)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)) * self.scale + x)


class Branching(Unknown):
    """A module that looks at its data, and that drops units."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.4)

    def forward(self, x):
        if float(self.scale.sum()) > 100:
            x = -x
        return super().forward(self.drop(x)) + self.last(self.drop(x))


def built(name):
    model, shape, task, options = (MODELS | VGG)[name]
    return build_model(model, shape, task, options), shape, task


def agrees(module, shape, task, local, path="auto", expected_path=None, counts=COUNTS):
    learner = TorchLearner(module, task, dtype="float64", path=path)
    if expected_path:
        assert learner.training(shape).path == expected_path
    data = make_silo(counts, shape, task)
    x = learner.initial(Streams.from_seed(3))
    rows = collect(learner.user_deltas(x, data, local, STREAMS))
    assert sorted(rows) == [u for u, n in enumerate(counts) if n]
    for user, row in rows.items():
        expected = train_user(module, task, data, user, x, local, STREAMS)
        assert np.abs(expected).max() > 1e-6 or task.kind == "survival"  # a record alone teaches no order of events
        np.testing.assert_allclose(row, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("local", LOCALS)
@pytest.mark.parametrize("name", MODELS)
def test_kernels_agree_with_the_twin(name, local):
    module, shape, task = built(name)
    agrees(module, shape, task, LOCALS[local], "auto", "kernels", COUNTS if shape[-1] < 28 else [3, 0, 5, 1])


@pytest.mark.parametrize("local", ["sgd", "momentum", "adamw"])
@pytest.mark.parametrize("name", MODELS)
def test_float32_stays_close_to_the_twin(name, local):
    """Three epochs: every operation rounds at 6e-8, and so do the products of a few hundred terms.

    Adam divides by the size of the gradient. Where that is all rounding, a step of lr may go either way: such entries
    (gradients of a few 1e-8 or of zero) are few, and move by no more than all steps together.
    """
    module, shape, task = built(name)
    learner, settings = TorchLearner(module, task), LOCALS[local]
    data = make_silo([3, 0, 5, 1], shape, task)
    x = learner.initial(Streams.from_seed(3)).astype(np.float32).astype(np.float64)
    for user, row in collect(learner.user_deltas(x, data, settings, STREAMS)).items():
        expected = train_user(module, task, data, user, x, settings, STREAMS)
        far = np.abs(row - expected) > 1e-4 * max(1.0, np.abs(expected).max())
        if local.startswith("adam"):
            steps = settings.epochs * -(-int((data.users == user).sum()) // settings.batch_size)
            assert far.sum() <= max(1, 0.01 * far.size)  # Cox's bias has no gradient at all
            assert np.abs(row - expected).max() < 2.1 * settings.lr * steps
        else:
            assert not far.any()


@pytest.mark.parametrize("local", ["sgd-decay", "momentum", "adam-decay", "adamw"])
@pytest.mark.parametrize("name", MODELS)
def test_the_loop_agrees_with_the_twin(name, local):
    module, shape, task = built(name)
    agrees(module, shape, task, LOCALS[local], "loop", "loop", [3, 0, 5, 1])


@pytest.mark.parametrize(
    "local", ["sgd-decay", *(pytest.param(name, marks=pytest.mark.slow) for name in ("momentum", "adam", "adamw"))]
)
@pytest.mark.parametrize("name", VGG)
def test_kernels_of_the_large_nets_agree_with_the_twin(name, local):
    module, shape, task = built(name)
    agrees(module, shape, task, LOCALS[local], "auto", "kernels", [3, 0, 5, 1])


@pytest.mark.parametrize(
    ("name", "shape", "task"),
    [("mnist-two-layer", (1, 28, 28), TEN), ("vgg-cifar", (3, 32, 32), TEN), ("vgg-medical", (1, 64, 64), Task(6))],
)
def test_the_papers_nets_have_kernels_in_full_size(name, shape, task):
    assert TorchLearner(build_model(name, shape, task), task, path="kernels").training(shape).path == "kernels"


@pytest.mark.parametrize("local", ["sgd", "adam-decay"])
@pytest.mark.parametrize("kind", [Unknown, Branching])
def test_a_module_without_kernels_is_looped_with_a_warning(kind, local):
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match=f"no kernel for {kind.__name__}"):
        agrees(kind(), (5,), THREE, LOCALS[local], "auto", "loop")


LAYERS = {
    "strided": [nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(3, 4, 2, stride=(1, 2)), nn.Flatten()],
    "group-norm": [nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.SiLU(), nn.Dropout(0.2), nn.AvgPool2d(2), nn.Flatten()],
    "norm-relu": [
        nn.Conv2d(2, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.GroupNorm(4, 4, affine=False),
        nn.ReLU(),
    ],
    "global-mean": [nn.Dropout2d(0.3), nn.Conv2d(2, 4, (3, 2), bias=False), nn.Tanh(), nn.AdaptiveAvgPool2d(1)],
    "max-3": [nn.Conv2d(2, 4, 3, padding=(2, 1)), nn.Sigmoid(), nn.MaxPool2d((3, 2)), nn.Conv2d(4, 3, (1, 3))],
    "no-affine": [nn.Flatten(), nn.Linear(98, 6, bias=False), nn.GroupNorm(3, 6, affine=False), nn.ReLU()],
    "relu-first": [nn.ReLU(), nn.Tanh(), nn.Conv2d(2, 3, 3), nn.Sigmoid(), nn.ReLU(), nn.Identity()],
    "norm-first": [nn.Flatten(), nn.LayerNorm(98), nn.Sequential(nn.Dropout(0.5), nn.Linear(98, 4)), nn.Dropout(0.5)],
    "max-padded": [nn.Conv2d(2, 9, 2), nn.MaxPool2d(3, stride=2, padding=1), nn.Tanh(), nn.Conv2d(9, 3, 1)],
    "max-ceil": [nn.Conv2d(2, 4, 2), nn.MaxPool2d((2, 4), stride=(4, 3), padding=(1, 2), ceil_mode=True)],
    "max-overlap": [nn.Conv2d(2, 4, 1), nn.MaxPool2d(5, stride=1, padding=2), nn.MaxPool2d(2, ceil_mode=True)],
    "mean-padded": [nn.Conv2d(2, 9, 2), nn.AvgPool2d(3, stride=2, padding=1), nn.Tanh(), nn.Conv2d(9, 3, 1)],
    "mean-inside": [nn.Conv2d(2, 4, 1), nn.AvgPool2d((3, 4), 2, padding=(1, 2), count_include_pad=False)],
    "mean-ceil": [nn.Conv2d(2, 4, 1), nn.AvgPool2d(4, stride=4, padding=(2, 1), ceil_mode=True)],
    "mean-ceil-inside": [
        nn.Conv2d(2, 4, 1),
        nn.AvgPool2d(2, stride=3, padding=1, ceil_mode=True, count_include_pad=False),
    ],
    "adaptive": [nn.Conv2d(2, 4, 2), nn.AdaptiveAvgPool2d((2, 3)), nn.Conv2d(4, 5, 1), nn.AdaptiveAvgPool2d((None, 1))],
    "flat-groups": [nn.Conv2d(2, 4, 2), nn.Flatten(), nn.GroupNorm(3, 144), nn.ReLU(), nn.GroupNorm(16, 144)],
    "residual": [nn.Flatten(), nn.Linear(98, 6), Residual(nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 6)))],
    "residual-first": [Residual(nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.Tanh())), nn.ReLU()],
    "residual-in-place": [nn.Conv2d(2, 4, 2), Residual(nn.Sequential(nn.ReLU(), nn.GroupNorm(2, 4))), nn.Tanh()],
    "residual-nested": [
        nn.Conv2d(2, 3, 2),
        Residual(nn.Sequential(nn.Dropout(0.3), Residual(nn.Conv2d(3, 3, 1)), nn.SiLU(), Residual(nn.Identity()))),
        nn.Dropout(0.2),
    ],
    "residual-changed": [nn.Conv2d(2, 4, 2), Residual(nn.Sequential(nn.ReLU(inplace=True), nn.Conv2d(4, 4, 1)))],
    "residual-flat": [nn.Conv2d(2, 3, 4), nn.Flatten(), Residual(nn.Linear(48, 48)), nn.LayerNorm(48)],
    "residual-of-nothing-trained": [Residual(nn.Tanh()), nn.Conv2d(2, 3, 4)],
    "embedding": [nn.Flatten(), Embedding(2, 5), nn.Dropout(0.4), nn.Linear(490, 4), nn.ReLU()],
    "embedding-of-some": [nn.Flatten(), Embedding(3, 9, columns=3), Residual(nn.Linear(122, 122)), nn.Tanh()],
    "layer-norm-no-bias": [nn.Flatten(), nn.Linear(98, 6), nn.LayerNorm(6, bias=False), nn.GELU(), nn.Tanh()],
}


@pytest.mark.parametrize("local", ["momentum", "adam-decay"])
@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_agrees_with_torch(name, local):
    torch.manual_seed(0)
    stack = [*LAYERS[name], nn.Flatten()]
    width = nn.Sequential(*stack)(torch.zeros(2, 2, 7, 7)).shape[1]
    module = nn.Sequential(*stack, nn.Linear(width, 3))
    agrees(module, (2, 7, 7), THREE, LOCALS[local], "kernels", "kernels")


def test_a_flattened_image_of_outputs_is_in_torch_s_order():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(2, 2, 2), nn.Flatten())
    agrees(module, (2, 3, 2), Task(4), LOCALS["sgd"], "kernels", "kernels")


@pytest.mark.parametrize("path", ["kernels", "loop"])
@pytest.mark.parametrize("name", ["logistic", "linear", "mlp", "cnn-digits", "creditcard"])
def test_gradients_are_those_of_autograd(name, path):
    module, shape, task = built(name)
    learner = TorchLearner(module, task, dtype="float64", path=path)
    counts = [1, 0, 2, 300, 9, 1, 33]  # user 3's records are taken in several parts
    data = make_silo(counts, shape, task)
    x = learner.initial(Streams.from_seed(3))
    rows = collect(learner.user_gradients(x, data, STREAMS))
    assert sorted(rows) == [0, 2, 3, 4, 5, 6]
    for user, row in rows.items():
        np.testing.assert_allclose(row, gradient_of_user(module, task, data, user, x, STREAMS), rtol=0, atol=1e-9)


def test_silo_delta_is_training_on_all_records_as_one_user():
    module, shape, task = built("creditcard")
    learner = TorchLearner(module, task, dtype="float64")
    data = make_silo([5, 9, 0, 3], shape, task)
    x = learner.initial(Streams.from_seed(3))
    one = make_silo([17], shape, task)
    one = type(one)("one", data.features, data.labels, np.zeros(17, dtype=np.int64))
    expected = train_user(module, task, one, 0, x, LOCALS["adam"], STREAMS.child("silo"))
    np.testing.assert_allclose(learner.silo_delta(x, data, LOCALS["adam"], STREAMS), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("path", ["auto", "kernels", "loop"])
@pytest.mark.parametrize("name", ["cnn-digits", "two-layer", *VGG])
def test_one_user_alone_takes_another_way_to_the_same_delta(name, path):
    module, shape, task = built(name)
    learner = TorchLearner(module, task, dtype="float64", path=path)
    x = learner.initial(Streams.from_seed(3))
    data = make_silo([11], shape, task)
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    for local in (LOCALS["sgd-decay"], LOCALS["adam"]):
        expected = train_user(module, task, data, 0, x, local, STREAMS.child("silo"))
        np.testing.assert_allclose(learner.silo_delta(x, data, local, STREAMS), expected, rtol=0, atol=1e-9)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_no_warning_on_the_fast_path():
    module, shape, task = built("cnn-digits")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agrees(module, shape, task, LOCALS["sgd"], counts=[2, 1])
