"""``uldp attack membership`` through the command line."""

import json

import pytest
from typer.testing import CliRunner

from uldp.cli.app import app

runner = CliRunner()
QUICK = ("attack", "membership", "--dataset", "synthetic", "--records", "1,8", "--models", "16", "--rounds", "2")


def test_the_command_says_what_it_trains_prints_and_draws(tmp_path):
    picture = tmp_path / "attack.png"
    result = runner.invoke(app, [*QUICK, "--methods", "uldp-avg-w,fedavg", "--out", str(picture)])
    assert result.exit_code == 0, result.output
    assert "48 models (2 methods, 16 shadow models and 8 with everybody)" in result.stderr
    assert "no guarantee" in result.stdout and "prove nothing" in result.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_two_workers_give_the_same_document(tmp_path):
    arguments = [*QUICK, "--methods", "uldp-avg", "--json"]
    alone = runner.invoke(app, [*arguments, "--directory", str(tmp_path / "shadows")])
    assert alone.exit_code == 0, alone.output
    assert runner.invoke(app, [*arguments, "--workers", "2"]).stdout == alone.stdout
    tree = json.loads(alone.stdout)
    assert tree["models"] == 16 and len(tree["methods"][0]["people"]) == 3
    assert len(list((tmp_path / "shadows").iterdir())) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--methods", "uldp-avg,uldp-avg"], "--methods"),
        (["--methods", "uldp-avgg"], "uldp-avg"),
        (["--methods", "ldp-fedavg"], "attack inference"),
        (["--records", "1,x"], "--records"),
        (["--records", "1,1"], "--records"),
        (["--models", "3"], "--models"),
        (["--workers", "0"], "--workers"),
        (["--attack-seed", "-1"], "--attack-seed"),
        (["--out", "a.toml"], "no kind of picture"),
        (["--set", "method.clipp=1"], "clipp"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(arguments, said):
    result = runner.invoke(app, [*QUICK, "--methods", "uldp-avg", *arguments])
    assert result.exit_code == 2
    assert said in result.output and "Traceback" not in result.output
