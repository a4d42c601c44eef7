"""Descriptions: one person moves the tallies by at most the clip, no cell is refused, stated errors are met."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import moved
from typer.testing import CliRunner

import uldp
from uldp import Schema
from uldp.cli.app import app
from uldp.data.tallies import tallies, tally_schema
from uldp.errors import ConfigError, RunError
from uldp.experiment.build import prepare
from uldp.experiment.config import Experiment
from uldp.experiment.parties import prepare_server, prepare_silo
from uldp.library.describing import description_of, plan_description
from uldp.privacy.releases.sums import IntegerSum
from uldp.rng import Secrets, Streams
from uldp.runs.description import Description

runner = CliRunner()
COLUMNS = {
    "age": {"kind": "number", "range": [0, 100], "missing": 50, "missing_codes": [9999]},
    "seen": {"kind": "date", "part": "year", "range": [2010, 2024], "missing": 2015},
    "ward": {"kind": "category", "categories": ["a", "b"], "fold_case": True, "missing": "a"},
    "stage": {"kind": "ordinal", "categories": ["I", "II", "III"]},
}
LABELS = {
    "class": {"kind": "class", "classes": [0, 1]},
    "number": {"kind": "number", "range": [0, 10]},
    "survival": {"kind": "survival", "event": "dead", "range": [0, 10]},
}
cells = st.tuples(
    st.sampled_from([f"p{i}" for i in range(6)]),
    st.one_of(st.none(), st.floats(-50, 150, width=32), st.sampled_from([9999, "?", "junk", 0, 100])),
    st.sampled_from(["2012-05-01", "2030-01-01", "never", None]),
    st.sampled_from(["a", "B", "c", None]),
    st.sampled_from(["I", "III", "IV", None]),
    st.one_of(st.none(), st.sampled_from([0, 1, 5, 11, "x"])),
    st.sampled_from([0, 1, None, "y"]),
)
NAMES = ["id", "age", "seen", "ward", "stage", "y", "dead"]


def tree(files, label):
    columns = {name: dict(column) for name, column in COLUMNS.items()}
    data = {"silos": files, "user": "id", "label": "y", "roster": "roster.txt", "test_fraction": 0.0}
    return {
        "data": {**data, "schema": {"label": LABELS[label], "columns": columns}},
        "method": {"name": "describe", "bins": 4},
        "privacy": {"noise_multiplier": 0.0},
        "aggregation": {"name": "plain"},
    }


def tallied(folder, tables, label):
    """The integers that all silos would send without noise, and the release."""
    for name, table in tables.items():
        pd.DataFrame(table, columns=NAMES).to_csv(folder / name, index=False)
    (folder / "roster.txt").write_text("\n".join(f"p{i}" for i in range(9)))
    prepared = prepare(Experiment.from_tree(tree(list(tables), label), folder))
    plan, counts = prepared.plan, prepared.federation.counts()
    release = plan.release
    totals = release.exchange.totals(counts)
    total = [0] * plan.facts.dimension
    for index, silo in enumerate(prepared.federation):
        part = IntegerSum(release.encoding, plan.facts.dimension, release.weights(counts[index], totals[index]))
        x = np.zeros(plan.facts.dimension)
        streams, secrets = Streams.from_seed(0), Secrets.simulated_from_seed(0)
        for users, rows in release.rows(plan.method, x, silo, prepared.learner, streams, secrets):
            part.add(users, rows)
        total = [a + int(b) for a, b in zip(total, part.total, strict=True)]
    return total, release, prepared


@pytest.mark.parametrize("label", LABELS)
@given(silos=st.lists(st.lists(cells, max_size=12), min_size=2, max_size=3), who=st.sampled_from(["p0", "p1"]))
@settings(max_examples=25)
def test_leaving_one_person_out_of_all_tables_moves_the_tallies_by_at_most_the_clip(
    tmp_path_factory, label, silos, who
):
    everybody = [("p7", 1.0, "2012-01-01", "a", "I", 1, 1), ("p8", 2.0, "2013-01-01", "b", "II", 0, 0)]
    tables = {f"s{i}.csv": [*table, *everybody] for i, table in enumerate(silos)}
    without = {name: [row for row in table if row[0] != who] for name, table in tables.items()}
    folder = tmp_path_factory.mktemp("tables")
    whole, release, prepared = tallied(folder, tables, label)
    left, other, other_prepared = tallied(folder, without, label)
    assert moved(whole, left) <= release.encoding.integer_limit**2
    # Neither how many numbers are released, nor the noise, nor a name depends on who is there.
    assert (release, prepared.federation.schema) == (other, other_prepared.federation.schema)


@pytest.mark.parametrize("label", LABELS)
def test_a_person_counts_once_in_each_column_and_clipping_changes_nothing(tmp_path, label):
    rows = [("p0", 30.0, "2012-01-01", "a", "I", 1, 1)] * 5 + [("p1", "junk", None, "z", "IX", None, None)]
    total, release, prepared = tallied(tmp_path, {"s0.csv": rows, "s1.csv": rows[:2]}, label)
    columns = tallies(prepared.federation.schema)
    assert release.clip == pytest.approx(np.sqrt(sum(column.norm**2 for column in columns)))
    start = 0
    for column in columns:
        counted = sum(total[start : start + len(column.bins)])
        start += len(column.feature_names())
        # Two people, up to one unit that is cut off for each coordinate, row and weight.
        assert 2 - counted * release.clip / release.encoding.integer_limit < 1e-4


def test_bins_follow_from_the_schema_and_every_cell_falls_into_one():
    schema = Schema.classes("ill", [0, 1]).numeric("age", 0, 100, missing_codes=[9999]).category("sex", ["f", "m"])
    found = tally_schema(schema, 4)
    age, sex, ill = tallies(found)
    assert age.bins == (
        "below 0", "0 to 25", "25 to 50", "50 to 75", "75 to 100", "above 100", "missing", "not readable",
    )  # fmt: skip
    assert (sex.bins, ill.bins) == (("f", "m", "not on the list", "missing"), ("0", "1", "not on the list", "missing"))
    column = pd.Series([-1, 0, 24.9, 25, 100, 101, 9999, None, "x"], name="age", dtype="object")
    matrix, wrong = age.encode(column)
    assert wrong == []
    assert matrix[:, :-1].argmax(axis=1).tolist() == [0, 1, 1, 2, 4, 5, 6, 6, 7]
    assert np.array_equal(matrix[:, :-1].sum(axis=1), np.ones(9))
    assert np.abs(matrix[:, -1]).max() <= 0.25
    assert np.linalg.norm(matrix, axis=1).max() <= age.norm


def statement():
    return plan_description({"a": frame(50)}, **ABOUT).statement


def frame(people, seed=0):
    draw = np.random.default_rng(seed)
    age = np.clip(draw.normal(60, 15, people), 0, 109.99)
    table = pd.DataFrame({"id": [f"p{i}" for i in range(people)], "age": age, "sex": draw.choice(["f", "m"], people)})
    table["pressure"] = draw.uniform(90, 180, people)
    table.loc[draw.random(people) < 0.2, "pressure"] = np.nan
    return table.assign(ill=(draw.random(people) < 0.3).astype(int))


SCHEMA = Schema.classes("ill", [0, 1]).numeric("age", 0, 110).numeric("pressure", 60, 240).category("sex", ["f", "m"])
ABOUT = {
    "user": "id",
    "label": "ill",
    "schema": SCHEMA,
    "users": [f"p{i}" for i in range(2000)],
    "secrets": "simulated",
}


@pytest.mark.parametrize("further", [0, 16])
def test_stated_errors_are_met_by_means_counts_and_quantiles_at_epsilon_one_half(further):
    """Noise of the stated size on the exact tallies, many times: 95 of 100 estimates are within what is said."""
    people, agreed, table = 2000, SCHEMA, frame(2000)
    for number in range(further):  # up to 20 columns, the label's among them
        agreed = agreed.numeric(f"test {number}", -1, 1)
        table[f"test {number}"] = np.random.default_rng(number).uniform(-1, 1, people)
    schema = tally_schema(agreed, 10)
    exact = schema.features(table, "table").astype(float).sum(axis=0)
    deviation = plan_description({"a": table}, **{**ABOUT, "schema": agreed}).deviation
    about = statement()
    truth = {"age": table["age"].mean(), "pressure": table["pressure"].mean()}
    draw = np.random.default_rng(1)
    within = {name: [] for name in ("people", "count", "share", "mean", "quantile")}
    for _ in range(300):
        noised = exact + draw.normal(0, deviation, len(exact))
        found = Description.of(schema, noised, deviation, 4000, about, hashed_ids=False)
        within["people"].append(abs(found.people - people) <= found.people_error)
        within["share"].append(abs(found["pressure"].missing - table["pressure"].isna().mean()) <= found.share_error)
        start = 0
        for tally, column in zip(tallies(schema), found.columns, strict=True):
            bins = exact[start : start + len(tally.bins)]
            start += len(tally.feature_names())
            within["count"] += list(np.abs(np.array(column.counts) - bins) <= found.count_error)
        for name, mean in truth.items():
            within["mean"].append(abs(found[name].mean - mean) <= found[name].mean_error)
            for one in found[name].quantiles:
                true = np.nanquantile(table[name], one.share)
                within["quantile"].append(one.low <= true <= one.high and one.low <= one.value <= one.high)
    shares = {name: np.mean(hits) for name, hits in within.items()}
    assert min(shares.values()) > 0.93, shares


def test_a_description_of_an_experiment_is_charged_beside_its_training(tmp_path, monkeypatch, runs_in_process):
    monkeypatch.chdir(tmp_path)
    table = frame(300).assign(age=lambda rows: rows["age"].mask(rows["id"] == "p0", -4711.25))
    table[:150].to_csv("north.csv", index=False)
    table[150:].to_csv("south.csv", index=False)
    schema = SCHEMA.numeric("age", 0, 110, missing=60, outside="clip").numeric("pressure", 60, 240, missing=120)
    text = '[data]\nsilos = ["north.csv", "south.csv"]\nuser = "id"\nlabel = "ill"\nusers = 3000\npeople = 300\n'
    about = "[method]\nname = 'uldp-avg'\nrounds = 2\n[privacy]\nepsilon = 3.0\n[aggregation]\nname = 'masked'\n"
    (tmp_path / "e.toml").write_text(f"{text}test_fraction = 0.2\n{schema.to_toml()}\n{about}")
    dry = runner.invoke(app, ["describe", "e.toml", "--dry-run"])
    assert dry.exit_code == 0, dry.output
    assert "4 columns; in 95 of 100 cases a count will be off by at most" in dry.stdout
    assert not list(tmp_path.glob("runs/*"))
    done = runner.invoke(app, ["describe", "e.toml", "--out", "seen", "--histograms"])
    assert done.exit_code == 0, done.output
    assert "About" in done.stdout and "99 to 110" in done.stdout and "4711" not in done.output
    again = runner.invoke(app, ["describe", "seen", "--json"])
    tree = json.loads(again.stdout)
    assert tree["statement"]["unit"] == "user"
    assert tree["columns"][0]["bins"][0] == "below 0"
    assert uldp.describe(tmp_path / "seen").people == tree["people"]
    assert runner.invoke(app, ["run", "e.toml", "--out", "trained"]).exit_code == 0
    total = json.loads(runner.invoke(app, ["total", "seen", "trained", "--json"]).stdout)["totals"]
    assert [len(group["runs"]) for group in total] == [2]
    assert 3.0 < total[0]["epsilon"] < 3.5
    assert runner.invoke(app, ["statement", "seen"]).exit_code == 0
    with pytest.raises(RunError, match="describes data and has no model"):
        uldp.load(tmp_path / "seen")
    for command in (["resume", "seen"], ["report", "seen", "--out", "seen.html"], ["total", "seen"]):
        result = runner.invoke(app, command)
        assert result.exit_code == 0, result.output
    refused = runner.invoke(app, ["predict", "seen", "north.csv"])
    assert refused.exit_code != 0 and "has no model" in refused.output


def test_parties_that_hold_one_table_or_none_agree_on_what_is_released(tmp_path):
    rows = [("p0", 30.0, "2012-01-01", "a", "I", 1, 1), ("p1", None, None, "b", "II", 0, 0)]
    tallied(tmp_path, {"s0.csv": rows, "s1.csv": rows}, "class")
    experiment = Experiment.from_tree(tree(["s0.csv", "s1.csv"], "class"), tmp_path)
    whole = prepare(experiment).plan
    server, silo = prepare_server(experiment, rehearsal=True), prepare_silo(experiment, "s1", rehearsal=True)
    assert server.plan.digest == silo.plan.digest
    assert server.plan.release == silo.plan.release == whole.release
    assert [len(part) for part in server.federation] == [0, 0]


def test_a_description_composes_with_the_budget_of_its_own():
    planned = plan_description({"a": frame(50)}, **ABOUT)
    assert planned.statement.epsilon == pytest.approx(0.5, rel=1e-3)
    assert plan_description({"a": frame(50)}, epsilon=2.0, **ABOUT).count_error < planned.count_error / 3


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"schema": None}, "needs a schema"),
        ({"bins": 1}, "method.bins"),
        ({"bins": 10_000}, "method.bins"),
        ({"rounds": 3}, "nothing is trained"),
        ({"model": "mlp"}, "nothing is trained"),
        ({"epsilon": 0.0}, "privacy.epsilon"),
    ],
)
def test_what_says_nothing_about_a_description_is_refused(given, words):
    about = {key: value for key, value in {**ABOUT, **given}.items() if value is not None}
    with pytest.raises(ConfigError, match=words):
        uldp.describe({"a": frame(50)}, **about)


def test_features_and_built_in_data_sets_have_no_columns_to_describe():
    features = np.zeros((4, 2)), np.zeros(4), np.arange(4)
    federation = uldp.Federation.from_arrays({"a": features}, test=features[:2], users=4)
    with pytest.raises(ConfigError, match="data frames"):
        uldp.describe(federation, secrets="simulated")
    with pytest.raises(ConfigError, match="built-in"):
        prepare(description_of(Experiment.from_tree({"data": {"dataset": "synthetic"}, **NOISE}), 10))


NOISE = {"privacy": {"noise_multiplier": 5.0}}
