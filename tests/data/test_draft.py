"""A draft is a proposal: it names columns, leaves out who people are, and says where its values came from."""

import tomllib

import numpy as np
import pandas as pd
import pytest

from uldp.data.draft import draft_schema
from uldp.data.schema import Schema
from uldp.errors import ConfigError, DataError

COUNT = 120
random = np.random.default_rng(0)
TABLE = pd.DataFrame(
    {
        "pid": [f"p{number % 40}" for number in range(COUNT)],
        "age": random.integers(18, 97, COUNT).astype(str),
        "dose": random.normal(0, 0.00123, COUNT),
        "stage": random.choice(["1", "2", "3"], COUNT),
        "ward": random.choice(["a", "b", ""], COUNT),
        "smoker": random.choice([True, False], COUNT),
        "visit_id": np.arange(COUNT),
        "insuranceId": np.arange(COUNT),
        "paid": random.normal(3000, 700, COUNT).round(2),
        "name": [f"person {number}" for number in range(COUNT)],
        "note": [f"text {number % 60}" for number in range(COUNT)],
        "empty": [""] * COUNT,
        "odd name": np.where(random.random(COUNT) < 0.2, np.nan, random.normal(0, 1, COUNT)),
        "out": random.choice(["yes", "no"], COUNT),
    }
)


def draft(**options):
    return draft_schema(TABLE, "pid", "out", **options)


def test_kinds():
    kinds = {name: column["kind"] for name, column in draft(from_data=False).tree["columns"].items()}
    numbers = ("age", "dose", "paid", "odd name")
    assert kinds == dict.fromkeys(numbers, "number") | dict.fromkeys(("stage", "ward", "smoker"), "category")


def test_identifiers_and_free_text_are_left_out_with_the_reason():
    assert set(draft(from_data=True).left_out) == {"visit_id", "insuranceId", "name", "note", "empty"}
    assert "# left out: visit_id (looks like an identifier by its name)" in draft(from_data=True).to_toml()


def test_without_the_data_no_value_is_written_and_a_run_asks_for_them():
    made = draft(from_data=False)
    assert all(column.get("range", column.get("categories")) == [] for column in made.tree["columns"].values())
    with pytest.raises(ConfigError, match="still empty; list the classes that the parties agree on"):
        Schema.from_dict(made.tree, label="out", user="pid")


def test_with_the_data_the_proposal_fits_the_table_and_says_so():
    made = draft(from_data=True)
    schema = Schema.from_dict(made.tree, label="out", user="pid")
    features = schema.features(TABLE, "t")
    assert len(features) == len(schema.labels(TABLE, "t")) == COUNT
    assert "proposed from the data" in schema.caveats[0]
    assert made.tree["columns"]["stage"]["categories"] == [1, 2, 3]
    assert made.tree["columns"]["ward"] == {
        "kind": "category",
        "categories": ["a", "b", "missing"],
        "missing": "missing",
    }
    assert made.tree["columns"]["smoker"]["categories"] == [False, True]


def test_ranges_are_rounded_outward_to_two_digits():
    columns = draft(from_data=True).tree["columns"]
    for name in ("age", "dose", "paid", "odd name"):
        low, high = columns[name]["range"]
        numbers = TABLE[name].astype(float)
        assert low <= numbers.min()
        assert high >= numbers.max()
        assert all(float(f"{limit:.1e}") == limit for limit in (low, high))


@pytest.mark.parametrize("from_data", [False, True])
def test_the_text_reads_back_as_the_tree(from_data):
    made = draft(from_data=from_data)
    assert tomllib.loads(made.to_toml())["data"]["schema"] == made.tree


@pytest.mark.parametrize(
    ("values", "label"),
    [
        ([0, 1] * 60, {"kind": "class", "classes": [0, 1]}),
        ([f"{number / 7}" for number in range(1, COUNT + 1)], {"kind": "number", "range": [0.14, 18.0]}),
        ([True, False] * 60, {"kind": "class", "classes": [False, True]}),
    ],
)
def test_labels(values, label):
    assert draft_schema(TABLE.assign(out=values), "pid", "out", from_data=True).tree["label"] == label


def test_one_value_only_still_gives_a_range():
    table = pd.DataFrame({"pid": ["a", "b"], "x": [5.5, 5.5], "out": [0, 1]})
    assert draft_schema(table, "pid", "out", from_data=True).tree["columns"]["x"]["range"] == [4.5, 6.5]


@pytest.mark.parametrize(("user", "label", "place"), [("who", "out", "data.user"), ("pid", "y", "data.label")])
def test_missing_columns(user, label, place):
    with pytest.raises(DataError, match=rf"{place}: no column"):
        draft_schema(TABLE, user, label, from_data=True)
