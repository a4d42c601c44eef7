"""Sizes beyond all reason are refused at once, with the limit; and what else used to end in a traceback."""

import errno
import io
import json
import os
import re
import typing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import uldp
from uldp.cli.app import app
from uldp.data.files import read_table
from uldp.errors import ConfigError, DataError, ModelError
from uldp.learners.models import build_model
from uldp.methods.base import settings
from uldp.methods.registry import METHODS

runner = CliRunner()
SMALL = ["--dataset", "synthetic", "--method", "uldp-avg-w"]
SMALL += ["--set", "data.options.records=200", "--set", "data.users=20"]
TREE = {
    "data": {"dataset": "synthetic", "users": 20, "options": {"records": 200}},
    "method": {"name": "uldp-avg-w", "rounds": 1, "local_epochs": 1},
    "privacy": {"noise_multiplier": 1.0},
}


def refused(*arguments, code=2):
    result = runner.invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    (sentence,) = result.stderr.strip().splitlines()
    return sentence


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("method.rounds=1000000000", "from 1 to 100,000"),
        ("method.local_epochs=1000000000", "from 1 to 10,000"),
        ("model.hidden=[" + "4," * 1000 + "]", "at most 100 layers"),
        ("model.hidden=[100000,100000]", "at most 100,000,000 parameters"),
        ("data.silos=1000000", "from 1 to 10,000"),
        ("method.clip=" + "9" * 5000, "4300 digits"),
        ("method.rounds=0x" + "f" * 5000, "at most 300 digits"),
        ("method.clip=" + "9" * 400, "at most 300 digits"),
        ("model.hidden=" + "[" * 5000 + "]" * 5000, "32 deep"),
        ("model." + "a." * 5000 + "b=1", "32 deep"),
    ],
)
def test_a_setting_beyond_its_limit(tmp_path, monkeypatch, setting, says):
    monkeypatch.chdir(tmp_path)
    for command in ("plan", "run"):
        assert says in refused(command, *SMALL, "--set", "model.name=mlp", "--set", setting)
    assert not list(tmp_path.iterdir())


def test_every_whole_number_of_every_method_has_a_limit():
    free = {"max_records", "precision", "groups"}  # judged when the modulus, or the grid, is known
    checked = 0
    for name, named in METHODS.items():
        hints = typing.get_type_hints(named.method)
        for key in settings(named.method):
            if hints[key] in (int, int | str) and key not in {*named.fixed, *free}:
                with pytest.raises(ConfigError) as refusal:
                    named.method(**{**named.fixed, key: 10**18})
                assert refusal.value.location == f"method.{key}", (name, key)
                checked += 1
    assert checked > 40


def test_the_limits_stand_in_the_docs():
    from uldp import limits

    text = Path(__file__).parents[2].joinpath("docs", "experiment-file.md").read_text()
    table = text[text.index("## Limits") :]
    shown = {int(number.replace(",", "")) for number in re.findall(r"\| ([0-9,]+) \|", table)}
    assert shown == {value for name, value in vars(limits).items() if name.startswith("MAX_")}


def test_a_model_that_is_too_large_is_refused_before_it_takes_memory(monkeypatch):
    from torch import nn

    def never(*_):
        raise AssertionError("numbers were drawn")

    monkeypatch.setattr(nn.Linear, "reset_parameters", lambda self: None if self.weight.is_meta else never())
    with pytest.raises(ModelError, match=r"at most 100,000,000 parameters, not 10,000,\d+"):
        build_model("mlp", (4,), uldp.Task(2), {"hidden": [100_000, 100_000]})


@pytest.mark.parametrize("leaving", ["sys.exit(0)", "raise GeneratorExit", "raise type('Own', (BaseException,), {})"])
@pytest.mark.parametrize("where", ["def make(shape, task): {}", "{}\ndef make(shape, task): pass"])
def test_code_that_leaves_is_no_success(tmp_path, monkeypatch, leaving, where):
    name = f"leaving_{len(leaving)}_{len(where)}"
    (tmp_path / f"{name}.py").write_text("import sys\n" + where.format(leaving))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    sentence = refused("run", *SMALL, "--set", f"model.name={name}:make")
    assert "model.name" in sentence
    assert not (tmp_path / "runs").exists()


def test_code_that_leaves_while_it_trains_is_no_success(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def leave(*_, **__):
        raise SystemExit(0)

    monkeypatch.setattr("uldp.runtimes.simulation.InProcessSilos.responses", leave)
    assert "SystemExit" in refused("run", *SMALL)


@pytest.mark.parametrize("when", ["start", "responses"])
def test_without_memory_there_is_a_sentence_and_nothing_else(tmp_path, monkeypatch, when):
    monkeypatch.chdir(tmp_path)

    def lacks(*_, **__):
        raise MemoryError

    monkeypatch.setattr(f"uldp.runtimes.simulation.InProcessSilos.{when}", lacks)
    assert "not enough memory" in refused("run", *SMALL)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("where", ["uldp.experiment.build.prepare", "uldp.runs.records.RunState.save_checkpoint"])
def test_ctrl_c_before_anything_was_started_says_so(tmp_path, monkeypatch, where):
    monkeypatch.chdir(tmp_path)

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(where, stop)
    assert refused("run", *SMALL, code=130) == "stopped; nothing was started."
    assert not list(tmp_path.iterdir())


def test_records_in_the_wrong_place_are_not_printed():
    people = pd.DataFrame({"id": ["patient-7731"], "age": [7731]})
    for silos in ([people], people, [people.to_dict()], [[["patient-7731"]]], np.full((2, 2), 7731)):
        data = {"silos": silos, "user": "id", "label": "y", "users": 20}
        with pytest.raises(ConfigError) as refusal:
            uldp.Experiment.from_tree({**TREE, "data": data})
        assert "7731" not in str(refusal.value)
        assert "7731" not in json.dumps(refusal.value.to_json())
    with pytest.raises(ConfigError, match=r"a DataFrame of shape \(1, 2\)"):
        uldp.Experiment.from_tree({**TREE, "data": {**TREE["data"], "silos": people}})


def test_a_cell_that_is_refused_is_not_printed(tmp_path):
    from uldp.data.schema import Schema

    columns = {"age": {"kind": "number", "range": [0, 9]}, "ward": {"kind": "category", "categories": ["a"]}}
    schema = Schema.from_dict({"columns": columns, "label": {"kind": "class", "classes": [0, 1]}}, label="y")
    (tmp_path / "t.csv").write_text("age,ward,y\n7731,x7731,z7731\n")
    table = read_table(tmp_path / "t.csv", "data.silos")
    for encode in (schema.features, schema.labels):
        with pytest.raises(DataError, match="first: row 1") as refusal:
            encode(table, "t.csv")
        assert "7731" not in str(refusal.value)


def test_a_run_directory_may_be_a_path(tmp_path):
    result = uldp.train(uldp.Experiment.from_tree(TREE), directory=tmp_path / "run")
    assert uldp.resume(tmp_path / "run").metrics == result.metrics


def test_a_finished_run_on_a_read_only_disk_can_be_shown(tmp_path, monkeypatch):
    run = tmp_path / "run"
    uldp.train(uldp.Experiment.from_tree(TREE), directory=run)
    shown = runner.invoke(app, ["resume", str(run), "--json"])
    real_open, real_io = os.open, io.open

    def read_only(path, flags, *rest, **named):
        if str(path).startswith(str(run)) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return real_open(path, flags, *rest, **named)

    def read_only_io(file, mode="r", *rest, **named):
        if str(file).startswith(str(run)) and set(mode) & set("wax+"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(file))
        return real_io(file, mode, *rest, **named)

    monkeypatch.setattr(os, "open", read_only)
    monkeypatch.setattr(io, "open", read_only_io)
    again = runner.invoke(app, ["resume", str(run), "--json"])
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout) == json.loads(shown.stdout)
    (run / "result.json").unlink()  # a run that is not finished has to be written to
    assert "Read-only file system" in refused("resume", str(run))


def test_the_settings_of_a_name_are_its_own():
    listed = {one["name"]: one["settings"] for one in json.loads(runner.invoke(app, ["methods", "--json"]).stdout)}
    assert listed["uldp-avg-w"]["weighting"] == "records"
    assert listed["uldp-avg"]["weighting"] == "uniform"
    for name, named in METHODS.items():
        assert {key: listed[name][key] for key in named.fixed} == dict(named.fixed)
        tree = {"data": TREE["data"], "method": {"name": name, **listed[name]}, "privacy": {"epsilon": 1.0}}
        uldp.Experiment.from_tree(tree)


@pytest.mark.parametrize("name", ["", ".toml", " ", "folder/", "."])
def test_a_file_needs_a_name(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert "NAME" in refused("new", name)
    assert not list(tmp_path.iterdir())


def test_columns_that_nobody_asked_for_are_not_read(tmp_path):
    many = 100_000
    header = "".join(f",c{number}" for number in range(many))
    (tmp_path / "t.csv").write_text(f"id,age{header}\nu1,3{',x' * many}\nu2,4\n")
    table = read_table(tmp_path / "t.csv", "data.silos", {"age", "id", "gone"})
    assert table.to_dict("list") == {"id": ["u1", "u2"], "age": ["3", "4"]}
    with pytest.raises(DataError, match="at most 10,000"):
        read_table(tmp_path / "t.csv", "--silo")


@pytest.mark.parametrize("row", ['u2,4,"x\nu3,5,y"', "u2,4,x,y", 'u2,4,"x'])
def test_columns_that_nobody_asked_for_still_swallow_no_rows(tmp_path, row):
    (tmp_path / "t.csv").write_text(f"id,age,note\nu1,3,x\n{row}\n")
    with pytest.raises(DataError, match="row 2"):
        read_table(tmp_path / "t.csv", "data.silos", {"id", "age"})


@pytest.mark.parametrize(
    "arguments", [["methods", "extra"], ["plan", "--nonsense", "--json"], ["epsilon", "--rounds", "x"]]
)
def test_errors_of_usage_are_one_sentence_too(arguments):
    assert refused(*arguments).startswith("error: command line: ")
