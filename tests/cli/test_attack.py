"""``uldp attack inference`` through the command line."""

import json

import pytest
from typer.testing import CliRunner

from uldp.cli.app import app

runner = CliRunner()
QUICK = ("attack", "inference", "--trials", "3", "--clients", "100", "--rounds", "5")


def test_json_is_one_list_of_rows():
    result = runner.invoke(app, [*QUICK, "--epsilon", "1,5", "--adversary", "frequency,mean", "--json"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    keys = {"mechanism", "adversary", "epsilon", "error_percent", "standard_error", "confidence"}
    assert all(set(row) == keys for row in rows)
    assert [(row["mechanism"], row["adversary"], row["epsilon"]) for row in rows] == [
        ("two-point", "frequency", 1.0),
        ("two-point", "mean", 1.0),
        ("two-point", "frequency", 5.0),
        ("two-point", "mean", 5.0),
        ("srr", "mean", 1.0),
        ("srr", "mean", 5.0),
    ]
    for row in rows:
        assert 0 <= row["error_percent"] <= 50
        assert row["standard_error"] >= 0
        assert (row["confidence"] is not None) == (row["adversary"] == "frequency")


def test_all_adversaries_are_the_default_and_lists_may_be_repeated():
    arguments = ["--mechanism", "two-point", "--mechanism", "srr", "--epsilon", "3", "--precision", "2", "--json"]
    rows = json.loads(runner.invoke(app, [*QUICK, *arguments]).stdout)
    assert [row["adversary"] for row in rows] == ["frequency", "mean", "likelihood", "em", "mean", "likelihood", "em"]


def test_the_same_seed_gives_the_same_table():
    arguments = [*QUICK, "--epsilon", "3", "--adversary", "mean", "--seed"]
    first, again, other = (runner.invoke(app, [*arguments, seed]).stdout for seed in ("1", "1", "2"))
    assert first == again != other
    assert "two-point" in first


def test_a_picture_is_written(tmp_path):
    path = tmp_path / "new" / "attack.png"
    result = runner.invoke(app, [*QUICK, "--epsilon", "1,3", "--adversary", "mean", "--out", str(path)])
    assert result.exit_code == 0, result.output
    assert path.read_bytes().startswith(b"\x89PNG")
    assert str(path) in result.stdout.replace("\n", "")


def test_what_is_varied_stands_in_the_rows_and_gives_what_it_gives_alone(tmp_path):
    one = [*QUICK, "--mechanism", "two-point", "--adversary", "mean", "--epsilon", "1,3", "--json"]
    path = tmp_path / "attack.svg"
    varied = ["--vary", "clients=20,100", "--vary", "weight=0,0.5", "--out", str(path)]
    rows = json.loads(runner.invoke(app, [*one, *varied]).stdout)
    places = [(clients, weight) for clients in (20, 100) for weight in (0.0, 0.5)]
    assert [(row["clients"], row["weight"]) for row in rows] == [place for place in places for _ in (1, 3)]
    alone = json.loads(runner.invoke(app, [*one, "--clients", "20", "--weight", "0.5"]).stdout)
    assert [{**row, "clients": 20, "weight": 0.5} for row in alone] == rows[2:4]
    assert "clients" in path.read_text()


def test_the_range_may_lie_elsewhere():
    arguments = ["--center", "5", "--radius", "0.075", "--spread", "0", "--tolerance", "0", "--adversary", "mean"]
    rows = json.loads(runner.invoke(app, [*QUICK, *arguments, "--epsilon", "5", "--json"]).stdout)
    assert all(row["error_percent"] < 10 for row in rows)


@pytest.mark.parametrize("groups", ["1", "2", "201"])
def test_delta_fits_any_number_of_groups(groups):
    arguments = ["--mechanism", "srr", "--groups", groups, "--precision", "2", "--epsilon", "3", "--adversary", "mean"]
    assert runner.invoke(app, [*QUICK, *arguments]).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--mechanism", "sr"], ["--mechanism", "'sr'", "Known"]),
        (["--mechanism", ","], ["--mechanism", "at least one"]),
        (["--adversary", "meen"], ["--adversary", "'meen'", "Did you mean 'mean'"]),
        (["--adversary", "frequency", "--mechanism", "srr"], ["--adversary", "srr", "only two-point has"]),
        (["--adversary", "em", "--mechanism", "grr"], ["'em' does not work on grr", "use precision 1"]),
        (["--epsilon", "1,x"], ["--epsilon", "'x'"]),
        (["--epsilon", "nan"], ["--epsilon", "nan"]),
        (["--epsilon", ""], ["--epsilon", "at least one"]),
        (["--epsilon", "0"], ["--epsilon", "0.0"]),
        (["--clients", "0"], ["--clients", "0"]),
        (["--clients", "100000000"], ["--clients", "100,000,000"]),
        (["--trials", "-1"], ["--trials", "-1"]),
        (["--trials", "1000000000"], ["--trials", "1,000,000,000"]),
        (["--rounds", "0"], ["--rounds", "0"]),
        (["--spread", "-1"], ["--spread", "-1"]),
        (["--spread", "inf"], ["--spread", "inf"]),
        (["--tolerance", "nan"], ["--tolerance", "nan"]),
        (["--weight", "2"], ["--weight", "2"]),
        (["--weight", "nan"], ["--weight", "nan"]),
        (["--radius", "0"], ["--radius", "0.0"]),
        (["--radius", "nan"], ["--radius", "nan"]),
        (["--center", "inf"], ["--center", "inf"]),
        (["--groups", "0"], ["--groups", "0"]),
        (["--groups", "100000"], ["--groups", "100000"]),
        (["--delta-sizes", "1000"], ["--delta-sizes", "1000"]),
        (["--precision", "-1"], ["--precision", "-1"]),
        (["--precision", "9"], ["--precision", "9", "at most 6"]),
        (["--seed", "-1"], ["-1"]),
        (["--vary", "klients=3"], ["--vary", "clients, rounds, weight", "'klients=3'"]),
        (["--vary", "clients=1,2.5"], ["--vary", "whole numbers", "'1,2.5'"]),
        (["--vary", "clients"], ["--vary", "whole numbers"]),
        (["--vary", "spread=x"], ["--vary", "numbers with commas", "'x'"]),
        (["--vary", "rounds=1", "--vary", "rounds=2"], ["--vary", "at most once"]),
        (["--vary", "clients=10,0"], ["--clients", "0"]),
    ],
)
def test_bad_input_is_one_sentence(arguments, says):
    result = runner.invoke(app, [*QUICK, *arguments])
    assert result.exit_code == 2, result.output
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1
    for part in says:
        assert part in lines[0], lines[0]
    as_json = runner.invoke(app, [*QUICK, *arguments, "--json"])
    assert "message" in json.loads(as_json.stdout)["error"]


def test_adversaries_that_do_not_fit_are_named():
    result = runner.invoke(app, [*QUICK, "--mechanism", "grr", "--epsilon", "3", "--precision", "2"])
    assert "frequency is not played on grr: it counts two outputs" in result.stdout
    assert "em is not played on grr" in result.stdout and "likelihood is not played" not in result.stdout


def test_what_is_no_picture_is_refused_before_the_trials(tmp_path):
    path = tmp_path / "attack.nothing"
    result = runner.invoke(app, [*QUICK[:2], "--trials", "100000", "--rounds", "500", "--out", str(path)])
    assert result.exit_code == 2
    assert "--out" in result.stderr
