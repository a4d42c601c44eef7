"""``uldp.train``: what files and the command line would train, from data frames; totals; interruptions; bad input."""

import os
import signal
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import uldp
from uldp import ConfigError, DataError, Federation, InputError, RunError, Schema
from uldp.runs.directory import RunDirectory

ABSENT = object()
SCHEMA = Schema.classes("ill", [0, 1]).numeric("age", 0, 110).category("sex", ["f", "m"])
USERS = [f"p{number}" for number in range(30)]


def records(rows, seed):
    draw = np.random.default_rng(seed)
    age = draw.uniform(20, 90, rows).round(1)
    frame = {"pid": draw.choice(USERS, rows), "age": age, "sex": draw.choice(["f", "m"], rows)}
    return pd.DataFrame({**frame, "ill": (age > 55).astype(int)})


NORTH, SOUTH, TEST = records(60, 1), records(40, 2), records(30, 3)


def train(silos=None, **changes):
    silos = {"north": NORTH, "south": SOUTH} if silos is None else silos
    about = {"user": "pid", "label": "ill", "schema": SCHEMA, "users": USERS, "test": TEST}
    settings = {"epsilon": 5.0, "rounds": 3, "secrets": "simulated", "progress": False}
    chosen = {**about, **settings, **changes}
    return uldp.train(silos, **{key: value for key, value in chosen.items() if value is not ABSENT})


pytestmark = pytest.mark.usefixtures("runs_in_process")


def test_frames_train_the_model_that_files_train(tmp_path):
    for name, frame in (("north", NORTH), ("south", SOUTH), ("test", TEST)):
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    (tmp_path / "users.txt").write_text("\n".join(USERS))
    tree = {
        "data": {"silos": ["north.csv", "south.csv"], "test": "test.csv", "user": "pid", "label": "ill"},
        "method": {"rounds": 3},
        "privacy": {"epsilon": 5.0},
    }
    tree["data"] |= {"roster": "users.txt", "schema": SCHEMA.to_dict()}
    written = uldp.train(uldp.Experiment.from_tree(tree, tmp_path), progress=False)
    given = train()
    assert given.metrics == written.metrics and given.epsilon == written.epsilon
    assert given.reports == pytest.approx(given.reports) and given.statement.noise == written.statement.noise


def test_noise_on_own_frames_is_secret_unless_asked():
    one, other = train(secrets=ABSENT), train(secrets=ABSENT)
    assert one.statement.noise == "secret" and not np.array_equal(one.model, other.model)
    assert np.array_equal(train().model, train().model) and train().statement.noise == "simulated"


def test_an_own_module_is_trained_and_handed_back():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    result = train(model=module)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    trained = result.module()
    assert not trained.training and not torch.equal(trained[0].weight, before["0.weight"])
    features = torch.from_numpy(SCHEMA.features(TEST, "test"))
    np.testing.assert_allclose(trained(features).softmax(1).detach(), result.predict_proba(TEST), atol=1e-5)
    codes = {caveat.code for caveat in result.statement.caveats}
    assert "initial-parameters" in codes
    assert set(result.predict(TEST.drop(columns="ill"))) <= {0, 1}
    assert list(result.history.columns) == [*result.metrics, "epsilon"] and list(result.history.index) == [1, 2, 3]
    assert "auto on data frames" in result._repr_html_()


def test_runs_over_the_same_people_are_added_up():
    first = train()
    alone = first.total
    assert alone == pytest.approx(first.epsilon)
    second = train()
    assert second.total == first.total > alone + 1  # a result's total grows with later runs
    elsewhere = {"east": NORTH.assign(pid=[f"q{user}" for user in NORTH["pid"]], age=NORTH["age"] - 1)}
    apart = train(elsewhere, users=[f"q{user}" for user in USERS])
    assert apart.total == pytest.approx(apart.epsilon)
    copied = train({"copy": NORTH.assign(pid=[f"r{user}" for user in NORTH["pid"]])}, users=[f"r{u}" for u in USERS])
    assert copied.total > copied.epsilon + 1  # other ids on the same table hide nothing
    assert train(method="fedavg", epsilon=ABSENT).total == float("inf")
    assert train().total == float("inf")


def test_a_callback_that_raises_does_not_hide_what_was_spent():
    def fail(report):
        raise ValueError("of the caller")

    with pytest.raises(ValueError, match="of the caller"):
        train(callbacks=fail)
    assert train().total > train(epsilon=0.001, rounds=1).epsilon + 5


def test_a_stop_gives_what_is_there_and_goes_on_to_the_same_end(tmp_path):
    whole = train()
    for directory in (None, tmp_path / "run"):
        heard = []

        def stop(report, heard=heard):
            heard.append(report.round)
            return len(heard) == 1

        part = train(callbacks=[stop], directory=directory)
        assert part.rounds == 1 and not part.complete and part.epsilon < whole.epsilon
        done = part.resume()
        assert done.complete and np.array_equal(done.model, whole.model) and done.epsilon == whole.epsilon
        with pytest.raises(RunError, match="nothing to resume"):
            done.resume()
    assert RunDirectory.open(tmp_path / "run").finished


def test_a_stopped_run_is_charged_once():
    part = train(callbacks=lambda report: report.round == 1)
    assert part.resume().total == pytest.approx(train(epsilon=0.001, rounds=1).total, abs=0.2)


def test_ctrl_c_ends_after_the_round():
    def press(report):
        if report.round == 1:
            os.kill(os.getpid(), signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    part = train(callbacks=press)
    assert part.rounds == 1 and not part.complete and signal.getsignal(signal.SIGINT) is handler


def test_a_run_in_a_directory_can_be_looked_at(tmp_path):
    result = train(directory=tmp_path / "run", secrets=ABSENT)
    assert (tmp_path / "run" / "statement.txt").exists() and result.run == str(tmp_path / "run")
    with pytest.raises(ConfigError, match="handed over in Python"):
        uldp.resume(tmp_path / "run")
    with pytest.raises(RunError, match="finished run"):
        train(directory=tmp_path / "run", secrets=ABSENT)
    with pytest.raises(RunError, match="other settings"):
        train(directory=tmp_path / "run", secrets=ABSENT, rounds=4)


def test_without_users_and_schema_the_statement_says_what_was_read_from_the_data():
    with pytest.warns(UserWarning, match="of age, sex, ill were read from the data"):
        result = train(users=ABSENT, schema=ABSENT)
    assert {"ids-from-data", "schema-from-data"} <= {caveat.code for caveat in result.statement.caveats}


def test_arrays_and_built_in_data():
    draw = np.random.default_rng(0)
    features, labels = draw.uniform(-1, 1, (50, 4)), draw.integers(0, 3, 50)
    silos = {"a": (features, labels, draw.integers(0, 9, 50)), "b": (features[:9], labels[:9], np.arange(9))}
    federation = Federation.from_arrays(silos, test=(features, labels), classes=3, users=10)
    result = uldp.train(federation, epsilon=3.0, rounds=2, progress=False)
    assert result.predict(features).shape == (50,) and result.statement.noise == "secret"
    with pytest.raises(DataError, match="give an array of features"):
        result.predict(TEST)
    built_in = Federation.from_dataset("synthetic", users=20, options={"records": 200})
    assert uldp.train(built_in, epsilon=3.0, rounds=1, progress=False).rounds == 1
    assert uldp.plan("synthetic", epsilon=3.0, rounds=1).epsilon == pytest.approx(3.0, abs=0.01)


SECRET = "zebra-4711"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"user": "id"}, "silo 'north': no user column 'id'; the table has: pid, age, sex, ill"),
        ({"user": ABSENT}, "user: name the column"),
        ({"silos": {"north": NORTH.set_index("pid")}}, ".reset_index()"),
        ({"silos": {"north": NORTH[:0]}}, "silo 'north': the table has no rows"),
        ({"silos": {"north": NORTH.drop(columns="age")}}, "no column 'age'"),
        ({"silos": {"north": NORTH.assign(age=SECRET)}}, "not a finite number in column 'age'"),
        ({"silos": {"north": NORTH.assign(age=np.nan)}}, "60 missing in column 'age'"),
        ({"silos": {"north": pd.concat([NORTH, NORTH["age"]], axis=1)}}, "the column 'age' occurs twice"),
        ({"silos": {"north": NORTH.assign(sex=SECRET).to_dict("list")}}, "not a dict of 4"),
        ({"silos": [NORTH.assign(sex=SECRET)]}, "silos: a table for each silo, by its name"),
        ({"silos": NORTH.assign(sex=SECRET)}, 'by its name ({"north": table, ...}), not a DataFrame'),
        ({"silos": {}}, "silos: a table for each silo"),
        ({"schema": NORTH.assign(sex=SECRET)}, "schema: a uldp.Schema, not a DataFrame"),
        ({"test": NORTH.assign(sex=SECRET)}, "test: 60 not among the agreed categories"),
        ({"test_fraction": 0.2}, "give test or test_fraction, not both"),
        ({"label": "sex"}, "the schema's label is 'ill', not 'sex'"),
        ({"users": [SECRET, "p1"]}, "are not on the roster users"),
        ({"users": 3}, "|U| is smaller than the ids seen"),
        ({"users": "p1"}, "users: a number, or a list of all ids"),
        ({"noise_multiplier": 1.0}, "exactly one of epsilon"),
        ({"epsilon": ABSENT}, "exactly one of epsilon"),
        ({"epsilon": -1.0}, "privacy.epsilon"),
        ({"rounds": 0}, "method.rounds"),
        ({"method": "uldp-agv"}, "unknown method 'uldp-agv'"),
        ({"method": 3}, "method: a name or a uldp.Method, not 3"),
        ({"model": nn.Linear(3, 5)}, "outputs"),
        ({"model": nn.Linear(7, 2)}, "model"),
        ({"model": nn.Linear(3, 2, device="meta")}, "its parameters are on meta; move it with .cpu()"),
        ({"model": NORTH.assign(sex=SECRET)}, "model: an nn.Module or the name of a model, not a DataFrame"),
        ({"callbacks": [3]}, "callbacks: functions that take a RoundReport, not 3"),
        ({"options": {"masked": 1}}, "'masked' is no setting"),
        ({"epsilom": 3}, "epsilom"),
    ],
)
def test_bad_input_gets_one_sentence_and_nothing_is_charged(changes, sentence, tmp_path, runs_in_process):
    changes = dict(changes)
    with pytest.raises(InputError) as caught, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(changes.pop("silos", None), directory=tmp_path / "run", **changes)
    text = "".join(str(error) for error in (caught.value, caught.value.__cause__, caught.value.__context__))
    assert sentence in str(caught.value) and SECRET not in text and "\n" not in str(caught.value)
    assert not runs_in_process and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("silo", "sentence"),
    [
        ((np.zeros((3, 2)), np.zeros(2), np.arange(3)), "features of shape (3, 2) and labels of shape (2,)"),
        ((np.full((3, 2), np.nan), np.zeros(3), np.arange(3)), "NaN, infinity"),
        ((np.zeros((3, 2)), np.array([0, 1, 7]), np.arange(3)), "1 labels are not one of 0 .. 1 (first: row 2)"),
        ((np.zeros((3, 2)), np.zeros(3), np.array([0, 1, 9])), "1 user indices do not fit |U| = 5 (first: row 2)"),
        ((np.zeros((3, 2)), np.zeros(3), np.array([0.5, 1, 2])), "whole numbers from 0, not float64"),
        ((np.zeros((3, 2)), np.zeros(3), np.array([-1, 1, 2])), "numbered from 0"),
        ((np.array([[SECRET, 1]]), np.zeros(1), np.zeros(1, int)), "must be arrays of numbers"),
        (np.zeros((3, 2)), "three arrays are needed"),
    ],
)
def test_bad_arrays(silo, sentence):
    with pytest.raises(DataError) as caught:
        Federation.from_arrays({"a": silo}, test=(np.zeros((2, 2)), np.zeros(2)), classes=2, users=5)
    assert sentence in str(caught.value) and SECRET not in str(caught.value)
