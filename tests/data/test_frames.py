"""Data frames are tables like files; errors about them name columns, positions and types, never a cell."""

import warnings

import numpy as np
import pandas as pd
import pytest

from uldp.data.roster import Roster
from uldp.data.schema import Schema, SchemaFromData
from uldp.data.tables import load_tables
from uldp.errors import ConfigError, DataError
from uldp.rng import Streams

SCHEMA = Schema.classes("ill", ["no", "yes"]).numeric("age", 0, 110).category("sex", ["f", "m"], missing="f")
ROSTER = Roster(("1", "2", "3", "4"))


def frame(**changes):
    columns = {"pid": [1, 2, 3], "age": [30, 60.5, 7], "sex": ["f", None, "m"], "ill": ["no", "yes", "no"]}
    return pd.DataFrame(columns | changes)


def load(silos, schema=SCHEMA, test=None):
    return load_tables(silos, schema, ROSTER, Streams.from_seed(0), user="pid", test=frame() if test is None else test)


def test_frames_become_what_the_same_files_become(tmp_path):
    frame().to_csv(tmp_path / "north.csv", index=False)
    frame().to_parquet(tmp_path / "south.parquet")
    given = load({"north": frame(), "south": frame(pid=[4, 2, 1])})
    frame(pid=[4, 2, 1]).to_parquet(tmp_path / "south.parquet")
    read = load([tmp_path / "north.csv", tmp_path / "south.parquet"], test=tmp_path / "north.csv")
    assert [silo.digest() for silo in given] == [silo.digest() for silo in read]
    assert given.people == read.people and (given.test.features == read.test.features).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"pid": pd.array([1, 2, 3], dtype="Int64")},
        {"pid": [1.0, 2.0, 3.0], "age": pd.array([30, 60.5, 7], dtype="Float32")},
        {"sex": pd.Categorical(["f", None, "m"])},
        {"sex": pd.array(["f", pd.NA, "m"], dtype="string")},
        {"sex": np.array(["f", pd.NaT, "m"], dtype=object)},
    ],
)
def test_types_of_pandas_mean_the_same(changes):
    one, other = load({"a": frame()}), load({"a": frame(**changes)})
    assert one.silos[0].digest() == other.silos[0].digest()


def test_the_index_and_the_order_of_columns_change_nothing():
    turned = frame()[["sex", "ill", "age", "pid"]].set_axis([9, 9, 9])
    assert load({"a": turned}).silos[0].digest() == load({"a": frame()}).silos[0].digest()


SECRET = "zebra-4711"


@pytest.mark.parametrize(
    ("silo", "sentence"),
    [
        (frame().drop(columns="pid"), "silo 'a': no user column 'pid'; the table has: age, sex, ill"),
        (frame().set_index("pid"), "it is the index: make it a column with .reset_index()"),
        (frame().drop(columns="age"), "silo 'a': no column 'age'; the table has: pid, sex, ill"),
        (frame(age=[1, None, 2]), "1 missing in column 'age' (first: row 2)"),
        (frame(age=[1, SECRET, 2]), "1 not a finite number in column 'age' (first: row 2)"),
        (frame(sex=["f", "f", SECRET]), "1 not among the agreed categories in column 'sex' (first: row 3)"),
        (frame(ill=["no", "no", SECRET]), "1 not among the agreed classes"),
        (frame(pid=[1, 2, None]), "rows have no user id"),
        (frame(pid=[1, 2, SECRET]), "1 user ids (1 rows) are not on the roster"),
        (frame(pid=[1, 2, [SECRET]]), "neither text nor whole numbers"),
        (frame()[:0], "silo 'a': the table has no rows"),
        (pd.concat([frame(), frame()[["age"]]], axis=1), "silo 'a': the column 'age' occurs twice"),
        (frame().to_numpy(), "a pandas DataFrame or the path of a table is needed, not a ndarray of shape (3, 4)"),
        (frame(sex=[SECRET] * 3).to_dict(), "a pandas DataFrame or the path of a table is needed, not a dict of 4"),
        (frame(sex=[SECRET] * 3)["sex"], "a pandas DataFrame or the path of a table is needed, not a Series"),
    ],
)
def test_bad_frames_get_a_sentence_without_a_cell(silo, sentence):
    with pytest.raises((DataError, ConfigError)) as caught:
        load({"a": silo})
    assert sentence in str(caught.value) and SECRET not in str(caught.value)
    with pytest.raises((DataError, ConfigError)) as caught:
        load({"a": frame()}, test=silo if not isinstance(silo, pd.DataFrame) else silo[:0])
    assert "test" in str(caught.value) and SECRET not in str(caught.value)


def test_one_frame_for_two_silos_is_noted():
    same = frame()
    assert "one data frame is the table of 2 silos (a, b)" in " ".join(load({"a": same, "b": same}).notes)
    assert not load({"a": same, "b": frame()}).notes


def test_a_schema_is_built_column_by_column():
    assert Schema.from_dict(SCHEMA.to_dict()) == SCHEMA
    assert SCHEMA.numeric("age", 0, 120).feature_names() == SCHEMA.feature_names()
    with pytest.raises(ConfigError, match=r"schema.age.range: .*the lowest value comes first"):
        SCHEMA.numeric("age", 110, 0)
    with pytest.raises(ConfigError, match="'ill' is the label and cannot be a feature"):
        SCHEMA.category("ill", [0, 1])
    with pytest.raises(ConfigError, match=r"schema.sex.categories"):
        SCHEMA.category("sex", "fm")
    with pytest.raises(ConfigError, match="no feature column"):
        load({"a": frame()}, schema=Schema.classes("ill", ["no", "yes"]))
    assert Schema.numbers("age", 0, 10).label.task.kind == "regression"


def test_a_draft_says_which_values_it_read_from_the_data():
    frames = {"a": frame(flag=[True, False, True]), "b": frame(flag=[False, False, True])}
    with pytest.warns(SchemaFromData, match="of age, sex, ill were read from the data"):
        draft = Schema.draft(frames, user="pid", label="ill")
    assert draft.source == "data" and draft.drafted == {"age", "sex", "ill"} and draft.caveats
    assert [row[-1] for row in draft._rows()[1:]].count("read from the data") == 3
    better = draft.numeric("age", 0, 110).category("sex", ["f", "m", "missing"])
    assert better.source == "data" and better.drafted == {"ill"}
    assert better.agreed().source == "public" and not better.agreed().caveats
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Schema.from_dict(draft.to_dict()).drafted == draft.column_names()  # a file cannot tell: all of them


def test_a_schema_is_shown_as_a_table_and_written_as_toml():
    import tomllib

    tree = tomllib.loads(SCHEMA.to_toml())["data"]["schema"]
    assert Schema.from_dict(tree) == SCHEMA
    assert repr(SCHEMA).splitlines()[1].split() == ["age", "number", "0", "to", "110", "public"]
    html = SCHEMA.category("<b>", ["<i>"])._repr_html_()
    assert "<td>age</td>" in html and "&lt;b&gt;" in html and "<b>" not in html
