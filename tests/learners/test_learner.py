"""What a caller may rely on: rows that depend on one user only, flat memory, refusals, evaluation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import (
    average_precision_score,
    balanced_accuracy_score,
    precision_recall_curve,
    r2_score,
    roc_auc_score,
)
from torch import nn
from twin import collect, load, make_silo

from uldp.data.federation import Records, SiloData, Task
from uldp.errors import ConfigError, ModelError
from uldp.learners.base import LocalTraining
from uldp.learners.metrics import average_precision, recall_at_precision
from uldp.learners.models import build_model
from uldp.learners.prior import Prior
from uldp.learners.torch import TorchLearner
from uldp.rng import Streams
from uldp.runtimes.result import metric_names

TWO, TEN, NUMBER = Task(2), Task(10), Task(0, label_scale=-3.0, label_offset=5.0)
STREAMS = Streams.from_seed(7).child("silo", 0, "round", 3)
LOCAL = LocalTraining(epochs=3, lr=0.1, batch_size=4, weight_decay=0.01)
ADAM = LocalTraining(epochs=3, lr=0.01, batch_size=4, optimizer="adam")
ZOO = {
    "logistic": ((13,), TWO, {}),
    "linear": ((6,), NUMBER, {}),
    "mlp": ((7,), TEN, {"hidden": [9, 5], "dropout": 0.3, "norm": "layer", "activation": "gelu"}),
    "cnn": ((1, 8, 8), TEN, {"dropout2d": 0.2}),
    "creditcard": ((30,), TWO, {}),
    "cox": ((6,), Task(0, survival=True), {}),
    "mnist-two-layer": ((1, 8, 8), TEN, {}),
    "vgg-cifar": ((3, 4, 4), TEN, {"dropout": 0.5}),
}


def learner(name, **options):
    shape, task, model_options = ZOO[name]
    return TorchLearner(build_model(name, shape, task, model_options), task, **options), shape, task


@pytest.mark.parametrize("local", [LOCAL, ADAM], ids=["sgd", "adam"])
@pytest.mark.parametrize("name", ZOO)
def test_a_row_does_not_change_by_a_bit_when_other_users_go(name, local):
    trainer, shape, task = learner(name)
    large = trainer.dimension > 50_000
    counts = [3, 1, 0, 9, 2] if large else [3, 1, 0, 9, 2, 6, 5, 1, 4, 11, 2, 2, 3, 1, 1, 7, 14, 4, 4, 3, 3]
    data = make_silo(counts, shape, task)
    x = trainer.initial(Streams.from_seed(3))
    rows = collect(trainer.user_deltas(x, data, local, STREAMS))
    gradients = collect(trainer.user_gradients(x, data, STREAMS))
    for gone in (0, 1, 3) if large else (0, 1, 3, 9, 16):
        rest = data.take(data.users != gone)
        for user, row in collect(trainer.user_deltas(x, rest, local, STREAMS)).items():
            np.testing.assert_array_equal(row, rows[user])
        for user, row in collect(trainer.user_gradients(x, rest, STREAMS)).items():
            np.testing.assert_array_equal(row, gradients[user])
    for user in (1, 3):
        alone = data.take(data.users == user)
        np.testing.assert_array_equal(collect(trainer.user_deltas(x, alone, local, STREAMS))[user], rows[user])


@pytest.mark.parametrize("name", ZOO)
def test_threads_and_memory_do_not_change_a_bit(name):
    _, shape, task = learner(name)
    data = make_silo([3, 1, 0, 9, 2, 6, 5, 1, 4, 11, 70, 2] * (1 if name.startswith("vgg") else 9), shape, task)
    results = []
    for memory, threads in ((256, 1), (256, 3), (1, 2), (256, 4)):
        trainer, _, _ = learner(name, memory_mb=memory, threads=threads)
        x = trainer.initial(Streams.from_seed(3))
        results.append(collect(trainer.user_deltas(x, data, LOCAL, STREAMS)))
    for user, row in results[0].items():
        for other in results[1:]:
            np.testing.assert_array_equal(other[user], row)


def test_other_streams_give_other_rows_only_where_something_is_random():
    for name, random in (("creditcard", True), ("linear", False)):
        trainer, shape, task = learner(name)
        data = make_silo([3, 4], shape, task)
        x = trainer.initial(STREAMS)
        first = collect(trainer.user_deltas(x, data, LOCAL, STREAMS))
        other = collect(trainer.user_deltas(x, data, LOCAL, STREAMS.child("other")))
        assert all(np.array_equal(first[u], other[u]) != random for u in first)


def test_torch_s_own_generator_and_threads_stay_as_they_are():
    torch.manual_seed(5)
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    for path in ("auto", "loop"):
        trainer, shape, task = learner("creditcard", path=path)
        x = trainer.initial(STREAMS)
        collect(trainer.user_deltas(x, make_silo([3, 4], shape, task), LOCAL, STREAMS))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("path", ["kernels", "loop"])
def test_one_users_nan_stays_with_that_user(path):
    trainer, shape, task = learner("logistic", path=path)
    data = make_silo([3, 4, 2, 9], shape, task)
    x = trainer.initial(STREAMS)
    good = collect(trainer.user_deltas(x, data, LOCAL, STREAMS))
    features = data.features.copy()
    features[np.flatnonzero(data.users == 1)[0]] = np.nan
    features[np.flatnonzero(data.users == 3)[2]] = np.inf
    spoiled = SiloData("a", features, data.labels, data.users)
    rows = collect(trainer.user_deltas(x, spoiled, LOCAL, STREAMS))
    assert not np.isfinite(rows[1]).all() and not np.isfinite(rows[3]).all()
    for user in (0, 2):
        np.testing.assert_array_equal(rows[user], good[user])


@pytest.mark.parametrize("path", ["kernels", "loop"])
def test_a_silo_without_records_yields_nothing(path):
    trainer, shape, task = learner("linear", path=path)
    empty = make_silo([], shape, task)
    x = trainer.initial(STREAMS)
    assert list(trainer.user_deltas(x, empty, LOCAL, STREAMS)) == []
    assert list(trainer.user_gradients(x, empty, STREAMS)) == []
    assert np.array_equal(trainer.silo_delta(x, empty, LOCAL, STREAMS), np.zeros(trainer.dimension))


def test_rows_come_in_the_configured_type_and_x_is_left_alone():
    for dtype in ("float32", "float64"):
        trainer, shape, task = learner("linear", dtype=dtype)
        x = trainer.initial(STREAMS)
        before = x.copy()
        for _, rows in trainer.user_deltas(x, make_silo([3, 4], shape, task), LOCAL, STREAMS):
            assert rows.dtype == np.dtype(dtype)
        trainer.silo_delta(x, make_silo([3, 4], shape, task), LOCAL, STREAMS)
        assert np.array_equal(x, before)


def test_a_caller_may_stop_early():
    trainer, shape, task = learner("creditcard", memory_mb=1)
    chunk = next(iter(trainer.user_deltas(trainer.initial(STREAMS), make_silo([2] * 50, shape, task), LOCAL, STREAMS)))
    assert len(chunk[0]) >= 1


def test_initial_parameters_follow_the_streams():
    trainer, _, _ = learner("cnn")
    a, b, c = (trainer.initial(Streams.from_seed(seed)) for seed in (0, 0, 1))
    assert np.array_equal(a, b) and not np.array_equal(a, c)
    assert a.dtype == np.float64 and a.shape == (trainer.dimension,)


# --- evaluation -----------------------------------------------------------------------------------------------


def test_classification_metrics_are_those_of_sklearn():
    for classes, name in ((2, "logistic"), (2, "creditcard"), (3, "mlp")):
        task = Task(classes)
        module = build_model(name, (5,), task, {"dropout": 0.4} if name != "logistic" else {})
        trainer = TorchLearner(module, task, dtype="float64")
        x = trainer.initial(STREAMS) * 3
        data = make_silo([60], (5,), task)
        chances = trainer.predict(x, data.features)
        logits = load(module, x).eval()(torch.from_numpy(data.features).double()).detach()
        if logits.shape[1] == 1:
            logits = torch.cat([torch.zeros_like(logits), logits], 1)
        np.testing.assert_allclose(chances, torch.softmax(logits, 1).numpy(), atol=1e-12)
        metrics = trainer.evaluate(x, Records(data.features, data.labels))
        assert set(metrics) == {"loss", "accuracy", "balanced_accuracy", "roc_auc"}
        balanced = balanced_accuracy_score(data.labels, chances.argmax(1))
        assert metrics["balanced_accuracy"] == pytest.approx(balanced)
        expected = nn.functional.cross_entropy(logits, torch.from_numpy(data.labels)).item()
        assert metrics["loss"] == pytest.approx(expected)
        assert metrics["accuracy"] == pytest.approx((chances.argmax(1) == data.labels).mean())
        scores = chances[:, 1] if classes == 2 else chances
        assert metrics["roc_auc"] == pytest.approx(roc_auc_score(data.labels, scores, multi_class="ovr"))


@pytest.mark.parametrize("seed", range(5))
def test_metrics_of_rare_classes_are_those_of_sklearn(seed):
    """With ties, which are called positive together."""
    generator = np.random.default_rng(seed)
    positive = generator.random(200) < 0.1
    scores = np.round(generator.random(200) + 0.3 * positive, 1 + seed % 3)
    assert average_precision(scores, positive) == pytest.approx(average_precision_score(positive, scores))
    precision, recall, _ = precision_recall_curve(positive, scores)
    for wanted in (0.05, 0.3, 0.9):
        expected = max(recall[:-1][precision[:-1] >= wanted], default=0.0)
        assert recall_at_precision(scores, positive, wanted) == pytest.approx(expected)
    assert average_precision(scores, np.zeros(200, bool)) is None


@pytest.mark.parametrize(
    ("task", "rates", "rare"),
    [
        (Task(2), (0.2,), True),
        (Task(2), (0.3,), False),
        (Task(2), (0.9,), True),
        (Task(2), (0.1, 0.9), True),
        (Task(3), (0.1, 0.45, 0.45), True),
        (Task(3), (0.2, 0.4, 0.4), False),
        (Task(2), (), False),
    ],
)
def test_metrics_of_rare_classes_follow_public_base_rates_and_not_the_test_labels(task, rates, rare):
    made = TorchLearner(nn.Linear(3, task.classes), task, prior=Prior(rates=rates))
    data = make_silo([60], (3,), task)
    metrics = made.evaluate(made.initial(STREAMS), Records(data.features, data.labels))
    assert ({"pr_auc", "recall_at_precision"} <= set(metrics)) == rare
    assert metric_names(metrics)[0] == ("pr_auc" if rare else "accuracy")


def test_regression_metrics_are_in_original_units():
    trainer, shape, task = learner("linear", dtype="float64")
    data = make_silo([40], shape, task)
    x = trainer.initial(STREAMS)
    predicted = trainer.predict(x, data.features)
    metrics = trainer.evaluate(x, Records(data.features, data.labels))
    assert set(metrics) == {"loss", "r2", "mae"}
    assert metrics["r2"] == pytest.approx(r2_score(data.labels, predicted))
    assert metrics["mae"] == pytest.approx(3 * np.abs(predicted - data.labels).mean())
    assert metrics["loss"] == pytest.approx(((predicted - data.labels) ** 2).mean())


@pytest.mark.parametrize(
    ("task", "outputs"),
    [(Task(classes=2), 1), (Task(classes=2), 2), (Task(classes=4), 4), (Task(0, label_scale=-7.0), 1)],
)
def test_what_records_measure_comes_to_the_metrics_of_all(task, outputs):
    generator = np.random.default_rng(0)
    features = generator.normal(size=(50, 3)).astype(np.float32)
    labels = generator.integers(0, task.classes, 50) if task.classes else generator.normal(size=50).astype(np.float32)
    made = TorchLearner(nn.Linear(3, outputs), task)
    x = generator.normal(size=made.dimension)
    values, expected = made.record_metrics(x, Records(features, labels)), made.evaluate(x, Records(features, labels))
    assert values.shape == (50, 2)
    assert (values >= 0).all()
    for column, (name, factor) in enumerate(made.mean_metrics):
        assert values[:, column].mean() * factor == pytest.approx(expected[name], rel=1e-9)
    assert made.record_metrics(x, Records(features[:0], labels[:0])).shape == (0, 2)


def test_a_record_on_which_the_model_raises_is_not_a_number_and_raises_nothing():
    class Picky(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, x):
            if (x > 100).any():
                raise RuntimeError("an odd record")
            return self.layer(x)

    features = np.zeros((9, 3), dtype=np.float32)
    features[4] = 1000.0
    made = TorchLearner(Picky(), Task(classes=2), path="loop")
    values = made.record_metrics(np.zeros(4), Records(features, np.ones(9, dtype=np.int64)))
    assert np.isnan(values[4]).all()
    assert np.isfinite(np.delete(values, 4, axis=0)).all()


def test_a_survival_loss_is_no_sum_over_records():
    assert TorchLearner(nn.Linear(3, 1), Task(0, survival=True)).mean_metrics == ()


def test_undefined_metrics_are_left_out():
    trainer, shape, _ = learner("logistic")
    x = trainer.initial(STREAMS)
    one_class = Records(np.ones((3, *shape), np.float32), np.zeros(3, np.int64))
    assert set(trainer.evaluate(x, one_class)) == {"loss", "accuracy"}
    assert trainer.evaluate(x, Records(np.ones((0, *shape), np.float32), np.zeros(0, np.int64))) == {}
    assert trainer.predict(x, np.ones((0, *shape), np.float32)).shape == (0, 2)
    number, shape, _ = learner("linear")
    same = Records(np.ones((3, *shape), np.float32), np.ones(3, np.float32))
    assert set(number.evaluate(number.initial(STREAMS), same)) == {"loss", "mae"}
    assert "loss" not in trainer.evaluate(np.full(trainer.dimension, np.nan), one_class)


# --- refusals -------------------------------------------------------------------------------------------------


def test_bad_arguments_are_refused():
    module = build_model("logistic", (3,), TWO)
    for options in ({"dtype": "float16"}, {"path": "fast"}, {"memory_mb": 0}, {"threads": 0}, {"device": "gpu9"}):
        with pytest.raises(ConfigError):
            TorchLearner(module, TWO, **options)
    trainer = TorchLearner(module, TWO)
    with pytest.raises(ModelError, match="model of 4"):
        trainer.predict(np.zeros(3), np.zeros((1, 3), np.float32))
    with pytest.raises(ModelError, match="cannot be applied"):
        trainer.predict(np.zeros(4), np.zeros((1, 5), np.float32))


def test_a_forced_path_that_does_not_fit_is_refused():
    forced = TorchLearner(nn.Sequential(nn.Linear(3, 4), nn.Softplus(), nn.Linear(4, 2)), TWO, path="kernels")
    with pytest.raises(ModelError, match="Softplus"):
        forced.training((3,))


@pytest.mark.filterwarnings("error")
def test_a_large_net_is_trained_by_torch_one_user_at_a_time_and_keeps_its_rows():
    task = Task(classes=3)
    module = nn.Sequential(nn.Conv2d(3, 96, 3), nn.ReLU(), nn.Conv2d(96, 96, 3), nn.Flatten(), nn.Linear(13824, 3))
    learner = TorchLearner(module, task)
    assert learner.training((3, 16, 16)).path == "loop"
    data, streams = make_silo([2, 1, 3], (3, 16, 16), task), Streams.from_seed(1)
    x, local = learner.initial(streams), LocalTraining(lr=0.1, batch_size=2)
    together = collect(learner.user_deltas(x, data, local, streams))
    by_kernels = collect(TorchLearner(module, task, path="kernels").user_deltas(x, data, local, streams))
    for user in together:
        mine = data.users == user
        alone = SiloData("alone", data.features[mine], data.labels[mine], data.users[mine])
        assert np.array_equal(collect(learner.user_deltas(x, alone, local, streams))[user], together[user])
        assert np.allclose(by_kernels[user], together[user], atol=1e-4 * np.abs(together[user]).max())


def test_the_number_of_outputs_must_fit_the_task():
    for module, task in ((nn.Linear(3, 3), TWO), (nn.Linear(3, 2), NUMBER), (nn.Linear(3, 1), TEN)):
        with pytest.raises(ModelError, match="output"):
            TorchLearner(nn.Sequential(module), task).training((3,))
