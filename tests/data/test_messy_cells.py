"""Rules for messy cells: each is a public constant, works on one cell at a time, and is the same for every table."""

import json
from datetime import date

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uldp.data.roster import Roster
from uldp.data.schema import Schema, encode_table, notes_on
from uldp.data.tables import load_tables
from uldp.errors import ConfigError, DataError
from uldp.rng import Streams

TREE = {
    "outside": "missing",
    "label": {
        "kind": "class",
        "classes": ["no", "yes"],
        "fold_case": True,
        "aliases": {"yes": ["y", 1], "no": ["n", 0]},
        "missing": "drop",
    },
    "columns": {
        "age": {"kind": "number", "range": [0, 100], "missing": 50, "missing_codes": [9999, -1, "unknown"]},
        "sugar": {"kind": "number", "range": [0, 20], "missing": 5, "factor": {"harbour": 0.05}},
        "stage": {"kind": "ordinal", "categories": ["I", "II", "III"], "missing": "II", "aliases": {"I": ["1"]}},
        "ward": {"kind": "category", "categories": ["icu", "other"], "other": "other", "missing": "other"},
        "seen": {
            "kind": "date",
            "since": "2020-01-01",
            "range": [0, 1000],
            "formats": ["%Y-%m-%d", "%d.%m.%Y"],
            "missing": 500,
            "missing_codes": ["9999-12-31"],
        },
        "day": {"kind": "date", "part": "weekday", "missing": 4},
    },
}
ROWS = pd.DataFrame(
    {
        "pid": list("abcdef"),
        "age": ["50", "9999", "Unknown", "-1", "300", "x"],
        "sugar": ["10", "200", "", "?", "5", "0"],
        "stage": ["I", "1", "III", "IV", "", "ii"],
        "ward": ["icu", "ICU", "", "surgery", "other", "icu"],
        "seen": ["2020-01-01", "27.9.2022", "9999-12-31", "2019-12-31", "soon", "2021-05-15"],
        "day": ["2024-01-01", "2024-01-07", "2024-01-04", "", "2024-13-01", "2024-01-01T10:00"],
        "out": ["Yes", "NO", "1", "", "0", "maybe"],
    }
)


def schema(**changes):
    return Schema.from_dict(TREE | changes, label="out", user="pid")


def columns(**changed):
    return {"columns": {name: TREE["columns"][name] | changes for name, changes in changed.items()}}


def test_every_rule_by_hand():
    features = schema().features(ROWS, "t")
    named = dict(zip(schema().feature_names(), features.T, strict=True))
    assert named["age"].tolist() == [0, 0, 0, 0, 0, 0]
    assert named["sugar"].tolist() == [0, -0.5, -0.5, -0.5, -0.5, -1]
    assert named["stage"].tolist() == [-1, -1, 1, 0, 0, 0]
    assert named["ward=icu"].tolist() == [1, 0, 0, 0, 0, 1] and named["ward=other"].tolist() == [0, 1, 1, 1, 1, 0]
    assert named["seen:days"].tolist() == [-1, 1, 0, 0, 0, 0]
    assert named["day:weekday"].tolist() == pytest.approx([-1, 1, 0, 0, 0, -1])


def test_records_without_a_label_are_left_out_and_counted():
    encoded = encode_table(schema(), ROWS, "t")
    assert encoded.rows.tolist() == [True, True, True, False, True, False]
    assert encoded.records.labels.tolist() == [1, 0, 1, 0]
    assert [note for note in encoded.notes if "left out" in note] == [
        "t: left out: 1 not among the agreed classes in column 'out' (first: row 6)",
        "t: left out: 1 missing in column 'out' (first: row 4)",
    ]
    assert (
        "t: taken as missing: 1 outside the agreed range [0, 100] or not a number in column 'age' (first: row 5)"
        in (encoded.notes)
    )


def test_a_number_label_that_is_outside_is_left_out_where_that_was_agreed_on():
    label = {"kind": "number", "range": [0, 10], "missing": "drop", "missing_codes": [99], "factor": {"harbour": 10}}
    frame = ROWS.assign(out=["1", "99", "", "11", "x", "0.5"])
    assert encode_table(schema(label=label), frame, "t").records.labels.tolist() == pytest.approx([-0.8, -0.9])
    assert encode_table(schema(label=label), frame, "t", "harbour").records.labels.tolist() == pytest.approx([1, 0])
    refused = {key: value for key, value in label.items() if key != "missing"}
    with pytest.raises(DataError, match="1 not a finite number in column 'out'"):
        schema(label=refused).labels(frame, "t")
    with pytest.raises(DataError, match=r"2 missing in column 'out'.*every row needs its label"):
        schema(label=refused).labels(frame.assign(out=["1", "99", "", "1", "1", "1"]), "t")


def test_units_of_a_silo():
    assert schema().features(ROWS, "t", "harbour")[:2, 1].tolist() == pytest.approx([-0.95, 0.0])
    assert schema().features(ROWS, "t", "north")[:, 1].tolist() == schema().features(ROWS, "t")[:, 1].tolist()
    index = Roster(tuple(ROWS["pid"]), "roster")
    silos = {"north": ROWS, "Harbour": ROWS}
    with pytest.raises(ConfigError, match=r"sugar\.factor: there is no silo 'harbour'.*Did you mean 'Harbour'"):
        load_tables(silos, schema(), index, Streams.from_seed(0), user="pid", test_fraction=0.0)


def test_held_out_people_of_a_silo_are_read_in_its_units():
    many = pd.concat([ROWS] * 5, ignore_index=True).assign(sugar="200", out="yes")
    frames = {name: many.assign(pid=[f"{name}{row}" for row in range(30)]) for name in ("north", "harbour")}
    index = Roster(tuple(pid for frame in frames.values() for pid in frame["pid"]), "roster")
    whole = load_tables(frames, schema(), index, Streams.from_seed(3), user="pid", test_fraction=0.5)
    north, harbour = (silo.features[:, 1].tolist() for silo in whole.silos)
    assert set(north) == {-0.5} and set(harbour) == {0.0} and len(harbour) < 30
    assert whole.test.features[:, 1].tolist() == [-0.5] * (30 - len(north)) + [0.0] * (30 - len(harbour))


def test_a_column_that_a_silo_does_not_have_is_missing_where_there_is_a_constant_for_it():
    frame = ROWS.drop(columns=["sugar", "seen"])
    assert schema().features(frame, "t")[:, 1].tolist() == [-0.5] * 6
    assert notes_on(schema(), frame, "t")[:2] == (
        "t: no column 'sugar'; all of it is taken as missing",
        "t: no column 'seen'; all of it is taken as missing",
    )
    strict = Schema.from_dict({**TREE, "outside": "error", **columns(age={}, sugar={})}, label="out")
    no_constant = Schema.classes("out", ["no", "yes"]).numeric("age", 0, 100).numeric("sugar", 0, 20, missing=5)
    with pytest.raises(DataError, match="no column 'age'; the table has: pid, sugar"):
        no_constant.features(ROWS[["pid", "sugar"]], "t")
    with pytest.raises(DataError, match="no columns 'age', 'sugar'"):
        strict.features(ROWS[["pid", "out"]], "t")


def test_a_column_has_its_own_rule_for_what_is_outside():
    made = schema(outside="error", **columns(age={"outside": "clip"}, sugar={"outside": "missing"}, stage={}))
    frame = ROWS.assign(age="300", sugar="99", stage="I")
    assert made.features(frame, "t")[0].tolist() == [1, -0.5, -1]
    with pytest.raises(DataError, match="6 not among the agreed categories in column 'stage'"):
        made.features(frame.assign(stage="IV"), "t")


def test_an_unknown_level_is_never_clipped_for_none_is_the_nearest():
    with pytest.raises(DataError, match="not among the agreed categories in column 'stage'"):
        schema(outside="clip", **columns(stage={})).features(ROWS, "t")


def test_typed_columns_of_dates_and_numbers():
    days = [date(2020, 1, 1), None, date(2022, 9, 27)]
    for cells in (days, pd.to_datetime(pd.Series(days)), pd.Series(days, dtype="date32[pyarrow]")):
        frame = pd.DataFrame({"age": [50, 9999, -1], "seen": cells})
        assert schema(**columns(age={}, seen={})).features(frame, "t").tolist() == [[0, -1], [0, 0], [0, 1]]


@pytest.mark.parametrize("through", [lambda tree: tree, lambda tree: json.loads(json.dumps(tree))])
def test_round_trip(through):
    assert Schema.from_dict(through(schema().to_dict())) == schema()
    numbers = schema(label={"kind": "number", "range": [0, 1], "missing": "drop", "factor": {"b": 2, "a": 1}})
    assert Schema.from_dict(through(numbers.to_dict())) == numbers


def test_the_builder_takes_the_same_keys():
    built = (
        Schema.classes("out", ["no", "yes"])
        .numeric("age", 0, 100, missing=50, missing_codes=[9999])
        .category("stage", ["I", "II"], kind="ordinal", missing="II")
        .numeric("day", 1, 12, missing=1, kind="date", part="month")
    )
    assert Schema.from_dict(built.to_dict()) == built
    assert built.feature_names() == ("age", "stage", "day:month")
    assert "1 to 12" in repr(built)


@pytest.mark.parametrize(
    ("column", "changes", "text"),
    [
        ("age", {"missing_codes": 9999}, "columns.age.missing_codes: a list of texts, numbers or true/false, not 9999"),
        ("age", {"outside": "drop"}, "columns.age.outside: one of error, clip, missing, not 'drop'"),
        ("age", {"missing": None}, 'columns.age.missing: outside = "missing" needs a constant for missing values'),
        ("sugar", {"factor": {"harbour": 0}}, "columns.sugar.factor.harbour: a finite number other than 0, not 0"),
        ("sugar", {"factor": 3}, "columns.sugar.factor: a number for a silo by its name"),
        ("sugar", {"aliases": {}}, "columns.sugar: unknown key 'aliases'"),
        ("stage", {"categories": ["I"], "missing": "I"}, "columns.stage.categories: at least two categories"),
        ("stage", {"aliases": {"IV": ["4"]}}, "columns.stage.aliases: 'IV' is not on the list"),
        ("stage", {"aliases": {"I": ["II"]}}, "columns.stage.aliases: 'II' is known already"),
        ("stage", {"aliases": {"I": ["x"], "II": ["x"]}}, "columns.stage.aliases: 'x' is known already"),
        ("stage", {"fold_case": True, "aliases": {"I": ["i"]}}, "columns.stage.aliases: 'i' is known already"),
        ("stage", {"fold_case": "yes"}, "columns.stage.fold_case: true or false, not 'yes'"),
        ("stage", {"missing_codes": ["II"]}, "columns.stage.missing_codes: 'II' is on the list and cannot mean"),
        ("ward", {"other": "rest"}, "columns.ward.other: 'rest' is not among the categories"),
        ("ward", {"fold_case": True, "categories": ["icu", "ICU", "other"]}, "two entries mean the same"),
        ("seen", {"part": "hour"}, "columns.seen.part: one of days, year, month, weekday, not 'hour'"),
        ("seen", {"since": "soon"}, "columns.seen.since: a day such as"),
        ("seen", {"since": ""}, "columns.seen.since: still empty; write the day from which days are counted"),
        ("seen", {"formats": ["%B %d %Y"]}, "columns.seen.formats: '%B %d %Y' is not a format of days in numbers"),
        ("seen", {"formats": ["%m.%Y"]}, "is not a format of days in numbers"),
        ("seen", {"formats": ["%d/%m/%Y", "%m/%d/%Y"]}, "read the same text as different days; keep one of them"),
        ("day", {"range": [1, 5]}, "columns.day.range: does not go with part = 'weekday'; remove it"),
    ],
)
def test_bad_rules(column, changes, text):
    with pytest.raises(ConfigError) as error:
        changed = {key: value for key, value in (TREE["columns"][column] | changes).items() if value is not None}
        schema(columns={column: changed})
    assert text in str(error.value)


def test_bad_rules_of_a_label():
    with pytest.raises(ConfigError, match=r'label\.missing: missing = "drop" leaves records without a label out'):
        schema(label=TREE["label"] | {"missing": "no"})
    with pytest.raises(ConfigError, match=r"label\.aliases: 'No' is known already \(perhaps because of fold_case\)"):
        schema(label=TREE["label"] | {"aliases": {"no": ["No"]}})


TEXTS = ["", "?", "5", "007", "9999", "-1", "unknown", "UNKNOWN", "1e3", "inf", "yes", "No", "1", "icu", "II", "x"]
DATES = ["2020-01-01", "1.2.2021", "9999-12-31", "2024-02-30"]
cells = st.sampled_from([*TEXTS, *DATES, "  5 ", "true", "None", "1_000"])


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(*[cells] * 7), min_size=1, max_size=12), silo=st.sampled_from(["", "harbour"]))
def test_what_a_cell_means_depends_on_that_cell_alone(rows, silo):
    """A row's features, its label and whether it is left out are the same whoever else is in the table."""
    frame = pd.DataFrame(rows, columns=[*TREE["columns"], "out"], dtype="str")
    whole = encode_table(schema(), frame, "t", silo)
    alone = [encode_table(schema(), frame.iloc[[row]].reset_index(drop=True), "t", silo) for row in range(len(rows))]
    assert whole.rows.tolist() == [bool(one.rows[0]) for one in alone]
    assert np.array_equal(whole.records.features, np.concatenate([one.records.features for one in alone]))
    assert np.array_equal(whole.records.labels, np.concatenate([one.records.labels for one in alone]))
    assert np.isfinite(whole.records.features).all() and np.abs(whole.records.features).max(initial=0) <= 1
    for note in whole.notes:
        assert not any(cell in note for cell in ("unknown", "9999", "inf", "2024-02-30", "1_000"))
