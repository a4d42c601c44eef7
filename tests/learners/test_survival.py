"""Survival: Cox's loss against its formula and autograd, its training against the twin, the concordance index."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from twin import STREAMS, collect, cox_loss, gradient_of_user, make_silo, train_user

from uldp.data.federation import Records, SiloData, Task
from uldp.errors import ConfigError, ModelError
from uldp.learners.base import LocalTraining
from uldp.learners.kernels import objectives
from uldp.learners.losses import CoxPartialLikelihood, choose_loss
from uldp.learners.metrics import concordance
from uldp.learners.models import build_model
from uldp.learners.torch import TorchLearner
from uldp.native.jit import entry
from uldp.rng import Streams

SURVIVAL = Task(0, survival=True)
COUNTS = [3, 1, 0, 9, 2, 6, 5, 1, 4, 11, 30]
LOSS = CoxPartialLikelihood()


def batch(seed=0, records=9, times=5):
    """Outputs and labels with ties, in float64."""
    generator = np.random.default_rng(seed)
    scores = torch.from_numpy(generator.normal(size=(records, 1)) * 3)
    signs = generator.choice([-1.0, 1.0], size=records)
    return scores, torch.from_numpy(generator.integers(1, times + 1, size=records) * signs)


@entry
def kernel_gradient(scores, labels, gradient, keys, order, other_keys, other_order):
    objectives.cox(scores, labels, gradient, labels.size, keys, order, other_keys, other_order)


def by_kernel(scores, labels):
    """The kernel's gradient, with whatever lay in its room before."""
    n = len(labels)
    gradient = np.full(n, np.nan)
    words = [np.full(n, 77, dtype=np.uint64) for _ in range(2)]
    numbers = [np.full(n, 77, dtype=np.int64) for _ in range(2)]
    kernel_gradient(scores[:, 0].numpy().copy(), labels.numpy(), gradient, words[0], numbers[0], words[1], numbers[1])
    return torch.from_numpy(gradient)[:, None]


def test_a_value_by_hand():
    # Times 1 (event), 2 (censored), 3 (event): log(e^0 + e^1 + e^2) - 0, and log(e^2) - 2 = 0, over two events.
    value = LOSS(torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([1.0, -2.0, 3.0]))
    assert value.item() == pytest.approx(np.log(1 + np.e + np.e**2) / 2)
    # Breslow: two events at one time have one risk set.
    value = LOSS(torch.tensor([[0.0], [1.0]]), torch.tensor([4.0, 4.0]))
    assert value.item() == pytest.approx(np.log(1 + np.e) - 0.5)


@pytest.mark.parametrize("times", [2, 5, 1000])
def test_values_and_gradients_are_those_of_the_formula(times):
    for seed in range(20):
        scores, labels = batch(seed, records=2 + seed, times=times)
        scores.requires_grad_()
        expected, value = cox_loss(scores[:, 0], labels), LOSS(scores, labels)
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-12)
        by_formula, by_autograd = (torch.autograd.grad(v, scores, retain_graph=True)[0] for v in (expected, value))
        torch.testing.assert_close(by_autograd, by_formula, rtol=0, atol=1e-9)
        by_hand = by_kernel(scores.detach(), labels)
        torch.testing.assert_close(by_hand, by_formula, rtol=0, atol=1e-9)
        # Adding a number to all scores of a user changes nothing.
        assert abs(float(by_hand.sum())) < 1e-12


def test_without_an_event_and_for_a_record_alone_all_is_zero():
    scores, labels = batch()
    for some, wanted in ((scores, -labels.abs()), (scores[:1], labels[:1].abs())):
        assert LOSS(some, wanted) == 0
        assert (by_kernel(some, wanted) == 0).all()
    assert LOSS(scores, labels) > 0


def test_large_scores_do_not_overflow():
    scores, labels = batch()
    for scale in (1e3, 1e6, -1e6):
        scaled = (scores * scale).requires_grad_()
        gradient = by_kernel(scaled.detach(), labels)
        assert gradient.isfinite().all() and gradient.abs().max() <= 9
        (by_autograd,) = torch.autograd.grad(LOSS(scaled, labels), scaled)
        torch.testing.assert_close(by_autograd, gradient, rtol=0, atol=1e-6)


def cox_module(path):
    return (
        build_model("cox", (6,), SURVIVAL)
        if path == "kernels"
        else nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1))
    )


def close(row, expected):
    """All but the last bias to 1e-9: its gradient is zero but for rounding, and Adam enlarges what there is."""
    np.testing.assert_allclose(row[:-1], expected[:-1], rtol=0, atol=1e-9)
    assert abs(row[-1]) < 1e-7


@pytest.mark.parametrize("local", ["sgd", "adam"])
@pytest.mark.parametrize("path", ["kernels", "loop"])
def test_training_agrees_with_the_twin(path, local):
    settings = LocalTraining(epochs=3, lr=0.05, batch_size=4, optimizer=local)
    module = cox_module(path)
    learner = TorchLearner(module, SURVIVAL, dtype="float64", path=path)
    data = make_silo(COUNTS, (6,), SURVIVAL)
    x = learner.initial(Streams.from_seed(3))
    rows = collect(learner.user_deltas(x, data, settings, STREAMS))
    assert sorted(rows) == [u for u, n in enumerate(COUNTS) if n]
    for user, row in rows.items():
        close(row, train_user(module, SURVIVAL, data, user, x, settings, STREAMS))
    assert sum(np.abs(row).max() > 1e-3 for row in rows.values()) >= 5
    assert (rows[1] == 0).all() and (rows[7] == 0).all(), "a record alone says nothing"
    one = SiloData("a", data.features, data.labels, np.zeros_like(data.users))
    expected = train_user(module, SURVIVAL, one, 0, x, settings, STREAMS.child("silo"))
    close(learner.silo_delta(x, data, settings, STREAMS), expected)


@pytest.mark.parametrize("path", ["kernels", "loop"])
def test_a_gradient_takes_all_records_of_a_user_at_once(path):
    module = cox_module(path)
    learner = TorchLearner(module, SURVIVAL, dtype="float64", path=path)
    data = make_silo([1, 0, 2, 700, 9, 1, 33], (6,), SURVIVAL)
    x = learner.initial(Streams.from_seed(3))
    rows = collect(learner.user_gradients(x, data, STREAMS))
    for user, row in rows.items():
        np.testing.assert_allclose(row, gradient_of_user(module, SURVIVAL, data, user, x, STREAMS), rtol=0, atol=1e-9)


@pytest.mark.parametrize("path", ["kernels", "loop"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_users_without_events_do_not_move_and_disturb_nobody(path, optimizer):
    learner = TorchLearner(cox_module(path), SURVIVAL, path=path)
    data = make_silo(COUNTS, (6,), SURVIVAL)
    quiet = np.isin(data.users, [3, 8])
    data = SiloData("a", data.features, np.where(quiet, -np.abs(data.labels), data.labels), data.users)
    x = learner.initial(STREAMS)
    rows = collect(learner.user_deltas(x, data, LocalTraining(3, 0.05, 4, optimizer), STREAMS))
    gradients = collect(learner.user_gradients(x, data, STREAMS))
    for user in (3, 8, 1, 7):
        assert (rows[user] == 0).all() and (gradients[user] == 0).all()
    assert all(np.isfinite(row).all() for row in [*rows.values(), *gradients.values()])


def test_the_bias_counts_but_does_not_move():
    learner = TorchLearner(build_model("auto", (39,), SURVIVAL), SURVIVAL)
    assert learner.dimension == 40
    data = make_silo([20, 30], (39,), SURVIVAL)
    for row in collect(
        learner.user_deltas(learner.initial(STREAMS), data, LocalTraining(5, 0.05, 8), STREAMS)
    ).values():
        assert np.abs(row[:39]).max() > 1e-3 and abs(row[39]) < 1e-6


def test_a_model_learns_who_is_at_risk():
    generator = np.random.default_rng(0)
    features = generator.normal(size=(400, 6)).astype(np.float32)
    times = generator.exponential(np.exp(-features @ np.array([1.5, -1, 0, 0, 0, 0.5])))
    labels = np.where(times < 2, times, -2.0).astype(np.float32)
    learner = TorchLearner(build_model("auto", (6,), SURVIVAL), SURVIVAL)
    x = learner.initial(STREAMS)
    data = SiloData("a", features[:300], labels[:300], np.zeros(300, dtype=np.int64))
    x = x + learner.silo_delta(x, data, LocalTraining(20, 0.05, 16), STREAMS)
    test = Records(features[300:], labels[300:])
    risks = learner.predict(x, test.features)
    metrics = learner.evaluate(x, test)
    assert set(metrics) == {"loss", "c_index"} and metrics["c_index"] > 0.8
    assert metrics["c_index"] == concordance(risks, test.labels.astype(np.float64))
    expected = cox_loss(torch.from_numpy(risks), torch.from_numpy(test.labels).double()).item()
    assert metrics["loss"] == pytest.approx(expected)
    censored = Records(test.features, -np.abs(test.labels))
    assert learner.evaluate(x, censored) == {"loss": 0.0}


def test_the_task_decides():
    assert isinstance(choose_loss(SURVIVAL, 1), CoxPartialLikelihood)
    with pytest.raises(ModelError, match="a survival model has one output, this one has 2"):
        choose_loss(SURVIVAL, 2)
    for name, task in (("cox", Task(2)), ("cox", Task(0)), ("linear", SURVIVAL), ("logistic", SURVIVAL)):
        with pytest.raises(ConfigError, match=r"model\.name"):
            build_model(name, (4,), task)
    mlp = build_model("mlp", (4,), SURVIVAL, {"hidden": [3]})
    assert mlp[-1].out_features == 1


# --- lifelines, another implementation --------------------------------------------------------------------------


def lifelines_records():
    """24 records without ties, whose coefficients lifelines 0.30.3 has fitted; it does not go with pandas 3."""
    n = np.arange(24)
    features = np.stack([7 * n % 11 / 10, 5 * n % 7 / 10], axis=1)
    return features, (13 * n % 29 + 1.0) * np.where(n % 3 != 1, 1, -1), n % 4


@pytest.mark.parametrize(
    ("by_person", "coefficients", "likelihood"),
    [
        (False, [0.36297752845974807, -1.3038940924691054], -35.75101076203453),
        (True, [0.7305554290198769, -1.6662008706714913], -16.751145392706782),  # a stratum for each person
    ],
)
def test_the_coefficients_of_lifelines_are_where_our_loss_is_least(by_person, coefficients, likelihood):
    features, labels, person = lifelines_records()
    weights = torch.tensor(coefficients, dtype=torch.float64, requires_grad=True)
    total = torch.zeros((), dtype=torch.float64)
    for one in range(4) if by_person else [None]:
        own = np.full(24, True) if one is None else person == one
        scores = torch.from_numpy(features[own]) @ weights
        total = total + LOSS(scores[:, None], torch.from_numpy(labels[own])) * int((labels[own] > 0).sum())
    assert float(total) == pytest.approx(-likelihood, abs=1e-9)
    total.backward()
    assert weights.grad.numpy() == pytest.approx(0, abs=1e-5)


def test_the_concordance_of_lifelines():
    features, labels, _ = lifelines_records()
    risks = features @ np.array([1.0, 2.0])
    tied = (np.abs(labels) // 4 + 1) * np.sign(labels)
    assert concordance(risks, labels) == pytest.approx(0.4947916666666667)
    assert concordance(risks, tied) == pytest.approx(0.5163043478260869)
    assert concordance(features @ np.array([0.36297752845974807, -1.3038940924691054]), labels) == pytest.approx(0.625)


# --- the concordance index ------------------------------------------------------------------------------------


def brute_concordance(risks, labels):
    right, pairs = 0.0, 0
    for risk, label in zip(risks, labels, strict=True):
        for other_risk, other in zip(risks, labels, strict=True):
            if label > 0 and (abs(other) > label or (abs(other) == label and other < 0)):
                pairs += 1
                right += 1.0 if risk > other_risk else 0.5 if risk == other_risk else 0.0
    return right / pairs if pairs else None


@pytest.mark.parametrize("times", [1, 3, 10, 10**6])
@pytest.mark.parametrize("levels", [1, 4, 10**6])
def test_concordance_is_that_of_the_definition(times, levels):
    generator = np.random.default_rng(times + levels)
    for count in (1, 2, 5, 40):
        risks = generator.integers(levels, size=count) / 7.0
        labels = generator.integers(1, times + 1, size=count) * generator.choice([-1.0, 1.0], size=count)
        assert concordance(risks, labels) == brute_concordance(risks, labels)


def test_concordance_at_the_ends():
    times = np.arange(1.0, 21.0)
    assert concordance(-times, times) == 1.0 and concordance(times, times) == 0.0
    assert concordance(np.zeros(20), times) == 0.5
    assert concordance(times, -times) is None and concordance(np.zeros(0), np.zeros(0)) is None
    assert concordance(np.where(times == 3, np.nan, times), times) is None
