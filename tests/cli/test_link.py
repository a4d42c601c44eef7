"""uldp link, from two tables whose ids have nothing in common to a federation in which a person is one user."""

import json
import tomllib
from functools import partial

import numpy as np
import pytest
from typer.testing import CliRunner

from uldp.cli.app import app
from uldp.experiment.config import Experiment
from uldp.experiment.loading import load_federation, silo_federation
from uldp.runtimes.flower.rehearsal import write_experiment

runner = CliRunner()
NORTH = "id,name,born,age,y\nP-01,O'Neill,01.02.1960,50,0\nP-02,Müller,03.04.1970,40,1\nP-01,ONEILL,01.02.1960,51,1\n"
HARBOUR = "pid,surname,birth,age,y\n77,oneill,1960-02-01,50,0\n78,Roe,1980-01-01,30,1\n79,MULLER,1970-04-03,40,1\n"
EXPERIMENT = """
[data]
silos = ["north.csv", "harbour.csv"]
user = "id"
label = "y"
roster = "links/roster.txt"
test_fraction = 0
[data.ids]
prefixes = ["P-"]
links = "links"
[data.schema.label]
kind = "class"
classes = [0, 1]
[data.schema.columns.age]
kind = "number"
range = [0, 110]
[privacy]
noise_multiplier = 5.0
"""


def uldp(*arguments, code=0):
    result = runner.invoke(app, list(map(str, arguments)))
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "north.csv").write_text(NORTH)
    (tmp_path / "harbour.csv").write_text(HARBOUR)
    (tmp_path / "link.key").write_text("ab" * 32)
    (tmp_path / "e.toml").write_text(EXPERIMENT)
    prepare = partial(uldp, "link", "prepare", "--key", "link.key", "--experiment", "e.toml")
    dates = ("--dates", "%d.%m.%Y")
    prepare("north.csv", "--silo", "north", "--user", "id", "--on", "name+born:date", *dates, "--out", "n.json")
    prepare("harbour.csv", "--silo", "harbour", "--user", "pid", "--on", "surname+birth:date", "--out", "h.json")
    return tmp_path


def accept(silo, user, *more, code=0):
    files = (f"{silo}.csv", f"p/{silo}.proposal.json")
    return uldp("link", "accept", *files, "--user", user, "--key", "link.key", "--out", "links", *more, code=code)


def test_a_person_under_two_ids_becomes_one_user(folder):
    said = json.loads(uldp("link", "match", "n.json", "h.json", "--out", "p", "--json").stdout)
    shared = {"rule": 1, "kinds": "text+date", "silo": "harbour", "other": "north", "people": 2}
    assert said == {"persons": 3, "shared": [shared], "ambiguous": [0]}
    accept("north", "id", "--experiment", "e.toml")
    text = accept("harbour", "pid", "--experiment", "e.toml").stdout
    assert 'links = "links"' in text and "harbour.csv" in text
    assert "neill" not in text and "77" not in text
    (folder / "harbour.csv").write_text(HARBOUR.replace("pid", "id"))
    experiment = Experiment.from_file(folder / "e.toml")
    north, harbour = (silo.users for silo in load_federation(experiment).silos)
    assert north[0] == north[2] == harbour[0] and north[1] == harbour[2]
    assert len({*north, *harbour}) == 3
    # At a silo of its own there are its links, and nobody else's.
    (folder / "links" / "harbour.csv").unlink()
    alone = silo_federation(experiment, "north", folder / "north.csv", None)
    assert np.array_equal(next(silo.users for silo in alone.silos if silo.name == "north"), north)
    # A rehearsal's experiment file lies elsewhere, and finds the links too.
    (folder / "elsewhere").mkdir()
    written = write_experiment(experiment, ("north", "harbour"), folder / "elsewhere")
    assert tomllib.loads(written.read_text())["data"]["ids"]["links"] == str(folder / "links")


def test_somebody_who_came_in_later_is_refused_and_not_shown(folder):
    uldp("link", "match", "n.json", "h.json", "--out", "p")
    accept("north", "id", "--experiment", "e.toml")
    (folder / "north.csv").write_text(NORTH + "P-03,Newcomer,01.01.2000,20,0\n")
    said = uldp("plan", "e.toml", code=2).stderr
    assert "1 ids are not in this silo's file of links (data.ids.links) in column 'id' (first: row 4)" in said
    assert "03" not in said and "Newcomer" not in said


def test_ids_that_the_two_steps_read_otherwise_are_not_in_the_proposal(folder):
    uldp("link", "match", "n.json", "h.json", "--out", "p")
    assert "2 of 2 ids are not in the proposal for silo north" in accept("north", "id", code=2).stderr
    assert not (folder / "links").exists()


def test_what_a_silo_sees_of_its_own_table(folder):
    (folder / "north.csv").write_text(NORTH + "P-03,oneill,01.02.1960,20,0\nP-04,,yesterday,20,0\n")
    said = uldp(
        *(
            "link",
            "prepare",
            "north.csv",
            "--silo",
            "north",
            "--user",
            "id",
            "--key",
            "link.key",
            "--out",
            "again.json",
        ),
        *("--on", "name+born:date", "--dates", "%d.%m.%Y"),
    ).stdout
    assert "are they one person" in said and "4 people" in said
    assert [line.split()[-2:] for line in said.splitlines() if "name+born" in line] == [["1", "1"]]
