"""Columns of vectors: lists of numbers of an agreed length and norm, one record at a time."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import uldp
from uldp.data.contrasts import contrasts
from uldp.data.draft import draft_silos
from uldp.data.files import read_table
from uldp.data.schema import Schema, feature_norm
from uldp.data.synthetic_tables import TableShape, draw_federation
from uldp.errors import ConfigError, DataError
from uldp.rng import Streams


def schema(**changes):
    column = {"kind": "vector", "length": 3, "norm": 2.0, **changes}
    label = {"kind": "class", "classes": [0, 1], "column": "y"}
    return Schema.from_dict({"label": label, "columns": {"e": column}})


def features(cells, **changes):
    return schema(**changes).features(pd.DataFrame({"e": pd.Series(cells, dtype="object")}), "t")


def test_a_vector_becomes_its_numbers_divided_by_the_norm():
    assert features([[0.0, 1.0, -1.0], (2, 0, 0), np.array([0, 0, 0], np.int8)]).tolist() == [
        [0.0, 0.5, -0.5],
        [1.0, 0.0, 0.0],
        [0.0, 0.0, 0.0],
    ]
    assert schema().feature_names() == ("e[0]", "e[1]", "e[2]")
    assert Schema.from_dict(schema(missing="zero", outside="clip").to_dict(), label="y") == schema(
        missing="zero", outside="clip"
    )
    assert "3 numbers, norm up to 2" in repr(schema())


numbers = st.floats(-1e300, 1e300) | st.floats(-3, 3)


@given(st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=5))
def test_no_record_is_longer_than_the_norm_that_the_schema_states(rows):
    clipped = features(rows, outside="clip")
    assert np.isfinite(clipped).all()
    lengths = np.sqrt(np.square(clipped.astype(np.float64)).sum(axis=1))
    assert (lengths <= feature_norm(schema())).all()
    # Each row from its own cell alone.
    for row, cell in enumerate(rows):
        assert features([cell], outside="clip").tobytes() == clipped[row].tobytes()


def test_a_clipped_vector_keeps_its_direction_and_one_taken_as_missing_is_zero():
    assert features([[0.0, 30.0, -40.0]], outside="clip")[0] == pytest.approx([0, 0.6, -0.8])
    taken = features([[0.0, 30.0, -40.0], [1.0, 2.0], None, "text"], outside="missing", missing="zero")
    assert not taken.any()


@pytest.mark.parametrize(
    "cell",
    [[1.0, 2.0], [1.0, 2.0, 3.0, 4.0], [1.0, np.nan, 0.0], [np.inf, 0, 0], "vector", 7, [[1], [2], [3]], [[1], 2, 3],
     ["1", "2", "3"], [None, 1, 2], [True, False, True], "[1, 2", "[" * 10**5, {"a": 1}, b"123"],
    ids=str,
)  # fmt: skip
def test_what_is_no_vector_is_refused_by_its_row_and_not_shown(cell):
    with pytest.raises(DataError, match=r"1 no list of 3 finite numbers in column 'e' \(first: row 2\)") as refused:
        features([[1.0, 0.0, 0.0], cell])
    assert "vector" not in str(refused.value)


@pytest.mark.parametrize("cell", [None, np.nan, "", "NA"])
def test_a_missing_vector_is_refused_or_zero(cell):
    with pytest.raises(DataError, match=r"1 missing in column 'e' \(first: row 2\)"):
        features([[1.0, 0.0, 0.0], cell])
    assert not features([[1.0, 0.0, 0.0], cell], missing="zero")[1].any()


def test_a_longer_vector_is_refused_by_default():
    with pytest.raises(DataError, match=r"1 of a norm above 2 in column 'e' \(first: row 1\)"):
        features([[2.0, 0.001, 0.0]])


@pytest.mark.parametrize(
    ("changes", "location"),
    [
        ({"length": 0}, "columns.e.length"),
        ({"length": None}, "columns.e.length"),
        ({"length": 10**9}, "columns.e.length"),
        ({"norm": 0}, "columns.e.norm"),
        ({"norm": True}, "columns.e.norm"),
        ({"norm": float("inf")}, "columns.e.norm"),
        ({"norm": []}, "columns.e.norm: still empty"),
        ({"missing": 0}, "columns.e.missing"),
        ({"range": [0, 1]}, "unknown key 'range'"),
        ({"outside": "missing"}, "columns.e.missing"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes, location):
    with pytest.raises(ConfigError, match=location):
        schema(**changes)


def tables(generator, people=60):
    made = {}
    for silo in ("north", "harbour"):
        vectors = generator.normal(size=(people, 3)).round(3)
        made[silo] = pd.DataFrame(
            {
                "pid": [f"{silo}{n}" for n in range(people)],
                "e": [list(map(float, vector)) for vector in vectors],
                "y": (vectors.sum(axis=1) > 0).astype(int),
            }
        )
    return made


def test_parquet_and_csv_hold_the_same_vectors(tmp_path):
    frame = tables(np.random.default_rng(0))["north"]
    frame.to_parquet(tmp_path / "t.parquet")
    frame.assign(e=frame["e"].map(json.dumps)).to_csv(tmp_path / "t.csv", index=False)
    read = [schema(norm=9.0).features(read_table(tmp_path / name, "t"), "t") for name in ("t.parquet", "t.csv")]
    assert read[0].tobytes() == read[1].tobytes() and read[0].any()


def test_drafts_find_vectors_and_a_model_is_trained_on_them():
    silos = tables(np.random.default_rng(1))
    draft = draft_silos(silos, "pid", "y", from_data=False)
    assert draft.tree["columns"] == {"e": {"kind": "vector", "length": 3, "norm": []}}
    assert "norm = []  # fill in: the largest Euclidean norm that the parties agree on" in draft.to_toml()
    read = draft_silos(silos, "pid", "y", from_data=True).tree["columns"]["e"]
    largest = max(np.linalg.norm(cell) for table in silos.values() for cell in table["e"])
    assert largest <= read["norm"] <= 2 * largest
    uneven = {silo: table.assign(e=[[1.0] * (1 + n % 2) for n in range(len(table))]) for silo, table in silos.items()}
    assert "e" not in draft_silos(uneven, "pid", "y", from_data=False).tree["columns"]
    with pytest.warns(UserWarning):
        result = uldp.train(
            silos, user="pid", label="y", schema=schema(norm=4.0, outside="clip"), test_fraction=0.3, method="fedavg",
            epsilon=None, rounds=20, secrets="simulated", options={"method.local_lr": 1.0},
        )  # fmt: skip
    assert result.metrics["accuracy"] > 0.8


def test_coefficients_and_made_up_tables_know_vectors():
    assert [(one.name, one.scale) for one in contrasts(schema())] == [("e[0]", 0.5), ("e[1]", 0.5), ("e[2]", 0.5)]
    shape = TableShape.of_schema(schema(length=20), people=50, silos=2, records=2.0)
    drawn = draw_federation(shape, Streams.from_seed(0))
    assert drawn.feature_shape == (20,) == (shape.features,)
    assert np.linalg.norm(drawn.silos[0].features, axis=1) == pytest.approx(1.0, abs=1e-5)
