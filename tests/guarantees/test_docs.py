"""What the docs say happens, happens: every command of the worked example, the example method, the README's example."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from uldp.cli.app import app

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
HOSPITALS = ROOT / "examples" / "hospitals"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
LINE = 100
runner = CliRunner()

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


MESSY = "## Messy tables"


def commands(text):
    for block in re.findall(r"```console\n(.*?)```", text, flags=re.S):
        for line in block.replace("\\\n", " ").splitlines():
            command, _, note = line.removeprefix("$ ").partition("   # ")
            yield shlex.split(command), note


def follow(text, example, folder, monkeypatch):
    """Do what a page says, in a copy of an example."""
    monkeypatch.chdir(folder)
    for name in ("make_data.py", "experiment.toml"):
        (folder / name).write_text((example / name).read_text())
    seen = []
    for command, note in commands(text):
        seen.append(command[0])
        if command[0] == "uldp":
            result = runner.invoke(app, command[1:])
            expected = 2 if "exit 2" in note else 0
            assert result.exit_code == expected, (command, result.output)
        else:
            program = [sys.executable, *command[1:]] if command[0] == "python" else command
            subprocess.run(program, check=True, capture_output=True)
    return seen


def test_the_messy_hospitals_from_draft_to_predictions(tmp_path, monkeypatch):
    page = (DOCS / "own-tables.md").read_text().partition(MESSY)[2]
    assert follow(page, ROOT / "examples" / "messy_hospitals", tmp_path, monkeypatch).count("uldp") == 5
    draft = (tmp_path / "trial.toml").read_text()
    for name in ("record_no", "note", "discharged", "died"):
        assert f"# left out: {name} (" in draft and f"\n[data.schema.columns.{name}]" not in draft
    for remark in re.findall(r'"([^"]* [^"]*)"', page.partition("It remarks on")[2].partition("without quoting")[0]):
        assert " ".join(remark.split()) in draft
    assert not any(cell in draft for cell in ("9999", "not done", "helicopter", "Yes,"))
    truth = [line.split(",")[-1] for line in (tmp_path / "data" / "holdout.csv").read_text().splitlines()[1:]]
    said = [line.split(",")[0] for line in (tmp_path / "predictions.csv").read_text().splitlines()[1:]]
    right = sum(one == other for one, other in zip(said, truth, strict=True)) / len(truth)
    assert right == pytest.approx(0.785, abs=0.01)  # "about 78 of 100": the noise is simulated


def test_the_worked_example_from_draft_to_predictions(tmp_path, monkeypatch):
    page = (DOCS / "own-tables.md").read_text()
    seen = follow(page.partition(MESSY)[0], HOSPITALS, tmp_path, monkeypatch)
    assert seen.count("uldp") == 8
    predictions = (tmp_path / "predictions.csv").read_text().splitlines()
    visits = (tmp_path / "data" / "holdout.csv").read_text().splitlines()
    assert len(predictions) == len(visits)
    truth = [line.split(",")[-1] for line in visits[1:]]
    hits = sum(line.split(",")[0] == label for line, label in zip(predictions[1:], truth, strict=True))
    assert 0.72 < hits / len(truth) < 0.84  # "about 77 of 100"

    code = re.search(r"```python\n(.*?)```", (DOCS / "own-tables.md").read_text(), flags=re.S).group(1)
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

    ours = run("--method", "server_momentum:UldpAvgMomentum", "--out", "a", "--set", "method.server_momentum=0.5")
    parent = run("--method", "uldp-avg", "--out", "b")
    none = run("--method", "server_momentum:UldpAvgMomentum", "--out", "c", "--set", "method.server_momentum=0.0")
    assert ours["statement"]["epsilon"] == parent["statement"]["epsilon"]
    assert ours["metrics"] != parent["metrics"]
    assert none["metrics"] == parent["metrics"]
    assert ours["metrics"]["accuracy"] > 0.8
    refused = runner.invoke(
        app,
        [
            "plan",
            "--dataset",
            "digits",
            "--method",
            "server_momentum:UldpAvgMomentum",
            "--set",
            "method.server_momentum=2",
        ],
    )
    assert refused.exit_code == 2


def test_the_code_in_the_method_page_is_the_example(monkeypatch):
    page = (DOCS / "add-a-method.md").read_text()
    example = (ROOT / "examples" / "server_momentum.py").read_text()
    block = re.findall(r"```python\n(.*?)```", page, flags=re.S)[0]
    for line in block.splitlines():
        stripped = re.sub(r"\(self, state, total, facts\)", "(self, state", line.strip().rstrip(":"))
        assert stripped in example, line


def test_the_page_about_the_library_runs_and_its_numbers_are_true(tmp_path, monkeypatch, runs_in_process):
    import matplotlib

    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ULDP_STATE", str(tmp_path / "state"))
    subprocess.run([sys.executable, ROOT / "examples" / "hospitals" / "make_data.py"], check=True)
    space, blocks = {}, re.findall(r"```python\n(.*?)```", (DOCS / "python.md").read_text(), flags=re.S)
    for block in blocks:
        exec(block, space)
        for line, claimed in re.findall(r"^(uldp\..*?)\s+# ([\d.]+)$", block, flags=re.M):
            assert f"{eval(line, space):.3g}" == claimed.rstrip("0"), line
    assert space["done"].complete and space["again"].epsilon == space["result"].epsilon <= 4.0
    assert space["comparison"].total.private_runs == 4 and len(space["swept"].frame) == 3


def test_the_typed_example_is_typed_and_runs(tmp_path):
    subprocess.run([sys.executable, HOSPITALS / "make_data.py", "--out", tmp_path / "data"], check=True)
    example = ROOT / "examples" / "typed_library.py"
    # Without our settings of mypy, elsewhere: what somebody sees who installed the package.
    check = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", str(example)]
    typed = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True)
    assert typed.returncode == 0, typed.stdout
    done = subprocess.run([sys.executable, example, tmp_path / "data", tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "history.png").exists() and "User-level DP with epsilon" in done.stdout


def test_the_readme_example_runs_and_says_what_it_gives(tmp_path, monkeypatch):
    import torch

    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, ROOT / "examples" / "hospitals" / "make_data.py"], check=True)
    text = (ROOT / "README.md").read_text()
    code = re.search(r"```python\n(.*?)```", text, flags=re.S).group(1)
    assert len(code.strip().splitlines()) <= 13
    space = {}
    torch.manual_seed(0)
    exec(code.replace("print(", "(lambda *a, **k: None)("), space)
    result = space["result"]
    claimed = re.search(r"# about (0\.\d+) at epsilon ([\d.]+)", code)
    assert result.metrics["accuracy"] == pytest.approx(float(claimed.group(1)), abs=0.12)  # the noise is secret
    assert result.epsilon <= float(claimed.group(2)) and result.statement.noise == "secret"


def anchors(page):
    for heading in re.findall(r"^#+ (.*)$", page.read_text(), flags=re.M):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@every_page
def test_links_between_pages_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", page.read_text()):
        linked = page.parent / target if target else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), f"{target}#{anchor}"


@every_page
def test_lines_fit_a_screen(page):
    """At most 100 characters, but for tables and code in fences."""
    long, fenced = [], False
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        fenced ^= line.lstrip().startswith("```")
        if len(line) > LINE and not fenced and not line.lstrip().startswith("|"):
            long.append((number, len(line)))
    assert long == []


def shown_commands(page):
    """Every ``uldp ...`` in a fence or in a code span, as arguments."""
    text = page.read_text().replace("\\\n", " ")
    for block in re.findall(r"^```(?:console|sh)?\n(.*?)^```", text, flags=re.S | re.M):
        for line in block.splitlines():
            if found := re.match(r"(?:\$ )?(?:[A-Z_]+=\S+ )*uldp (.*)", line):
                yield shlex.split(found.group(1), comments=True)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    for span in re.findall(r"`uldp ([^`]*)`", prose):
        yield shlex.split(" ".join(span.split()))


@every_page
def test_commands_in_the_docs_exist_with_their_options(page):
    """The worked example is run; of all others at least the command and its options must be there."""
    if page.name in ("CHANGELOG.md", "glossary.md"):  # they name old ones, too
        return
    for arguments in shown_commands(page):
        command, path = typer.main.get_command(app), []
        while arguments and arguments[0] in getattr(command, "commands", {}):
            path.append(arguments.pop(0))
            command = command.commands[path[-1]]
        assert path or not arguments or arguments[0].startswith("-"), f"no command {arguments[0]!r}"
        known = {"-h", "--help", *(option for parameter in command.params for option in parameter.opts)}
        unknown = [argument for argument in arguments if re.match("--[a-z]", argument) and argument not in known]
        assert unknown == [], ["uldp", *path, *arguments]


def test_the_statement_in_the_privacy_page_is_what_plan_prints():
    text = (DOCS / "privacy.md").read_text()
    shown = re.search(r"```\n(NOT A GUARANTEE.*?)```", text, flags=re.S).group(1)
    result = runner.invoke(app, ["plan", "--dataset", "breast-cancer", "--method", "uldp-avg-w"])
    assert shown in result.stdout


def test_the_experiment_page_knows_every_key():
    from dataclasses import fields

    from uldp.aggregation import AGGREGATIONS
    from uldp.experiment.config import DataConfig, DeploymentConfig, PrivacyConfig, RunConfig
    from uldp.methods.base import settings
    from uldp.methods.registry import METHODS

    text = (DOCS / "experiment-file.md").read_text()
    sections = (DataConfig, PrivacyConfig, RunConfig, DeploymentConfig, *AGGREGATIONS.values())
    keys = {key for named in METHODS.values() for key in settings(named.method)}
    keys |= {field.name for section in sections for field in fields(section) if field.repr}
    keys |= {"min_silos", "identities"}
    assert {key for key in keys if f"`{key}`" not in text} == set()


def test_the_deployment_page_knows_every_key_of_a_policy():
    from dataclasses import fields

    from uldp.runtimes.policy import Policy

    text = (DOCS / "deploy.md").read_text()
    assert {field.name for field in fields(Policy) if f"`{field.name}`" not in text} == set()


def test_the_readme_lists_every_method():
    from uldp.methods.registry import METHODS

    text = (ROOT / "README.md").read_text()
    base = {name for name in METHODS if not name.startswith("uldp-group-")}
    assert {name for name in base if f"`{name}`" not in text} == set()


def test_the_glossary_names_files_that_exist():
    words = (DOCS / "glossary.md").read_text().partition("## Names that changed")[0]
    rows = re.findall(r"^\| .* \| `([a-z_/.]+)` \|$", words, flags=re.M)
    assert len(rows) > 50
    assert [file for file in rows if not (ROOT / "src" / "uldp" / file).exists()] == []


def test_the_example_release_trains_and_is_named(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.chdir(tmp_path)
    arguments = ["run", "--dataset", "breast-cancer", "--method", "own_release:NoisyGradients", "--rounds", "3"]
    result = runner.invoke(app, [*arguments, "--out", "r"])
    assert result.exit_code == 0, result.output
    said = "ASSERTED BY own_release:NoisySiloSum, own_release:NoisyGradients, NOT PROVEN BY uldp"
    assert said in result.stdout
    assert (tmp_path / "r" / "statement.txt").read_text().startswith(said)
