"""Survival times in tables: a time and whether the event was observed, censored where observation ends."""

import itertools

import numpy as np
import pandas as pd
import pytest

import uldp
from uldp.data.schema import Schema, encode_table
from uldp.errors import ConfigError, DataError
from uldp.learners.metrics import concordance

LABEL = {"kind": "survival", "event": "died", "range": [0, 100], "classes": ["no", "yes"], "fold_case": True}
COLUMNS = {"age": {"kind": "number", "range": [0, 100]}}


def schema(**changes):
    return Schema.from_dict({"label": LABEL | changes, "columns": COLUMNS}, label="months", user="pid")


def table(months, died):
    return pd.DataFrame({"pid": "p", "age": "50", "months": months, "died": died})


def test_labels_are_times_with_a_sign():
    made = schema()
    labels = made.labels(table(["50", "25", "0", "0"], ["Yes", "no", "YES", "no"]), "t")
    assert labels.tolist() == [0.5, -0.25, 2.0**-20, -(2.0**-20)]
    assert (made.label.task.kind, made.label.task.label_scale) == ("survival", 100)
    assert Schema.from_dict(made.to_dict()) == made and made.column_names() == {"age", "months", "died"}
    assert "0 to 100" in repr(made)


def test_who_is_observed_beyond_the_range_is_censored_at_its_end():
    frame = table(["150", "100"], ["yes", "yes"])
    assert schema(outside="clip").labels(frame, "t").tolist() == [-1.0, 1.0]
    with pytest.raises(DataError, match=r"1 outside the agreed range \[0, 100\] in column 'months'"):
        schema().labels(frame, "t")


def test_records_without_a_time_or_an_event_are_refused_or_left_out():
    frame = table(["", "-5", "x", "10", "20", "30"], ["yes", "no", "no", "", "maybe", "no"])
    with pytest.raises(DataError, match="not a finite number in column 'months'"):
        schema().labels(frame, "t")
    dropped = encode_table(schema(missing="drop", outside="missing"), frame, "t")
    assert dropped.rows.tolist() == [False] * 5 + [True]
    assert dropped.records.labels.tolist() == pytest.approx([-0.3])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"event": "months"}, "label.event: the column that says whether the event was observed, not 'months'"),
        ({"event": 3}, "label.event: the column that says whether"),
        ({"classes": ["no", "yes", "maybe"]}, "label.classes: two values: that observation ended without an event"),
        ({"range": [1, 100]}, "label.range: from 0, when observation begins, to the longest time"),
    ],
)
def test_bad_labels(changes, text):
    with pytest.raises(ConfigError) as error:
        schema(**changes)
    assert text in str(error.value)


def test_neither_time_nor_event_can_be_a_feature():
    with pytest.raises(ConfigError, match="'died' is the label and cannot be a feature"):
        Schema.from_dict({"label": LABEL, "columns": COLUMNS | {"died": COLUMNS["age"]}}, label="months")


def slow_concordance(risks, labels):
    """Harrell's C by its definition, pair by pair."""
    won = pairs = 0.0
    for i, j in itertools.permutations(range(len(risks)), 2):
        first = labels[i] > 0 and (abs(labels[j]) > labels[i] or (labels[j] == -labels[i]))
        if first:
            pairs += 1
            won += 1.0 if risks[i] > risks[j] else 0.5 * (risks[i] == risks[j])
    return won / pairs


def cohort(people, each, seed):
    draw = np.random.default_rng(seed)
    count = people * each
    age, dose = draw.uniform(0, 100, count).round(1), draw.uniform(0, 10, count).round(2)
    time = draw.exponential(40 * np.exp(-0.03 * (age - 50) + 0.2 * (dose - 5)))
    end = draw.uniform(10, 100, count)
    frame = {"age": age, "dose": dose, "months": np.minimum(time, end).round(1), "died": np.where(time < end, "Y", "N")}
    return pd.DataFrame({"pid": np.repeat([f"p{n}" for n in range(people)], each), **frame})


def test_own_tables_train_a_cox_model(tmp_path):
    label = {"kind": "survival", "event": "died", "range": [0, 120], "classes": ["N", "Y"]}
    columns = {"age": {"kind": "number", "range": [0, 100]}, "dose": {"kind": "number", "range": [0, 10]}}
    tables = {name: cohort(60, 5, seed) for seed, name in enumerate(("north", "south"))}
    test = cohort(60, 5, 9)
    about = {"user": "pid", "label": "months", "schema": {"label": label, "columns": columns}, "users": 600}
    result = uldp.train(tables, test=test, **about, epsilon=None, method="fedavg", rounds=8, secrets="simulated")
    risks = result.predict(test)
    labels = np.where(test["died"] == "Y", 1, -1) * np.maximum(test["months"], 1e-4)
    assert result.metrics["c_index"] == pytest.approx(slow_concordance(risks, labels.to_numpy()))
    assert result.metrics["c_index"] == pytest.approx(concordance(risks, labels.to_numpy())) and (
        result.metrics["c_index"] > 0.65
    )
    by_age = result.predict(pd.DataFrame({"age": [20, 80], "dose": [5, 5]}))
    assert by_age[1] > by_age[0]


def test_people_with_one_record_are_counted_in_a_note():
    label = {"kind": "survival", "event": "died", "range": [0, 120], "classes": ["N", "Y"]}
    people = [*(f"p{n}" for n in range(20)), *(f"q{n}" for n in range(30))]
    about = {"user": "pid", "label": "months", "schema": {"label": label, "columns": COLUMNS}, "users": people}
    frames = {"north": pd.concat([cohort(20, 3, 0), cohort(30, 1, 1).assign(pid=[f"q{n}" for n in range(30)])])}
    made = uldp.Federation.from_frames(frames, test=cohort(5, 2, 2), **about)
    (note,) = [note for note in made.notes if "Cox" in note]
    assert note.endswith(
        "30 of 50 people have one record only, and Cox's loss compares a person's own records: "
        "these people contribute nothing to the model"
    )
