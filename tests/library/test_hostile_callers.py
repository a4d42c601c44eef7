"""Ways to get a statement or a total that is too good; each gave one before, or must never give one."""

import pickle
import sys

import numpy as np
import pandas as pd
import pytest
from torch import nn

import uldp
from uldp import Federation, RunError, Schema
from uldp.data.schema import SchemaFromData

SCHEMA = Schema.classes("ill", [0, 1]).numeric("age", 0, 110)
DRAW = np.random.default_rng(0)


def people(prefix, count=30, seed=0):
    age = np.random.default_rng(seed).uniform(20, 90, count).round(3)
    return pd.DataFrame({"id": [f"{prefix}{n}" for n in range(count)], "age": age, "ill": (age > 50).astype(int)})


FRAME, OTHERS = people("p"), people("q", seed=1)


def train(frame=FRAME, **changes):
    about = {"user": "id", "label": "ill", "schema": SCHEMA, "users": sorted(frame["id"]), "test": OTHERS}
    what = {"epsilon": 3.0, "rounds": 3, "secrets": "simulated", "progress": False}
    return uldp.train({"one": frame}, **{**about, **what, **changes})


def codes(result):
    return {caveat.code for caveat in result.statement.caveats}


pytestmark = pytest.mark.usefixtures("runs_in_process")


def stopping_at(*rounds):
    return lambda report: report.round in rounds


def test_a_result_that_was_resumed_cannot_be_trained_anew_under_the_same_entry(runs_in_process):
    whole, part = train(), train(callbacks=stopping_at(1))
    done = part.resume()
    again = part.resume()
    assert np.array_equal(done.model, whole.model) and np.array_equal(again.model, done.model)
    assert len(runs_in_process) == 2 and again.total == done.total


@pytest.mark.parametrize("directory", [False, True])
def test_an_exception_after_a_stop_forgets_nothing(tmp_path, directory):
    whole, plan = train(), [True, "fail"]

    def callback(report):
        if report.round == 2 and "fail" in plan:
            plan.clear()
            raise ValueError("of the caller")
        return plan.pop(0) if True in plan else None

    part = train(callbacks=callback, secrets="os", directory=tmp_path / "run" if directory else None)
    with pytest.raises(ValueError, match="of the caller"):
        part.resume()
    done = part.resume()
    assert done.complete and [report.round for report in done.reports] == [1, 2, 3]
    assert done.epsilon == pytest.approx(whole.epsilon) and len(done.entries) == 3


class Explodes(nn.Module):
    """Returns NaN once its parameters moved: round 1 is released, then training stops."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 2)
        nn.init.zeros_(self.layer.weight), nn.init.zeros_(self.layer.bias)

    def forward(self, x):
        moved = (self.layer.bias**2).sum() > 0
        return self.layer(x) + (float("nan") if moved and not self.training else 0.0)


@pytest.mark.filterwarnings("ignore")
def test_a_round_that_fails_after_its_release_is_spent(runs_in_process):
    with pytest.raises(uldp.ModelError, match="NaN or infinity after round 1"):
        train(model=Explodes())
    assert len(runs_in_process) == 1
    assert train().total > train(people("z", seed=5)).total + 0.3


def test_noise_from_the_seed_is_none_beside_secret_noise():
    assert train().total < 4  # what it would be with secret noise, as the statement says
    secret = train(secrets="os")
    assert secret.statement.noise == "secret" and secret.total == float("inf")
    assert train(people("z", seed=5), secrets="os").total < 4


def test_a_federation_that_does_not_say_whose_records_it_holds_may_be_about_anybody():
    train()
    federation = Federation.from_frames(
        {"one": OTHERS}, user="id", label="ill", schema=SCHEMA, users=sorted(OTHERS["id"]), test=FRAME
    )
    unknown = uldp.SiloData("x", *(getattr(federation.silos[0], name) for name in ("features", "labels", "users")))
    made = Federation("renamed", (unknown,), 30, federation.task, federation.test)
    result = uldp.train(made, epsilon=3.0, rounds=1, secrets="simulated", progress=False)
    assert result.total > result.epsilon + 0.5
    assert train(people("z", seed=5)).total > 4


def test_an_early_stop_stands_in_the_statement_until_training_is_over():
    part = train(callbacks=stopping_at(1))
    assert "stopped-early" in codes(part) and part.epsilon < train().epsilon
    assert "stopped-early" not in codes(part.resume())


def test_users_of_the_test_table_who_train_too_are_said():
    with pytest.warns(UserWarning, match="test: 30 of its users are in the silos' tables too"):
        train(test=FRAME)


def test_a_drafted_schema_does_not_depend_on_which_booleans_occur():
    frames = [FRAME.assign(smokes=value, ill=FRAME["ill"] == 1) for value in (True, False)]
    frames += [FRAME.assign(smokes=FRAME["age"] > 60, ill=FRAME["ill"] == 1)]
    with pytest.warns(SchemaFromData):
        drafts = [Schema.draft({"one": frame}, user="id", label="ill") for frame in frames]
    assert len({draft.columns for draft in drafts}) == 1 and "smokes" not in drafts[0].drafted
    absent = FRAME.drop(columns="age").assign(smokes=pd.array([True, None] * 15, dtype="boolean"))
    with pytest.warns(SchemaFromData, match="smokes"):
        assert "smokes" in Schema.draft({"one": absent}, user="id", label="ill").drafted


def test_columns_that_the_data_left_out_are_part_of_what_was_read():
    frame = FRAME.drop(columns="age").assign(smokes=FRAME["age"] > 60, ill=FRAME["ill"] == 1, name=FRAME["id"])
    with pytest.warns(SchemaFromData):
        assert Schema.draft({"one": frame}, user="id", label="ill").source == "data"


def trained_before(shape, task):
    return nn.Sequential(nn.Linear(1, 2))


def test_parameters_of_a_factory_may_have_been_trained_before(monkeypatch):
    monkeypatch.setitem(sys.modules, "nets_of_mine", sys.modules[__name__])
    assert "initial-parameters" in codes(train(model="nets_of_mine:trained_before"))
    assert "initial-parameters" in codes(train(model=nn.Sequential(nn.Linear(1, 2))))
    assert "initial-parameters" not in codes(train(model="logistic"))


def test_a_pickled_result_says_nothing_about_times_and_cannot_go_on():
    part = train(callbacks=stopping_at(1))
    kept = pickle.loads(pickle.dumps(part))
    assert kept.seconds == 0 and kept.reports[0].seconds == 0 and part.seconds > 0
    assert np.array_equal(kept.predict(OTHERS), part.predict(OTHERS))
    with pytest.raises(RunError):
        kept.resume()
