"""scikit-learn's own checks; what an estimator learns from the data; cross-validation over users; bad input."""

import pickle
import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

import uldp
from uldp import Schema, UldpClassifier, UldpRegressor
from uldp.library import estimators
from uldp.library.cells import PrivacyWarning

# What the checks need and a real fit would not have: some ask for a good score on 200 rows or fewer, and others compare
# two fits bit by bit, so noise is low and comes from the seed. A range must be given, for none is read from the data.
CHECKED = {"feature_range": (-3, 3), "epsilon": 1000.0, "secrets": "simulated"}
EXCEPTIONS: dict[str, str] = {}
"""Checks that fail, with the reason. None does."""

DRAW = np.random.default_rng(0)
X = DRAW.uniform(0, 10, (120, 3))
Y = (X[:, 0] > 5).astype(int)
USERS = np.array([f"user {number}" for number in DRAW.integers(0, 40, 120)])
SILOS = DRAW.choice(["north", "south"], 120)
SETTINGS = {"feature_range": (0, 10), "epsilon": 5.0, "rounds": 2, "secrets": "simulated", "random_state": 0}
CLASSIFIER = UldpClassifier(classes=[0, 1], **SETTINGS)
MIXED = Schema.classes("ill", ["yes", "no"]).numeric("age", 0, 10).category("sex", ["f", "m"], missing="f")


pytestmark = pytest.mark.usefixtures("runs_in_process")


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [UldpClassifier(**CHECKED), UldpRegressor(label_range=(-3, 3), rounds=30, **CHECKED)],
    expected_failed_checks=lambda estimator: EXCEPTIONS,
)
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)


def fitted(estimator=CLASSIFIER, x=X, y=Y, users=USERS, silos=SILOS, **changes):
    return sklearn.clone(estimator).set_params(**changes).fit(x, y, users=users, silos=silos)


def codes(estimator):
    return {caveat.code for caveat in estimator.statement_.caveats}


def test_it_trains_what_train_would():
    model = fitted()
    frame = pd.DataFrame(X, columns=["x0", "x1", "x2"]).assign(label=Y, user=USERS)
    schema = Schema.classes("label", [0, 1]).numeric("x0", 0, 10).numeric("x1", 0, 10).numeric("x2", 0, 10)
    silos = {name: frame[name == SILOS] for name in ("north", "south")}
    about = {"user": "user", "label": "label", "schema": schema, "test_fraction": 0}
    same = uldp.train(silos, **about, epsilon=5.0, rounds=2, secrets="simulated", seed=0)
    assert np.array_equal(model.result_.model, same.model) and model.epsilon_ == same.epsilon
    assert model.result_.metrics == {}  # nobody is held out, so nothing is evaluated on the records of training
    np.testing.assert_array_equal(model.predict(X), same.predict(frame))


def test_noise_is_secret_unless_asked_for_otherwise():
    one, other = (fitted(secrets="os") for _ in range(2))
    assert one.statement_.noise == "secret" and not np.array_equal(one.result_.model, other.result_.model)
    assert fitted().statement_.noise == "simulated"
    assert UldpClassifier().secrets == UldpRegressor().secrets == "os"


def test_what_is_not_said_is_warned_of_and_stands_in_the_statement():
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyWarning)
        everything = fitted(roster=sorted(set(USERS)))
    assert not codes(everything) & {"classes-from-data", "rows-as-users", "ids-from-data"}
    assert {"silos-from-data", "features-as-given"} <= codes(everything)
    with pytest.warns(PrivacyWarning) as found:
        nothing = fitted(classes=None, users=None, silos=None)
    texts = " ".join(str(warning.message) for warning in found)
    assert all(word in texts for word in ("no classes", "no users", "no silos"))
    assert {"classes-from-data", "rows-as-users"} <= codes(nothing)
    assert nothing.result_.statement.caveats and "ids-from-data" in codes(fitted())


@pytest.mark.filterwarnings("ignore::uldp.library.cells.PrivacyWarning")
@pytest.mark.parametrize("named", [True, False])
def test_one_user_moves_nothing_that_others_features_or_the_model_depend_on(monkeypatch, named):
    """However extreme the records of one user are: all other rows, the roster and the model's shape stay the same."""
    federations, result = [], fitted().result_
    monkeypatch.setattr(estimators, "train", lambda federation, **settings: federations.append(federation) or result)
    person = USERS[7] == USERS
    extreme, other = X.copy(), Y.copy()
    extreme[person], other[person] = 1e30, 1
    for x, y in ((X, Y), (extreme, other), (X - 1e9 * person[:, None], Y)):
        users = USERS if named else None
        fitted(x=x, y=y, users=users)
        fitted(UldpRegressor(label_range=(0, 1), **SETTINGS), x=x, y=y * 1e20 if x is extreme else y, users=users)
    for first, *changed in (federations[::2], federations[1::2]):
        for federation in changed:
            assert federation.schema == first.schema and federation.roster == first.roster
            assert federation.caveats == first.caveats and federation.users == first.users
            for silo, before in zip(federation.silos, first.silos, strict=True):
                same = ~person[before.name == SILOS]
                assert np.array_equal(silo.users, before.users)
                assert np.array_equal(silo.features[same], before.features[same])
                assert np.abs(silo.features).max() <= 1


def test_data_frames_with_a_schema():
    frame = pd.DataFrame({"age": X[:, 0], "sex": DRAW.choice(["f", "m", None], 120)}, index=np.arange(120) * 3)
    labels = pd.Series(np.where(Y, "yes", "no"), index=np.arange(120) + 7)
    model = fitted(x=frame, y=labels, users=pd.Series(USERS), feature_range=None, classes=None, schema=MIXED)
    assert model.classes_.tolist() == ["no", "yes"] and model.feature_names_in_.tolist() == ["age", "sex"]
    assert not codes(model) & {"classes-from-data", "features-as-given"}
    chances = model.predict_proba(frame)
    np.testing.assert_allclose(chances[:, ::-1], model.result_.predict_proba(frame))
    assert np.array_equal(model.predict(frame), model.classes_[chances.argmax(axis=1)])
    assert 0 <= model.score(frame, labels) <= 1


@pytest.mark.parametrize("routing", [True, False])
def test_cross_validation_over_users_spends_budget_in_each_fold(routing, runs_in_process):
    params = {"users": USERS, "silos": SILOS}
    estimator, groups = sklearn.clone(CLASSIFIER), {"groups": USERS}
    if routing:
        params, groups = {**params, **groups}, {}
    with sklearn.config_context(enable_metadata_routing=routing), pytest.warns(PrivacyWarning) as found:
        if routing:
            estimator.set_fit_request(users=True, silos=True)
        scores = cross_val_score(estimator, X, Y, cv=GroupKFold(4), params=params, **groups)
    assert len(scores) == 4 and np.isfinite(scores).all()
    texts = [str(warning.message) for warning in found if "trained on before" in str(warning.message)]
    assert len(texts) == 3 and "each fold of a cross-validation" in texts[0]  # all but the first
    assert len(runs_in_process) == 4
    again = fitted()
    assert again.result_.total > 2.5 * again.epsilon_


@pytest.mark.filterwarnings("ignore:no users", "ignore:no silos")
def test_rows_as_users_are_recognised_in_other_folds_by_their_contents():
    first = fitted(x=X[:60], y=Y[:60], users=None, silos=None)
    apart = fitted(x=X[60:], y=Y[60:], users=None, silos=None)
    assert apart.result_.total == pytest.approx(first.epsilon_)  # other rows: other people
    with pytest.warns(PrivacyWarning, match="trained on before"):
        overlapping = fitted(x=X[30:90], y=Y[30:90], users=None, silos=None)
    assert overlapping.result_.total > 1.9 * first.epsilon_  # both, and itself


def test_a_search_over_settings(runs_in_process):
    search = GridSearchCV(CLASSIFIER, {"rounds": [1, 2]}, cv=GroupKFold(2), error_score="raise")
    with pytest.warns(PrivacyWarning, match="each candidate of a search spends budget"):
        search.fit(X, Y, groups=USERS, users=USERS, silos=SILOS)
    best = search.best_estimator_
    assert len(runs_in_process) == 5 and best.result_.total > 1.5 * best.epsilon_


def test_a_pickle_holds_neither_records_nor_times():
    marked = X.copy()
    marked[:, 1] = 3.14159265
    model = fitted(x=marked, y=Y)
    kept = pickle.dumps(model)
    scaled = np.float32(2 * 3.14159265 / 10 - 1)
    for mark in (np.float64(3.14159265), np.float32(3.14159265), scaled, USERS[0].encode(), scaled.astype(np.float64)):
        assert bytes(mark) not in kept
    loaded = pickle.loads(kept)
    assert loaded.result_.seconds == 0 and all(report.seconds == 0 for report in loaded.result_.reports)
    np.testing.assert_array_equal(loaded.predict_proba(marked), model.predict_proba(marked))
    assert loaded.statement_.to_json() == model.statement_.to_json()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"feature_range": None}, "feature_range: (lowest, highest): two numbers, or two lists of 3, not None"),
        ({"feature_range": (1, 0)}, "feature_range: finite numbers, the lowest first, not [1, 0]"),
        ({"feature_range": ([0, 0], [1, 1])}, "two lists of 3"),
        ({"classes": [0]}, "classes: 1 class; a classifier needs at least two"),
        ({"classes": [1, 2]}, "labels are not among classes (first: row "),
        ({"classes": ["1", 1]}, "classes: classes are texts, numbers or true/false, each spelled in one way"),
        ({"schema": MIXED}, "feature_range: is part of the schema"),
        ({"schema": MIXED, "feature_range": None, "classes": None}, "labels are not among the schema (first: row 0)"),
        (
            {"schema": MIXED, "feature_range": None, "classes": None, "y": np.where(Y, "yes", "no")},
            "X: a data frame with the schema's columns is needed, not a ndarray of shape (120, 3)",
        ),
        ({"schema": Schema.numbers("y", 0, 1), "feature_range": None, "classes": None}, "label is for UldpRegressor"),
        ({"users": USERS[1:]}, "users: one value for each row is needed: 120 rows, 119 values"),
        (
            {"users": np.where(USERS[0] == USERS, None, USERS)},
            "users: contains missing values (NaN or None) (first: row 0",
        ),
        ({"silos": SILOS[1:]}, "silos: one value for each row"),
        ({"users": None, "roster": 50}, "roster: goes with users"),
        ({"roster": 5}, "|U| is smaller than the ids seen"),
        ({"epsilon": None}, "exactly one of epsilon"),
        ({"rounds": 0}, "method.rounds"),
        ({"method": "uldp-agv"}, "unknown method 'uldp-agv'"),
        ({"x": X[:, :0]}, "0 feature(s)"),
        ({"x": X[:5]}, "fit: X has 5 rows and y has 120 labels"),
        ({"y": Y + 0.5}, "Unknown label type: continuous"),
        ({"random_state": "zero"}, "run.seed"),
    ],
)
def test_bad_input_is_a_value_error_of_one_sentence_and_nothing_is_spent(changes, sentence, runs_in_process):
    with pytest.raises(ValueError) as caught, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted(**changes)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)
    assert not runs_in_process


def test_columns_of_text_without_a_schema_are_named_before_anything_else():
    frame = pd.DataFrame({"age": X[:, 0], "sex": "f", "ward": ["a", None] * 60, "code": [str(n) for n in range(120)]})
    with pytest.raises(ValueError, match=r"^X: no numbers in column\(s\) sex, ward: describe the columns by a schema"):
        fitted(x=frame)


def test_before_fit_and_with_other_columns():
    with pytest.raises(NotFittedError):
        CLASSIFIER.predict(X)
    with pytest.raises(ValueError, match="X has 2 features, but UldpClassifier is expecting 3"):
        fitted().predict(X[:, :2])


@pytest.mark.filterwarnings("error::uldp.library.cells.PrivacyWarning")
def test_the_page_about_estimators_runs():
    page = Path(__file__).parents[2] / "docs" / "scikit-learn.md"
    space = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.S)), space)
    assert round(space["model"].epsilon_, 2) == 3.0 and len(space["scores"]) == 3
