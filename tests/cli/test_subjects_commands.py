"""Claimed and true epsilons of subjects at the command line, and runs of both modes."""

import json

import pytest
from typer.testing import CliRunner

from uldp.cli.app import app

runner = CliRunner()


def invoke(*arguments, code=0):
    result = runner.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


@pytest.mark.parametrize(
    ("arguments", "true"),
    [
        (("--claimed", 2, "--steps", 1), (2.0, 2.95, 5.00, 7.54)),
        (("--claimed", 8, "--steps", 1), (8.0, 12.26, 22.16, 35.62)),
        (("--claimed", 2, "--steps", 1000, "--sample-rate", 0.01), (2.0, 2.81, 4.55, 6.70)),
    ],
)
def test_claimed_and_true_for_subjects_in_several_silos(arguments, true):
    out = invoke("epsilon", "--method", "local-sub-dp", *arguments, "--table", "--json").stdout
    rows = json.loads(out)["table"]
    assert [row["silos of a subject"] for row in rows] == [1, 2, 5, 10]
    assert [row["true"] for row in rows] == pytest.approx(true, rel=4e-3)
    assert {row["claimed"] for row in rows} == {float(arguments[1])}
    assert {round(row["one item, one silo"], 3) for row in rows} == {float(arguments[1])}


def test_options_of_subjects_come_to_one_epsilon():
    def epsilon(*more):
        common = ("--method", "local-sub-dp", "--noise-multiplier", 2, "--sample-rate", 0.01, "--steps", 100)
        return json.loads(invoke("epsilon", *common, *more, "--json").stdout)["epsilon"]

    assert epsilon("--spanning", 1) < epsilon("--spanning", 3) < epsilon()  # without it, all five silos
    items = epsilon("--spanning", 1, "--items", 30)
    assert epsilon("--spanning", 1) < epsilon("--spanning", 1, "--items", 30, "--largest-group", 2) < items
    sigma = json.loads(
        invoke("sigma", "--method", "local-sub-dp", "--epsilon", 2, "--steps", 10, "--spanning", 3, "--json").stdout
    )
    assert sigma["epsilon"] == pytest.approx(2, rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--method", "local-sub-dp", "--steps", 5), "--noise-multiplier and --claimed"),
        (("--method", "uldp-avg", "--claimed", 2, "--rounds", 5), "--claimed"),
        (("--method", "uldp-avg", "--noise-multiplier", 2, "--rounds", 5, "--spanning", 2), "--spanning"),
        (("--method", "local-sub-dp", "--noise-multiplier", 2, "--steps", 5, "--largest-group", 2), "--items"),
        (("--method", "central-sub-dp", "--noise-multiplier", 2, "--rounds", 1, "--silos", 2, "--spanning", 3), "2"),
        (("--method", "local-sub-dp-published", "--claimed", 2, "--steps", 5), "keeps no promise"),
        (("--method", "local-sub-dp", "--claimed", -1, "--steps", 5), "positive"),
        (("--method", "local-sub-dp", "--claimed", -1, "--steps", 5, "--items", 3, "--largest-group", 2), "--claimed"),
    ],
)
def test_bad_options_get_one_sentence(arguments, says):
    result = invoke("epsilon", *arguments, code=2)
    assert says in result.stderr


SMALL = ("--dataset", "breast-cancer", "--set", "data.users=20", "--set", "method.rounds=2")


@pytest.mark.parametrize("name", ["central-sub-dp", "local-sub-dp"])
def test_published_mode_claims_what_sound_mode_keeps(name, tmp_path):
    common = (*SMALL, "--set", "privacy.epsilon=3", "--json")
    sound = json.loads(invoke("run", *common, "--method", name, "--out", tmp_path / "sound").stdout)
    assert 0 < sound["statement"]["epsilon"] <= 3
    claimed = invoke("run", *common, "--method", f"{name}-published", "--out", tmp_path / "published")
    document = json.loads(claimed.stdout)
    assert document["statement"]["epsilon"] is None
    assert document["rounds"] == 2
    assert "claims epsilon 3" in document["statement"]["guarantee"]
    assert any("Claimed 3, true: none" in line for line in document["statement"]["caveats"])
    assert "NO GUARANTEE" in claimed.stderr
    again = json.loads(invoke("resume", tmp_path / "published", "--json").stdout)
    assert again["metrics"] == document["metrics"]


def test_published_mode_wants_an_epsilon_and_is_not_for_real_secrets(tmp_path):
    name = ("--method", "local-sub-dp-published")
    assert "an epsilon that it claims" in invoke("plan", *SMALL, *name, code=2).stderr
    real = invoke("plan", *SMALL, *name, "--set", "privacy.epsilon=3", "--set", "run.secrets=os", code=2)
    assert "method.mode: 'published' reads the data" in real.stderr
    budget = invoke("plan", *SMALL, *name, "--set", "privacy.epsilon=3", "--budget", 2, code=2)
    assert "--budget" in budget.stderr


def test_a_calculator_says_for_how_many_silos():
    common = ("--method", "local-sub-dp", "--claimed", 2, "--steps", 10)
    assert "for a subject in 5 of 5 silos" in invoke("epsilon", *common).stdout
    assert json.loads(invoke("epsilon", *common, "--spanning", 2, "--json").stdout)["silos_of_a_subject"] == 2
    assert "--items" in invoke("epsilon", *common, "--items", -1, code=2).stderr
    assert "--largest-group" in invoke("epsilon", *common, "--items", 3, "--largest-group", 5, code=2).stderr


def test_more_silos_than_assumed_are_refused():
    result = invoke("plan", *SMALL, "--method", "local-sub-dp", "--set", "method.max_silos=1", code=2)
    assert "method.max_silos: somebody has records in more than 1 silos" in result.stderr
