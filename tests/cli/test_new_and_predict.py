"""``uldp new`` and ``uldp predict``: what they refuse before they work, and drafts that read back."""

import json
import tomllib

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from uldp.cli.app import app

runner = CliRunner()
ROWS = "".join(f"u{row % 9},{row},{'ab'[row % 2]},{row % 2}\n" for row in range(40))
NEW = ["new", "n", "--user", "id", "--label", "y", "--people", "9"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text(f"id,age,ward,y\n{ROWS}")
    (tmp_path / "nolabel.csv").write_text("id,age,ward\nu1,2,a\n")
    return tmp_path


def call(*arguments):
    result = runner.invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result


def refuse(*arguments, says):
    result = runner.invoke(app, list(arguments))
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    sentence = result.stderr.strip()
    assert "\n" not in sentence
    assert says in sentence
    assert "experiment file" not in sentence


def drafted(*arguments):
    call(*NEW, *arguments)
    with open("n.toml", "rb") as file:
        return tomllib.load(file)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--silo", "a.csv", "--people", "1"], "--people: a whole number from 2 to 1,000,000, not 1"),
        (["--silo", "a.csv", "--people", "-3"], "--people: a whole number from 2 to 1,000,000, not -3"),
        (["--silo", "a.csv", "--label", "id"], "--label: 'id' is the user column"),
        (["--silo", "a.csv", "--test", "gone.csv"], "--test: no file 'gone.csv'"),
        (["--silo", "a.csv", "--test", "nolabel.csv"], "nolabel.csv: no column 'y'"),
        (["--silo", "a.csv", "--silo", "nolabel.csv"], "nolabel.csv: no column 'y'"),
        (["--silo", "gone.csv"], "--silo: no file 'gone.csv'"),
        (["--silo", f"{'x' * 300}.csv"], "--silo: cannot read"),
    ],
)
def test_bad_requests_for_a_draft(folder, arguments, says):
    refuse(*NEW, *arguments, says=says)
    assert not (folder / "n.toml").exists()


@pytest.mark.parametrize(
    ("people", "buckets", "shared", "aggregation"),
    [(9, 90, 10, "lattice"), (1639, 16384, 10, "lattice"), (4096, 16384, 22, "lattice"), (4097, 40970, 10, "masked")],
)
def test_a_draft_hides_record_counts_as_far_as_it_can(folder, people, buckets, shared, aggregation):
    """With so many buckets that lattice does not take them, plan says what is shown."""
    (folder / "b.csv").write_text((folder / "a.csv").read_text())
    tree = drafted("--silo", "a.csv", "--silo", "b.csv", "--suggest", "--people", str(people))
    assert (tree["data"]["users"], tree["data"]["people"]) == (buckets, people)
    said = f"# Ids are hashed into {buckets} buckets; of {people} people about {shared}% share one."
    assert said in (folder / "n.toml").read_text()
    planned = json.loads(call("plan", "n.toml", "--json").stdout)
    chosen, rows = planned["aggregation"], planned["statement"]["exposures"]
    starred = [row["who"] for row in rows if row["sees_counts"]]
    assert chosen["name"] == aggregation
    if aggregation == "lattice":
        assert starred == ["the server and one silo"]
    else:
        assert starred == ["the server", "one silo"]
        assert chosen["reason"].endswith("so the server sees everybody's record counts, and the silos totals")


@pytest.mark.parametrize(("tables", "secrets"), [(["--silo", "a.csv"], "os"), ([], "simulated")])
def test_a_draft_for_own_tables_has_secret_noise(tables, secrets):
    call(*(NEW if tables else ["new", "n"]), *tables)
    with open("n.toml", "rb") as file:
        assert tomllib.load(file)["run"]["secrets"] == secrets


@pytest.mark.parametrize("name", ["x" * 300, "nowhere/n"])
def test_a_draft_that_cannot_be_written(name):
    refuse("new", name, says="cannot be written")


def test_a_column_of_some_silos_only_is_left_out(folder):
    (folder / "b.csv").write_text(f"id,age,sort,y\n{ROWS}")
    tree = drafted("--silo", "a.csv", "--silo", "b.csv")
    assert set(tree["data"]["schema"]["columns"]) == {"age"}
    text = (folder / "n.toml").read_text()
    assert "# left out: ward (is not in every table)" in text
    assert "# left out: sort (is not in every table)" in text
    assert "check every one" in text


@pytest.mark.parametrize("name", ["\U0001f600", "a\x7fb", 'q"q', "\u00fc"])
def test_names_of_any_letters_read_back(folder, name):
    path = folder / f"{name}.csv"
    pd.DataFrame({name: [1, 2], "age": [3, 4], "y": [0, 1]}).to_csv(path, index=False)
    tree = drafted("--silo", path.name, "--test", path.name, "--user", name)
    assert tree["data"]["silos"] == [path.name]
    assert tree["data"]["test"] == path.name
    assert tree["data"]["user"] == name


def test_true_and_one_in_different_silos(folder):
    flags = pa.array([True, False] * 6)
    pq.write_table(pa.table({"id": list(range(12)), "flag": flags, "y": [0, 1] * 6}), "b.parquet")
    (folder / "c.csv").write_text("id,flag,y\n" + "".join(f"{row},{row % 2},0\n" for row in range(12)))
    columns = drafted("--silo", "b.parquet", "--silo", "c.csv", "--suggest")["data"]["schema"]["columns"]
    assert columns["flag"]["categories"] == ["no", "yes"] and columns["flag"]["aliases"]["no"][1:3] == ["false", 0]


def test_predictions_that_cannot_be_written_are_refused_at_once(folder):
    run = folder / "trained"
    call("run", "--dataset", "breast-cancer", "--set", "method.rounds=1", "--out", str(run))
    (folder / "is").mkdir()
    refuse("predict", str(run), "a.csv", "--out", "nodir/p.csv", says="nodir/p.csv: no folder 'nodir'")
    refuse("predict", str(run), "a.csv", "--out", "is", says="is: exists already")
    refuse("predict", str(run), "a.csv", "--out", "x" * 300, says="cannot be written")
    refuse("export", str(run), "--out", "nodir/m.pt", says="nodir/m.pt: no folder 'nodir'")
    refuse("predict", str(run), "gone.csv", says="table: no file 'gone.csv'")
    refuse("predict", str(run), f"{'x' * 300}.csv", says="table: cannot read")
