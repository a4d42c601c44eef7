"""Public constants turn cells into features; all else is an error with place, column, count and remedy."""

import json
import tomllib

import numpy as np
import pandas as pd
import pytest

from uldp.caveats import Severity
from uldp.data.schema import Schema, notes_on, why_no_guarantee
from uldp.errors import ConfigError, DataError

TOML = """
[label]
kind = "class"
classes = ["no", "yes"]
[columns.age]
kind = "number"
range = [0, 100]
[columns.dose]
kind = "number"
range = [-2, 2]
missing = 1
[columns.ward]
kind = "category"
categories = [1, 2, "icu"]
[columns.smoker]
kind = "category"
categories = [true, false, "unknown"]
missing = "unknown"
"""
GOOD = {
    "pid": ["a", "b"],
    "age": ["50", "100"],
    "dose": ["", "-2"],
    "ward": ["2.0", "icu"],
    "smoker": ["True", "NA"],
    "out": ["yes", "no"],
    "extra": ["never", "read"],
}


def tree(**changes):
    return tomllib.loads(TOML) | changes


def schema(**changes):
    return Schema.from_dict(tree(**changes), label="out", user="pid")


def table(**changes):
    return pd.DataFrame(GOOD | changes)


def number_label():
    return schema(label={"kind": "number", "range": [10, 30]})


def test_features_by_hand():
    assert schema().feature_names() == (
        *("age", "dose", "ward=1", "ward=2", "ward=icu"),
        *("smoker=True", "smoker=False", "smoker=unknown"),
    )
    features = schema().features(table(), "a.csv")
    assert features.dtype == np.float32
    assert features.tolist() == [[0, 0.5, 0, 1, 0, 1, 0, 0], [1, -1, 0, 0, 1, 0, 0, 1]]


def test_class_labels():
    assert schema().labels(table(), "a.csv").tolist() == [1, 0]
    assert schema().label.task.classes == 2


def test_number_labels_and_their_units():
    labels = number_label().labels(table(out=["10", "25"]), "a.csv")
    task = number_label().label.task
    assert labels.dtype == np.float32
    assert labels.tolist() == [-1, 0.5]
    assert (task.label_offset + task.label_scale * labels).tolist() == [10, 25]


def test_features_need_no_label_and_no_other_columns():
    frame = table()[["smoker", "ward", "dose", "age"]]
    assert np.array_equal(schema().features(frame, "new.csv"), schema().features(table(), "a.csv"))


def test_typed_columns_read_as_their_text():
    typed = pd.DataFrame({"age": [50, 100], "dose": [np.nan, -2], "ward": [2, "icu"], "smoker": [True, None]})
    assert np.array_equal(schema().features(typed, "t"), schema().features(table(), "t"))


@pytest.mark.parametrize("through", [lambda tree: tree, lambda tree: json.loads(json.dumps(tree))])
def test_round_trip(through):
    for original in (schema(), number_label(), schema(outside="clip", standardise="silo", source="data")):
        assert Schema.from_dict(through(original.to_dict())) == original


def test_caveats():
    assert schema().caveats == ()
    assert why_no_guarantee(schema(standardise="silo")).startswith("user-level DP does not hold:")
    assert why_no_guarantee(schema()) == ""
    (caveat,) = schema(source="data").caveats
    assert "assumes public constants" in caveat.text and caveat.severity == Severity.WEAKENS
    assert len(schema(source="data", standardise="silo").caveats) == 1


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"age": ["50", "101"]},
            "1 outside the agreed range [0, 100] in column 'age' (first: row 2)",
        ),
        ({"ward": ["x", "7"]}, "2 not among the agreed categories in column 'ward' (first: row 1)"),
        ({"age": ["", "50"]}, "1 missing in column 'age' (first: row 1); set missing ="),
        ({"ward": ["1", "NA"]}, "1 missing in column 'ward' (first: row 2); set missing ="),
        ({"age": ["old", "5"]}, "1 not a finite number in column 'age' (first: row 1); correct"),
        ({"age": ["5", "inf"]}, "1 not a finite number in column 'age' (first: row 2); correct"),
        ({"age": [5.0, np.inf]}, "1 not a finite number in column 'age' (first: row 2); correct"),
        ({"age": [5.0, np.nan]}, "1 missing in column 'age'"),
    ],
)
def test_a_bad_feature_is_counted_and_placed(changes, text):
    with pytest.raises(DataError) as error:
        schema().features(table(**changes), "a.csv")
    assert str(error.value).startswith(f"a.csv: {text}")


def test_every_column_with_values_outside_is_named():
    with pytest.raises(DataError) as error:
        schema().features(table(age=["-1", "999"], ward=["x", "1"]), "a.csv")
    assert "2 outside the agreed range [0, 100] in column 'age' (first: row 1), 1 not" in str(error.value)
    assert 'or set its outside = "clip"' in str(error.value)
    assert error.value.value == 3


def test_a_missing_column_is_named_with_those_that_are_there():
    with pytest.raises(DataError, match=r"a\.csv: no columns 'age', 'ward'; the table has: pid, dose"):
        schema().features(table().drop(columns=["age", "ward"]), "a.csv")
    with pytest.raises(DataError, match=r"a\.csv: no column 'out'"):
        schema().labels(table().drop(columns="out"), "a.csv")


@pytest.mark.parametrize(
    ("made", "values", "text"),
    [
        (number_label, ["yes", "20"], "1 not a finite number in column 'out' (first: row 1)"),
        (
            number_label,
            ["9", "20"],
            "1 outside the agreed range [10, 30] in column 'out' (first: row 1)",
        ),
        (
            schema,
            ["maybe", "yes"],
            "1 not among the agreed classes in column 'out' (first: row 1)",
        ),
        (schema, ["no", ""], "1 missing in column 'out' (first: row 2); every row needs its label"),
    ],
)
def test_bad_labels(made, values, text):
    with pytest.raises(DataError) as error:
        made().labels(table(out=values), "a.csv")
    assert str(error.value).startswith(f"a.csv: {text}")


def test_clip_counts_what_it_changes():
    clip = schema(outside="clip")
    frame = table(age=["-5", "999"], ward=["x", "1"])
    features = clip.features(frame, "a.csv")
    assert features[:, 0].tolist() == [-1, 1]
    assert features[0, 2:5].tolist() == [0, 0, 0]
    assert notes_on(clip, frame, "a.csv") == (
        "a.csv: clipped 2 outside the agreed range [0, 100] in column 'age' (first: row 1)",
        "a.csv: clipped 1 not among the agreed categories in column 'ward' (first: row 1)",
    )


def test_clip_never_clips_an_unknown_class_or_text():
    clip = schema(outside="clip")
    with pytest.raises(DataError, match="not among the agreed classes"):
        clip.labels(table(out=["maybe", "yes"]), "a.csv")
    with pytest.raises(DataError, match="not a finite number"):
        clip.features(table(age=["inf", "1"]), "a.csv")


def column(**changes):
    return {"columns": {"age": {"kind": "number", "range": [0, 1]} | changes}}


def categories(*listed, **changes):
    return {"columns": {"ward": {"kind": "category", "categories": list(listed)} | changes}}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"outsid": "clip"}, "data.schema: unknown key 'outsid'. Known keys: label, columns, outside"),
        (
            column(rnage=[0, 1]),
            "data.schema.columns.age: unknown key 'rnage'. Known keys: kind, range, missing",
        ),
        (categories(1, 2, missin=1), "data.schema.columns.ward: unknown key 'missin'"),
        ({"outside": "drop"}, "data.schema.outside: one of error, clip, missing, not 'drop'"),
        ({"standardise": "all"}, "data.schema.standardise: one of none, silo, not 'all'"),
        ({"source": "me"}, "data.schema.source: one of public, data, not 'me'"),
        (
            column(kind="text"),
            'columns.age: kind = "number", "category", "ordinal", "code", "date", "vector" or "image"',
        ),
        (column(range=[]), "data.schema.columns.age.range: still empty; write the lowest and highest value"),
        (column(range=[1, 0]), "data.schema.columns.age.range: the lowest value comes first"),
        (column(range=[0, float("nan")]), "data.schema.columns.age.range: two finite numbers"),
        (column(range=[0, 10**400]), "data.schema.columns.age.range: two finite numbers"),
        (column(range=["0", "1"]), "data.schema.columns.age.range: two finite numbers"),
        (column(missing=2), "data.schema.columns.age.missing: a number within the range [0, 1], not 2"),
        (column(missing="x"), "data.schema.columns.age.missing: a number within"),
        (categories(), "data.schema.columns.ward.categories: still empty; list the categories"),
        (categories(1, "1.0"), "data.schema.columns.ward.categories: two entries mean the same"),
        (categories([1]), "data.schema.columns.ward.categories: a list of texts, numbers"),
        (categories("a", missing="b"), "data.schema.columns.ward.missing: 'b' is not among the categories"),
        ({"columns": {}}, "data.schema.columns: at least one feature column is needed"),
        ({"columns": {"age": 3}}, "data.schema.columns.age: kind ="),
        (
            {"columns": {"pid": {"kind": "number", "range": [0, 1]}}},
            "'pid' is the user id and cannot be a feature",
        ),
        (
            {"columns": {"out": {"kind": "number", "range": [0, 1]}}},
            "'out' is the label and cannot be a feature",
        ),
        (
            {"label": {"kind": "class", "classes": []}},
            "data.schema.label.classes: still empty; list the classes",
        ),
        ({"label": {"kind": "class", "classes": [1]}}, "data.schema.label.classes: at least two classes"),
        ({"label": {"kind": "number", "range": []}}, "data.schema.label.range: still empty"),
        ({"label": {"kind": "class", "range": [0, 1]}}, "data.schema.label: unknown key 'range'"),
        ({"label": {"kind": "class", "classes": [0, 1], "column": "y"}}, "'y', but data.label is 'out'"),
        ({"label": 3}, "data.schema.label: kind ="),
        ({"statistics": {"mean": 3}}, "data.schema.statistics: two lists of numbers"),
        ({"statistics": {"mean": [0, 0], "deviation": [1, 1]}}, 'statistics need standardise = "silo"'),
        ({"statistics": {"mean": [0], "deviation": [1]}, "standardise": "silo"}, "for each number column"),
    ],
)
def test_bad_schemas(changes, text):
    with pytest.raises(ConfigError) as error:
        schema(**changes)
    assert text in str(error.value)


def test_a_schema_without_a_label():
    with pytest.raises(ConfigError, match=r"data\.schema\.label: missing"):
        Schema.from_dict({"columns": tree()["columns"]}, label="out")
    with pytest.raises(ConfigError, match=r"data\.schema\.label\.column: missing"):
        Schema.from_dict(tree())
