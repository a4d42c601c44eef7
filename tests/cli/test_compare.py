"""``uldp compare``: same data and seeds for all methods, resumable, honest about what adds up."""

import json
import statistics

import pytest
from typer.testing import CliRunner

from uldp.cli.app import app
from uldp.privacy.accountants import account
from uldp.privacy.events import Gaussian
from uldp.runtimes.local import _LocalRun

runner = CliRunner()
SMALL = [
    "compare",
    "--dataset",
    "breast-cancer",
    "--repeats",
    "2",
    "--set",
    "method.rounds=3",
    "--set",
    "data.users=20",
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def document(*arguments):
    result = runner.invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_means_deviations_and_the_total(folder):
    found = document(*SMALL, "--methods", "default,uldp-avg,uldp-avg-w", "--out", "c")
    assert [result["method"] for result in found["results"]] == ["default", "uldp-avg", "uldp-avg-w"]
    avg = found["results"][1]
    values = [run["metrics"]["loss"] for run in avg["runs"]]
    assert avg["repeats"] == 2
    assert avg["metrics"]["loss"] == pytest.approx(statistics.fmean(values))
    assert avg["deviations"]["loss"] == pytest.approx(statistics.stdev(values))
    # four private runs of three rounds each, at sigma 5
    assert found["total_epsilon"] is None  # default has no privacy
    assert found["private_total_epsilon"] == pytest.approx(account({Gaussian(5.0): 12}, 1e-5).value, rel=1e-9)
    assert (folder / "c" / "comparison.png").stat().st_size > 10_000


def test_methods_see_the_same_federations():
    found = document(*SMALL, "--methods", "uldp-sgd", "--out", "a")
    again = document(*SMALL, "--methods", "uldp-avg,uldp-sgd", "--out", "b")
    alone, beside = found["results"][0]["runs"], again["results"][1]["runs"]
    assert [run["metrics"] for run in alone] == [run["metrics"] for run in beside]
    assert alone[0]["metrics"] != alone[1]["metrics"]


def test_an_interrupted_comparison_goes_on_where_it_stopped(monkeypatch):
    whole = document(*SMALL, "--methods", "default,uldp-avg", "--out", "whole")
    original, calls = _LocalRun._report, []

    def interrupted(self, seconds):
        original(self, seconds)
        calls.append(self._prepared.experiment.method_name)
        if len(calls) == 8:
            raise KeyboardInterrupt

    monkeypatch.setattr(_LocalRun, "_report", interrupted)
    stopped = runner.invoke(app, [*SMALL, "--methods", "default,uldp-avg", "--out", "c"])
    assert stopped.exit_code == 130
    assert "--out c" in stopped.stderr
    resumed = document(*SMALL, "--methods", "default,uldp-avg", "--out", "c")
    assert [r["metrics"] for r in resumed["results"]] == [r["metrics"] for r in whole["results"]]
    # a finished run computes its last round once more, from the answers it has; nothing else is done again
    assert calls.count("default") <= 6 + 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--methods", "uldp-avg,uldp-avg"], "--methods"),
        (["--methods", ","], "--methods"),
        (["--methods", "uldp-avg,magic"], "magic"),
        (["--repeats", "0"], "--repeats"),
        (["--preset", "papper"], "papper"),
        (["--preset", "paper"], "no published settings"),
    ],
)
def test_bad_input(folder, arguments, says):
    result = runner.invoke(app, [*SMALL, *arguments])
    assert result.exit_code == 2
    assert says in result.stderr
    assert not list(folder.iterdir())


def test_a_folder_of_another_comparison_is_refused():
    document(*SMALL, "--methods", "default", "--out", "c")
    result = runner.invoke(app, [*SMALL, "--methods", "default", "--set", "run.seed=5", "--out", "c"])
    assert result.exit_code == 2
    assert "another comparison" in result.stderr


def test_seeds_and_methods_can_be_added_later():
    document(*SMALL, "--methods", "uldp-avg", "--out", "c")
    more = document(*SMALL, "--repeats", "3", "--methods", "uldp-sgd,uldp-avg", "--out", "c")
    assert [result["repeats"] for result in more["results"]] == [3, 3]
    fewer = document(*SMALL, "--methods", "uldp-avg", "--out", "c")
    pairs = zip(fewer["results"][0]["runs"], more["results"][1]["runs"][:2], strict=True)
    assert all(one["metrics"] == other["metrics"] for one, other in pairs)
    # what was there before may not change
    result = runner.invoke(app, [*SMALL, "--methods", "uldp-sgd", "--set", "method.clip=0.7", "--out", "c"])
    assert result.exit_code == 2
    assert "another comparison" in result.stderr


def test_a_setting_that_only_some_methods_have_goes_to_those():
    found = document(*SMALL, "--methods", "uldp-avg,uldp-sgd", "--set", "method.local_epochs=1", "--out", "c")
    plain = document(*SMALL, "--methods", "uldp-avg,uldp-sgd", "--out", "d")
    changed = [a["metrics"] != b["metrics"] for a, b in zip(found["results"], plain["results"], strict=True)]
    assert changed == [True, False]
    result = runner.invoke(app, [*SMALL, "--methods", "uldp-sgd", "--set", "method.local_epochs=1", "--out", "e"])
    assert result.exit_code == 2
    assert "local_epochs" in result.stderr
