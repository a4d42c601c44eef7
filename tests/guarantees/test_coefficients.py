"""Coefficients: one person moves the totals by at most the clip, estimates are those of ordinary statistics, intervals
cover the truth as often as they say."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from tests.support import moved
from typer.testing import CliRunner

import uldp
from uldp import Schema
from uldp.cli.app import app
from uldp.data.contrasts import contrasts
from uldp.data.federation import SiloData
from uldp.data.schema import feature_norm
from uldp.errors import ConfigError, RunError
from uldp.experiment.build import prepare
from uldp.experiment.config import Experiment
from uldp.experiment.parties import prepare_server, prepare_silo
from uldp.methods.base import State
from uldp.methods.newton import NewtonSteps
from uldp.methods.person_scores import KINDS, ROW_NORM
from uldp.privacy.gaussian import gaussian_mu
from uldp.privacy.releases import PublicFacts
from uldp.privacy.releases.sums import IntegerSum
from uldp.rng import Secrets, Streams
from uldp.runs.coefficients import CoefficientTable

runner = CliRunner()
DELTA = 1e-5
STREAMS = Streams.from_seed(0)
COLUMNS = {
    "age": {"kind": "number", "range": [0, 110], "missing": 50},
    "bmi": {"kind": "number", "range": [10, 70], "outside": "clip"},
    "sex": {"kind": "category", "categories": ["f", "m"], "missing": "f"},
    "dose": {"kind": "number", "range": [0, 10]},
}
LABELS = {
    "linear": {"kind": "number", "range": [40, 240]},
    "logistic": {"kind": "class", "classes": [0, 1]},
    "cox": {"kind": "survival", "event": "dead", "range": [0, 100]},
}
TRUTH = {
    "linear": {"age": 0.4, "bmi": 0.5, "sex=m (against f)": 3.2, "dose": -0.6},
    "logistic": {"age": 0.05, "bmi": 0.06, "sex=m (against f)": 0.4, "dose": -0.13},
    "cox": {"age": 0.04, "bmi": 0.06, "sex=m (against f)": 0.4, "dose": -0.13},
}
MIDDLE = {"age": 55.0, "bmi": 27.0, "dose": 5.0}
AT_MIDDLE = {"linear": 120.0, "logistic": -1.0, "cox": -3.0}


def schema_of(kind):
    return Schema.from_dict({"label": LABELS[kind], "columns": COLUMNS}, label="y", user="id")


def table(kind, people, records, seed):
    """People with a value of their own in every record (but for bmi and dose), and labels that follow the model."""
    draw = np.random.default_rng(seed)
    counts = draw.integers(1, 2 * records, people) if records > 1 else np.ones(people, dtype=int)
    who = np.repeat(np.arange(people), counts)
    frame = pd.DataFrame({"id": [f"p{i}" for i in who], "age": np.clip(draw.normal(55, 14, people), 20, 95)[who]})
    frame["bmi"] = np.clip(draw.normal(27, 5, len(who)), 12, 60)
    frame["sex"] = draw.choice(["f", "m"], people)[who]
    frame["dose"] = draw.uniform(0, 10, len(who))
    truth = TRUTH[kind]
    eta = AT_MIDDLE[kind] + sum(truth[name] * (frame[name] - middle) for name, middle in MIDDLE.items())
    eta += truth["sex=m (against f)"] * (frame["sex"] == "m")
    if kind == "linear":  # half of the residual is the person's own
        frame["y"] = np.clip(eta + 7 * draw.normal(size=people)[who] + 7 * draw.normal(size=len(who)), 40, 240)
    elif kind == "logistic":
        frame["y"] = (draw.random(len(who)) < 1 / (1 + np.exp(-eta))).astype(int)
    else:
        times, ends = draw.exponential(1 / np.exp(eta)), draw.uniform(0, 60, len(who))
        frame["y"], frame["dead"] = np.minimum(np.minimum(times, ends), 100), (times <= np.minimum(ends, 100)) * 1
    return frame, who


def steps_from(kind, share, rounds, epsilon, people):
    """The method, from coefficients that are this share of the true ones, as training would leave them."""
    schema, truth = schema_of(kind), TRUTH[kind]
    chosen, label = contrasts(schema), schema.label.task
    unit = label.label_scale if kind == "linear" else 1.0
    slopes = [truth[one.name] / one.scale / unit for one in chosen]
    intercept = (AT_MIDDLE[kind] - label.label_offset) / unit if kind == "linear" else AT_MIDDLE[kind]
    at = [one.shift + one.scale * MIDDLE[one.name] if one.name in MIDDLE else 0.0 for one in chosen]
    intercept -= sum(slope * value for slope, value in zip(slopes, at, strict=True))
    start = [*([] if kind == "cox" else [share * intercept]), *(share * slope for slope in slopes)]
    noise = np.sqrt(rounds) / gaussian_mu(epsilon, DELTA) if epsilon else 0.0
    method = NewtonSteps(
        kind=kind,
        rounds=rounds,
        start=tuple(start),
        features=tuple(one.feature for one in chosen),
        noise_multiplier=float(noise),
    )
    facts = PublicFacts(people, 1, method.numbers, task=KINDS[kind], feature_norm=feature_norm(schema))
    return method.for_facts(facts), facts


def silo_of(kind, frame, who):
    schema = schema_of(kind)
    labels, _ = schema.label.encode(frame)
    return SiloData("a", schema.features(frame, "table"), np.asarray(labels), who)


def statement():
    return uldp.plan("synthetic", method="uldp-avg", noise_multiplier=5.0, rounds=2).statement


def estimate(method, facts, data, about, seed=0):
    """The table that a run with one silo would show, and the last totals."""
    variance, draw = method.release(facts).noise_variance(1), np.random.default_rng(seed)
    x = np.zeros(method.numbers)
    x[: len(method.start)] = method.start
    state = State(x)
    for round_ in range(method.rounds):
        total = sum(rows.sum(axis=0) for _, rows in method.silo(state.x, data, None, STREAMS))
        noise = draw.normal(0, np.sqrt(variance), method.numbers)
        state = method.server(state, total + noise, facts.in_round(round_ + 1, 1))
    found = CoefficientTable.of(schema_of(method.kind), method, state.x, variance, about)
    return found, method.totals(state.x, variance)


# --- the guarantee ----------------------------------------------------------------------------------------------

cells = st.tuples(
    st.sampled_from([f"p{i}" for i in range(6)]),
    st.one_of(st.none(), st.floats(0, 110, width=32)),
    st.floats(-500, 500, width=32),
    st.sampled_from(["f", "m", None]),
    st.sampled_from([0.0, 5.0, 10.0]),
    st.sampled_from([0, 1]),
    st.sampled_from([0, 1]),
)
NAMES = ["id", "age", "bmi", "sex", "dose", "y", "dead"]


def experiment(folder, tables, kind, start):
    for name, rows in tables.items():
        frame = pd.DataFrame(rows, columns=NAMES)
        if kind != "logistic":
            frame["y"] = frame["y"] * 60 + 40
        frame.to_csv(folder / name, index=False)
    (folder / "roster.txt").write_text("\n".join(f"p{i}" for i in range(9)))
    data = {"silos": list(tables), "user": "id", "label": "y", "roster": "roster.txt", "test_fraction": 0.0}
    size = 4 if kind == "cox" else 5
    method = {"name": "coefficients", "kind": kind, "start": [start] * size, "features": [0, 1, 3, 4]}
    return Experiment.from_tree(
        {
            "data": {**data, "schema": {"label": LABELS[kind], "columns": COLUMNS}},
            "method": method,
            "privacy": {"noise_multiplier": 0.0},
            "aggregation": {"name": "plain"},
        },
        folder,
    )


def totals_without_noise(folder, tables, kind, start):
    """The integers that all silos would send without noise, and the release."""
    prepared = prepare(experiment(folder, tables, kind, start))
    plan, counts = prepared.plan, prepared.federation.counts()
    user_totals = plan.release.exchange.totals(counts)
    total = [0] * plan.facts.dimension
    x = prepared.learner.initial(STREAMS)
    for index, silo in enumerate(prepared.federation):
        weights = plan.release.weights(counts[index], user_totals[index])
        part = IntegerSum(plan.release.encoding, plan.facts.dimension, weights)
        secrets = Secrets.simulated_from_seed(0)
        for users, rows in plan.release.rows(plan.method, x, silo, prepared.learner, STREAMS, secrets):
            part.add(users, rows)
        total = [a + int(b) for a, b in zip(total, part.total, strict=True)]
    return total, plan.release


@pytest.mark.parametrize("kind", LABELS)
@given(
    silos=st.lists(st.lists(cells, max_size=10), min_size=2, max_size=3),
    who=st.sampled_from(["p0", "p1"]),
    start=st.sampled_from([0.0, -3.0, 500.0]),
)
@settings(max_examples=15)
def test_leaving_one_person_out_of_all_tables_moves_the_totals_by_at_most_the_clip(
    tmp_path_factory, kind, silos, who, start
):
    everybody = [("p7", 30.0, 20.0, "f", 5.0, 1, 1), ("p8", 60.0, 30.0, "m", 0.0, 0, 0)]
    tables = {f"s{i}.csv": [*rows, *everybody] for i, rows in enumerate(silos)}
    without = {name: [row for row in rows if row[0] != who] for name, rows in tables.items()}
    folder = tmp_path_factory.mktemp("tables")
    whole, release = totals_without_noise(folder, tables, kind, start)
    left, other = totals_without_noise(folder, without, kind, start)
    assert moved(whole, left) <= release.encoding.integer_limit**2
    assert release == other  # neither how many numbers nor the noise depends on who is there


@pytest.mark.parametrize("kind", LABELS)
def test_no_row_is_clipped_and_none_depends_on_another_person_by_a_bit(kind):
    draw = np.random.default_rng(0)
    users = np.repeat(np.arange(40), draw.integers(1, 30, 40))
    features = draw.choice([-1.0, -0.3, 0.0, 1.0], (len(users), 5)).astype(np.float32)
    features[:, 2:4] = np.eye(2)[draw.integers(0, 2, len(users))]
    labels = draw.choice([-1.0, -0.2, 0.4, 1.0], len(users)).astype(np.float32)
    labels = (labels > 0).astype(np.int64) if kind == "logistic" else labels
    method, _ = steps_from(kind, 3.0, 1, 0, 40)
    x = np.zeros(method.numbers)
    x[: len(method.start)] = method.start
    (who, rows), *_ = method.silo(x, SiloData("a", features, labels, users), None, STREAMS)
    assert np.linalg.norm(rows, axis=1).max() <= ROW_NORM * (1 + 1e-12)
    assert np.linalg.norm(rows, axis=1).max() > 0.1 * ROW_NORM  # the bound is not idle
    for person in (0, 17, 39):
        own = users == person
        alone = SiloData("a", features[own], labels[own], users[own])
        ((_, row),) = method.silo(x, alone, None, STREAMS)
        assert np.array_equal(row[0], rows[who.tolist().index(person)])


def test_parties_that_hold_one_table_or_none_agree_on_what_is_released(tmp_path):
    rows = [("p0", 30.0, 20.0, "f", 5.0, 1, 1), ("p1", 60.0, 30.0, "m", 0.0, 0, 0)]
    agreed = experiment(tmp_path, {"s0.csv": rows, "s1.csv": rows}, "logistic", 0.1)
    server, silo = prepare_server(agreed, rehearsal=True), prepare_silo(agreed, "s1", rehearsal=True)
    whole = prepare(agreed).plan
    assert server.plan.digest == silo.plan.digest
    assert server.plan.release == silo.plan.release == whole.release
    moved_start = experiment(tmp_path, {"s0.csv": rows, "s1.csv": rows}, "logistic", 0.2)
    assert prepare(moved_start).plan.digest != whole.digest


# --- the estimates ----------------------------------------------------------------------------------------------


def design(kind, frame, who, method):
    data = silo_of(kind, frame, who)
    features = data.features[:, list(method.features)].astype(float)
    features = np.concatenate([np.ones((len(who), 1)), features], axis=1)
    weights = np.minimum(1, method.scales.length**2 / (features**2).sum(axis=1)) / np.bincount(who)[who]
    return features, data.labels.astype(float), weights


def test_without_noise_a_linear_model_is_weighted_least_squares_with_standard_errors_by_person():
    frame, who = table("linear", 800, 3, 0)
    method, facts = steps_from("linear", 0.9, 1, 0, 800)
    found, totals = estimate(method, facts, silo_of("linear", frame, who), statement())
    features, labels, weights = design("linear", frame, who, method)
    information = (weights[:, None] * features).T @ features
    exact = np.linalg.solve(information, features.T @ (weights * labels))
    assert method.start + totals.step() == pytest.approx(exact, rel=1e-6)
    assert totals.information == pytest.approx(information, rel=1e-9)
    residuals = labels - features @ np.array(method.start)
    scores = pd.DataFrame(features * (weights * residuals)[:, None]).groupby(who).sum().to_numpy()
    assert totals.squares == pytest.approx(scores.T @ scores, rel=1e-9)
    for name, value in TRUTH["linear"].items():  # in the columns' own units
        assert found[name].estimate == pytest.approx(value, abs=4 * found[name].error)
        assert found[name].noise == 0
    assert found["intercept"].estimate == pytest.approx(
        120 - sum(TRUTH["linear"][name] * middle for name, middle in MIDDLE.items()), abs=4 * found["intercept"].error
    )


def test_without_noise_a_logistic_model_is_that_of_sklearn():
    frame, who = table("logistic", 1500, 2, 1)
    method, facts = steps_from("logistic", 0.5, 6, 0, 1500)
    found, _ = estimate(method, facts, silo_of("logistic", frame, who), statement())
    features, labels, weights = design("logistic", frame, who, method)
    fitted = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(features[:, 1:], labels, sample_weight=weights)
    age = next(one for one in contrasts(schema_of("logistic")) if one.name == "age")
    assert found["age"].estimate == pytest.approx(fitted.coef_[0, 0] * age.scale, rel=1e-4)
    assert found["sex=m (against f)"].estimate == pytest.approx(fitted.coef_[0, 2], rel=1e-4)
    assert found.finished
    far, _ = estimate(*steps_from("logistic", -2.0, 1, 0, 1500), silo_of("logistic", frame, who), statement())
    assert not far.finished and "NOT FINISHED" in far.sentences()[1]


def test_a_cox_score_is_the_slope_of_the_partial_likelihood_of_each_person():
    frame, who = table("cox", 40, 5, 2)
    method, _ = steps_from("cox", 0.5, 1, 0, 40)
    data = silo_of("cox", frame, who)
    features = data.features[:, list(method.features)].astype(float)
    times, events = np.abs(data.labels), data.labels > 0

    def likelihood(phi):
        total = 0.0
        for person in range(40):
            own, eta = who == person, features @ phi
            centred = features[own] - features[own].mean(axis=0)
            weight = min(1.0, method.scales.length**2 / max((centred**2).sum(axis=1).max(), 1e-300)) / own.sum()
            for event in np.flatnonzero(own & events):
                at_risk = own & (times >= times[event])
                total += weight * (eta[event] - np.log(np.exp(eta[at_risk]).sum()))
        return total

    def totals(phi):
        x = np.zeros(method.numbers)
        x[: len(phi)] = phi
        return method.totals(sum(rows.sum(axis=0) for _, rows in method.silo(x, data, None, STREAMS)), 0.0)

    phi, small = np.array(method.start), 1e-5
    directions = small * np.eye(len(phi))
    slopes = [(likelihood(phi + one) - likelihood(phi - one)) / (2 * small) for one in directions]
    assert totals(phi).score == pytest.approx(slopes, rel=1e-5, abs=1e-6)
    bends = [-(totals(phi + one).score - totals(phi - one).score) / (2 * small) for one in directions]
    assert totals(phi).information == pytest.approx(np.array(bends), rel=1e-4, abs=1e-6)
    assert totals(phi).information[0] == pytest.approx(0, abs=1e-12)  # age is the same in all records of a person


def test_what_is_stated_of_the_noise_is_what_resampled_noise_does():
    """Fixed records, noise drawn many times: the spread of the estimates is the stated one."""
    frame, who = table("linear", 3000, 1, 3)
    method, facts = steps_from("linear", 0.5, 1, 3.0, 3000)
    data, about = silo_of("linear", frame, who), statement()
    variance, draw = method.release(facts).noise_variance(1), np.random.default_rng(0)
    total = sum(rows.sum(axis=0) for _, rows in method.silo(np.array([*method.start]), data, None, STREAMS))
    found = []
    for _ in range(300):
        x = np.concatenate([method.start, np.zeros(method.numbers - len(method.start))])
        noised = total + draw.normal(0, np.sqrt(variance), method.numbers)
        state = method.server(State(x), noised, facts.in_round(1, 1))
        found.append(CoefficientTable.of(schema_of("linear"), method, state.x, variance, about))
    for place, one in enumerate(found[0].coefficients):
        spread = np.std([each.coefficients[place].estimate for each in found])
        stated = np.median([each.coefficients[place].error * np.sqrt(each.coefficients[place].noise) for each in found])
        assert stated == pytest.approx(spread, rel=0.15), one.name


COVERAGE = [
    # kind, people, records of a person, epsilon, tables
    ("linear", 2000, 1, 3.0, 250),
    ("linear", 8000, 4, 1.0, 100),
    ("logistic", 4000, 1, 3.0, 250),
    ("logistic", 5000, 3, 3.0, 120),
    ("cox", 3000, 6, 4.0, 40),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "people", "records", "epsilon", "tables"), COVERAGE)
def test_intervals_hold_the_truth_in_92_to_98_of_100_tables(kind, people, records, epsilon, tables):
    """New people, new noise: sampling, several records of a person, and a start that training left too small."""
    method, facts = steps_from(kind, 0.7, 1 if kind == "linear" else 3, epsilon, people)
    held, about, without = {name: [] for name in TRUTH[kind]}, statement(), 0
    for seed in range(tables):
        frame, who = table(kind, people, records, seed)
        found, _ = estimate(method, facts, silo_of(kind, frame, who), about, seed=10_000 + seed)
        intervals = {name: found[name].interval for name in TRUTH[kind] if found[name].interval is not None}
        without += not intervals
        for name, (low, high) in intervals.items():
            held[name].append(low <= TRUTH[kind][name] <= high)
    hits = [hit for one in held.values() for hit in one]
    print(kind, people, records, epsilon, f"coverage {np.mean(hits):.3f} of {len(hits)}, no interval {without}")
    assert without <= tables / 10
    assert 0.92 <= np.mean(hits) <= 0.98
    if kind == "cox":  # nothing is said of what does not change within a person
        assert not held["age"] and not held["sex=m (against f)"]


# --- commands and calls -----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame, who = table("logistic", 400, 1, 5)
    frame[who < 200].to_csv("north.csv", index=False)
    frame[who >= 200].to_csv("south.csv", index=False)
    (tmp_path / "roster.txt").write_text("\n".join(f"p{i}" for i in range(400)))
    text = '[data]\nsilos = ["north.csv", "south.csv"]\nuser = "id"\nlabel = "y"\nroster = "roster.txt"\n'
    about = "[privacy]\nepsilon = 20.0\n[method]\nrounds = 10\n[aggregation]\nname = 'masked'\n"
    (tmp_path / "e.toml").write_text(f"{text}test_fraction = 0.2\n{schema_of('logistic').to_toml()}\n{about}")
    return tmp_path


def test_coefficients_of_a_run_are_charged_beside_its_training(folder, runs_in_process):
    assert runner.invoke(app, ["run", "e.toml", "--out", "trained"]).exit_code == 0
    dry = runner.invoke(app, ["coefficients", "trained", "--epsilon", "20", "--dry-run"])
    assert dry.exit_code == 0, dry.output
    assert "3 Newton step(s)" in dry.stdout and "epsilon" in dry.stdout
    done = runner.invoke(app, ["coefficients", "trained", "--epsilon", "20", "--out", "seen"])
    assert done.exit_code == 0, done.output
    for text in ("intercept", "sex=m (against f)", "odds ratio", "95 % interval", "not a wrong model", "Privacy"):
        assert text in done.stdout
    again = json.loads(runner.invoke(app, ["coefficients", "seen", "--json"]).stdout)
    assert [one["name"] for one in again["coefficients"]][:2] == ["intercept", "age"]
    assert again["statement"]["unit"] == "user"
    assert "the statement of that model's training" in json.dumps(again["statement"])
    assert uldp.coefficients("seen")["age"].error == again["coefficients"][1]["error"]
    total = json.loads(runner.invoke(app, ["total", "seen", "trained", "--json"]).stdout)["totals"]
    assert [len(group["runs"]) for group in total] == [2]
    assert total[0]["epsilon"] > 25
    refused = runner.invoke(app, ["predict", "seen", "north.csv"])
    assert refused.exit_code != 0 and "has coefficients and no model" in refused.output
    for command in (["resume", "seen"], ["report", "seen", "--out", "seen.html"], ["statement", "seen"]):
        result = runner.invoke(app, command)
        assert result.exit_code == 0, result.output
    written = runner.invoke(app, ["coefficients", "trained", "--write", "c.toml"])
    assert written.exit_code == 0, written.output
    assert Experiment.from_file("c.toml").method.rounds == 3
    twice = runner.invoke(app, ["coefficients", "trained", "--write", "c.toml"])
    assert twice.exit_code == 2 and "is there already" in twice.output


def test_what_has_no_coefficients_is_refused(folder, runs_in_process):
    runner.invoke(app, ["run", "e.toml", "--out", "mlp", "--set", "model.name=mlp", "--set", "method.rounds=1"])
    refused = runner.invoke(app, ["coefficients", "mlp"])
    assert refused.exit_code == 2 and "only linear, logistic and Cox models" in refused.output
    runner.invoke(app, ["run", "--dataset", "breast-cancer", "--out", "builtin", "--rounds", "1"])
    refused = runner.invoke(app, ["coefficients", "builtin"])
    assert refused.exit_code == 2 and "descriptions and coefficients need tables" in refused.output
    frame, _ = table("logistic", 60, 1, 0)
    about = {"user": "id", "label": "y", "schema": schema_of("logistic"), "users": 100, "test_fraction": 0}
    trained = uldp.train({"a": frame}, epsilon=5.0, rounds=2, secrets="simulated", progress=False, **about)
    with pytest.raises(RunError, match="not a run directory"):
        uldp.coefficients("no-such-run")
    with pytest.raises(ConfigError, match="how a model is trained"):
        uldp.coefficients(trained, {"a": frame}, model="mlp", **about)
    other = {**about, "schema": schema_of("logistic").numeric("age", 0, 120)}
    with pytest.raises(ConfigError, match="not the schema"):
        uldp.coefficients(trained, {"a": frame}, secrets="simulated", **other)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "poisson"}, "method.kind"),
        ({"features": (0, 0)}, "different features"),
        ({"features": (0,)}, "one for each coefficient"),
        ({"start": (0.0, float("inf"), 0.0)}, "finite"),
        ({"rounds": 11}, "method.rounds"),
        ({"start": (0.0,) * 202, "features": tuple(range(201))}, "method.start"),
    ],
)
def test_steps_that_make_no_sense_are_refused(changes, words):
    given = {"kind": "linear", "start": (0.0, 0.0, 0.0), "features": (0, 1), **changes}
    with pytest.raises(ConfigError, match=words):
        NewtonSteps(**given)


def test_where_noise_hides_everything_no_interval_is_shown():
    frame, who = table("logistic", 60, 1, 0)
    found, _ = estimate(*steps_from("logistic", 0.7, 1, 0.1, 60), silo_of("logistic", frame, who), statement())
    assert all(one.interval is None for one in found.coefficients)
    assert "NO INTERVAL" in found.sentences()[1] and "nan" not in repr(found)
