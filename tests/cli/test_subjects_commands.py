"""Epsilons of subjects at the command line, and the algorithms as printed beside the sound ones."""

import json

import pytest
from typer.testing import CliRunner

from uldp.cli.app import app

runner = CliRunner()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(*arguments, code=0):
    result = runner.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    if code == 2:
        assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    return result


def settings(section="method.", **values):
    """``--set method.key=value`` for each."""
    return tuple(part for key, value in values.items() for part in ("--set", f"{section}{key}={value}"))


def document(*arguments):
    return json.loads(invoke(*arguments, "--json").stdout)


LOCAL = ("--method", "local-sub-dp", "--rounds", 1)


@pytest.mark.parametrize(
    ("claimed", "steps", "rate", "true"),
    [
        (2, 1, 1.0, (2.0, 2.95, 5.00, 7.54)),
        (8, 1, 1.0, (8.0, 12.26, 22.16, 35.62)),
        (2, 1000, 0.01, (2.0, 2.81, 4.55, 6.70)),
    ],
)
def test_claimed_and_true_for_subjects_in_several_silos(claimed, steps, rate, true):
    """The paper's claim is for a subject in one silo; with the same noise one in several silos faces more."""
    asked = (*LOCAL, *settings(local_steps=steps, record_rate=rate))
    noise = document("sigma", "--epsilon", claimed, *asked, *settings(max_silos=1))["noise_multiplier"]
    rows = document("epsilon", "--noise-multiplier", noise, *asked, "--silos", 10, "--table")["table"]
    assert [row["silos of a user"] for row in rows] == [1, 2, 5, 10]
    assert [row["true"] for row in rows] == pytest.approx(true, rel=4e-3)
    assert {round(row["in one silo"], 3) for row in rows} == {float(claimed)}


def test_settings_of_subjects_come_to_one_epsilon():
    def epsilon(**more):
        asked = (*LOCAL, *settings(record_rate=0.01, local_steps=100, **more))
        return document("epsilon", "--noise-multiplier", 2, *asked)["epsilon"]

    assert epsilon(max_silos=1) < epsilon(max_silos=3) < epsilon()  # without it, all five silos
    assert epsilon() == epsilon(max_silos=5)
    items = {"max_silos": 1, "sampling": "items", "max_items": 30}
    assert epsilon(max_silos=1) < epsilon(**items, largest_group=2) < epsilon(**items)
    asked = (*LOCAL, *settings(local_steps=10, max_silos=3))
    assert document("sigma", "--epsilon", 2, *asked)["epsilon"] == pytest.approx(2, rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (LOCAL, "--noise-multiplier"),
        (("--claimed", 2, *LOCAL), "--claimed"),
        (("--noise-multiplier", 2, "--rounds", 5, *settings(max_silos=2)), "unknown key 'max_silos'"),
        (("--noise-multiplier", 2, *LOCAL, *settings(largest_group=2)), "sampling = 'items'"),
        (("--noise-multiplier", 2, *LOCAL, *settings(max_items=2)), "sampling = 'items'"),
        (("--noise-multiplier", 2, *LOCAL, *settings(sampling="items")), "method.max_items"),
        (("--noise-multiplier", 2, *LOCAL, *settings(sampling="items", max_items=-1)), "method.max_items"),
        (
            ("--noise-multiplier", 2, *LOCAL, *settings(sampling="items", max_items=3, largest_group=5)),
            "method.largest_group",
        ),
        (("--noise-multiplier", 2, *LOCAL, "--silos", 2, *settings(max_silos=3)), "method.max_silos: at most 2"),
        (
            ("--noise-multiplier", 2, "--method", "central-sub-dp", "--rounds", 1, *settings(max_silos=6)),
            "method.max_silos: at most 5 with 5 silos (see silos), not 6",
        ),
        (("--noise-multiplier", 2, "--method", "local-sub-dp-published", "--rounds", 1), "keeps no guarantee"),
        (("--noise-multiplier", 2, "--method", "local-sub-dp-published", "--rounds", 1), "uldp published local-sub-dp"),
    ],
)
def test_bad_options_get_one_sentence(arguments, says):
    assert says in invoke("epsilon", *arguments, code=2).stderr


@pytest.mark.parametrize("name", ["local-sub-dp", "central-sub-dp"])
def test_a_calculator_says_for_how_many_silos(name):
    asked = ("--noise-multiplier", 2, "--method", name, "--rounds", 10)
    assert "for a user with records in 5 of 5 silos" in invoke("epsilon", *asked).stdout
    assert "in 2 of 5 silos" in invoke("sigma", "--epsilon", 2, *asked[2:], *settings(max_silos=2)).stdout
    assert document("epsilon", *asked, *settings(max_silos=2))["silos_of_a_user"] == 2
    # where weights sum to 1 it does not matter
    assert document("epsilon", "--noise-multiplier", 2, "--rounds", 10)["silos_of_a_user"] is None


SMALL = ("--dataset", "breast-cancer", "--set", "data.users=20")


def published(name, *more, code=0):
    return invoke("published", name, *SMALL, *settings("", rounds=2, local_steps=5), *more, "--json", code=code)


@pytest.mark.parametrize("name", ["central-sub-dp", "local-sub-dp"])
def test_as_printed_it_claims_what_the_sound_variant_keeps(name, folder):
    keeps = ("run", *SMALL, *settings(rounds=2), *settings("privacy.", epsilon=3), "--method", name, "--out", "sound")
    assert 0 < document(*keeps)["statement"]["epsilon"] <= 3
    before = sorted(folder.iterdir())
    ran = published(name, *settings("", epsilon=3))
    found = json.loads(ran.stdout)
    assert found["epsilon"] is None and found["claimed_epsilon"] == 3
    assert (found["algorithm"], found["dataset"], found["rounds"]) == (name, "breast-cancer", 2)
    assert "NO GUARANTEE" in found["guarantee"]
    assert any("Claimed 3, true: none" in line for line in found["claimed_and_true"])
    assert "NO GUARANTEE" in ran.stderr
    assert sorted(folder.iterdir()) == before  # it leaves nothing that could be taken for a run
    # the same seed gives the same numbers, and another one others
    assert published(name, *settings("", epsilon=3)).stdout == ran.stdout
    assert json.loads(published(name, *settings("", epsilon=3), "--seed", 1).stdout)["metrics"] != found["metrics"]


def test_as_printed_is_shown_with_what_is_wrong():
    asked = ("published", "central-sub-dp", *SMALL, *settings("", rounds=1))
    shown = invoke(*asked)
    assert "NO GUARANTEE" in shown.stderr
    text = " ".join(shown.stdout.split())
    for erratum in ("D1", "D2", "D3", "D4", "D6"):
        assert f"errata {erratum}" in text
    assert "accuracy" in text and "Claimed 5, true: none" in text


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (settings("", epsilon=-1), "epsilon: a positive number, not -1"),
        (settings("", epsilon="nan"), "epsilon"),
        (settings("", epsilon="none"), "epsilon: a number"),
        (settings("", epsilon="1e-300"), "epsilon"),
        (settings("", delta=1), "delta"),
        (settings("", rounds=10**9), "rounds"),
        (settings("", batch_size=10**12), "batch_size"),
        (settings("", clip=0), "clip"),
        (settings("", epsilom=3), "--set: unknown key 'epsilom'"),
        (settings("", algorithm="local-sub-dp"), "--set: unknown key 'algorithm'"),
        (("--set", "epsilon"), "--set: write key=value"),
        # what would be left out in silence, and change what is claimed or how
        (settings("privacy.", epsilon=3), "--set: only data.key=value"),
        (settings(rounds=3), "'method.rounds'"),
        (settings("run.", secrets="os"), "'run.secrets'"),
        (settings("run.", seed=3), "'run.seed'"),
        (settings("data.", users=1), "data.users"),
        (settings("model.", name="bert"), "model.name"),
        (("--seed", -1), "--seed"),
        (("--dataset", "marbles"), "marbles"),
    ],
)
def test_bad_settings_of_what_is_printed(folder, more, says):
    assert says in published("local-sub-dp", *more, code=2).stderr
    assert not list(folder.iterdir())


def test_unknown_algorithms_are_refused():
    assert "ALGORITHM: one of central-sub-dp, local-sub-dp, not 'uldp-avg'" in published("uldp-avg", code=2).stderr


def test_more_silos_than_assumed_are_refused():
    one = (*SMALL, *settings(rounds=2, max_silos=1))
    result = invoke("plan", *one, "--method", "local-sub-dp", code=2)
    assert "method.max_silos: a user has records in more than 1 silos" in result.stderr
