"""``uldp compare``: same data and seeds for all methods, resumable, honest about what adds up."""

import json
import statistics
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from uldp.cli.app import app
from uldp.errors import ConfigError
from uldp.privacy.accountants import account
from uldp.privacy.events import Gaussian
from uldp.runs.files import replace_file

runner = CliRunner()
SMALL = [
    "compare",
    "--dataset",
    "breast-cancer",
    "--repeats",
    "2",
    "--set",
    "method.rounds=3",
    "--set",
    "data.users=20",
]


ONE = [*SMALL, "--repeats", "1"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@contextmanager
def ctrl_c(monkeypatch, after=1):
    """Ctrl-C at the end of a round, the ``after``-th of the command; yields which run each round belongs to."""
    seen = []

    @contextmanager
    def progress(label, rounds, show):
        def on_round(report):
            seen.append(label)
            if len(seen) == after:
                raise KeyboardInterrupt

        yield on_round

    with monkeypatch.context() as patch:
        patch.setattr("uldp.library.comparing.progress_bar", progress)
        yield seen


def document(*arguments):
    result = runner.invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def summed(found, key="epsilon"):
    total = found["total"]
    return total["runs"], total["private_runs"], total[key]


def test_means_deviations_and_the_total(folder):
    plain = ("--set", "aggregation.name=plain")
    found = document(*SMALL, *plain, "--methods", "fedavg,uldp-avg,uldp-avg-w", "--out", "c")
    assert [result["method"] for result in found["results"]] == ["fedavg", "uldp-avg", "uldp-avg-w"]
    avg = found["results"][1]
    values = [run["metrics"]["loss"] for run in avg["runs"]]
    assert avg["repeats"] == 2
    assert avg["metrics"]["loss"] == pytest.approx(statistics.fmean(values))
    assert avg["deviations"]["loss"] == pytest.approx(statistics.stdev(values))
    # four private runs of three rounds each, at sigma 5
    assert found["total"]["epsilon"] is None  # fedavg has no privacy
    assert found["total"]["private_epsilon"] == pytest.approx(account({Gaussian(5.0): 12}, 1e-5).value, rel=1e-9)
    assert (folder / "c" / "comparison.png").stat().st_size > 10_000
    # the server sees each of five silos' noised sums: it faces more than who sees the models
    weighted = found["results"][2]
    server, public = weighted["privacy"]["server_epsilon"], weighted["privacy"]["epsilon"]
    assert server == weighted["statement"]["exposures"][1]["epsilon"] > public
    assert found["results"][0]["privacy"]["server_epsilon"] is None


def test_methods_see_the_same_federations():
    found = document(*SMALL, "--methods", "uldp-sgd", "--out", "a")
    again = document(*SMALL, "--methods", "uldp-avg,uldp-sgd", "--out", "b")
    alone, beside = found["results"][0]["runs"], again["results"][1]["runs"]
    assert [run["metrics"] for run in alone] == [run["metrics"] for run in beside]
    assert alone[0]["metrics"] != alone[1]["metrics"]


def test_an_interrupted_comparison_goes_on_where_it_stopped(monkeypatch):
    whole = document(*SMALL, "--methods", "fedavg,uldp-avg", "--out", "whole")
    with ctrl_c(monkeypatch, after=8) as rounds:
        stopped = runner.invoke(app, [*SMALL, "--methods", "fedavg,uldp-avg", "--out", "c"])
        assert stopped.exit_code == 130
        assert "--out c" in stopped.stderr
        resumed = document(*SMALL, "--methods", "fedavg,uldp-avg", "--out", "c")
    assert [r["metrics"] for r in resumed["results"]] == [r["metrics"] for r in whole["results"]]
    # a finished run computes its last round once more, from the responses it has; nothing else is done again
    assert sum(run.startswith("fedavg") for run in rounds) <= 6 + 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--methods", "uldp-avg,uldp-avg"], "--methods"),
        (["--methods", ","], "--methods"),
        (["--methods", "uldp-avg,magic"], "magic"),
        (["--repeats", "0"], "--repeats"),
        (["--preset", "papper"], "papper"),
        (["--preset", "paper"], "no published settings"),
    ],
)
def test_bad_input(folder, arguments, says):
    result = runner.invoke(app, [*SMALL, *arguments])
    assert result.exit_code == 2
    assert says in result.stderr
    assert not list(folder.iterdir())


def test_a_folder_of_another_comparison_is_refused():
    document(*SMALL, "--methods", "fedavg", "--out", "c")
    result = runner.invoke(app, [*SMALL, "--methods", "fedavg", "--set", "run.seed=5", "--out", "c"])
    assert result.exit_code == 2
    assert "another comparison" in result.stderr


def test_seeds_and_methods_can_be_added_later():
    document(*SMALL, "--methods", "uldp-avg", "--out", "c")
    more = document(*SMALL, "--repeats", "3", "--methods", "uldp-sgd,uldp-avg", "--out", "c")
    assert [result["repeats"] for result in more["results"]] == [3, 3]
    fewer = document(*SMALL, "--methods", "uldp-avg", "--out", "c")
    pairs = zip(fewer["results"][0]["runs"], more["results"][1]["runs"][:2], strict=True)
    assert all(one["metrics"] == other["metrics"] for one, other in pairs)
    # what was there before may not change
    result = runner.invoke(app, [*SMALL, "--methods", "uldp-sgd", "--set", "method.clip=0.7", "--out", "c"])
    assert result.exit_code == 2
    assert "another comparison" in result.stderr


@pytest.mark.parametrize("setting", ["data.users=30", "privacy.noise_multiplier=4", "run.seed=3", "data.silos=3"])
def test_a_folder_grows_by_methods_and_seeds_only(setting):
    document(*SMALL, "--methods", "uldp-avg", "--out", "c")
    result = runner.invoke(app, [*SMALL, "--methods", "uldp-sgd", "--set", setting, "--out", "c"])
    assert (result.exit_code, "another comparison" in result.stderr) == (2, True)


def test_the_total_is_over_all_runs_of_the_folder(monkeypatch):
    def total(rounds):
        return pytest.approx(account({Gaussian(5.0): rounds}, 1e-5).value, rel=1e-9)

    document(*SMALL, "--methods", "uldp-avg", "--out", "c")
    fewer = document(*SMALL, "--repeats", "1", "--methods", "uldp-sgd", "--out", "c")
    assert [result["method"] for result in fewer["results"]] == ["uldp-sgd"]
    assert summed(fewer) == (3, 3, total(9))
    shown = runner.invoke(app, [*SMALL, "--repeats", "1", "--methods", "uldp-sgd", "--out", "c"]).stdout
    assert "the 3 private runs in c would together cost epsilon" in " ".join(shown.split())
    # a run that was stopped has released something too
    with ctrl_c(monkeypatch):
        arguments = [*SMALL, "--repeats", "1", "--methods", "uldp-avg-w", "--out", "c"]
        assert runner.invoke(app, arguments).exit_code == 130
    assert document(*SMALL, "--repeats", "1", "--methods", "uldp-sgd", "--out", "c")["total"]["epsilon"] == total(10)
    found = document(*SMALL, "--repeats", "1", "--methods", "fedavg", "--out", "c")
    assert summed(found) == (5, 4, None)
    assert found["total"]["private_epsilon"] == total(10)


def test_what_is_said_about_the_total():
    def said(*methods):
        shown = runner.invoke(app, [*ONE, "--methods", ",".join(methods), "--out", "-".join(methods)]).stdout
        assert "epsilon is towards anyone who sees the released models of one run" in shown
        assert "server is towards the server" in shown
        return " ".join(shown.split())

    one = said("uldp-avg")
    assert "together" not in one and "other runs" not in one
    assert "Each further run on the same data adds to this epsilon" in one
    assert "±" not in one
    none = said("fedavg")
    assert "None of these runs protects a whole person" in none and "other runs" not in none
    assert "The other runs protect no whole person" in said("fedavg", "uldp-avg")


def test_an_epsilon_of_single_records_is_none_of_people():
    few = [*ONE, "--set", "method.local_steps=2", "--methods", "record-dp,uldp-avg", "--out", "c"]
    found = document(*few)
    assert found["results"][0]["privacy"]["epsilon"] is not None
    assert summed(found) == (2, 1, None)
    assert found["total"]["private_epsilon"] == pytest.approx(found["results"][1]["privacy"]["epsilon"], rel=1e-9)
    assert "(record)" in runner.invoke(app, few).stdout


def test_one_seed_has_no_deviation(folder):
    found = document(*ONE, "--methods", "uldp-avg", "--out", "c")
    assert set(found["results"][0]["deviations"].values()) == {None}
    assert json.loads((folder / "c" / "result.json").read_text()) == found


def test_the_picture_and_the_table_show_the_same_deviation(monkeypatch):
    from matplotlib.axes import Axes

    drawn = []
    monkeypatch.setattr(Axes, "fill_between", lambda self, x, low, high, **style: drawn.append((low[-1], high[-1])))
    (found,) = document(*SMALL, "--methods", "uldp-avg", "--out", "c")["results"]
    mean, deviation = found["metrics"]["accuracy"], found["deviations"]["accuracy"]
    assert drawn[0] == pytest.approx((mean - deviation, mean + deviation))
    assert len(drawn) == 2  # the loss has a panel of its own


def test_data_that_void_the_guarantee_are_told_and_make_the_total_infinite(folder):
    rows = "".join(f"u{i % 9},{i},{i % 2}\n" for i in range(40))
    (folder / "a.csv").write_text("id,age,y\n" + rows)
    (folder / "e.toml").write_text(
        """
        [data]
        silos = ["a.csv"]
        user = "id"
        label = "y"
        users = 50
        test = "a.csv"
        [data.schema]
        standardise = "silo"
        [data.schema.label]
        kind = "class"
        classes = [0, 1]
        [data.schema.columns.age]
        kind = "number"
        range = [0, 100]
        [method]
        name = "uldp-avg"
        rounds = 1
        [privacy]
        noise_multiplier = 5.0
        """
    )
    compared = ["compare", "e.toml", "--repeats", "2", "--out", "c"]
    result = runner.invoke(app, [*compared, "--methods", "uldp-avg,uldp-sgd", "--json"])
    assert result.stderr.count("NO GUARANTEE") == 1
    found = json.loads(result.stdout)
    assert summed(found, "private_epsilon") == (4, 0, None)
    # also where only a method is asked for that never had a guarantee
    assert document(*compared, "--methods", "fedavg")["total"]["private_runs"] == 0


def test_a_comparison_read_again_is_the_same_to_the_last_digit(folder):
    first = document(*ONE, "--methods", "uldp-avg,uldp-sgd", "--out", "c")
    files = {path: path.read_bytes() for path in folder.rglob("result.json")}
    assert document(*ONE, "--methods", "uldp-avg,uldp-sgd", "--out", "c") == first
    assert {path: path.read_bytes() for path in folder.rglob("result.json")} == files


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--set", "method.name=uldp-avg"], "--set: name the methods in --methods"),
        (["--set", " method . name =uldp-avg"], "--set: name the methods in --methods"),
        (["--set", "method.weighting=uniform"], "uldp-avg-w means weighting = 'records', not 'uniform'"),
        (["--set", "method.clip=-1"], "(method uldp-avg)"),
        (["--set", "data.users=1000"], "data.users"),
        (["--set", "privacy.noise_multiplier=1e-9"], "(method uldp-avg)"),
        (["--set", "model.name=cnn"], "model"),
    ],
)
def test_what_is_refused_leaves_no_folder(folder, arguments, says):
    if "data.users=1000" in arguments:
        arguments = [*arguments, "--set", "data.options.test_fraction=0.0001"]
        says = "test set has no records"
    result = runner.invoke(app, [*SMALL, "--methods", "uldp-avg,uldp-avg-w", *arguments, "--out", "c"])
    assert result.exit_code == 2, result.output
    assert says in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not list(folder.iterdir())


def test_a_later_method_that_is_refused_leaves_no_folder(folder, monkeypatch):
    from uldp.runtimes import compare as module

    def picky(experiment):
        if experiment.method_name == "uldp-sgd":
            raise ConfigError("no", location="method")
        return prepare(experiment)

    prepare = module.prepare
    monkeypatch.setattr(module, "prepare", picky)
    result = runner.invoke(app, [*SMALL, "--methods", "uldp-avg,uldp-sgd", "--out", "c"])
    assert (result.exit_code, result.stderr) == (2, "error: method: no (method uldp-sgd)\n")
    assert not list(folder.iterdir())


def test_data_are_loaded_once_for_each_run(monkeypatch):
    from uldp.experiment import build

    loaded, original = [], build.load_federation
    monkeypatch.setattr(build, "load_federation", lambda e: loaded.append(e.run.seed) or original(e))
    document(*SMALL, "--methods", "fedavg,uldp-avg", "--out", "c")
    assert sorted(loaded) == [0, 0, 1, 1]


def test_warnings_are_those_of_a_run(monkeypatch):
    noise = ["--set", "privacy.noise_multiplier=0"]
    silent = runner.invoke(app, [*SMALL, "--methods", "uldp-avg,uldp-sgd", *noise, "--out", "c"]).stderr
    assert silent.count("NO PRIVACY") == 1
    cut = ["--methods", "fedavg", "--set", "method.value_range=0.001", "--out", "d"]
    said = runner.invoke(app, [*SMALL, *cut]).stderr
    for seed in (0, 1):
        assert said.count(f"fedavg seed {seed}: ") == 1
    assert said.count("cut off at method.value_range") == 2
    # and again when the runs are only read
    assert runner.invoke(app, [*SMALL, *cut]).stderr == said


def test_updates_that_were_left_out_are_told_also_after_a_resumption(monkeypatch):
    wild = ["--methods", "uldp-avg", "--set", "method.local_lr=3e38", "--set", "method.local_epochs=20"]
    whole = runner.invoke(app, [*ONE, *wild, "--out", "whole"]).stderr
    told = next(line for line in whole.splitlines() if "user updates were not finite" in line)
    with ctrl_c(monkeypatch):
        assert runner.invoke(app, [*ONE, *wild, "--out", "c"]).exit_code == 130
    assert told in runner.invoke(app, [*ONE, *wild, "--out", "c"]).stderr
    # it is an exact count that one user can change: in no file that may be shown
    assert "left_out" not in (Path("c") / "uldp-avg" / "seed-0" / "result.json").read_text()


def test_a_kill_while_a_run_directory_is_made_does_not_block(monkeypatch):
    for name in ("versions.json", "experiment.json", "comparison.json"):

        def killed(file, data, mode=0o600, name=name):
            if file.name == name:
                file.with_name(f".{name}.partial").write_bytes(data[:5])
                raise KeyboardInterrupt
            replace_file(file, data, mode)

        with monkeypatch.context() as patch:
            patch.setattr("uldp.runs.records.replace_file", killed)
            assert runner.invoke(app, [*ONE, "--methods", "fedavg", "--out", name]).exit_code == 130
        assert document(*ONE, "--methods", "fedavg", "--out", name)["total"]["runs"] == 1


def test_a_setting_that_only_some_methods_have_goes_to_those():
    found = document(*SMALL, "--methods", "uldp-avg,uldp-sgd", "--set", "method.local_epochs=1", "--out", "c")
    plain = document(*SMALL, "--methods", "uldp-avg,uldp-sgd", "--out", "d")
    changed = [a["metrics"] != b["metrics"] for a, b in zip(found["results"], plain["results"], strict=True)]
    assert changed == [True, False]
    result = runner.invoke(app, [*SMALL, "--methods", "uldp-sgd", "--set", "method.local_epochs=1", "--out", "e"])
    assert result.exit_code == 2
    assert "local_epochs" in result.stderr
