"""``uldp data``: one sentence and exit code 2 for bad input, one JSON document with --json, a card and a picture."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from uldp.cli.data import data
from uldp.data import builtin
from uldp.data.store import DataFile, DataFiles

RUN = CliRunner()
NAMES = [name for name, dataset in builtin.datasets().items() if dataset.files is not None]


def call(*arguments):
    return RUN.invoke(data, [*map(str, arguments)])


@pytest.mark.parametrize("command", ["describe", "check"])
@pytest.mark.parametrize("name", NAMES)
def test_absent_data(command, name, tmp_path):
    done = call(command, name, "--data-dir", tmp_path)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: data.dataset: {name} is not here: no ")
    assert done.stderr.count("\n") == 1
    as_json = call(command, name, "--data-dir", tmp_path, "--json")
    assert as_json.exit_code == 2
    assert json.loads(as_json.stdout)["error"]["value"] == name


@pytest.mark.parametrize("command", ["describe", "check", "fetch"])
def test_unknown_name(command):
    done = call(command, "iris")
    assert done.exit_code == 2
    assert "unknown data set 'iris'. Known: breast-cancer" in done.stderr


def test_describe(small, tmp_path):
    out = tmp_path / "pictures" / "users.png"
    settings = ("--users", 20, "--data-dir", small, "--out", out)
    done = call("describe", "heart-disease", *settings)
    assert done.exit_code == 0, done.stderr
    for text in ("cholesterol 0 means missing", "CC BY 4.0", "switzerland", "records per user: min", str(out)):
        assert text in " ".join(done.stdout.split())
    assert out.read_bytes().startswith(b"\x89PNG")
    card = json.loads(call("describe", "tcga-brca", *settings, "--json").stdout)
    assert card["task"] == "survival"
    assert card["users"] == 20 and card["users_without_records"] == 0
    assert card["records_per_user_and_silo"]["min"] >= 2
    assert sum(silo["records"] for silo in card["silos"]) == card["records"]
    assert set(card["silos"][0]["labels"]) == {"event", "censored"}
    assert card["picture"] == str(out)


def test_describe_draws_into_the_current_folder(small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call("describe", "creditcard", "--users", 5, "--silos", 2, "--data-dir", small).exit_code == 0
    assert (tmp_path / "creditcard-users.png").exists()


def test_describe_what_needs_no_files(tmp_path):
    done = call("describe", "digits", "--allocation", "non-iid", "--out", tmp_path / "a.png", "--json")
    assert json.loads(done.stdout)["allocation"] == "non-iid"
    assert call("check", "digits").stdout == "digits needs no files.\n"
    assert json.loads(call("fetch", "digits", "--json").stdout) == {"dataset": "digits", "files": []}


def test_describe_refuses(small, tmp_path):
    done = call("describe", "heart-disease", "--silos", 3, "--data-dir", small)
    assert (done.exit_code, "heart-disease has 4 silos of its own, not 3" in done.stderr) == (2, True)
    done = call("describe", "digits", "--out", tmp_path / "a.nonsense")
    assert (done.exit_code, "--out: '.nonsense' is no kind of picture" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--users", 10**11), "data.users: a whole number from 2 to 10,000,000, not 100000000000"),
        (("--silos", 10**9), "data.silos: a whole number from 1 to 10,000, not 1000000000"),
        (("--users", 10**7, "--silos", 50), "data.silos: at most 5 with 10,000,000 users, not 50"),
        (("--out", f"{'x' * 300}.png"), "--out: cannot write the picture"),
    ],
)
def test_describe_refuses_what_does_not_fit(arguments, text):
    done = call("describe", "digits", *arguments)
    assert done.exit_code == 2
    assert text in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_home_that_nobody_has():
    done = call("describe", "mnist", "--data-dir", "~nosuchuser/x")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "--data-dir: no home folder is known" in done.stderr


def test_check_says_what_is_not_the_known_file(small):
    done = call("check", "tcga-brca", "--data-dir", small)
    assert done.exit_code == 2
    assert "not the known file: brca.csv, train_test_split.csv; take it away and" in done.stderr
    assert f"`uldp data fetch tcga-brca --data-dir {small}`" in done.stderr


def test_fetch_and_check(tmp_path, monkeypatch):
    mnist = builtin.dataset("mnist")
    without = DataFiles("mnist", "mnist", ((DataFile("mnist.npz", "http://127.0.0.1:9/mnist.npz"),),))
    monkeypatch.setattr(builtin, "datasets", lambda: {"mnist": replace(mnist, files=without)})
    done = call("fetch", "mnist", "--data-dir", tmp_path, "--json")
    assert done.exit_code == 2
    assert "no download from http://127.0.0.1:9/mnist.npz" in json.loads(done.stdout)["error"]["message"]
    (tmp_path / "mnist" / "mnist.npz").write_bytes(b"something")
    done = call("check", "mnist", "--data-dir", tmp_path, "--json")
    assert json.loads(done.stdout)["files"][0]["state"] == "no checksum known"
    assert "no checksum known" in call("check", "mnist", "--data-dir", tmp_path).stdout
