"""Losses for evaluation are those that training follows, whatever the outputs."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
import torch
from torch import nn

from uldp.data.federation import Task
from uldp.learners import evaluation
from uldp.learners.initialisers import WrittenOutDraws
from uldp.learners.losses import choose_loss
from uldp.learners.models import build_model, build_seeded
from uldp.rng import Streams

GENERATOR = np.random.Generator(np.random.Philox(key=3))
CASES = {
    "one logit": (Task(2), 1, GENERATOR.integers(0, 2, 300)),
    "two classes": (Task(2), 2, GENERATOR.integers(0, 2, 300)),
    "seven classes": (Task(7), 7, GENERATOR.integers(0, 7, 300)),
    "numbers": (Task(0), 1, GENERATOR.normal(size=300)),
    "survival": (Task(0, survival=True), 1, GENERATOR.integers(1, 40, 300) * GENERATOR.choice([-1.0, 1.0], 300)),
}


@pytest.mark.parametrize("scale", [0.1, 5.0, 500.0])
@pytest.mark.parametrize("case", CASES)
def test_the_loss_is_that_of_autograd(case, scale):
    task, outputs, labels = CASES[case]
    loss = choose_loss(task, outputs)
    given = scale * GENERATOR.normal(size=(300, outputs))
    expected = loss(torch.from_numpy(given), loss.labels(torch.from_numpy(labels), torch.float64))
    assert evaluation.mean_loss(loss.name, given, labels) == pytest.approx(float(expected), rel=1e-12)
    if task.kind == "classification":
        chances = evaluation.probabilities(given)
        reference = torch.softmax(torch.from_numpy(given), 1) if outputs > 1 else torch.sigmoid(torch.from_numpy(given))
        np.testing.assert_allclose(chances[:, -1:], reference[:, -1:].numpy(), rtol=1e-13, atol=1e-300)
        np.testing.assert_allclose(chances.sum(axis=1), 1.0, rtol=1e-14)


def test_outputs_that_are_no_numbers_reach_no_other_record():
    outputs = np.array([[1.0, 2.0], [math.nan, 0.0], [math.inf, 0.0], [0.0, 3.0]])
    found = evaluation.record_losses("cross-entropy", outputs, np.array([0, 1, 0, 7]))
    assert found[0] == pytest.approx(math.log(1 + math.e)) and np.isnan(found[1:]).all()


def test_without_an_event_the_loss_of_survival_is_zero():
    assert evaluation.mean_loss(evaluation.COX, np.ones((3, 1)), np.array([-1.0, -2.0, -3.0])) == 0.0


# --- initial models ---------------------------------------------------------------------------------------------------


def flat(module):
    return np.concatenate([p.detach().numpy().ravel() for p in module.parameters()])


def test_every_machine_starts_from_this_model():
    """Found on one machine (x86-64 with AVX2) and written down here: another one must give the same."""
    found = hashlib.sha256()
    for name, shape, task in (("mlp", (30,), Task(2)), ("cnn", (1, 28, 28), Task(10)), ("creditcard", (30,), Task(2))):
        found.update(flat(build_model(name, shape, task, streams=Streams.from_seed(4))).tobytes())
    tables = build_seeded(lambda: nn.Sequential(nn.Embedding(50, 9), nn.Embedding(3, 5)), Streams.from_seed(4))
    found.update(flat(tables).tobytes())
    assert found.hexdigest() == "18df7129d598d8da0e83cc95a26837b96213506e9b1bfb5792f0d2c15a1881f1"


def test_draws_follow_the_laws_that_were_asked_for():
    """20,000 draws: means within four deviations of theirs, all values within the bounds."""
    with torch.random.fork_rng(devices=[]), WrittenOutDraws():
        torch.manual_seed(11)
        for dtype in (torch.float32, torch.float64):
            uniform = torch.empty(20_000, dtype=dtype).uniform_(-0.5, 2.0)
            normal = torch.empty(100, 200, dtype=dtype).normal_(1.0, 3.0)
            assert uniform.min() >= -0.5 and uniform.max() <= 2.0
            assert abs(uniform.mean() - 0.75) < 4 * 2.5 / math.sqrt(12 * 20_000)
            assert abs(normal.mean() - 1.0) < 4 * 3 / math.sqrt(20_000)
            assert abs(normal.var() / 9 - 1.0) < 4 * math.sqrt(2 / 20_000)
        assert torch.rand(3, 4).min() >= 0 and abs(torch.randn(20_000).mean()) < 4 / math.sqrt(20_000)
        again = torch.Generator().manual_seed(5)
        one = torch.empty(9).uniform_(generator=again)
        assert torch.equal(one, torch.empty(9).uniform_(generator=again.manual_seed(5)))
