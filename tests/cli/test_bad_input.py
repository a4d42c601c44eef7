"""Bad input through the command line: exit 2, one sentence that names place and value, nothing written."""

import json

import pytest
from typer.testing import CliRunner

from uldp.cli.app import app

runner = CliRunner()

BASE = """
[data]
silos = ["a.csv", "b.csv"]
user = "id"
label = "y"
users = 20
test = "t.csv"
[data.schema.label]
kind = "class"
classes = [0, 1]
[data.schema.columns.age]
kind = "number"
range = [0, 100]
[data.schema.columns.ward]
kind = "category"
categories = ["a", "b"]
[method]
name = "uldp-avg-w"
rounds = 1
local_epochs = 1
[privacy]
noise_multiplier = 5.0
"""
ROWS = [("u1", 30, "a", 0), ("u2", 40, "b", 1), ("u3", 50, "a", 1), ("u1", 60, "b", 0)]


def table(rows=ROWS, header="id,age,ward,y"):
    return "\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.csv", "b.csv", "t.csv"):
        (tmp_path / name).write_text(table())
    (tmp_path / "e.toml").write_text(BASE)
    return tmp_path


def refuse(folder, *arguments, says, code=2):
    before = sorted(path.name for path in folder.rglob("*"))
    result = runner.invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    assert sorted(path.name for path in folder.rglob("*")) == before, "something was written"
    assert "Traceback" not in result.output
    sentence = result.stderr.strip().splitlines()
    assert len(sentence) == 1, result.stderr
    for part in says:
        assert part in sentence[0], sentence[0]
    if "--json" in arguments:
        error = json.loads(result.stdout)["error"]
        assert set(error) == {"location", "value", "message"}
    return result


def test_the_base_case_is_good(folder):
    result = runner.invoke(app, ["run", "e.toml", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["rounds"] == 1


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("method.name=uldp-mean", ["method.name", "uldp-mean", "uldp-avg-w"]),
        ("method.name=nopackage:Method", ["method.name", "nopackage"]),
        ("method.name=math:pi", ["method.name", "subclass"]),
        ("method.clipp=1", ["method", "clipp", "Did you mean 'clip'"]),
        ("methods.clip=1", ["methods"]),
        ("method.clip=-1", ["method.clip", "-1"]),
        ("method.clip=nan", ["method.clip", "nan"]),
        ("method.clip=inf", ["method.clip", "inf"]),
        ("method.clip=wide", ["method.clip", "wide"]),
        ("method.rounds=0", ["method.rounds", "0"]),
        ("method.rounds=1.5", ["method.rounds", "1.5"]),
        ("method.local_lr=-0.1", ["method.local_lr", "-0.1"]),
        ("method.optimizer=lbfgs", ["method.optimizer", "lbfgs", "adam"]),
        ("method.momentum=1", ["method.momentum", "from 0 to below 1"]),
        ("method.momentum=-0.1", ["method.momentum", "-0.1"]),
        ("method.momentum=nan", ["method.momentum", "nan"]),
        ("method.sample_rate=0", ["method.sample_rate"]),
        ("method.sample_rate=nan", ["method.sample_rate", "nan"]),
        ("method.weighting=uniform", ["method.weighting", "uldp-avg-w means"]),
        ("privacy.noise_multiplier=-5", ["privacy.noise_multiplier", "-5"]),
        ("privacy.noise_multiplier=nan", ["privacy.noise_multiplier", "nan"]),
        ("privacy.noise_multiplier=1e-9", ["privacy.noise_multiplier", "from 64 up"]),
        ("privacy.delta=2", ["privacy.delta", "2"]),
        ("privacy.epsilon=0", ["privacy.epsilon", "0"]),
        ("privacy.epsillon=1", ["epsillon", "Known keys: delta, dropout_tolerance, epsilon, noise_multiplier"]),
        ("privacy.compensate=1", ["privacy.compensate", "is called privacy.dropout_tolerance now"]),
        ("privacy.dropout_tolerance=-1", ["privacy.dropout_tolerance", "-1"]),
        ("method.name=default", ["method.name", "'default' is called 'fedavg' now"]),
        ("method.name=local-sub-dp-published", ["method.name", "no guarantee", "`uldp published local-sub-dp`"]),
        ("aggregation.name=magic", ["aggregation.name", "magic", "plain"]),
        ("run.seed=-1", ["run.seed", "-1"]),
        ("run.dtype=float16", ["run.dtype", "float16"]),
        ("run.device=abacus", ["run.device", "abacus"]),
        ("model.name=bert", ["model.name", "bert"]),
        ("model.hiden=3", ["hiden"]),
        ('data.silos=["a.csv", "nowhere.csv"]', ["nowhere.csv"]),
        ("data.user=person", ["person", "a.csv"]),
        ("data.label=outcome", ["outcome", "a.csv"]),
        ("data.test=gone.csv", ["gone.csv"]),
        ("data.users=2", ["2", "3"]),
        ("data.users=1", ["data.users", "1"]),
        ("data.users=1000000000000", ["data.users", "to 10,000,000"]),
        ("data.allocation=zipf", ["data.allocation", "zipf"]),
        ("data.dataset=digits", ["data"]),
        ("data.schema.columns.id.kind=number", ["id"]),
        ("data.schema.columns.age.range=[10]", ["age", "range"]),
        ("data.schema.columns.height={kind='number', range=[0,3]}", ["height", "a.csv"]),
        ("data.schema.label={kind='number', range=[0, 1]}", []),
        ("nonsense", ["--set", "section.key=value"]),
    ],
)
def test_settings(folder, override, says):
    if "label={" in override:
        (folder / "a.csv").write_text(table([("u1", 30, "a", "sick"), ("u2", 40, "b", "well")]))
        says = ["y", "a.csv"]
    refuse(folder, "run", "e.toml", "--set", override, says=says)


def test_both_and_neither_of_epsilon_and_noise(folder):
    text = (folder / "e.toml").read_text()
    (folder / "e.toml").write_text(text.replace("noise_multiplier = 5.0", "noise_multiplier = 5.0\nepsilon = 1.0"))
    refuse(folder, "run", "e.toml", "--json", says=["privacy", "exactly one"])
    (folder / "e.toml").write_text(text.replace("noise_multiplier = 5.0", ""))
    refuse(folder, "run", "e.toml", says=["privacy", "exactly one"])


def test_a_missing_or_broken_experiment_file(folder):
    refuse(folder, "run", "nothing.toml", says=["nothing.toml", "uldp new"])
    (folder / "e.toml").write_text("[data\n")
    refuse(folder, "run", "e.toml", says=["e.toml", "TOML"])
    refuse(folder, "run", says=["--dataset"])
    refuse(folder, "run", "--dataset", "mnistt", says=["mnistt", "digits"])


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([("u1", 130, "a", 0), *ROWS], ["age", "1", "a.csv"]),
        ([("u1", 30, "z", 0), *ROWS], ["ward", "a.csv"]),
        ([("u1", "", "a", 0), *ROWS], ["age", "missing"]),
        ([("u1", 30, "", 0), *ROWS], ["ward", "missing"]),
        ([("u1", "old", "a", 0), *ROWS], ["age", "a.csv"]),
        ([("", 30, "a", 0), *ROWS], ["id", "a.csv"]),
        ([("u1", 30, "a", 2), *ROWS], ["y", "a.csv"]),
        ([], ["a.csv", "no rows"]),
    ],
)
def test_tables(folder, rows, says):
    (folder / "a.csv").write_text(table(rows))
    refuse(folder, "run", "e.toml", says=says)


def test_one_user_only(folder):
    for name in ("a.csv", "b.csv"):
        (folder / name).write_text(table([("u1", 30, "a", 0), ("u1", 31, "b", 1)]))
    refuse(folder, "run", "e.toml", says=["user"])


def test_a_run_directory_that_exists(folder):
    (folder / "old").mkdir()
    (folder / "old" / "x").write_text("")
    refuse(folder, "run", "e.toml", "--out", "old", says=["old", "exists"])


def test_commands_on_what_is_no_run(folder):
    refuse(folder, "resume", "nowhere", says=["nowhere", "not a run directory"])
    refuse(folder, "predict", "nowhere", "a.csv", says=["nowhere"])
    refuse(folder, "export", "nowhere", says=["nowhere"])


def test_a_model_with_batch_norm_is_refused_with_the_remedy(folder):
    (folder / "mynet.py").write_text(
        "from torch import nn\n"
        "def make(shape, task):\n"
        "    return nn.Sequential(nn.Linear(shape[0], 4), nn.BatchNorm1d(4), nn.Linear(4, 2))\n"
    )
    import sys

    sys.path.insert(0, str(folder))
    try:
        refuse(folder, "run", "e.toml", "--set", "model.name=mynet:make", says=["BatchNorm", "GroupNorm"])
        refuse(folder, "run", "e.toml", "--set", "model.name=mynet:absent", says=["absent"])
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("mynet", None)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["epsilon", "--noise-multiplier", "-1", "--rounds", "5"], ["--noise-multiplier", "-1"]),
        (["epsilon", "--noise-multiplier", "5", "--rounds", "0"], ["rounds", "0"]),
        (["epsilon", "--noise-multiplier", "5", "--rounds", "5", "--delta", "0"], ["delta"]),
        (
            ["epsilon", "--noise-multiplier", "5", "--rounds", "5", "--set", "method.sample_rate=2"],
            ["method.sample_rate", "2"],
        ),
        (["epsilon", "--noise-multiplier", "5", "--rounds", "5", "--method", "magic"], ["magic"]),
        (["sigma", "--epsilon", "0", "--rounds", "5"], ["epsilon", "0"]),
        (["sigma", "--epsilon", "1", "--rounds", "5", "--method", "fedavg"], ["fedavg"]),
        (["plan", "gone.toml"], ["gone.toml"]),
        (["new", "e"], ["e.toml", "exists"]),
        (["new", "n", "--silo", "a.csv"], ["--user"]),
        (["new", "n", "--silo", "gone.csv", "--user", "id", "--label", "y", "--people", "9"], ["gone.csv"]),
        (["new", "n", "--silo", "a.csv", "--user", "who", "--label", "y", "--people", "9"], ["who"]),
    ],
)
def test_other_commands(folder, arguments, says):
    refuse(folder, *arguments, says=says)
    refuse(folder, *arguments, "--json", says=says)


def test_no_noise_is_allowed_and_said_loudly(folder):
    result = runner.invoke(app, ["run", "e.toml", "--set", "privacy.noise_multiplier=0"])
    assert result.exit_code == 0
    assert "NO PRIVACY" in result.stderr
    assert "NO PRIVACY" in result.stdout
    document = json.loads(
        runner.invoke(app, ["plan", "e.toml", "--set", "privacy.noise_multiplier=0", "--json"]).stdout
    )
    assert document["epsilon"] is None
