"""What may be shown of a run: no file says how long anything took, and no epsilon stands without what it means."""

import json
import os
import time

import pytest
import torch
from tests.federation.federation_support import SILOS, World
from tests.federation.federation_support import experiment as rehearsal
from typer.testing import CliRunner

import uldp
from uldp.cli.app import app
from uldp.privacy.sentences import NOT_SECRET
from uldp.runs.directory import RunDirectory

runner = CliRunner()
SMALL = ["--dataset", "breast-cancer", "--set", "data.users=20", "--set", "method.rounds=2"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def document(*arguments):
    result = runner.invoke(app, [*map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def showable(folder):
    """All files outside of ``private``, by name."""
    files = (file for file in folder.rglob("*") if file.is_file() and "private" not in file.relative_to(folder).parts)
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def trees(folder):
    """All JSON that may be shown: of a file of lines each line."""
    for name, data in showable(folder).items():
        if name.endswith(".json"):
            yield name, json.loads(data)
        elif name.endswith(".jsonl") and not name.endswith("ledger.jsonl"):  # its events are not a run's epsilon
            yield from ((name, json.loads(line)) for line in data.splitlines())


def bare(tree, where=""):
    """Where an epsilon stands outside of all objects that hold ``noise`` and ``guarantee``."""
    if isinstance(tree, list):
        return [found for at, part in enumerate(tree) for found in bare(part, f"{where}[{at}]")]
    if not isinstance(tree, dict) or (tree.get("noise") in ("simulated", "secret") and tree.get("guarantee")):
        return []
    own = [f"{where}.{key}" for key in tree if "epsilon" in key]
    return own + [found for key, part in tree.items() for found in bare(part, f"{where}.{key}")]


def one_run(folder):
    document("run", *SMALL, "--method", "uldp-avg-w", "--out", folder)


def comparison(folder):
    document("compare", *SMALL, "--methods", "fedavg,uldp-avg", "--repeats", "2", "--out", folder)


def served(folder):
    world = World(folder, rehearsal())
    try:
        world.serving().run()
    finally:
        world.close()
    for name in SILOS:  # a silo's folder is its owner's
        (folder / name).rename(folder / "run" / "private" / name)


@pytest.mark.parametrize("make", [one_run, comparison, served])
def test_no_file_that_may_be_shown_depends_on_how_long_things_take(folder, monkeypatch, make):
    found = []
    for slower in (1, 20):
        clock = time.perf_counter
        monkeypatch.setattr(time, "perf_counter", lambda clock=clock, slower=slower: slower * clock())
        make(folder / "made")
        found.append(showable(folder / "made"))
        (folder / "made").rename(folder / f"made-{slower}")
    assert found[0].keys() == found[1].keys()
    assert [name for name in found[0] if found[0][name] != found[1][name]] == []
    text = b"".join(data for name, data in found[0].items() if not name.endswith((".npz", ".png", ".html")))
    assert b"second" not in text


def test_the_times_are_there_for_the_owner_only(folder):
    result = uldp.train(
        uldp.Experiment.from_tree({
            "data": {"dataset": "breast-cancer", "users": 20},
            "method": {"name": "uldp-avg", "rounds": 2},
            "privacy": {"noise_multiplier": 5.0},
        }),
        directory="r",
    )  # fmt: skip
    times = folder / "r" / "private" / "times.jsonl"
    assert RunDirectory("r").log.times() == {report.round: round(report.seconds, 6) for report in result.reports}
    assert times.stat().st_mode & 0o077 == 0 and (folder / "r" / "private").stat().st_mode & 0o077 == 0
    again = uldp.resume("r")
    assert again.seconds == pytest.approx(result.seconds, rel=1e-6)
    before = [report.seconds for report in result.reports]
    assert [report.seconds for report in again.reports] == pytest.approx(before, abs=1e-6)


@pytest.mark.parametrize("make", [one_run, comparison, served])
def test_no_epsilon_is_written_down_without_what_it_means(folder, make):
    make(folder / "made")
    found = list(trees(folder / "made"))
    assert len(found) >= 5
    wrong = {
        f"{name}{location}"
        for name, tree in found
        if not name.endswith("experiment.json")  # the target that was asked for
        for location in bare(tree)
    }
    assert wrong == set()


def test_no_command_prints_an_epsilon_without_what_it_means(folder):
    arguments = [*SMALL, "--method", "uldp-avg"]
    documents = {
        "run": document("run", *arguments, "--out", "runs/a"),
        "resume": document("resume", "runs/a"),
        "secret": document("run", *arguments, "--set", "run.secrets=os", "--out", "runs/b"),
        "clients": document("run", *SMALL, "--method", "ldp-fedavg", "--out", "runs/c"),
        "compare": document("compare", *SMALL, "--methods", "fedavg,uldp-avg", "--repeats", "1", "--out", "runs/d"),
        "demo": document("demo", "--set", "method.rounds=1", "--set", "data.users=20", "--out", "runs/e"),
        "export": document("export", "runs/a"),
        "total": document("total", "runs"),
    }
    assert {name: bare(tree) for name, tree in documents.items() if bare(tree)} == {}
    assert documents["run"]["statement"]["guarantee"].startswith(NOT_SECRET)
    assert documents["secret"]["statement"]["noise"] == "secret"
    assert documents["secret"]["statement"]["guarantee"].startswith("User-level DP with epsilon")
    for command in (["compare", *SMALL, "--methods", "uldp-avg", "--repeats", "1"], ["demo"], ["total", "runs"]):
        shown = " ".join(runner.invoke(app, command).stdout.split())
        assert "NOT A GUARANTEE FOR" in shown and "the noise was generated from run.seed" in shown


def test_the_statement_travels_with_the_model(folder):
    document("run", *SMALL, "--method", "uldp-avg-w", "--out", "a")
    result = runner.invoke(app, ["export", "a", "--out", "a.pt"])
    (line,) = result.stderr.splitlines()
    assert NOT_SECRET in line and "run.secrets" in line
    carried = torch.load("a.pt", weights_only=True)["statement"]
    assert carried == json.loads((folder / "a" / "statement.json").read_text())
    assert carried["noise"] == "simulated" and carried["guarantee"].startswith(NOT_SECRET)
    assert (carried["unit"], carried["delta"]) == ("user", 1e-5) and 1 < carried["epsilon"] < 2

    document("run", *SMALL, "--method", "uldp-avg-w", "--set", "run.secrets=os", "--out", "b")
    assert runner.invoke(app, ["export", "b", "--out", "b.pt"]).stderr == ""
    assert torch.load("b.pt", weights_only=True)["statement"]["noise"] == "secret"

    document("run", *SMALL, "--method", "fedavg", "--out", "c")
    assert "No privacy" in runner.invoke(app, ["export", "c", "--out", "c.pt"]).stderr

    os.remove(folder / "a" / "statement.json")
    refused = runner.invoke(app, ["export", "a", "--out", "d.pt"])
    assert refused.exit_code == 2 and "statement" in refused.stderr and not (folder / "d.pt").exists()


@pytest.mark.parametrize(("secrets", "says"), [("simulated", NOT_SECRET), ("os", "User-level DP with epsilon")])
def test_a_result_says_whether_its_epsilon_holds(secrets, says):
    result = uldp.train(
        uldp.Experiment.from_tree({
            "data": {"dataset": "breast-cancer", "users": 20},
            "method": {"name": "uldp-avg", "rounds": 1},
            "privacy": {"noise_multiplier": 5.0},
            "run": {"secrets": secrets},
        })
    )  # fmt: skip
    assert says in repr(result) and len(repr(result)) < 600
    assert (NOT_SECRET in repr(result)) == (secrets == "simulated")
    assert result.reports[0].noise == ("simulated" if secrets == "simulated" else "secret")
