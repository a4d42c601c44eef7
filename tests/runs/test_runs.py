"""Runs: reproducible bit by bit, resumable after a crash at any point, never charged twice, never half written."""

import json
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from tests.support import owner_of
from typer.testing import CliRunner

import uldp
from uldp.cli.app import app
from uldp.errors import ConfigError, ModelError, RunError
from uldp.experiment.config import Experiment
from uldp.runs.directory import RunDirectory
from uldp.runs.records import RunLog, RunState
from uldp.runtimes.simulation import run

runner = CliRunner()


def experiment(name="uldp-avg-w", rounds=4, **sections):
    tree = {
        "data": {"dataset": "breast-cancer", "users": 30, "silos": 3},
        "method": {"name": name, "rounds": rounds},
        "privacy": {"noise_multiplier": 5.0},
    }
    if "sgd" not in name:
        tree["method"]["local_epochs"] = 2
    for section, fields in sections.items():
        tree[section] = {**tree.get(section, {}), **fields}
    return Experiment.from_tree(tree)


def public_files(path):
    """What two equal runs must have in common."""
    return (path / "ledger.jsonl").read_text(), (path / "metrics.jsonl").read_text(), (path / "model.npz").read_bytes()


@pytest.mark.parametrize("method", ["fedavg", "uldp-avg", "uldp-avg-w", "uldp-sgd", "uldp-sgd-w"])
def test_two_runs_are_identical_bit_by_bit(tmp_path, method):
    for name in ("one", "two"):
        run(experiment(method), str(tmp_path / name))
    assert public_files(tmp_path / "one") == public_files(tmp_path / "two")


def test_another_seed_is_another_run(tmp_path):
    one = run(experiment())
    two = run(experiment(run={"seed": 1}))
    assert not np.array_equal(one.model, two.model)


class Crash(Exception):
    pass


@pytest.mark.parametrize("where", ["append_ledger", "append_metrics", "save_checkpoint", "save_model"])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("secrets", ["simulated", "os"])
def test_a_crash_anywhere_loses_nothing_and_charges_nothing_twice(tmp_path, monkeypatch, where, before, secrets):
    settings = experiment("uldp-avg", method={"sample_rate": 0.5}, run={"secrets": secrets})
    calls = {"left": 3 if where != "save_model" else 1}
    owner = owner_of(where)
    original = getattr(owner, where)

    def crashing(self, *arguments):
        calls["left"] -= 1
        if calls["left"] == 0:
            if not before:
                original(self, *arguments)
            raise Crash
        return original(self, *arguments)

    monkeypatch.setattr(owner, where, crashing)
    with pytest.raises(Crash):
        run(settings, str(tmp_path / "crashed"))
    monkeypatch.undo()
    interrupted = RunDirectory.open(tmp_path / "crashed")
    before_resume = interrupted.log.ledger_entries()
    result = uldp.resume(str(tmp_path / "crashed"))
    after = interrupted.log.ledger_entries()
    assert after[: len(before_resume)] == before_resume
    assert [entry.round for entry in after] == [1, 2, 3, 4]
    assert [report.round for report in result.reports] == [1, 2, 3, 4]
    if secrets == "simulated":
        run(settings, str(tmp_path / "whole"))
        assert public_files(tmp_path / "crashed") == public_files(tmp_path / "whole")


@pytest.mark.parametrize("secrets", ["simulated", "os"])
def test_resuming_a_finished_run_changes_nothing(tmp_path, secrets):
    first = run(experiment(run={"secrets": secrets}), str(tmp_path / "r"))
    files = public_files(tmp_path / "r")
    again = uldp.resume(str(tmp_path / "r"))
    assert public_files(tmp_path / "r") == files
    assert again.epsilon == first.epsilon
    assert np.array_equal(again.model, first.model)


def test_secrets_from_the_os_differ_between_runs_and_are_forgotten_at_the_end(tmp_path):
    settings = experiment(run={"secrets": "os"})
    one = run(settings, str(tmp_path / "one"))
    two = run(settings, str(tmp_path / "two"))
    assert not np.array_equal(one.model, two.model)
    assert not one.statement.simulated
    assert not (tmp_path / "one" / "private" / "secrets.key").exists()
    assert run(experiment()).statement.simulated


def test_private_files_are_for_the_owner_only(tmp_path, monkeypatch):
    monkeypatch.setattr(RunState, "forget_secrets", lambda self: None)
    run(experiment(run={"secrets": "os"}), str(tmp_path / "r"))
    private = tmp_path / "r" / "private"
    assert private.stat().st_mode & 0o077 == 0
    for file in private.iterdir():
        assert file.stat().st_mode & 0o077 == 0, file


def test_changed_settings_are_refused(tmp_path):
    run(experiment(), str(tmp_path / "r"))
    file = tmp_path / "r" / "experiment.json"
    tree = json.loads(file.read_text())
    tree["method"]["clip"] = 9.0
    file.write_text(json.dumps(tree))
    result = runner.invoke(app, ["resume", str(tmp_path / "r")])
    assert result.exit_code == 2
    assert "settings" in result.stderr


def test_a_run_with_keys_of_an_earlier_version_can_still_be_read(tmp_path):
    run(experiment(), str(tmp_path / "r"))
    file = tmp_path / "r" / "experiment.json"
    tree = json.loads(file.read_text())
    tree["method"] |= {"max_records": 480, "ghost": 16}
    tree["privacy"]["compensate"] = tree["privacy"].pop("dropout_tolerance") + 1
    file.write_text(json.dumps(tree))
    read = RunDirectory.open(tmp_path / "r").experiment()
    assert read.method == experiment().method and read.privacy.dropout_tolerance == 1


def test_a_run_with_a_name_of_an_earlier_version_can_still_be_read(tmp_path):
    run(experiment("fedavg"), str(tmp_path / "r"))
    file = tmp_path / "r" / "experiment.json"
    tree = json.loads(file.read_text())
    tree["method"] |= {"name": "default", "sample_rate": 1.0}
    file.write_text(json.dumps(tree))
    assert RunDirectory.open(tmp_path / "r").experiment().method == experiment("fedavg").method
    # what had an effect is not left out in silence
    file.write_text(json.dumps(tree | {"method": tree["method"] | {"sample_rate": 0.5}}))
    with pytest.raises(ConfigError):
        RunDirectory.open(tmp_path / "r").experiment()


def stopped_in_round_one(path, settings, monkeypatch, where="append_ledger"):
    """A run that was killed within its first round."""
    with monkeypatch.context() as patch:
        patch.setattr(owner_of(where), where, lambda self, *arguments: (_ for _ in ()).throw(Crash))
        with pytest.raises(Crash):
            run(settings, str(path))


@pytest.mark.parametrize("change", [("method", "clip", 9.0), ("privacy", "noise_multiplier", 10.0), ("run", "seed", 7)])
def test_settings_may_not_change_even_before_the_first_round_is_over(tmp_path, monkeypatch, change):
    stopped_in_round_one(tmp_path / "r", experiment(), monkeypatch)
    file = tmp_path / "r" / "experiment.json"
    tree = json.loads(file.read_text())
    section, key, value = change
    tree[section][key] = value
    file.write_text(json.dumps(tree))
    with pytest.raises(RunError, match=r"settings|data"):
        uldp.resume(str(tmp_path / "r"))


def test_data_may_not_change_even_before_the_first_round_is_over(tmp_path, monkeypatch):
    stopped_in_round_one(tmp_path / "r", experiment(), monkeypatch)
    monkeypatch.setattr("uldp.runtimes.simulation.fingerprint", lambda federation: "other")
    with pytest.raises(RunError, match="data are not those"):
        uldp.resume(str(tmp_path / "r"))


@pytest.mark.parametrize("keep", [0, 1])
def test_a_ledger_that_lost_entries_is_refused(tmp_path, keep):
    def stop(report):
        if report.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(experiment(), str(tmp_path / "r"), stop)
    file = tmp_path / "r" / "ledger.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:keep]))
    with pytest.raises(RunError, match="does not hold all that was released"):
        uldp.resume(str(tmp_path / "r"))


def test_a_finished_run_that_lost_its_checkpoint_does_not_train_again(tmp_path):
    run(experiment(run={"secrets": "os"}), str(tmp_path / "r"))
    (tmp_path / "r" / "private" / "checkpoint.bin").unlink()
    with pytest.raises(RunError, match="checkpoint is gone"):
        uldp.resume(str(tmp_path / "r"))


def test_a_round_whose_answers_are_in_is_finished_without_asking_again(tmp_path, monkeypatch):
    from uldp.sessions.silo import SiloSession

    settings = experiment(rounds=1)
    stopped_in_round_one(tmp_path / "r", settings, monkeypatch)
    asked = []
    original = SiloSession.reply
    monkeypatch.setattr(SiloSession, "reply", lambda self, request: asked.append(request) or original(self, request))
    resumed = uldp.resume(str(tmp_path / "r"))
    assert asked and not any(b"UpdateRequest" in request for request in asked)
    assert resumed.reports[-1].round == 1
    assert len(RunDirectory.open(tmp_path / "r").log.ledger_entries()) == 1
    monkeypatch.undo()
    assert np.array_equal(resumed.model, run(settings).model)


def test_changed_data_are_refused(tmp_path, monkeypatch):
    run(experiment(), str(tmp_path / "r"))
    monkeypatch.setattr("uldp.runtimes.simulation.fingerprint", lambda federation: "other")
    with pytest.raises(RunError, match="data are not those"):
        uldp.resume(str(tmp_path / "r"))


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b + b"x", lambda b: b"", lambda b: b[:60] + b"\x00" + b[61:]]
)
def test_a_damaged_checkpoint_is_refused_and_not_replaced(tmp_path, damage):
    run(experiment(), str(tmp_path / "r"))
    file = tmp_path / "r" / "private" / "checkpoint.bin"
    file.write_bytes(damage(file.read_bytes()))
    kept = file.read_bytes()
    result = runner.invoke(app, ["resume", str(tmp_path / "r")])
    assert result.exit_code == 2
    assert "damaged" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert file.read_bytes() == kept


def test_a_half_written_line_is_dropped(tmp_path):
    directory = RunDirectory.create(tmp_path / "r", experiment())
    directory.log.append_metrics({"round": 1})
    with (tmp_path / "r" / "metrics.jsonl").open("a") as out:
        out.write('{"round": 2, "metr')
    directory.log.append_metrics({"round": 2})
    assert directory.log.metrics() == [{"round": 1}, {"round": 2}]


def test_two_processes_do_not_work_on_one_run(tmp_path):
    run(experiment(), str(tmp_path / "r"))
    with RunDirectory.open(tmp_path / "r").lock(), pytest.raises(RunError, match="another process"):
        uldp.resume(str(tmp_path / "r"))


def test_a_lost_key_ends_a_run(tmp_path, monkeypatch):
    def stop(report):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(experiment(run={"secrets": "os"}), str(tmp_path / "r"), stop)
    (tmp_path / "r" / "private" / "secrets.key").unlink()
    with pytest.raises(RunError, match="start a new run"):
        uldp.resume(str(tmp_path / "r"))


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_without_its_private_folder_gets_one_sentence(tmp_path, finished):
    def stop(report):
        raise KeyboardInterrupt

    with nullcontext() if finished else pytest.raises(KeyboardInterrupt):
        run(experiment(), str(tmp_path / "r"), None if finished else stop)
    shutil.rmtree(tmp_path / "r" / "private")
    result = runner.invoke(app, ["resume", str(tmp_path / "r")])
    assert result.exit_code == 2 and len(result.stderr.strip().splitlines()) == 1
    assert "`private` is gone" in result.stderr and "restore it, or start a new run" in result.stderr


def test_ctrl_c_keeps_what_was_done(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    original = RunLog.append_metrics

    def interrupted(self, line):
        original(self, line)
        if line["round"] == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunLog, "append_metrics", interrupted)
    result = runner.invoke(app, ["run", "--dataset", "breast-cancer", "--set", "method.rounds=4", "--out", "r"])
    assert result.exit_code == 130
    assert "uldp resume r" in result.stderr
    monkeypatch.setattr(RunLog, "append_metrics", original)
    document = json.loads(runner.invoke(app, ["resume", "r", "--json"]).stdout)
    assert document["rounds"] == 4


NAN_AFTER_TWO = """
from torch import nn

FACTOR = [1.0]

class Fragile(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, 1)

    def forward(self, x):
        return self.linear(x) * FACTOR[0]

def make(shape, task):
    return Fragile(shape[0])
"""


def test_a_model_that_returns_nan_stops_the_round_and_keeps_the_last_good_checkpoint(tmp_path, monkeypatch):
    (tmp_path / "fragile.py").write_text(NAN_AFTER_TWO)
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = experiment("uldp-avg", model={"name": "fragile:make"})

    def spoil(report):
        if report.round == 2:
            sys.modules["fragile"].FACTOR[0] = float("nan")

    try:
        with pytest.raises(ModelError, match="after round 3"):
            run(settings, str(tmp_path / "r"), spoil)
        directory = RunDirectory.open(tmp_path / "r")
        assert directory.state.load_checkpoint().round == 2
        assert [entry.round for entry in directory.log.ledger_entries()] == [1, 2, 3]  # what was spent stays spent
        result = runner.invoke(app, ["resume", str(tmp_path / "r")])
        assert result.exit_code == 2
        assert "NaN" in result.stderr
    finally:
        sys.modules.pop("fragile", None)


def test_a_target_epsilon_is_met_and_never_exceeded(tmp_path):
    settings = experiment("uldp-avg", privacy={"epsilon": 3.0, "noise_multiplier": None})
    result = run(settings, str(tmp_path / "r"))
    assert 2.95 < result.epsilon <= 3.0
    assert result.reports[-1].round == 4


def test_the_result_and_the_files_say_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(
        app, ["run", "--dataset", "breast-cancer", "--method", "uldp-avg-w", "--set", "method.rounds=2", "--json"]
    )
    document = json.loads(result.stdout)
    promised = {"run", "dataset", "method", "rounds", "metrics", "statement"}
    assert promised <= set(document)
    folder = Path(document["run"])
    assert json.loads((folder / "result.json").read_text()) == document
    assert json.loads((folder / "statement.json").read_text()) == document["statement"]
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2


def test_another_chunk_size_gives_the_same_model_within_rounding():
    settings = [experiment(rounds=2, run={"memory_mb": memory, "dtype": "float64"}) for memory in (1, 256)]
    models = [run(setting).model for setting in settings]
    np.testing.assert_allclose(models[0], models[1], rtol=0, atol=1e-6)
