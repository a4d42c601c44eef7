"""``uldp compare --vary``: every combination once, cached run by run; errors before anything is trained."""

import json

import pytest
from typer.testing import CliRunner

from uldp import compare
from uldp.cli.app import app
from uldp.errors import ConfigError

runner = CliRunner()
SMALL = ["compare", "--dataset", "synthetic", "--repeats", "1", "--rounds", "1", "--set", "data.users=20"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def document(*arguments):
    result = runner.invoke(app, [*SMALL, *arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_grid_over_methods_that_have_the_setting_and_one_that_has_not(folder):
    vary = ["--vary", "method.sample_rate=0.5,1", "--vary", "data.silos=2,3"]
    found = document("--methods", "fedavg,uldp-avg", *vary, "--out", "c")
    assert [(one["method"], one["values"]) for one in found["results"]] == [
        ("fedavg silos=2", {"data.silos": 2}),
        ("fedavg silos=3", {"data.silos": 3}),
        ("uldp-avg sample_rate=0.5 silos=2", {"method.sample_rate": 0.5, "data.silos": 2}),
        ("uldp-avg sample_rate=0.5 silos=3", {"method.sample_rate": 0.5, "data.silos": 3}),
        ("uldp-avg sample_rate=1 silos=2", {"method.sample_rate": 1, "data.silos": 2}),
        ("uldp-avg sample_rate=1 silos=3", {"method.sample_rate": 1, "data.silos": 3}),
    ]
    sampled, everybody = found["results"][2], found["results"][4]
    assert sampled["privacy"]["epsilon"] < everybody["privacy"]["epsilon"]
    assert found["total"]["private_runs"] == 4
    assert (folder / "c" / "sweep.png").stat().st_size > 10_000
    # values can be added; what is there is not trained again
    when = (folder / "c" / "fedavg silos=2" / "seed-0" / "result.json").stat().st_mtime_ns
    more = document("--methods", "fedavg", "--vary", "data.silos=2,4", "--out", "c")
    assert [one["values"]["data.silos"] for one in more["results"]] == [2, 4]
    assert (folder / "c" / "fedavg silos=2" / "seed-0" / "result.json").stat().st_mtime_ns == when
    other = runner.invoke(app, [*SMALL, "--methods", "fedavg", "--vary", "data.users=20,30", "--out", "c"])
    assert (other.exit_code, "another comparison" in other.stderr) == (2, True)


def test_noise_models_and_aggregations_may_differ(folder):
    noise = document("--methods", "uldp-avg", "--vary", "privacy.epsilon=1,4")
    assert [round(one["privacy"]["epsilon"], 2) for one in noise["results"]] == [1.0, 4.0]
    own = ["--set", "uldp-sgd:aggregation.name=plain", "--set", "uldp-avg:model.name=mlp"]
    document("--methods", "uldp-avg,uldp-sgd", *own, "--out", "c")
    files = [folder / "c" / name / "seed-0" / "experiment.json" for name in ("uldp-avg", "uldp-sgd")]
    avg, sgd = (json.dumps(json.loads(file.read_text())) for file in files)
    assert '"mlp"' in avg and '"plain"' not in avg
    assert '"plain"' in sgd and '"mlp"' not in sgd


@pytest.mark.parametrize(
    ("vary", "says"),
    [
        ("method.klip=1,2", "method: unknown key 'klip'"),
        ("dta.silos=1,2", "dta"),
        ("data.silos=two,3", "data.silos"),
        ("data.silos", "--vary: write section.key=a,b,c"),
        ("data.silos=", "--vary: write section.key=a,b,c"),
        ("data.silos=2,,3", "empty value"),
        ("data.silos=2,2", "twice"),
        ("run.seed=1,2", "--repeats takes several seeds"),
        ("method.name=fedavg", "name the methods in --methods"),
        ("method.sample_rate=" + ",".join(str(n / 2000) for n in range(1, 1100)), "combinations"),
    ],
)
def test_bad_sweeps_leave_nothing_behind(folder, vary, says):
    result = runner.invoke(app, [*SMALL, "--methods", "uldp-avg", "--vary", vary, "--out", "c"])
    assert result.exit_code == 2, result.output
    assert says in result.stderr
    assert not list(folder.iterdir())


def test_settings_of_a_method_that_is_not_compared_are_refused():
    result = runner.invoke(app, [*SMALL, "--methods", "uldp-avg", "--set", "uldp-sgd:run.threads=1"])
    assert (result.exit_code, "'uldp-sgd' is none of uldp-avg" in result.stderr) == (2, True)


def test_python_gives_a_frame_and_pictures():
    found = compare("synthetic", ["uldp-avg"], vary={"method.clip": [0.1, 1.0]}, noise_multiplier=5.0, rounds=1)
    assert list(found.frame["method.clip"]) == [0.1, 1.0]
    assert len(found.plot().axes) == 3
    assert len(found.plot_sweep().axes) == 3
    assert len(found.plot_sweep("loss").axes) == 2
    noise = compare("synthetic", ["uldp-avg"], vary={"privacy.epsilon": [1.0, 2.0]}, rounds=1)
    assert [round(value, 2) for value in noise.frame["epsilon"]] == [1.0, 2.0]
    with pytest.raises(ConfigError, match=r"method\.rounds"):
        found.plot_sweep(setting="method.rounds")
    with pytest.raises(ConfigError, match="a list with at least one value"):
        compare("synthetic", ["uldp-avg"], vary={"method.clip": 3.0}, noise_multiplier=5.0)
