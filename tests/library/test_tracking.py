"""MLflow and TensorBoard get settings, metrics, epsilon and the statement; no time, and nobody's name."""

import getpass
import json
import platform
import runpy
import sys
import time
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import uldp
from uldp import ConfigError, MlflowTracker, Schema, TensorBoardTracker
from uldp.reports.statement import text

EXAMPLES = Path(__file__).parents[2] / "examples"
DRAW = np.random.default_rng(0)
FRAME = pd.DataFrame({"id": [f"user {n}" for n in range(40)], "age": DRAW.uniform(20, 90, 40).round(2)})
FRAME["ill"] = (FRAME["age"] > 50).astype(int)
SCHEMA = Schema.classes("ill", [0, 1]).numeric("age", 0, 110)


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch, runs_in_process):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # the slim client knows servers and, still, folders
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


def train(tracker, **changes):
    about = {"user": "id", "label": "ill", "schema": SCHEMA, "users": 100, "test": FRAME, "progress": False}
    what = {"epsilon": 5.0, "rounds": 3, "secrets": "simulated"}
    return uldp.train({"north": FRAME[:20], "south": FRAME[20:]}, **{**about, **what, **changes}, callbacks=tracker)


def client(folder):
    return pytest.importorskip("mlflow", reason="pip install uldp[tracking]").MlflowClient(folder.as_uri())


def scalars(folder):
    name = "tensorboard.backend.event_processing.event_accumulator"
    events = pytest.importorskip(name, reason="pip install uldp[tracking]").EventAccumulator(str(folder))
    events.Reload()
    return events


def test_mlflow_gets_what_may_be_shown(tmp_path):
    mlflow = client(tmp_path)
    tracker = MlflowTracker("hospitals", name="first", uri=tmp_path.as_uri(), day=date(2026, 3, 4))
    result = train(tracker)
    run = mlflow.get_run(tracker.run)
    assert run.info.status == "FINISHED" and run.info.run_name == "first"
    assert run.info.start_time == run.info.end_time == 1772582400000
    assert run.data.params["method.rounds"] == "3" and run.data.params["privacy.epsilon"] == "5.0"
    assert run.data.tags["noise"] == "simulated" and "NOT A GUARANTEE" in run.data.tags["guarantee"]
    history = mlflow.get_metric_history(tracker.run, "epsilon_simulated_noise")
    assert [point.step for point in history] == [1, 2, 3] and history[-1].value == result.reports[-1].epsilon
    assert {point.timestamp for point in history} == {1772582400000} and "epsilon" not in run.data.metrics
    assert run.data.metrics["accuracy"] == result.metrics["accuracy"]
    statement = Path(mlflow.download_artifacts(tracker.run, "statement.txt")).read_text()
    assert statement == "\n".join(text(result.statement)) + "\n"
    found = json.loads(Path(mlflow.download_artifacts(tracker.run, "statement.json")).read_text())
    assert found == result.statement.to_json()


def test_tensorboard_gets_what_may_be_shown(tmp_path):
    scalars(tmp_path)  # or skip
    result = train(TensorBoardTracker(tmp_path / "one"), secrets="os")
    events = scalars(tmp_path / "one")
    assert set(events.Tags()["scalars"]) == {*result.metrics, "epsilon"}
    assert [event.value for event in events.Scalars("epsilon")] == pytest.approx([r.epsilon for r in result.reports])
    assert {event.wall_time for event in events.Scalars("accuracy")} == {0.001}
    texts = {tag: events.Tensors(tag)[-1].tensor_proto.string_val[0].decode() for tag in events.Tags()["tensors"]}
    assert "| method.rounds | `3` |" in texts["settings"] and texts["guarantee"] == result.reports[-1].guarantee
    assert "\n".join(line.removeprefix("    ") for line in texts["statement"].splitlines()) == "\n".join(
        text(result.statement)
    )


@pytest.mark.parametrize("kind", ["mlflow", "tensorboard"])
def test_no_time_no_record_and_nobodys_name_is_tracked(tmp_path, monkeypatch, kind):
    """Byte by byte the same whatever the clocks show, but for the ids that MLflow draws and its experiments' birth."""
    client(tmp_path), scalars(tmp_path)
    kept = []
    for slower in (1, 1000):
        clock, now, folder = time.perf_counter, time.time, tmp_path / f"{kind}-{slower}"
        with monkeypatch.context() as changed:
            changed.setattr(time, "perf_counter", lambda clock=clock, slower=slower: slower * clock())
            changed.setattr(time, "time", lambda now=now, slower=slower: now() + slower)
            train(TensorBoardTracker(folder) if kind == "tensorboard" else MlflowTracker(name="x", uri=folder.as_uri()))
        run = folder if kind == "tensorboard" else next(file.parent for file in folder.glob("*/*/meta.yaml"))
        kept.append({str(file.relative_to(run)): file.read_bytes() for file in run.rglob("*") if file.is_file()})
    for files in kept:
        files.pop("meta.yaml", None), files.pop("tags/mlflow.runName", None)
    assert kept[0] == kept[1] and len(kept[0]) > (0 if kind == "tensorboard" else 10)
    everything = b"".join(kept[0].values()) + " ".join(kept[0]).encode()
    for secret in (*FRAME["id"], *FRAME["age"].astype(str), getpass.getuser(), platform.node()):
        assert len(secret) < 3 or secret.encode() not in everything


@pytest.mark.parametrize("kind", ["mlflow", "tensorboard"])
def test_a_pause_goes_on_in_the_same_run_and_a_failure_is_said(tmp_path, kind):
    client(tmp_path), scalars(tmp_path)
    tracker = TensorBoardTracker(tmp_path / "run") if kind == "tensorboard" else MlflowTracker(uri=tmp_path.as_uri())
    part = train([tracker, lambda report: report.round == 1])
    part.resume()

    def fail(report):
        raise ValueError("of the caller")

    failing = TensorBoardTracker(tmp_path / "bad") if kind == "tensorboard" else MlflowTracker(uri=tmp_path.as_uri())
    with pytest.raises(ValueError, match="of the caller"):
        train([failing, fail])
    if kind == "mlflow":
        history = client(tmp_path).get_metric_history(tracker.run, "accuracy")
        assert [point.step for point in history] == [1, 2, 3]
        assert client(tmp_path).get_run(tracker.run).info.status == "FINISHED"
        assert client(tmp_path).get_run(failing.run).info.status == "FAILED"
    else:
        assert [event.step for event in scalars(tmp_path / "run").Scalars("accuracy")] == [1, 2, 3]


@pytest.mark.parametrize(("tracker", "name"), [(MlflowTracker(), "mlflow"), (TensorBoardTracker("x"), "tensorboard")])
def test_what_is_not_installed_is_said_before_anything_is_trained(
    monkeypatch, tmp_path, tracker, name, runs_in_process
):
    for module in (name, f"{name}.summary"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=r"is not installed; pip install 'uldp\[tracking\]'"):
        train(tracker, directory=tmp_path / "run")
    assert not runs_in_process and not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["mlflow", "tensorboard"])
def test_the_examples_run(tmp_path, monkeypatch, capsys, name):
    client(tmp_path), scalars(tmp_path)
    where = tmp_path.as_uri() if name == "mlflow" else str(tmp_path)
    monkeypatch.setattr(sys, "argv", ["example", where])
    runpy.run_path(str(EXAMPLES / f"track_with_{name}.py"))
    assert "breast-cancer" in capsys.readouterr().out
