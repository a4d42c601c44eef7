"""Run directories that were damaged, and paths that cannot be: one sentence, exit code 2."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from uldp.cli.app import app
from uldp.runs.directory import RunDirectory

runner = CliRunner()
SMALL = ["--dataset", "breast-cancer", "--set", "method.rounds=2", "--set", "data.users=20"]


def refused(*arguments, says=""):
    result = runner.invoke(app, list(map(str, arguments)))
    assert result.exit_code == 2, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert says in result.stderr, result.stderr


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("finished") / "run"
    assert runner.invoke(app, ["run", *SMALL, "--out", str(path)]).exit_code == 0
    return path


@pytest.fixture
def run(finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished, tmp_path / "r")
    return tmp_path / "r"


@pytest.mark.parametrize("name", ["metrics.jsonl", "ledger.jsonl"])
@pytest.mark.parametrize("data", [b"\xff\xfe\n", b"{}\n", b"[1]\n", b"null\n", b'{"round": 1}\n', b'{"round": "1"}\n'])
def test_lines_that_are_none(run, name, data):
    (run / name).write_bytes(data + (run / name).read_bytes().split(b"\n", 1)[1])
    refused("resume", run)


@pytest.mark.parametrize(
    "lines",
    [lambda lines: [], lambda lines: lines[:1], lambda lines: lines[1:], lambda lines: [*lines[:1], *lines]],
)
def test_metrics_of_rounds_that_are_not_there(run, lines):
    kept = lines((run / "metrics.jsonl").read_text().splitlines())
    (run / "metrics.jsonl").write_text("".join(f"{line}\n" for line in kept))
    refused("resume", run, says="does not hold the metrics of rounds 1 to 2")


@pytest.mark.parametrize("name", ["metrics.jsonl", "ledger.jsonl", "private"])
def test_files_that_are_gone(run, name):
    shutil.rmtree(run / name) if name == "private" else (run / name).unlink()
    refused("resume", run)


@pytest.mark.parametrize("name", ["metrics.jsonl", "ledger.jsonl", "experiment.json", "private/checkpoint.bin"])
def test_folders_in_the_place_of_files(run, name):
    (run / name).unlink()
    (run / name).mkdir()
    refused("resume", run)


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b"{}", b'{"data": 3}'])
def test_settings_that_are_none(run, data):
    (run / "experiment.json").write_bytes(data)
    refused("resume", run)


@pytest.mark.parametrize("data", [b"", b"PK nonsense", b"\x93NUMPY"])
def test_a_model_that_is_none(run, data):
    (run / "model.npz").write_bytes(data)
    refused("export", run, says="model.npz")


def test_a_finished_run_read_again_says_the_same(run):
    result = run / "result.json"
    before = result.read_bytes()
    for _ in range(2):
        shown = json.loads(runner.invoke(app, ["resume", str(run), "--json"]).stdout)
        assert shown == {**json.loads(before), "run": str(run)}
    assert result.read_bytes() == before


def test_paths_that_cannot_be(run, monkeypatch):
    refused("resume", "x" * 300, says="File name too long")
    refused("run", *SMALL, "--out", "x" * 300, says="File name too long")
    refused("compare", *SMALL, "--out", "x" * 300, says="File name too long")
    refused("demo", "--out", "x" * 300, says="File name too long")
    refused("run", "--dataset", "mnist", "--data-dir", "~nosuchuser/x", says="--data-dir: no home folder is known")
    refused("run", "--dataset", "mnist", "--set", "data.data_dir=~nosuchuser/x", says="data.data_dir: no home folder")
    refused("run", "--dataset", "mnist", "--data-dir", "x" * 300, says="File name too long")
    (run.parent / "runs").write_text("a file, not a folder")
    refused("run", *SMALL, says="runs")


def test_the_demo_has_the_option_that_it_suggests(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused("demo", "--dataset", "mnist", "--data-dir", tmp_path, says=f"`uldp data fetch mnist --data-dir {tmp_path}`")


def test_numbers_that_do_not_fit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused("plan", *SMALL, "--set", "data.users=1000000000000", says="data.users: a whole number from 2 to 10,000,000")
    refused("plan", *SMALL, "--set", "data.options.data_dir=3", says="data.options: unknown key 'data_dir'")
    result = runner.invoke(app, ["plan", *SMALL, "--set", "data.options.user_exponent=inf", "--json"])
    assert json.loads(result.stdout)["error"]["value"] == "inf"


COMPARE = ["compare", *SMALL, "--methods", "fedavg", "--repeats", "1", "--out", "c"]


@pytest.fixture
def compared(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert runner.invoke(app, COMPARE).exit_code == 0
    return tmp_path / "c"


def test_a_comparison_that_is_none(compared):
    for data in (
        b"",
        b"\xff",
        b"[]",
        b"3",
        b"{}",
        b'{"fedavg": ["x"]}',
        b'{"shared": "x", "methods": {"fedavg": 3}}',
    ):
        (compared / "comparison.json").write_bytes(data)
        refused(*COMPARE, says="comparison.json")


@pytest.mark.parametrize("name", ["comparison.png", "result.json"])
def test_a_comparison_with_folders_in_the_place_of_files(compared, name):
    (compared / name).unlink()
    (compared / name).mkdir()
    refused(*COMPARE, says=name)


def test_only_what_a_cut_short_creation_leaves_is_written_over(tmp_path):
    from uldp.errors import RunError

    path = tmp_path / "r"
    (path / "private").mkdir(parents=True)
    RunDirectory.check_free(path)
    (path / "private" / "mine").write_text("")
    with pytest.raises(RunError, match="exists already"):
        RunDirectory.check_free(path)
