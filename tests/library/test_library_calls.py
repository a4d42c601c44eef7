"""plan, compare, epsilon, noise_multiplier, total, load and what a result can do; and what a process has spent."""

import math
import pickle
import shutil
import threading
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import uldp
from uldp import ConfigError, Experiment, Federation, InputError, RunError, Schema, UldpAvg
from uldp.runs import spending

SCHEMA = Schema.classes("ill", [0, 1]).numeric("age", 0, 110).numeric("weight", 0, 200)
USERS = [f"p{number}" for number in range(30)]
DRAW = np.random.default_rng(7)
AGE = DRAW.uniform(20, 90, 60).round(1)
FRAME = pd.DataFrame({
    "pid": DRAW.choice(USERS, 60), "age": AGE, "weight": DRAW.uniform(40, 120, 60), "ill": (AGE > 55).astype(int)
})  # fmt: skip
SILOS = {"north": FRAME[:35], "south": FRAME[35:]}
TABLES = {"user": "pid", "label": "ill", "schema": SCHEMA, "users": USERS, "test": FRAME}
ALONE = {"epsilon": 3.0, "rounds": 2}


def train(silos=SILOS, **changes):
    return uldp.train(silos, **{**TABLES, **ALONE, "progress": False, **changes})


@pytest.fixture(autouse=True)
def nothing_spent(monkeypatch, tmp_path, runs_in_process):
    monkeypatch.setenv("ULDP_STATE", str(tmp_path / "state"))


def experiment():
    tree = {"data": {"dataset": "synthetic"}, "method": {"name": "uldp-avg", "rounds": 2}, "privacy": {"epsilon": 3.0}}
    return Experiment.from_tree(tree)


def twice(epsilon=3.0):
    """Epsilon of two runs of ALONE: of twice as many rounds with the same noise."""
    noise = uldp.noise_multiplier("uldp-avg-w", epsilon, rounds=2)
    return uldp.epsilon("uldp-avg-w", noise, rounds=4)


def test_a_plan_says_what_training_does():
    planned = uldp.plan(SILOS, **TABLES, **ALONE)
    result = planned.train(progress=False)
    assert planned.epsilon == pytest.approx(result.epsilon) and planned.epsilon_after[2] == planned.epsilon
    noise = uldp.noise_multiplier("uldp-avg-w", 3.0, rounds=2)
    assert planned.noise_multiplier == pytest.approx(noise) and float(noise.cost) <= 3.0
    assert "anyone who sees the released models" in str(planned) and "User-level DP" in repr(planned)
    assert "<table>" in planned._repr_html_() and planned.within(1.0)["rounds_within_budget"] == 0
    with pytest.raises(ConfigError, match="budget: a positive number, not -1"):
        planned.within(-1)


def test_an_experiment_is_another_way_to_write_the_arguments_down():
    written = uldp.train(experiment())
    given = uldp.train("synthetic", method=written.spent.experiment.method, **ALONE)
    assert np.array_equal(written.model, given.model) and written.statement == given.statement
    changed = uldp.plan(experiment(), noise_multiplier=5.0, rounds=3, method="uldp-sgd", seed=4)
    variant = changed.prepared.experiment
    assert (variant.privacy.epsilon, variant.privacy.noise_multiplier) == (None, 5.0)
    assert (variant.method_name, variant.method.rounds, variant.run.seed) == ("uldp-sgd", 3, 4)


def test_a_factory_is_called_with_shape_and_task_and_starts_from_the_seed():
    def factory(shape, task):
        return nn.Sequential(nn.Linear(shape[0], 3), nn.Tanh(), nn.Linear(3, task.classes))

    torch.manual_seed(1)
    one = train(model=factory, secrets="simulated")
    torch.manual_seed(2)
    other = train(model=factory, secrets="simulated")
    assert np.array_equal(one.model, other.model)


def test_methods_side_by_side_on_frames():
    methods = [UldpAvg(clip=0.1), UldpAvg(clip=0.5), "fedavg"]
    comparison = uldp.compare(SILOS, methods, repeats=2, progress=False, **TABLES, **ALONE)
    assert list(comparison.frame.index) == ["uldp-avg clip=0.1", "uldp-avg clip=0.5", "fedavg"]
    assert {"accuracy", "accuracy_std", "epsilon", "server_epsilon"} <= set(comparison.frame.columns)
    assert comparison.total.private_runs == 4 and math.isinf(comparison.total.epsilon)
    noise = uldp.noise_multiplier("uldp-avg", 3.0, rounds=2)
    assert comparison.total.private_epsilon == pytest.approx(uldp.epsilon("uldp-avg", noise, rounds=8), rel=1e-3)
    first = comparison.results["uldp-avg clip=0.1"]
    assert math.isinf(first[0].total) and len(first) == 2 and first[0].statement.noise == "secret"
    assert uldp.total(first).epsilon == pytest.approx(twice(), rel=1e-3)
    assert "The 4 private runs together cost" in str(comparison) and "<table>" in comparison._repr_html_()
    assert comparison.plot()._repr_png_().startswith(b"\x89PNG")
    assert comparison.plot("loss").axes[0].get_ylabel() == "test loss"


def test_a_comparison_in_a_folder_goes_on_where_it_was(tmp_path):
    arguments = {"directory": tmp_path / "c", "progress": False, **TABLES, **ALONE}
    first = uldp.compare(SILOS, {"mine": "uldp-avg"}, **arguments)
    second = uldp.compare(SILOS, {"mine": "uldp-avg", "other": "uldp-sgd"}, **arguments)
    before, after = first.results["mine"][0], second.results["mine"][0]
    assert np.array_equal(before.model, after.model) and second.picture.exists()
    assert second.total.runs == 2 and uldp.total(tmp_path / "c").epsilon == pytest.approx(second.total.epsilon)
    assert after.total == pytest.approx(second.total.epsilon)  # the run that was read again is the same run


@pytest.mark.parametrize("complete", [True, False])
def test_what_is_saved_is_loaded(tmp_path, complete):
    module = nn.Sequential(nn.Linear(2, 2))
    result = train(model=module, callbacks=lambda report: not complete)
    assert result.save(tmp_path / "kept") == tmp_path / "kept"
    assert not list(tmp_path.glob(".*"))
    loaded = uldp.load(tmp_path / "kept", model=nn.Sequential(nn.Linear(2, 2)))
    assert np.array_equal(loaded.model, result.model) and loaded.statement == result.statement
    assert loaded.complete == complete and loaded.metrics == result.metrics and loaded.entries == result.entries
    np.testing.assert_array_equal(loaded.predict_proba(FRAME), result.predict_proba(FRAME))
    pd.testing.assert_frame_equal(loaded.history, result.history)
    assert loaded.total == result.total == pytest.approx(result.epsilon)  # one run, counted once
    assert uldp.total(result, tmp_path / "kept").epsilon == pytest.approx(result.epsilon)
    with pytest.raises(RunError, match=r"hand the module over: uldp.load\(path, model=module\)"):
        uldp.load(tmp_path / "kept").predict(FRAME)
    with pytest.raises(RunError, match="exists already"):
        result.save(tmp_path / "kept")


def test_arrays_are_loaded_without_their_data(tmp_path):
    features, labels = DRAW.uniform(-1, 1, (40, 3)), DRAW.integers(0, 2, 40)
    silos = {"a": (features, labels, DRAW.integers(0, 9, 40))}
    federation = Federation.from_arrays(silos, test=(features, labels), classes=2, users=9)
    result = uldp.train(federation, epsilon=3.0, rounds=1, progress=False)
    result.save(tmp_path / "kept")
    np.testing.assert_array_equal(uldp.load(tmp_path / "kept").predict(features), result.predict(features))


def test_a_row_for_a_table_of_results():
    table = pd.DataFrame([train(noise_multiplier=noise, epsilon=None).summary() for noise in (3.0, 6.0)])
    assert list(table.epsilon) == sorted(table.epsilon, reverse=True) and "accuracy" in table.columns


class TestSpending:
    def test_the_same_people_in_other_objects_and_with_other_tables(self):
        train()
        again = Federation.from_frames({"all": FRAME.copy()}, **TABLES)
        assert uldp.train(again, progress=False, **ALONE).total == pytest.approx(twice(), rel=1e-3)

    def test_one_person_in_common_links_two_runs(self):
        two = [FRAME[:30].assign(pid=[f"a{i % 9}" for i in range(30)]), FRAME[30:].assign(pid="b")]
        two[1] = two[1].assign(pid=[f"b{i % 9}" for i in range(30)])
        first, second = (train({"s": frame}, users=sorted({*frame.pid})) for frame in two)
        assert first.total == pytest.approx(first.epsilon) and second.total == pytest.approx(second.epsilon)
        bridge = pd.concat([FRAME[:1].assign(pid="a1", age=1.0), FRAME[:1].assign(pid="b1", age=2.0)])
        third = train({"s": bridge}, users=["a1", "b1"])
        assert first.total == second.total == third.total > twice() + 0.5

    def test_ids_of_another_column_and_arrays_are_in_doubt_and_added_up(self):
        train()
        renamed = FRAME.rename(columns={"pid": "ssn"}).assign(ssn=[f"x{i % 20}" for i in range(60)], age=FRAME.age - 1)
        other = train({"s": renamed}, user="ssn", users=sorted({*renamed.ssn}))
        assert other.total == pytest.approx(twice(), rel=1e-3)
        arrays = {"a": (FRAME[["age", "weight"]].to_numpy() / 100 - 1, FRAME.ill.to_numpy(), np.arange(60))}
        federation = Federation.from_arrays(arrays, test=arrays["a"][:2], classes=2, users=60)
        third = uldp.train(federation, progress=False, **ALONE)
        assert third.total == other.total > twice() + 0.5
        assert any("nobody knows" in line for line in uldp.total().groups[0].sentences())

    def test_different_people_are_apart_and_built_in_data_are_nobody(self):
        train()
        other = train(
            {"s": FRAME.assign(pid=[f"q{i % 9}" for i in range(60)], age=FRAME.age - 1)},
            users=[f"q{i}" for i in range(9)],
        )
        assert other.total == pytest.approx(other.epsilon)
        named = uldp.train(Federation.from_dataset("synthetic"), progress=False, **ALONE)
        assert named.total == pytest.approx(named.epsilon) and named.statement.noise == "simulated"
        assert uldp.train("synthetic", **ALONE).total == pytest.approx(twice(), rel=1e-3)
        assert len(uldp.total().groups) == 3 and "different people" in str(uldp.total())

    def test_a_population_links_whatever_ids(self):
        train(population="Ward 3")
        other = FRAME.assign(pid=[f"q{i % 9}" for i in range(60)], age=FRAME.age - 1)
        assert train({"s": other}, users=[f"q{i}" for i in range(9)], population="ward 3").total > 3.5

    def test_a_run_is_resumed_once_and_counted_once(self):
        part = train(callbacks=lambda report: report.round == 1)
        between = train()
        done = part.resume()
        assert done.complete and done.total == between.total == part.total == pytest.approx(twice(), rel=1e-3)
        again = part.resume()  # the same run, not another one with other noise
        assert np.array_equal(again.model, done.model) and again.total == pytest.approx(twice(), rel=1e-3)

    def test_a_resumption_that_fails_within_a_round_ends_the_run(self, monkeypatch):
        part = train(callbacks=lambda report: report.round == 1)
        spent = part.total

        def fail(self, request):
            raise MemoryError

        with monkeypatch.context() as patch, pytest.raises(MemoryError):
            patch.setattr("uldp.sessions.silo.SiloSession.reply", fail)
            part.resume()
        with pytest.raises(RunError, match="cut short within a round"):
            part.resume()
        assert part.total == spent

    def test_what_is_released_is_charged_before_anything_can_fail(self, monkeypatch):
        def fail(self, *arguments):
            raise MemoryError

        monkeypatch.setattr("uldp.learners.torch.TorchLearner.evaluate", fail)
        with pytest.raises(MemoryError):
            train()
        assert uldp.total().epsilon == pytest.approx(uldp.plan(SILOS, **TABLES, **ALONE).epsilon_after[1])

    def test_a_directory_that_is_used_again_holds_another_run(self, tmp_path):
        for _ in range(2):
            shutil.rmtree(tmp_path / "run", ignore_errors=True)
            last = train(directory=tmp_path / "run")
        assert last.total == pytest.approx(twice(), rel=1e-3)
        assert uldp.total(tmp_path / "run").epsilon == pytest.approx(last.epsilon)

    def test_threads(self):
        results = []
        threads = [threading.Thread(target=lambda: results.append(train(options={"run.threads": 1}))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        noise = uldp.noise_multiplier("uldp-avg-w", 3.0, rounds=2)
        together = uldp.epsilon("uldp-avg-w", noise, rounds=8)
        assert [one.total for one in results] == [pytest.approx(together, rel=1e-3)] * 4

    def test_a_pickle_holds_no_id_and_counts_in_full(self):
        first = train()
        copied = pickle.loads(pickle.dumps(first.spent))
        assert b"p17" not in pickle.dumps(first.spent)
        assert spending.related_runs(copied).epsilon() == first.total

    def test_run_directories_and_results_together(self, tmp_path):
        kept, in_memory = train(directory=tmp_path / "run"), train()
        assert uldp.total(tmp_path / "run", in_memory).epsilon == pytest.approx(twice(), rel=1e-3)
        assert uldp.total(kept, tmp_path, in_memory).epsilon == pytest.approx(twice(), rel=1e-3)
        frame = uldp.total(tmp_path, in_memory).frame
        assert list(frame.noise) == ["secret"] * 2 and "<table>" in uldp.total()._repr_html_()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: uldp.compare(SILOS, "uldp-avg", **TABLES, **ALONE), "methods: a list of names"),
        (lambda: uldp.compare(SILOS, [], **TABLES, **ALONE), "methods: name at least one"),
        (lambda: uldp.compare(SILOS, ["uldp-avg", "uldp-avg"], **TABLES, **ALONE), "uldp-avg is there twice"),
        (lambda: uldp.compare(SILOS, ["uldp-avg", 3], **TABLES, **ALONE), "a name or a uldp.Method, not 3"),
        (lambda: uldp.compare(SILOS, ["uldp-agv"], **TABLES, **ALONE), "unknown method 'uldp-agv'"),
        (lambda: uldp.compare(SILOS, ["uldp-avg"], repeats=0, **TABLES, **ALONE), "repeats"),
        (lambda: uldp.compare(SILOS, ["uldp-avg"], method="uldp-avg", **TABLES, **ALONE), "name the methods in"),
        (lambda: uldp.compare(SILOS, ["uldp-avg"], directory=3, **TABLES, **ALONE), "the path of a folder, not 3"),
        (lambda: uldp.compare(SILOS, ["uldp-avg"], **TABLES, epsilon=1, noise_multiplier=2), "exactly one of epsilon"),
        (lambda: uldp.compare(SILOS, ["uldp-avg"], epsilom=1), "unknown key 'epsilom'"),
        (lambda: uldp.epsilon("uldp-agv", 5.0, rounds=2), "unknown method 'uldp-agv'"),
        (lambda: uldp.epsilon("uldp-avg", 5.0), "rounds: how many rounds?"),
        (lambda: uldp.epsilon("uldp-avg", -5.0, rounds=2), "noise_multiplier"),
        (lambda: uldp.epsilon("uldp-avg", 5.0, rounds=2, sillos=3), "unknown key 'sillos'"),
        (lambda: uldp.epsilon("uldp-avg", 5.0, rounds=2, adversary="nobody"), "adversary: one of"),
        (lambda: uldp.epsilon(FRAME, 5.0, rounds=2), "method: a name or a uldp.Method, not a DataFrame"),
        (lambda: uldp.epsilon("uldp-avg", "five", rounds=2), "noise_multiplier"),
        (lambda: uldp.epsilon("srr-fl", 5.0, rounds=2), "clients perturb by themselves"),
        (lambda: uldp.noise_multiplier("fedavg", 3.0, rounds=2), "adds no noise"),
        (lambda: uldp.noise_multiplier("uldp-avg", -3.0, rounds=2), "epsilon"),
        (lambda: uldp.total("no-such-folder"), "no-such-folder: holds no run directory"),
        (lambda: uldp.total(FRAME), "runs: results or run directories, not a DataFrame"),
        (lambda: uldp.total(delta=2.0), "delta"),
        (lambda: uldp.load("no-such-run"), "no-such-run: is not a run directory"),
        (lambda: uldp.load(FRAME), "the path of a folder, not a DataFrame"),
        (lambda: uldp.resume(FRAME), "the path of a folder, not a DataFrame"),
        (lambda: uldp.plan(experiment(), user="pid"), "user: is part of the experiment"),
        (lambda: uldp.plan(SILOS, **TABLES, **ALONE, options=[1]), "options: settings by section.name"),
        (lambda: uldp.plan("synthetic", label="ill", epsilon=1.0), "goes with data frames"),
        (lambda: train(model=nn.Linear), "model.name"),
        (lambda: train(aggregation="maskd"), "aggregation"),
        (lambda: train(callbacks=3), "callbacks: functions that take"),
        (lambda: train(directory=3), "the path of a folder, not 3"),
    ],
)
def test_bad_input_gets_one_sentence_and_nothing_is_charged(call, sentence, runs_in_process):
    with pytest.raises((InputError, RunError)) as caught, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call()
    assert sentence in str(caught.value) and "\n" not in str(caught.value)
    assert not runs_in_process


def test_a_result_refuses_what_it_cannot_do(tmp_path):
    result = train()
    for call, sentence in (
        (lambda: result.plot("acuracy"), "metric: one of accuracy"),
        (lambda: result.save(3), "path: the path of a folder, not 3"),
        (lambda: result.save("/proc/nothing"), "/proc"),
        (lambda: result.resume(), "nothing to resume"),
    ):
        with pytest.raises((InputError, RunError), match=sentence):
            call()
    with pytest.raises(RunError, match="is not finished"):
        train(directory=tmp_path / "run", callbacks=lambda report: True)
        uldp.load(tmp_path / "run")
