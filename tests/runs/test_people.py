"""``uldp total`` recognises people by their ids, not by paths: what cannot be told apart for sure is added up."""

import json
import os
import shutil
import threading
from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from uldp.cli.app import app
from uldp.data.federation import People
from uldp.data.tables import table_digest
from uldp.methods.uldp_avg import UldpAvg
from uldp.privacy.accountants import account
from uldp.privacy.events import Gaussian
from uldp.runs.directory import RunDirectory
from uldp.runs.people import digests_of, owner_key, stored_people
from uldp.runs.records import RunState

runner = CliRunner()
SETTINGS = """
[data]
silos = ["a.csv", "b.csv"]
user = "patient"
label = "outcome"
users = 400
test_fraction = 0.3
[data.schema.label]
kind = "class"
classes = [0, 1]
[data.schema.columns.age]
kind = "number"
range = [0, 200]
[data.schema.columns.dose]
kind = "number"
range = [-10, 10]
[method]
name = "uldp-avg"
rounds = 1
[privacy]
noise_multiplier = 5.0
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def records(first, number=25):
    """Records of people ``first`` to ``first + number - 1``."""
    people = range(first, first + number)
    rows = [(f"p{i:03}", 20 + i % 90, round(((i * 37) % 101) / 7 - 7, 3), i % 2) for i in people]
    return pd.DataFrame(rows, columns=["patient", "age", "dose", "outcome"])


def tables(name, one, other, settings=SETTINGS):
    """An experiment in a folder of its own."""
    os.mkdir(name)
    for file, frame in (("a.csv", one), ("b.csv", other)):
        frame.to_csv(f"{name}/{file}", index=False)
    with open(f"{name}/experiment.toml", "w") as file:
        file.write(settings)


def run(name, *more, out=None):
    out = out or name
    arguments = ["run", f"{name}/experiment.toml", "--out", f"runs/{out}", *more]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result


def totals():
    """How many runs are added up in each total, and its epsilon."""
    result = runner.invoke(app, ["total", "runs", "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["totals"]


def sizes():
    return sorted(len(one["runs"]) for one in totals())


def as_it_is(frame):
    return frame


def shuffled(frame):
    return frame.sample(frac=1, random_state=1)[frame.columns[::-1]]


def appended(frame):
    return pd.concat([frame, records(300, 1)])


def respelled(frame):
    return frame.assign(patient=" " + frame.patient.str.upper())


def other_ids(frame):
    return frame.assign(patient=[f"x{i}" for i in range(len(frame))])


def one_person_left(frame):
    """Somebody else's records, but for one row."""
    return pd.concat([records(200), frame.head(1)])


@pytest.mark.parametrize("change", [as_it_is, shuffled, appended, respelled, other_ids, one_person_left])
def test_copies_of_tables_are_about_the_same_people(change):
    tables("one", records(0), records(20))
    tables("two", change(records(0)), change(records(20)) if change is not one_person_left else records(230))
    run("one")
    run("two")
    (total,) = totals()
    assert total["epsilon"] == pytest.approx(account({Gaussian(5.0): 2}, 1e-5).value)
    assert total["doubts"] == []


def test_other_formats_settings_and_indices_make_no_other_people(folder):
    tables("one", records(0), records(20))
    run("one")
    os.mkdir("two")
    for name, first in (("a", 0), ("b", 20)):
        records(first).to_parquet(f"two/{name}.parquet")
    (folder / "two" / "experiment.toml").write_text(SETTINGS.replace(".csv", ".parquet"))
    run("two")
    roster = "\n".join(f"P{i:03}" for i in range(60))
    (folder / "one" / "roster.txt").write_text(roster)
    listed = SETTINGS.replace("users = 400", 'roster = "roster.txt"')
    (folder / "one" / "listed.toml").write_text(listed)
    shutil.copy(folder / "one" / "listed.toml", folder / "one" / "experiment.toml")
    run("one", out="roster")
    (folder / "one" / "experiment.toml").write_text(SETTINGS)
    run("one", "--set", "run.seed=7", "--set", "method.clip=0.3", "--set", "data.users=900", out="seed")
    labelled = records(0).rename(columns={"outcome": "other"}).assign(outcome=0, other=1)
    tables("three", labelled, labelled.head(3), SETTINGS.replace('label = "outcome"', 'label = "other"'))
    run("three")
    (total,) = totals()
    assert total["epsilon"] == pytest.approx(account({Gaussian(5.0): 5}, 1e-5).value)
    assert total["doubts"] == []


def test_other_people_have_a_total_of_their_own():
    tables("one", records(0), records(20))
    tables("two", records(100), records(120))
    run("one")
    run("two")
    assert sizes() == [1, 1]
    shown = " ".join(runner.invoke(app, ["total", "runs"]).stdout.split())
    assert "A person who has another id in other tables is not recognised" in shown
    # the chain of runs counts: somebody is in one and three, somebody else in two and three
    tables("three", records(10, 100), records(10, 100))
    run("three")
    assert sizes() == [3]


def doubtful(says):
    (total,) = totals()
    assert len(total["runs"]) == 2 and any(says in why for why in total["doubts"])
    assert total["epsilon"] == pytest.approx(account({Gaussian(5.0): 2}, 1e-5).value)
    shown = " ".join(runner.invoke(app, ["total", "runs"]).stdout.split())
    assert "added up because nobody knows that they are about different people" in shown


@pytest.mark.parametrize("damage", ["gone", "folder gone", "cut", "flipped", "empty"])
def test_without_whole_digests_nobody_is_told_apart(folder, damage):
    for name, first in (("one", 0), ("two", 100)):
        tables(name, records(first), records(first + 20))
        run(name)
    file = folder / "runs" / "one" / "private" / "people.bin"
    data = file.read_bytes()
    match damage:
        case "gone":
            file.unlink()
        case "folder gone":
            shutil.rmtree(file.parent)
        case "cut":
            file.write_bytes(data[:-16])
        case "flipped":
            file.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
        case "empty":
            file.write_bytes(b"")
    doubtful("has no (or damaged) digests")


def test_digests_of_different_keys_cannot_be_compared(folder, monkeypatch):
    for name, first in (("one", 0), ("two", 100)):
        tables(name, records(first), records(first + 20))
        monkeypatch.setenv("ULDP_STATE", str(folder / f"state-{name}"))
        run(name)
    doubtful("different keys")


def test_ids_of_another_column_cannot_be_compared():
    tables("one", records(0), records(20))
    frames = [records(first).rename(columns={"patient": "insured"}) for first in (100, 120)]
    tables("two", *frames, SETTINGS.replace('user = "patient"', 'user = "insured"'))
    run("one")
    run("two")
    doubtful("columns of different names")


def test_a_named_population_is_one_population():
    for name, first in (("one", 0), ("two", 100)):
        tables(name, records(first), records(first + 20))
    run("one", "--set", "data.population=Trial 7")
    run("two", "--set", "data.population=trial  7")
    assert sizes() == [2]
    # another name proves nothing: the ids do
    run("one", "--set", "data.population=other", out="three")
    assert sizes() == [3]
    refused = runner.invoke(app, ["plan", "one/experiment.toml", "--set", "data.population= "])
    assert refused.exit_code == 2 and "data.population" in refused.stderr


def test_clients_are_never_told_apart_by_their_people():
    for name, first in (("one", 0), ("two", 100)):
        tables(name, records(first), records(first + 20), SETTINGS.replace("noise_multiplier = 5.0", ""))
        run(name, "--method", "ldp-fedavg")
    (total,) = totals()
    assert len(total["clients"]["runs"]) == 2 and any("protect clients" in why for why in total["doubts"])


def test_built_in_data_are_one_population_by_name():
    small = ["--set", "data.users=20", "--set", "method.rounds=1"]
    for number, (name, seed) in enumerate((("breast-cancer", 0), ("breast-cancer", 1), ("digits", 0))):
        arguments = ["run", "--dataset", name, *small, "--set", f"run.seed={seed}", "--out", f"runs/{number}"]
        assert runner.invoke(app, arguments).exit_code == 0
    tables("one", records(0), records(20))
    run("one")
    assert sizes() == [1, 1, 2]


def test_a_data_set_that_is_read_from_files_may_be_about_anybody(folder):
    tables("one", records(0), records(20))
    run("one")
    shutil.copytree(folder / "runs" / "one", folder / "runs" / "two")
    settings = folder / "runs" / "two" / "experiment.json"
    tree = json.loads(settings.read_text())
    settings.write_text(json.dumps({**tree, "data": {"dataset": "heart-disease"}}))
    doubtful("from files that may be about these people")


def test_without_a_key_it_is_said_once_and_the_run_is_added_up(folder, monkeypatch, caplog):
    (folder / "file").write_text("")
    for name, first in (("one", 0), ("two", 100)):
        tables(name, records(first), records(first + 20))
    monkeypatch.setenv("ULDP_STATE", str(folder / "file"))
    run("one")
    run("two")
    (said,) = caplog.messages
    assert said.startswith("`uldp total` will not know this run's people") and str(folder / "file") in said
    doubtful("has no (or damaged) digests")


def test_what_a_start_that_was_cut_short_left_behind_does_not_count(folder, monkeypatch):
    tables("one", records(0), records(20))
    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "discard_unless_started", lambda self: nullcontext())  # as after kill -9
        patch.setattr(RunState, "save_checkpoint", lambda self, checkpoint: (_ for _ in ()).throw(KeyboardInterrupt))
        result = runner.invoke(app, ["run", "one/experiment.toml", "--out", "runs/one"])
        assert result.exit_code == 130 and stored_people(RunDirectory("runs/one")) is not None
    records(100).to_csv("one/a.csv", index=False)
    records(120).to_csv("one/b.csv", index=False)
    monkeypatch.setenv("ULDP_STATE", str(folder / "one" / "a.csv"))
    assert runner.invoke(app, ["resume", "runs/one"]).exit_code == 0
    assert stored_people(RunDirectory("runs/one")) is None


def test_digests_are_for_the_owner_only_and_tell_nothing_without_the_key(folder, state):
    tables("one", records(0), records(20))
    run("one")
    file = folder / "runs" / "one" / "private" / "people.bin"
    key = state / "people.key"
    for private in (file, key, key.parent, file.parent):
        assert private.stat().st_mode & 0o077 == 0
    found, everybody = stored_people(RunDirectory("runs/one")), {f"p{i:03}" for i in range(45)}
    expected = digests_of(People(frozenset(everybody), frozenset()), key.read_bytes())
    assert found.ids == expected.ids and len(found.ids) == 8 * 45
    other = digests_of(People(frozenset(everybody), found.tables), bytes(32))
    assert not other.shares_ids(found) and not other.tables & found.tables and other.key != found.key
    # nothing of it is in a file that may be shown, nor the key anywhere in the run
    for shown in (path for path in (folder / "runs" / "one").rglob("*") if path.is_file()):
        data = shown.read_bytes()
        assert key.read_bytes() not in data and b"p007" not in data
        if shown != file:
            assert found.ids[:8] not in data and found.key not in data


def test_two_processes_that_make_the_key_at_once_have_the_same(folder, monkeypatch):
    monkeypatch.setenv("ULDP_STATE", str(folder / "new"))
    keys = []
    threads = [threading.Thread(target=lambda: keys.append(owner_key())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 8 and len(set(keys)) == 1 and len(keys[0]) == 32
    assert os.listdir(folder / "new") == ["people.key"]


def test_a_tables_digest_does_not_depend_on_any_order():
    features = np.arange(12, dtype=np.float32).reshape(4, 3)
    one = table_digest(["a", "b", "c"], features)
    assert one == table_digest(["c", "b", "a"], features[[2, 0, 3, 1]][:, ::-1])
    assert one != table_digest(["a", "b", "d"], features)
    assert one != table_digest(["a", "b", "c"], features[:3])


def test_runs_behind_links_and_inside_of_runs_count_too(folder):
    tables("one", records(0), records(20))
    run("one")
    run("one", out="one/again")
    os.rename("runs", "elsewhere")
    os.mkdir("runs")
    os.symlink("../elsewhere/one", "runs/linked")
    os.symlink("../../runs", "elsewhere/one/back")  # a circle ends
    [found] = totals()
    assert len(found["runs"]) == 2


def test_a_folder_that_cannot_be_searched_is_no_total(folder, monkeypatch):
    tables("one", records(0), records(20))
    run("one")
    inside = os.scandir

    def scandir(path):
        if str(path).endswith("private"):
            raise PermissionError(13, "Permission denied", str(path))
        return inside(path)

    monkeypatch.setattr(os, "scandir", scandir)
    result = runner.invoke(app, ["total", "runs"])
    assert result.exit_code == 2 and "private: cannot be read" in result.stderr


def unfinish(name):
    """Take from a run what only a finished one has."""
    for file in ("statement.json", "result.json"):
        os.remove(f"runs/{name}/{file}")


@pytest.mark.parametrize("unit", ["record", None])
def test_an_unfinished_run_of_a_method_without_a_guarantee_is_without_bound(folder, monkeypatch, unit):
    tables("one", records(0), records(20))
    run("one")
    unfinish("one")
    assert totals()[0]["epsilon"] is not None
    monkeypatch.setattr(UldpAvg, "privacy_unit", unit)
    assert totals()[0]["epsilon"] is None


def test_an_unfinished_run_on_data_without_a_guarantee_is_without_bound(folder):
    tables("one", records(0), records(20), SETTINGS + '[data.schema]\nstandardise = "silo"\n')
    run("one")
    assert totals()[0]["epsilon"] is None
    unfinish("one")
    assert totals()[0]["epsilon"] is None


def test_a_population_has_one_name_in_all_unicode_forms(folder):
    for name, people, form in (("one", 0, "Z\u00fcrich"), ("two", 200, "zu\u0308rich ")):
        tables(
            name, records(people), records(people + 50), SETTINGS.replace("[data]", f'[data]\npopulation = "{form}"')
        )
        run(name)
    assert len(totals()) == 1
