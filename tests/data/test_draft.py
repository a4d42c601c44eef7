"""A draft is a proposal: it names columns, leaves out who people are, and says where its values came from."""

import tomllib

import numpy as np
import pandas as pd
import pytest

from uldp.data.draft import draft_schema, draft_silos, toml_value
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
    with pytest.raises(
        ConfigError, match=r"values are still empty; fill in what the parties agree on: label\.classes, "
    ):
        Schema.from_dict(made.tree, label="out", user="pid")


def test_with_the_data_the_proposal_fits_the_table_and_says_so():
    made = draft(from_data=True)
    schema = Schema.from_dict(made.tree, label="out", user="pid")
    features = schema.features(TABLE, "t")
    assert len(features) == len(schema.labels(TABLE, "t")) == COUNT
    assert "proposed from the data" in schema.caveats[0].text
    assert made.tree["columns"]["stage"]["categories"] == [1, 2, 3]
    assert made.tree["columns"]["ward"] == {
        "kind": "category",
        "categories": ["a", "b", "missing"],
        "missing": "missing",
    }
    assert made.tree["columns"]["smoker"]["categories"] == [False, True]


def test_ranges_lie_beyond_the_data_with_two_digits():
    columns = draft(from_data=True).tree["columns"]
    for name in ("age", "dose", "paid", "odd name"):
        low, high = columns[name]["range"]
        numbers = TABLE[name].astype(float)
        assert low < numbers.min()  # so no person's exact value is repeated
        assert high > numbers.max()
        assert all(float(f"{limit:.1e}") == limit for limit in (low, high))


@pytest.mark.parametrize("from_data", [False, True])
def test_the_text_reads_back_as_the_tree(from_data):
    made = draft(from_data=from_data)
    assert tomllib.loads(made.to_toml())["data"]["schema"] == made.tree


@pytest.mark.parametrize(
    ("values", "label"),
    [
        ([0, 1] * 60, {"kind": "class", "classes": [0, 1]}),
        ([f"{number / 7}" for number in range(1, COUNT + 1)], {"kind": "number", "range": [0.0, 20.0]}),
        ([True, False] * 60, {"kind": "class", "classes": [False, True]}),
    ],
)
def test_labels(values, label):
    assert draft_schema(TABLE.assign(out=values), "pid", "out", from_data=True).tree["label"] == label


def column_of(cells, **options):
    """What is drafted for one column."""
    table = pd.DataFrame(
        {"pid": [f"p{row}" for row in range(len(cells))], "x": cells, "out": [0, 1] * (len(cells) // 2)}
    )
    return draft_schema(table, "pid", "out", from_data=True, **options).tree["columns"].get("x")


@pytest.mark.parametrize(
    ("value", "limits"),
    [(5.5, [5.4, 5.6]), (0, [-1, 1]), (1e300, [9e299, 1.1e300]), (5e-324, [0, 1e-300]), (-20, [-21, -19])],
)
def test_one_value_only_still_gives_a_range(value, limits):
    low, high = column_of([value] * 2)["range"]
    assert [low, high] == pytest.approx(limits)
    assert low < value < high


def test_a_range_that_no_float_can_hold_is_left_to_people():
    assert column_of(["1.79e308", ""] * 2) == {"kind": "number", "range": []}


def test_numbers_of_different_kinds_in_different_silos_are_no_traceback():
    mixed = {"category": [True, False, "1", "0"] * 6, "number": [b"1", b"2.5"] * 12}
    flag = column_of(mixed["category"])
    assert flag["categories"] == ["no", "yes"] and {1, "true"} <= set(flag["aliases"]["yes"])
    assert column_of(mixed["number"]) == {"kind": "number", "range": [0, 3]}


@pytest.mark.parametrize("word", ["-nan", "NaN", "", float("nan")])
def test_words_for_no_number_are_no_values(word):
    assert column_of([word] * 4) is None
    assert column_of([word, 1.5] * 2)["range"] == [1.4, 1.6]


def test_a_category_called_missing_is_not_listed_twice():
    column = column_of(["lo", "missing", "", "lo"] * 3)
    assert column == {"kind": "category", "categories": ["lo", "missing"], "missing": "missing"}


@pytest.mark.parametrize("text", ["a\x7fb", "a\rb", "\U0001f600", "\x0b", 'q"\\', "\u2028"])
def test_any_text_can_be_written(text):
    table = pd.DataFrame({"pid": list("abcd"), text: [f"{text}1", f"{text}2"] * 2, f"{text}_id": 1, "out": [0, 1] * 2})
    made = draft_schema(table, "pid", "out", from_data=True)
    read = tomllib.loads(made.to_toml())["data"]["schema"]
    assert read == made.tree
    assert set(made.left_out) == {f"{text}_id"}
    assert tomllib.loads(f"x = {toml_value([text])}") == {"x": [text]}


def test_a_draft_without_the_data_has_no_counts_and_asks_for_a_check():
    text = draft(from_data=False).to_toml()
    assert "# left out: note (text with many different values)" in text
    assert "60" not in text
    assert "check every one" in text


def test_a_column_must_be_in_every_table():
    silos = {"a.csv": TABLE, "b.csv": TABLE.drop(columns="age")}
    made = draft_silos(silos, "pid", "out", from_data=False, test=("t.csv", TABLE.drop(columns=["dose", "pid"])))
    assert {"age", "dose"} <= set(made.left_out)
    assert made.left_out["age"] == made.left_out["dose"] == "is not in every table"
    assert "paid" in made.tree["columns"]
    for name, table in (("pid", "b.csv"), ("out", "b.csv"), ("out", "t.csv")):
        tables = {"a.csv": TABLE, "b.csv": TABLE, "t.csv": TABLE} | {table: TABLE.drop(columns=name)}
        test = ("t.csv", tables.pop("t.csv"))
        with pytest.raises(DataError, match=rf"{table}: no column '{name}'"):
            draft_silos(tables, "pid", "out", from_data=False, test=test)


@pytest.mark.parametrize(("user", "label", "location"), [("who", "out", "data.user"), ("pid", "y", "data.label")])
def test_missing_columns(user, label, location):
    with pytest.raises(DataError, match=rf"{location}: no column"):
        draft_schema(TABLE, user, label, from_data=True)


PEOPLE = 60
MESSY = pd.DataFrame(
    {
        "pid": [f"p{row % PEOPLE}" for row in range(5 * PEOPLE)],
        "weight": np.where(np.arange(300) % 9 == 0, 9999, random.integers(45, 130, 300)),
        "score": np.where(np.arange(300) % 11 == 0, -1, random.integers(10, 900, 300)),
        "lab": np.where(np.arange(300) % 20 == 0, "not done", random.normal(5, 1, 300).round(2).astype(str)),
        "smoker": random.choice(["No", "Yes", "no", "yes", "Y", "0"], 300),
        "unit": np.where(np.arange(300) == 7, "zoo", random.choice(["Ward A", "ward a", "Ward B"], 300)),
        "visit": [f"{1 + row % 28}.{1 + row % 12}.{2018 + row % 5}" for row in range(300)],
        "readmitted": random.choice([0, 1], 300),
        "card": 10_000 + np.arange(300) % PEOPLE,
        "order": random.permutation(300) + 5_000,
        "surname": "Miller",
        "out": np.where(np.arange(300) % 100 == 5, "other", random.choice(["dead", "alive"], 300)),
    }
)
MESSY = MESSY.assign(flag=np.where(MESSY["out"] == "dead", 1, 0))


def test_the_odd_is_remarked_on_and_a_rule_for_it_is_proposed():
    made = draft_schema(MESSY, "pid", "out", from_data=True)
    columns, text = made.tree["columns"], made.to_toml()
    assert columns["weight"] == {"kind": "number", "range": [0, 130], "missing": 65, "missing_codes": [9999]}
    assert columns["score"]["missing_codes"] == [-1] and columns["score"]["range"] == [0, 900]
    assert columns["lab"]["missing_codes"] == ["not done"] and columns["lab"]["range"][1] < 20
    assert columns["smoker"]["categories"] == ["no", "yes"] and columns["smoker"]["fold_case"]
    assert (
        columns["unit"]["fold_case"] and len(columns["unit"]["categories"]) == 3 and columns["unit"]["other"] == "other"
    )
    assert "# 9999: taken for a code for no value, lying far from all others" in text
    assert "# 5 spellings of yes and no" in text or "# 6 spellings of yes and no" in text
    assert "# 1 of the classes (or spellings) have fewer than 10 rows: is each of them meant?" in text
    assert text.count("# read from the files and rounded: agree on what the values can be") == 3
    assert "zoo" not in text  # what one row says is not written down
    schema = Schema.from_dict(tomllib.loads(text)["data"]["schema"], label="out", user="pid")
    assert len(schema.features(MESSY, "t")) == len(schema.labels(MESSY, "t")) == 300


def test_outcomes_dates_and_identifiers_are_never_taken_without_asking():
    made = draft_schema(MESSY, "pid", "out", from_data=True)
    assert made.left_out == {
        "visit": "holds dates; use it only if they are known when a prediction is made",
        "readmitted": "may be an outcome, or known only after it, by its name",
        "card": "has another value for every person, perhaps an identifier",
        "order": "whole numbers that differ in every row, perhaps an identifier",
        "surname": "looks like personal details by its name",
    } | {"flag": "says the label almost by itself; perhaps it is an outcome"}
    text = made.to_toml()
    offered = "\n".join(
        line.removeprefix("# ") for line in text[text.index("# [data.schema.columns.visit]") :].splitlines()
    )
    visit = tomllib.loads(offered.partition("left out:")[0])["data"]["schema"]["columns"]["visit"]
    whole = {"kind": "date", "part": "days", "since": "2018-01-01", "range": [0, 1825], "formats": ["%d.%m.%Y"]}
    assert visit == whole
    assert "[data.schema.columns.surname]" not in text


def test_without_the_data_a_draft_says_what_is_odd_and_no_value():
    text = draft_schema(MESSY, "pid", "out", from_data=False).to_toml()
    assert "# the extreme values look like codes for no value: see missing_codes" in text
    assert "# some cells are words, not numbers" in text and "# some classes (or spellings) have fewer than" in text
    assert text.count("# some values are written in several ways: see fold_case and aliases") == 2
    assert not any(value in text for value in ("9999", "not done", "zoo", "Ward", "alive"))


def test_a_column_that_one_of_three_silos_lacks_is_missing_there():
    silos = {"a": MESSY, "b": MESSY, "c": MESSY.drop(columns="weight")}
    made = draft_silos(silos, "pid", "out", from_data=False, test=("t", MESSY))
    assert made.tree["columns"]["weight"] == {"kind": "number", "range": [], "missing": []}
    assert "# not in c: all missing there" in made.to_toml()


def test_a_draft_fits_the_test_table():
    test = MESSY.assign(weight=200, unit="Ward C")
    tree = draft_silos({"a": MESSY}, "pid", "out", from_data=True, test=("t", test)).tree
    assert len(Schema.from_dict(tree, label="out", user="pid").features(test, "t")) == 300


def test_a_range_that_few_values_make_wide_is_remarked_on():
    incomes = np.concatenate([random.uniform(10_000, 90_000, 299), [2_000_000]]).round(2)
    ages = random.integers(18, 97, 300)
    table = pd.DataFrame({"pid": np.arange(300), "income": incomes, "age": ages, "out": ages % 2})
    text = draft_schema(table, "pid", "out", from_data=True).to_toml()
    assert text.count("nearly all values lie within") == 1
    assert "nearly all values lie within [0, 90000]" in text or "nearly all values lie within [0, 100000]" in text
    assert "nearly all" not in draft_schema(table, "pid", "out", from_data=False).to_toml()


def test_a_label_of_amounts_or_of_counts_is_remarked_on():
    amounts = np.concatenate([random.uniform(100, 9000, 399), [150_000]]).round(2)
    days = np.concatenate([np.arange(12), random.integers(0, 12, 388)])
    table = pd.DataFrame({"pid": np.arange(400), "age": random.integers(18, 97, 400), "cost": amounts, "days": days})
    assert "nearly all values lie within" in draft_schema(table, "pid", "cost", from_data=True).to_toml()
    for from_data in (True, False):
        assert "is it a count?" in draft_schema(table, "pid", "days", from_data=from_data).to_toml()
        assert "is it a count?" not in draft_schema(TABLE, "pid", "out", from_data=from_data).to_toml()
