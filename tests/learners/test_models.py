"""The zoo: sizes, options, factories, and the models that are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from uldp.data.federation import Task
from uldp.errors import ConfigError, ModelError
from uldp.learners.checks import check_model
from uldp.learners.models import ZOO, build_model
from uldp.rng import Streams

TWO, TEN, NUMBER, SURVIVAL = Task(2), Task(10), Task(0), Task(0, survival=True)


def size(module):
    return sum(p.numel() for p in module.parameters())


def make_net(shape, task):
    return nn.Sequential(nn.Linear(shape[0], 4), nn.Tanh(), nn.Linear(4, task.classes))


def make_wide(shape, task, *, hidden=4):
    return nn.Sequential(nn.Linear(shape[0], hidden), nn.Tanh(), nn.Linear(hidden, task.classes))


def make_dict(shape, task):
    return {}


def make_trouble(shape, task):
    raise ValueError("no such net")


NOT_CALLABLE = 3


def test_sizes_of_the_papers_models():
    assert size(build_model("logistic", (13,), TWO)) == 14
    assert size(build_model("creditcard", (30,), TWO)) == 5012
    assert size(build_model("cnn", (1, 28, 28), TEN)) == 21840
    assert size(build_model("cox", (39,), SURVIVAL)) == 40
    assert size(build_model("mnist-two-layer", (1, 28, 28), TEN)) == 20490
    assert size(build_model("vgg-cifar", (3, 32, 32), TEN)) == 2169770
    assert size(build_model("vgg-medical", (1, 64, 64), Task(6))) == 5611878
    assert size(build_model("medical-cnn", (3, 224, 224), Task(6))) == 5611878
    assert size(build_model("medical-cnn", (1, 64, 64), Task(6))) == 389370


def test_vgg_nets_take_other_images_and_options():
    assert build_model("vgg-cifar", (1, 9, 14), TWO, {"groups": 4, "dropout": 0.5})[-2].p == 0.5
    assert build_model("vgg-medical", (3, 16, 17), TWO, {"dropout": 0.5})[-1].out_features == 2
    for name, shape, options in (
        ("vgg-cifar", (3, 32), {}),
        ("vgg-medical", (1, 15, 15), {}),
        ("mnist-two-layer", (784,), {}),
        ("vgg-cifar", (3, 32, 32), {"groups": 3}),
        ("vgg-cifar", (3, 32, 32), {"groups": True}),
    ):
        with pytest.raises(ConfigError, match=r"model\.(name|options)"):
            build_model(name, shape, TEN, options)


def test_automatic_choice():
    assert size(build_model("auto", (4,), TWO)) == 5
    assert size(build_model("auto", (4,), TEN)) == 50
    assert size(build_model("auto", (4,), NUMBER)) == 5
    assert isinstance(build_model("auto", (1, 8, 8), TEN)[0], nn.Conv2d)
    assert size(build_model("auto", (4,), SURVIVAL)) == 5


def test_parameters_come_from_the_streams_not_from_torch():
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    a = build_model("mlp", (4,), TWO, streams=Streams.from_seed(1))
    torch.manual_seed(2)
    b = build_model("mlp", (4,), TWO, streams=Streams.from_seed(1))
    c = build_model("mlp", (4,), TWO, streams=Streams.from_seed(2))
    assert torch.equal(a[0].weight, b[0].weight) and not torch.equal(a[0].weight, c[0].weight)
    torch.manual_seed(1)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_unknown_names_and_options_list_the_known_ones():
    with pytest.raises(
        ConfigError,
        match="cnn, cox, creditcard, linear, logistic, medical-cnn, mlp, mnist-two-layer, vgg-cifar, vgg-medical",
    ):
        build_model("resnet", (4,), TWO)
    with pytest.raises(ConfigError, match="Known options: activation, dropout, hidden, norm"):
        build_model("mlp", (4,), TWO, {"hiden": [3]})
    with pytest.raises(ConfigError, match="It has none"):
        build_model("linear", (4,), NUMBER, {"hidden": [3]})


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mlp", {"dropout": 1.0}),
        ("mlp", {"dropout": float("nan")}),
        ("mlp", {"dropout": "much"}),
        ("mlp", {"hidden": [0]}),
        ("mlp", {"hidden": "wide"}),
        ("mlp", {"norm": "batch"}),
        ("mlp", {"norm": ["group"]}),
        ("mlp", {"activation": "step"}),
        ("creditcard", {"width": [3, 4]}),
    ],
)
def test_bad_option_values_are_refused(name, options):
    with pytest.raises(ConfigError, match=r"model\.options"):
        build_model(name, (4,), TWO, options)


def test_models_that_do_not_fit_the_data_are_refused():
    for name, shape, task in (
        ("cnn", (4,), TWO),
        ("linear", (4,), TWO),
        ("logistic", (4,), NUMBER),
        ("cnn", (1, 3, 3), TWO),
    ):
        with pytest.raises(ConfigError, match=r"model\.name"):
            build_model(name, shape, task)


def test_a_factory_is_imported_and_called():
    assert size(build_model(f"{__name__}:make_net", (3,), TWO)) == 26


@pytest.mark.parametrize(
    ("factory", "error", "words"),
    [
        ("no_such_package.models:make", ConfigError, "cannot be imported"),
        (f"{__name__}:make_nothing", ConfigError, "has no 'make_nothing'"),
        (f"{__name__}:NOT_CALLABLE", ConfigError, "cannot be called"),
        (f"{__name__}:make_dict", ModelError, "returned dict"),
        (f"{__name__}:make_trouble", ModelError, "ValueError: no such net"),
    ],
)
def test_every_failure_of_a_factory_is_told(factory, error, words):
    with pytest.raises(error, match=words):
        build_model(factory, (3,), TWO)


def test_options_go_to_a_factory_and_what_it_does_not_take_is_refused():
    sizes = [tuple(p.shape) for p in build_model(f"{__name__}:make_wide", (3,), TWO, {"hidden": 7}).parameters()]
    assert sizes[0] == (7, 3)
    with pytest.raises(ModelError, match=r"model\.name: .*unexpected keyword argument 'hidden'"):
        build_model(f"{__name__}:make_net", (3,), TWO, {"hidden": 3})


class Coupled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x - x.mean(0))


class Counting(Coupled):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += len(x)
        return self.layer(x)


class Squeezing(Coupled):
    def forward(self, x):
        return self.layer(x)[:, 0]


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(4), nn.SyncBatchNorm(4), nn.BatchNorm1d(4, track_running_stats=False)]
)
def test_batch_norm_is_refused_with_the_remedy(layer):
    with pytest.raises(ModelError, match=r"layer '1' \(.*BatchNorm.*GroupNorm or LayerNorm"):
        check_model(nn.Sequential(nn.Linear(3, 4), layer, nn.Linear(4, 2)))


def test_other_models_that_carry_data_past_the_clipping_are_refused():
    with pytest.raises(ModelError, match="running statistics"):
        check_model(nn.Sequential(nn.Conv2d(1, 2, 3), nn.InstanceNorm2d(2, track_running_stats=True)))
    with pytest.raises(ModelError, match="depends on the other records"):
        check_model(Coupled(), (3,))
    with pytest.raises(ModelError, match="'seen' changes during training"):
        check_model(Counting(), (3,))
    with pytest.raises(ModelError, match="no trainable parameters"):
        check_model(nn.Sequential(nn.ReLU()))
    with pytest.raises(ModelError, match=r"not \(5, outputs\)"):
        check_model(Squeezing(), (3,))
    check_model(nn.Sequential(nn.Conv2d(1, 2, 3), nn.InstanceNorm2d(2), nn.Flatten(), nn.Linear(8, 2)), (1, 4, 4))


def test_every_entry_of_the_zoo_has_a_description():
    assert all(factory.__doc__ for factory in ZOO.values())


def test_dropout_rates_are_met_and_addresses_matter():
    from uldp.learners.randomness import Place, TrainingRandomness

    noise = TrainingRandomness(Streams.from_seed(0), np.arange(40))
    for rate in (0.1, 0.5, 0.123):
        factors = noise.dropout(rate, Place(1, range(5)), (40, 20, 31))
        kept = factors > 0
        assert np.allclose(factors[kept], 1 / (1 - rate), rtol=1e-6)
        assert abs(kept.mean() - (1 - rate)) < 4 * np.sqrt(rate * (1 - rate) / kept.size)
        for axis in range(4):
            means = kept.mean(axis=tuple(a for a in range(4) if a != axis))
            spread = np.sqrt(rate * (1 - rate) / (kept.size / len(means)))
            assert np.abs(means - (1 - rate)).max() < 5 * spread
        # Neighbours along every axis are uncorrelated.
        centred = kept - kept.mean()
        for axis in range(4):
            a = np.take(centred, range(kept.shape[axis] - 1), axis)
            b = np.take(centred, range(1, kept.shape[axis]), axis)
            assert abs((a * b).mean()) < 5 * rate * (1 - rate) / np.sqrt(a.size)
    full = noise.dropout(0.5, Place(1, range(5)), (40, 20, 31))
    np.testing.assert_array_equal(full[2:3, :7, 3:9], noise.dropout(0.5, Place(1, range(2, 3), 3), (7, 6, 31)))
    np.testing.assert_array_equal(full[:, 9:10], noise.of(9).dropout(0.5, Place(1, range(5)), (1, 20, 31)))
    assert (full != noise.dropout(0.5, Place(2, range(5)), (40, 20, 31))).mean() > 0.4
