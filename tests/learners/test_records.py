"""Sums of clipped record gradients: every way gives what autograd gives, and a record's part is its own."""

import numpy as np
import pytest
import torch
from torch import nn

from uldp.data.federation import SiloData, Task
from uldp.errors import ConfigError
from uldp.learners.blocks import Embedding, Residual
from uldp.learners.models import build_model
from uldp.learners.torch import TorchLearner
from uldp.rng import Streams

STREAMS = Streams.from_seed(4)


def silo(records=40, features=6, classes=2, seed=0, shape=None):
    generator = np.random.default_rng(seed)
    return SiloData(
        "a",
        generator.normal(size=(records, *(shape or (features,)))).astype(np.float32),
        generator.integers(0, classes, records),
        generator.integers(0, 7, records),
    )


def by_autograd(module, data, chosen, clip):
    total = 0
    for i in chosen:
        module.zero_grad()
        outputs = module(torch.from_numpy(data.features[i : i + 1]))
        if outputs.shape[1] == 1:
            target = torch.tensor([[float(data.labels[i])]])
            nn.functional.binary_cross_entropy_with_logits(outputs, target).backward()
        else:
            nn.functional.cross_entropy(outputs, torch.tensor([data.labels[i]])).backward()
        row = torch.cat([p.grad.reshape(-1) for p in module.parameters()]).double().numpy()
        total = total + row * min(1.0, clip / np.linalg.norm(row))
    return total


TABLES = {
    "logistic": lambda: build_model("logistic", (6,), Task(2)),
    "mlp": lambda: build_model("mlp", (6,), Task(3), {"hidden": [8, 5], "norm": "layer", "activation": "tanh"}),
    "groups": lambda: nn.Sequential(nn.Linear(6, 8, bias=False), nn.GroupNorm(2, 8), nn.SiLU(), nn.Linear(8, 3)),
    "blocks": lambda: nn.Sequential(
        Embedding(2, 5, columns=4),
        Residual(nn.Sequential(nn.Linear(22, 22), nn.Tanh())),
        nn.Linear(22, 3),
    ),
    "images": lambda: build_model("cnn", (1, 12, 12), Task(3), {"channels": [2, 3], "hidden": 4, "dropout": 0.0}),
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("clip", [0.3, 1e6])
def test_the_sum_is_that_of_clipped_gradients_by_autograd(name, clip):
    module, shape = TABLES[name](), ((1, 12, 12) if name == "images" else (6,))
    data = silo(shape=shape, classes=2 if name == "logistic" else 3)
    learner = TorchLearner(module, Task(2 if name == "logistic" else 3))
    x = learner.initial(STREAMS)
    twin = TABLES[name]()
    twin.load_state_dict(learner.state_dict(x))
    chosen = np.array([1, 5, 6, 20, 39])
    found = learner.clipped_sums(data, clip)(x, chosen, 0, STREAMS)
    expected = by_autograd(twin.eval(), data, chosen, clip)
    assert found == pytest.approx(expected, abs=3e-5 * max(1.0, np.abs(expected).max()))


def both_ways(module, data, task):
    """The kernels' sums, and those of a learner that is told to take the loop."""
    ghost, rows = TorchLearner(module, task), TorchLearner(module, task, path="loop")
    return ghost, ghost.clipped_sums(data, 0.5), rows.clipped_sums(data, 0.5)


def test_kernels_and_loop_agree():
    module = build_model("creditcard", (6,), Task(2), {"width": 8, "dropout": 0.0})
    learner, ghosts, rows = both_ways(module, silo(), Task(2))
    x = learner.initial(STREAMS)
    chosen = np.arange(0, 40, 3)
    assert ghosts(x, chosen, 3, STREAMS) == pytest.approx(rows(x, chosen, 3, STREAMS), abs=2e-5)


def test_a_records_dropout_is_its_own_whoever_else_is_there():
    module = build_model("creditcard", (6,), Task(2), {"width": 8, "dropout": 0.5})
    learner = TorchLearner(module, Task(2))
    x, data = learner.initial(STREAMS), silo()
    sums = learner.clipped_sums(data, 0.5)
    together = sums(x, np.array([3, 8, 30]), 7, STREAMS)
    alone = sum(sums(x, np.array([i]), 7, STREAMS) for i in (3, 8, 30))
    assert together == pytest.approx(alone, abs=1e-6)
    assert not np.allclose(sums(x, np.array([3]), 7, STREAMS), sums(x, np.array([3]), 8, STREAMS))
    # a user leaves: the places of the others' records in the table change, their gradients do not
    user = int(data.users[0])
    rest = data.take(data.users != user)
    kept = np.flatnonzero(data.users != user)[[2, 9, 15]]
    without = learner.clipped_sums(rest, 0.5)(x, np.array([2, 9, 15]), 7, STREAMS)
    assert without == pytest.approx(sums(x, kept, 7, STREAMS), abs=1e-6)


def test_no_record_moves_the_sum_by_more_than_the_clip():
    module = build_model("mlp", (6,), Task(2), {"hidden": [8]})
    learner = TorchLearner(module, Task(2))
    data, x = silo(), 10 * learner.initial(STREAMS)
    sums = learner.clipped_sums(data, 0.01)
    moved = [np.linalg.norm(sums(x, np.array([i]), 0, STREAMS)) for i in range(40)]
    assert max(moved) <= 0.01
    assert max(moved) > 0.0099


def test_the_others_roundings_do_not_carry_the_sum_beyond_the_clip():
    """Without one record all others are added in another order: that must not show either."""
    module, generator = nn.Sequential(nn.Linear(1, 1, bias=False)), np.random.default_rng(5)
    learner, records = TorchLearner(module, Task(2), threads=1), 3000
    features = generator.uniform(0.5, 3, (records, 1)).astype(np.float32)
    data = SiloData("a", features, np.ones(records, np.int64), np.arange(records))
    sums, x = learner.clipped_sums(data, 1.0), np.zeros(1)
    whole = sums(x, np.arange(records), 0, STREAMS)
    clipped = [i for i in range(60) if np.linalg.norm(sums(x, np.array([i]), 0, STREAMS)) > 0.999]
    assert len(clipped) > 9
    for one in clipped:
        assert np.linalg.norm(whole - sums(x, np.delete(np.arange(records), one), 0, STREAMS)) <= 1.0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_clip_holds_for_gradients_of_every_size(dtype):
    """From subnormal to near overflow: at most the clip, and all of it wherever the gradient is larger."""
    sizes = 10.0 ** np.arange(-44, 39, 2)
    features = (sizes[:, None] * np.array([0.3, -1.0, 0.7])).astype(np.float32)
    data = SiloData("a", features, np.full(len(sizes), 3, np.float32), np.arange(len(sizes)))
    for module in (nn.Sequential(nn.Linear(3, 1, bias=False)), nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))):
        learner = TorchLearner(module, Task(0), dtype=dtype)
        x = 1e-6 * learner.initial(STREAMS)
        largest = learner.clipped_sums(data, 1e300)
        for clip in (1e-30, 1e-24, 1e-12, 1.0, 1e12, 1e30):
            sums = learner.clipped_sums(data, clip)
            for i in range(len(sizes)):
                found = np.linalg.norm(sums(x, np.array([i]), 0, STREAMS))
                wanted = min(clip, np.linalg.norm(largest(x, np.array([i]), 0, STREAMS)))
                assert found <= clip
                assert found == pytest.approx(wanted, rel=2e-5, abs=0)


@pytest.mark.parametrize("path", ["auto", "loop"])
def test_records_that_overflow_count_as_nothing(path):
    module = build_model("mlp", (6,), Task(0), {"hidden": [4]})
    learner = TorchLearner(module, Task(0), path=path)
    data = silo()
    features = data.features.copy()
    features[4] = np.inf
    features[5] = 3e38
    spoiled = SiloData("a", features, data.labels.astype(np.float32), data.users)
    x = learner.initial(STREAMS)
    sums = learner.clipped_sums(spoiled, 0.5)
    found = sums(x, np.array([2, 4, 5, 9]), 0, STREAMS)
    assert np.isfinite(found).all()
    assert found == pytest.approx(sums(x, np.array([2, 9]), 0, STREAMS), abs=1e-6)


@pytest.mark.parametrize("threads", [2, 4])
def test_threads_do_not_change_a_bit_of_the_sum(threads):
    data, module = silo(records=900), build_model("mlp", (6,), Task(2), {"hidden": [64], "dropout": 0.3})
    one, several = TorchLearner(module, Task(2), threads=1), TorchLearner(module, Task(2), threads=threads)
    x, chosen = one.initial(STREAMS), np.arange(900)
    sums = [learner.clipped_sums(data, 0.5)(x, chosen, 0, STREAMS) for learner in (one, several)]
    np.testing.assert_array_equal(*sums)


def test_a_loss_that_compares_records_is_refused():
    learner = TorchLearner(build_model("cox", (6,), Task(0, survival=True)), Task(0, survival=True))
    data = silo()
    data = SiloData("a", data.features, np.ones(40, np.float32), data.users)
    with pytest.raises(ConfigError, match="single record"):
        learner.clipped_sums(data, 0.5)
    empty = data.take(np.zeros(40, dtype=bool))
    assert not learner.clipped_sums(empty, 0.5)(learner.initial(STREAMS), np.zeros(0, np.int64), 0, STREAMS).any()
