"""Alarms, from what is released: a model no better than the base rate, training that diverges, noise that dominates."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import uldp
from uldp.cli.app import app
from uldp.data.federation import Task
from uldp.experiment.config import Experiment
from uldp.experiment.outlook import Outlook, automatic_model
from uldp.learners.metrics import constant_accuracy, constant_loss

runner = CliRunner()
FILE = """
[data]
silos = ["a.csv", "b.csv"]
user = "id"
label = "y"
test = "test.csv"
users = 40
{data}
[data.schema.label]
{label}
[data.schema.columns.age]
kind = "number"
range = [0, 100]
[privacy]
epsilon = {epsilon}
[method]
{method}
"""
NUMBER = 'kind = "number"\nrange = [0, 200000]'
CLASSES = 'kind = "class"\nclasses = [0, 1]'


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """Labels that nothing predicts."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)

    def write(label=CLASSES, epsilon=1.0, method="rounds = 5", data=""):
        for name, start in (("a", 0), ("b", 20), ("test", 100)):
            ids = np.arange(start, start + 20)
            labels = generator.integers(0, 2, 20) * (1 if label == CLASSES else 150_000)
            frame = pd.DataFrame({"id": [f"p{i}" for i in ids], "age": generator.integers(0, 100, 20), "y": labels})
            frame.to_csv(f"{name}.csv", index=False)
        (tmp_path / "e.toml").write_text(FILE.format(label=label, epsilon=epsilon, method=method, data=data))

    return write


def test_a_model_no_better_than_the_base_rate_is_said_in_the_headline(tables):
    tables(epsilon=0.01, data="base_rate = 0.99")  # which is wrong
    result = runner.invoke(app, ["run", "e.toml"])
    assert result.exit_code == 0, result.output
    assert "NO BETTER THAN THE BASE RATE" in result.stdout.splitlines()[1]
    assert "noise dominates, expect little better than the base rate; with " in result.stderr
    assert "(base rate: " in next(line for line in result.stdout.splitlines() if line.split()[:1] == ["loss"])
    assert "pr_auc" in result.stdout.split("test metric")[1].splitlines()[2]  # the headline where a class is rare
    found = json.loads(runner.invoke(app, ["run", "e.toml", "--json"]).stdout)
    assert found["no_better"] and found["constant_loss"] < found["metrics"]["loss"]


def test_a_worse_loss_with_more_right_answers_is_told_apart(tables):
    """Too sure, but right more often than the most frequent class: that was "NO BETTER" once."""
    result = uldp.train("synthetic", method="fedavg", noise_multiplier=0.0, rounds=1, progress=False)
    worse = replace(result.reports[-1], metrics={"loss": 2.0, "accuracy": 0.8})
    result = replace(result, reports=(worse,), constant_loss=0.7, constant_accuracy=0.6)
    assert result.constant_model_note.startswith("PROBABILITIES NO BETTER THAN THE BASE RATE: test loss 2;")
    assert "right more often (accuracy 0.8, of the most frequent class 0.6)" in result.constant_model_note
    assert replace(result, constant_accuracy=0.8).constant_model_note.startswith("NO BETTER THAN")
    assert replace(result, constant_accuracy=None).constant_model_note.startswith("NO BETTER THAN")  # of an older run
    assert replace(result, constant_loss=2.1).constant_model_note == ""


def test_training_that_diverges_stops_and_says_so(tables):
    """The step sizes of classes on a number to predict: this ended at R2 = -81,075 once, with exit 0."""
    tables(NUMBER, 8.0, 'name = "uldp-avg-w"\nrounds = 20\nlocal_lr = 0.5\nclip = 1.0\nglobal_lr = 4000.0')
    result = runner.invoke(app, ["run", "e.toml"])
    assert result.exit_code != 0
    assert "training has diverged after round" in result.stderr and "auto" in result.stderr
    tables(NUMBER, 8.0)
    assert runner.invoke(app, ["run", "e.toml"]).exit_code == 0


@pytest.mark.parametrize(
    ("label", "data", "says"),
    [
        (CLASSES, "base_rate = 1.0", "data.base_rate: between 0 and 1"),
        (CLASSES, "base_rate = [0.2, 0.2]", "data.base_rate: one share for each of the 2 classes"),
        (NUMBER, "base_rate = 0.2", "data.base_rate: goes with classes"),
        (CLASSES, "label_mean = 3.0", "data.label_mean: goes with numbers"),
        (CLASSES, "people = 1", "data.people"),
    ],
)
def test_public_knowledge_that_cannot_be(tables, label, data, says):
    tables(label, data=data)
    result = runner.invoke(app, ["plan", "e.toml"])
    assert result.exit_code == 2 and says in result.stderr


@pytest.mark.parametrize(
    ("label", "data", "expected"), [(CLASSES, "base_rate = 0.1", 0.1), (NUMBER, "label_mean = 5e4", 5e4)]
)
def test_training_starts_from_public_knowledge(tables, label, data, expected):
    from uldp.experiment.build import prepare

    tables(label, data=data)
    prepared = prepare(Experiment.from_file("e.toml"))
    x = prepared.learner.initial(prepared.streams.child("model"))
    found = prepared.learner.predict(x, np.linspace(-1, 1, 5, dtype=np.float32)[:, None])
    task = prepared.federation.task
    shown = found[:, 1] if task.classes else task.label_offset + task.label_scale * found
    assert shown == pytest.approx(expected, rel=1e-6)


def test_what_would_help_is_what_helps():
    outlook = Outlook(2.0, people=100, parameters=64, budget=(0.5, 1e-5))
    changes = outlook.remedies()
    assert changes["people"] == 400 and changes["parameters"] == 4 and changes["epsilon"] > 8


def test_a_network_only_where_people_and_epsilon_allow_it():
    def chosen(users, epsilon, **further):
        tree = {"data": {"dataset": "mnist", "users": users}, "privacy": {"epsilon": epsilon}, **further}
        return automatic_model(Experiment.from_tree(tree), (1, 28, 28), Task(10))

    assert (chosen(100, 3.0), chosen(10_000, 3.0), chosen(10_000, 0.1)) == ("logistic", "cnn", "logistic")
    assert chosen(100, 3.0, method={"name": "fedavg"}) == "cnn"


def test_the_loss_of_a_constant():
    assert constant_loss(Task(0), np.array([0.0, 2.0], np.float32)) == 1.0
    assert constant_loss(Task(2), np.array([0, 1])) == pytest.approx(np.log(2))
    assert constant_loss(Task(0, survival=True), np.array([1.0], np.float32)) is None


def test_the_accuracy_of_a_constant():
    assert constant_accuracy(Task(3), np.array([0, 2, 2])) == pytest.approx(2 / 3)
    assert constant_accuracy(Task(0), np.array([0.0, 2.0], np.float32)) is None
    assert constant_accuracy(Task(2), np.zeros(0, np.int64)) is None


@pytest.mark.parametrize("chosen", ["sample_rate=0.1", "participation_groups=10"])
def test_plan_shows_what_each_kind_of_participation_costs(chosen):
    small = ["--dataset", "synthetic", "--method", "uldp-avg", "--rounds", "60", "--set", "privacy.noise_multiplier=5"]
    text = runner.invoke(app, ["plan", *small, "--set", f"method.{chosen}"]).stdout
    assert "every round 7.329 and 7.329; a sample at rate 0.1 0.5791 and 7.329" in text
    assert "10 groups that take turns 1.948 and 1.948" in text
    assert "participation" not in runner.invoke(app, ["plan", *small]).stdout


@pytest.mark.parametrize(("epsilon", "warned"), [(0.05, True), (100.0, False)])
def test_a_range_as_wide_as_the_noise_is_said_before_training(tables, epsilon, warned):
    tables(NUMBER, epsilon, "rounds = 20")
    said = " ".join(runner.invoke(app, ["plan", "e.toml"]).stderr.split())
    assert ("the mean label will be known to about" in said) == warned
    assert not warned or "its range is 2e+05 wide" in said


def test_python_is_told_how_many_people_there_are():
    frame = pd.DataFrame({"id": np.arange(40) % 20, "x": np.linspace(0, 1, 40), "y": np.arange(40) % 2})
    schema = uldp.Schema.classes("y", [0, 1]).numeric("x", 0, 1)
    planned = uldp.plan({"a": frame}, user="id", label="y", schema=schema, users=400, people=20, epsilon=3.0)
    assert planned.prepared.plan.facts.people == 20
