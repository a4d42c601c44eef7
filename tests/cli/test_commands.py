"""Commands that succeed: what they print, and that JSON is one document and nothing else."""

import json
import math

import pytest
from typer.testing import CliRunner

from uldp.cli.app import app

runner = CliRunner()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*arguments):
    result = runner.invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result


def document(*arguments):
    return json.loads(call(*arguments, "--json").stdout)


@pytest.mark.parametrize(("rate", "expected"), [("1.0", 9.997), ("0.1", 0.758)])
def test_epsilon(rate, expected):
    arguments = ["epsilon", "--method", "uldp-avg", "--noise-multiplier", "5", "--rounds", "100", "--delta", "1e-5"]
    found = document(*arguments, "--set", f"method.sample_rate={rate}")
    assert found["epsilon"] == pytest.approx(expected, abs=6e-4)
    assert {"epsilon", "delta", "accountant"} <= set(found)


def test_epsilon_of_no_noise_is_no_number():
    assert document("epsilon", "--noise-multiplier", "0", "--rounds", "1")["epsilon"] is None
    assert "infinite" in call("epsilon", "--noise-multiplier", "0", "--rounds", "1").stdout
    assert document("epsilon", "--method", "fedavg", "--noise-multiplier", "5", "--rounds", "1")["epsilon"] is None


def test_sigma_is_the_inverse_of_epsilon():
    asked = ["--rounds", "30", "--set", "method.sample_rate=0.5"]
    sigma = document("sigma", "--epsilon", "2", *asked)["noise_multiplier"]
    back = document("epsilon", "--noise-multiplier", str(sigma), *asked)
    assert 1.99 < back["epsilon"] <= 2


def test_methods_and_datasets():
    named = [m["name"] for m in document("methods")]
    assert {"fedavg", "record-dp", "uldp-naive", "uldp-group", "uldp-sgd", "uldp-avg", "uldp-avg-w"} <= set(named)
    assert {"breast-cancer", "digits", "synthetic", "mnist"} <= {d["name"] for d in document("datasets")}
    assert "uldp-avg-w" in call("methods").stdout
    assert "digits" in call("datasets").stdout


def test_plan_predicts_what_run_spends(folder):
    arguments = ["--dataset", "breast-cancer", "--method", "uldp-avg-w", "--set", "method.rounds=3"]
    planned = document("plan", *arguments)
    assert not list(folder.iterdir())
    ran = document("run", *arguments)
    assert planned["epsilon"] == ran["statement"]["epsilon"]
    assert planned["statement"]["exposures"] == ran["statement"]["exposures"]
    assert list(planned["epsilon_after_round"]) == ["1", "2", "3"]
    assert "Record counts are exchanged" not in call("plan", *arguments).stdout
    shown = call("plan", *arguments, "--set", "aggregation.name=masked").stdout
    assert "Record counts are exchanged in the clear" in " ".join(shown.split())


def test_a_target_epsilon_is_planned_and_kept():
    arguments = ["--dataset", "breast-cancer", "--set", "method.rounds=3", "--set", "privacy.epsilon=1.5"]
    assert 1.49 < document("plan", *arguments)["epsilon"] <= 1.5
    assert 1.49 < document("run", *arguments)["statement"]["epsilon"] <= 1.5


@pytest.mark.parametrize(
    "arguments",
    [
        ["--dataset", "digits", "--method", "uldp-sgd-w"],
        ["--dataset", "synthetic", "--method", "uldp-avg", "--set", "data.allocation=non-iid"],
        ["--dataset", "synthetic", "--method", "uldp-avg-w", "--set", "data.options.classes=0"],
        ["--dataset", "breast-cancer", "--method", "uldp-avg", "--set", "method.sample_rate=0.3"],
        ["--dataset", "breast-cancer", "--method", "uldp-avg", "--set", "model.name=mlp", "--set", "model.dropout=0.2"],
        ["--dataset", "breast-cancer", "--method", "uldp-avg", "--set", "method.optimizer=adam"],
        ["--dataset", "digits", "--method", "fedavg", "--set", "model.name=cnn", "--set", "data.allocation=uniform"],
    ],
)
def test_runs_of_many_kinds(arguments):
    found = document("run", *arguments, "--set", "method.rounds=1")
    assert math.isfinite(found["metrics"]["loss"])
    assert found["rounds"] == 1


def test_a_file_and_a_run_without_one_are_the_same(folder):
    call("new", "mine")
    text = (folder / "mine.toml").read_text()
    assert "[privacy]" in text
    one = document("run", "mine.toml", "--set", "method.rounds=2")
    tree = ["--set", "data.allocation=zipf", "--set", "method.rounds=2"]
    two = document("run", "--dataset", "breast-cancer", *tree)
    assert one["method"] == two["method"] == "auto"
    assert one["metrics"] == two["metrics"]
    assert one["statement"] == two["statement"]


def test_another_method_for_the_same_file():
    call("new", "mine")
    found = document("run", "mine.toml", "--method", "uldp-sgd", "--set", "method.rounds=1")
    assert found["method"] == "uldp-sgd"
    found = document("run", "mine.toml", "--method", "fedavg", "--set", "method.rounds=1")
    assert found["statement"]["epsilon"] is None


def test_predict_and_export_of_a_built_in_table(folder):
    from sklearn.datasets import load_breast_cancer

    frame = load_breast_cancer(as_frame=True).data.head(7)
    frame.to_csv("new.csv", index=False)
    run = document("run", "--dataset", "breast-cancer", "--set", "method.rounds=2")["run"]
    predicted = document("predict", run, "new.csv")
    assert predicted["rows"] == 7
    shares = [sum(v for k, v in row.items() if k.startswith("probability")) for row in predicted["predictions"]]
    assert shares == pytest.approx([1.0] * 7)
    assert call("predict", run, "new.csv").stdout.count("\n") == 8
    assert document("export", run)["parameters"] == 31
    again = runner.invoke(app, ["export", run])
    assert again.exit_code == 2
    assert "exists" in again.stderr


def test_a_run_on_images_is_exported_but_not_applied_to_tables():
    run = document("run", "--dataset", "digits", "--set", "method.rounds=1")["run"]
    assert document("export", run)["parameters"] == 650
    refused = runner.invoke(app, ["predict", run, "x.csv"])
    assert refused.exit_code == 2


def test_regression_predictions_are_in_the_original_units(folder):
    rows = "\n".join(f"u{i % 9},{i},{20 + 2 * i}" for i in range(40))
    (folder / "a.csv").write_text("id,age,income\n" + rows + "\n")
    (folder / "e.toml").write_text(
        """
        [data]
        silos = ["a.csv"]
        user = "id"
        label = "income"
        users = 50
        test = "a.csv"
        [data.schema.label]
        kind = "number"
        range = [0, 200]
        [data.schema.columns.age]
        kind = "number"
        range = [0, 100]
        [method]
        name = "fedavg"
        rounds = 30
        local_epochs = 20
        local_lr = 0.3
        """
    )
    found = document("run", "e.toml")
    assert found["metrics"]["mae"] < 5
    predicted = document("predict", found["run"], "a.csv")["predictions"]
    assert predicted[30]["prediction"] == pytest.approx(80, abs=8)


def test_the_demo_ends_with_a_table_a_picture_and_what_it_means(folder):
    out = call("demo", "--set", "method.rounds=2").stdout
    for method in ("fedavg", "uldp-avg-w", "uldp-avg", "uldp-sgd"):
        assert method in out
    assert "What this means" in out
    assert (folder / "runs" / "demo-1" / "comparison.png").stat().st_size > 10_000
    assert len(document("demo", "--set", "method.rounds=1")["results"]) == 4


def test_help_is_there_for_every_command():
    for command in (
        "demo",
        "new",
        "methods",
        "datasets",
        "plan",
        "run",
        "resume",
        "predict",
        "export",
        "epsilon",
        "sigma",
        "local",
        "published",
        "total",
    ):
        assert "--json" in call(command, "--help").stdout
    assert "train" in call("bench", "--help").stdout
    assert call("--version").stdout.startswith("uldp ")
