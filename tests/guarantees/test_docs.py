"""What the docs say happens, happens: every command of the worked example, the example method, the README's example."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from uldp.cli.app import app

ROOT = Path(__file__).parents[2]
HOSPITALS = ROOT / "examples" / "hospitals"
runner = CliRunner()


def commands(page):
    for block in re.findall(r"```console\n(.*?)```", (ROOT / "docs" / page).read_text(), flags=re.S):
        for line in block.splitlines():
            command, _, note = line.removeprefix("$ ").partition("   # ")
            yield shlex.split(command), note


def test_the_worked_example_from_draft_to_predictions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("make_data.py", "experiment.toml"):
        (tmp_path / name).write_text((HOSPITALS / name).read_text())
    seen = []
    for command, note in commands("own-tables.md"):
        seen.append(command[0])
        if command[0] == "uldp":
            result = runner.invoke(app, command[1:])
            expected = 2 if "exit 2" in note else 0
            assert result.exit_code == expected, (command, result.output)
        else:
            program = [sys.executable, *command[1:]] if command[0] == "python" else command
            subprocess.run(program, check=True, capture_output=True)
    assert seen.count("uldp") == 6
    predictions = (tmp_path / "predictions.csv").read_text().splitlines()
    visits = (tmp_path / "data" / "holdout.csv").read_text().splitlines()
    assert len(predictions) == len(visits)
    truth = [line.split(",")[-1] for line in visits[1:]]
    hits = sum(line.split(",")[0] == label for line, label in zip(predictions[1:], truth, strict=True))
    assert 0.72 < hits / len(truth) < 0.84  # "about 77 of 100"

    code = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "own-tables.md").read_text(), flags=re.S).group(1)
    space = {}
    exec(code, space)
    assert 0 < float(space["probability"]) < 1

    import torch

    exported = torch.load(tmp_path / "model.pt", weights_only=True)
    assert len(exported["features"]) == sum(
        tensor.shape[-1] for name, tensor in exported["state_dict"].items() if "weight" in name
    )


def test_a_draft_with_suggestions_says_that_they_are_not_agreed_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, HOSPITALS / "make_data.py", "--out", "data"], check=True, capture_output=True)
    arguments = [
        "new",
        "t",
        "--silo",
        "data/north.csv",
        "--user",
        "patient_id",
        "--label",
        "outcome",
        "--people",
        "300",
    ]
    assert runner.invoke(app, [*arguments, "--suggest"]).exit_code == 0
    text = (tmp_path / "t.toml").read_text()
    assert "patient_id]" not in text
    result = runner.invoke(app, ["plan", "t.toml"])
    assert result.exit_code == 0, result.output
    assert "proposed from the data" in " ".join(result.stdout.split())


def test_the_example_method_trains_resumes_and_is_private_like_its_parent(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.chdir(tmp_path)
    import json

    def run(*more):
        arguments = ["run", "--dataset", "breast-cancer", "--json", "--set", "method.rounds=8", *more]
        result = runner.invoke(app, arguments)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    ours = run("--method", "server_momentum:UldpAvgMomentum", "--out", "a", "--set", "method.momentum=0.5")
    parent = run("--method", "uldp-avg", "--out", "b")
    none = run("--method", "server_momentum:UldpAvgMomentum", "--out", "c", "--set", "method.momentum=0.0")
    assert ours["statement"]["epsilon"] == parent["statement"]["epsilon"]
    assert ours["metrics"] != parent["metrics"]
    assert none["metrics"] == parent["metrics"]
    assert ours["metrics"]["accuracy"] > 0.8
    refused = runner.invoke(
        app,
        ["plan", "--dataset", "digits", "--method", "server_momentum:UldpAvgMomentum", "--set", "method.momentum=2"],
    )
    assert refused.exit_code == 2


def test_the_code_in_the_method_page_is_the_example(monkeypatch):
    page = (ROOT / "docs" / "add-a-method.md").read_text()
    example = (ROOT / "examples" / "server_momentum.py").read_text()
    block = re.findall(r"```python\n(.*?)```", page, flags=re.S)[0]
    for line in block.splitlines():
        stripped = re.sub(r"\(self, state, total, facts\)", "(self, state", line.strip().rstrip(":"))
        assert stripped in example, line


def test_the_readme_example_runs_and_says_what_it_gives():
    text = (ROOT / "README.md").read_text()
    code = re.search(r"```python\n(.*?)```", text, flags=re.S).group(1)
    assert len(code.strip().splitlines()) <= 12
    space = {}
    exec(code.replace("print(", "(lambda *a, **k: None)("), space)
    result = space["result"]
    claimed = re.search(r"# about (0\.\d+) at epsilon ([\d.]+)", code)
    assert result.metrics["accuracy"] == pytest.approx(float(claimed.group(1)), abs=0.04)
    assert result.epsilon <= float(claimed.group(2))


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *sorted(p.name for p in (ROOT / "docs").glob("*.md"))]
)
def test_links_between_pages_lead_somewhere(page):
    path = ROOT / page if (ROOT / page).exists() else ROOT / "docs" / page
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_the_experiment_page_knows_every_key():
    from dataclasses import fields

    from uldp.experiment.config import HIDDEN, DataConfig, PrivacyConfig, RunConfig
    from uldp.methods.registry import METHODS

    text = (ROOT / "docs" / "experiment-file.md").read_text()
    methods = {f.name for named in METHODS.values() for f in fields(named.method)} - set(HIDDEN)
    keys = methods | {f.name for section in (DataConfig, PrivacyConfig, RunConfig) for f in fields(section)}
    assert {key for key in keys if f"`{key}`" not in text} == set()
