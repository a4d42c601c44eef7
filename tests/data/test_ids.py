"""One person is one unit in all silos: ids that programs respell agree, ids that may have lost digits are refused."""

import datetime
import unicodedata
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uldp.data.files import read_table
from uldp.data.ids import EXPONENT, GROUPED, INEXACT, NO_ID, NO_TEXT, NOT_UTF8, Problem, canonical_id, normalised_ids
from uldp.errors import DataError


@pytest.mark.parametrize(
    "same",
    [
        (7, 7.0, "7", " 7 ", "7.0", "+7", "007", b"7", np.int64(7), np.float32(7), Decimal("7.00")),
        (12345678901234567, "12345678901234567", Decimal("12345678901234567.00")),
        ("12345678901234567890123456789012345678", Decimal("12345678901234567890123456789012345678")),
        (0, "-0", "0.0", -0.0, "000"),
        (-3, "-3", "-3.0", "-03"),
        ("0.5", ".50", Decimal("0.5")),
        ("AB-1", "ab-1", " Ab-1 ", b"aB-1"),
        ("M\u00dcLLER", "mu\u0308ller", "m\u00fc\u200bller", "\ufeffm\u00fcller\u00a0"),
        ("u1", "u\u00ad1", "\uff55\uff11", "U\u0661"),
        ("12", "\uff11\uff12", "\u0661\u0662"),
        ("stra\u00dfe", "STRASSE"),
        (True, "TRUE"),
        ("9" * 5000, "0" + "9" * 5000),
        ("7", b"7\0\0\0", "7\x7f", "7\ufe0f"),  # a binary column is filled with zeros
        ("-7", "\u22127"),
    ],
)
def test_spellings_of_one_id_agree(same):
    assert len({canonical_id(cell) for cell in same}) == 1


@pytest.mark.parametrize("pair", [("a1", "a2"), (1, True), ("1.5", "15"), ("-7", "7"), ("x y", "xy"), ("a-1", "a1")])
def test_different_ids_stay_different(pair):
    assert canonical_id(pair[0]) != canonical_id(pair[1])


@pytest.mark.parametrize(
    ("problem", "cells"),
    [
        (NO_ID, [None, "", " ", "NA", "null", "\\N", "(null)", "-", ".", "NaT", "#NULL!", "\u200b", float("nan")]),
        (EXPONENT, ["1.23457E+11", "1E5", "1e5", "1,2e+07", "-3E-2", "\uff11e5"]),
        (GROUPED, ["1,234", "12,345,678", "1,234.0"]),
        (INEXACT, [0.5, float("inf"), -(2.0**53), 1e300, "9007199254740992.0", "12345678901234568.", Decimal("inf")]),
        (NOT_UTF8, [b"\xff\xfe", bytes(range(128, 144))]),
        (NO_TEXT, [[1], {"a": 1}, np.array([1]), datetime.date(2020, 1, 1), pd.Timestamp(0), pd.Timedelta(0), (1, 2)]),
    ],
)
def test_what_is_refused(problem, cells):
    assert {str(cell): canonical_id(cell) for cell in cells} == {str(cell): problem for cell in cells}


@given(st.text())
def test_a_normalised_id_stays_as_it_is(text):
    once = canonical_id(text)
    assert isinstance(once, Problem) or canonical_id(once) == once


@given(st.text(), st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"]))
def test_the_form_of_unicode_does_not_matter(text, form):
    assert canonical_id(text) == canonical_id(unicodedata.normalize(form, text))


@given(st.integers(), st.integers(0, 5))
def test_whole_numbers_of_any_length_stay_exact(number, zeros):
    padded = f"{'-' if number < 0 else ''}{'0' * zeros}{abs(number)}"
    assert canonical_id(number) == canonical_id(padded) == canonical_id(Decimal(number)) == str(number)


def stored(tmp_path, array):
    """The ids of a Parquet file."""
    pq.write_table(pa.table({"pid": array}), tmp_path / "a.parquet")
    return normalised_ids(read_table(tmp_path / "a.parquet", "x"), "pid", "a.parquet").rows


@pytest.mark.parametrize(
    "array",
    [
        pa.array([7, 12]),
        pa.array([7.0, 12.0]),
        pa.array([7, 12], pa.uint64()),
        pa.array(np.array([7, 12], dtype=np.float16)),
        pa.array([Decimal(7), Decimal(12)], pa.decimal128(38, 2)),
        pa.array(["7", "012"]).dictionary_encode(),
        pa.array(["7", "12"], pa.string_view()),
        pa.array([b"7", b"12"], pa.binary_view()),
        pa.array([b"7", b"12"]),
        pa.array(["7", "12"], pa.large_string()),
    ],
)
def test_a_typed_column_gives_the_ids_of_a_text_column(tmp_path, array):
    assert stored(tmp_path, array) == ["7", "12"]


@pytest.mark.parametrize(("kind", "bits"), [("float64", 53), ("float32", 24), ("float16", 11)])
def test_a_float_that_may_have_lost_digits_is_refused_by_the_width_of_its_column(tmp_path, kind, bits):
    exact, lost = np.array([2**bits - 1], dtype=kind), np.array([1, 2**bits], dtype=kind)
    assert stored(tmp_path, pa.array(exact)) == [str(2**bits - 1)]
    with pytest.raises(DataError, match=r"a\.parquet: 1 ids are fractions, or floats so large .* \(first: row 2\)"):
        stored(tmp_path, pa.array(lost))
    with pytest.raises(DataError, match="lost digits"):
        stored(tmp_path, pa.DictionaryArray.from_arrays([0, 1], pa.array(lost)))
    with pytest.raises(DataError, match="lost digits"):
        normalised_ids(pd.DataFrame({"pid": lost}), "pid", "a.csv")


@pytest.mark.parametrize(
    "array", [pa.array([1, 2], pa.timestamp("ns")), pa.array([[1], [2]]), pa.array([{"a": 1}] * 2)]
)
def test_columns_of_other_types_are_refused(tmp_path, array):
    with pytest.raises(DataError, match=r"a\.parquet: 2 ids are neither text nor whole numbers in column 'pid'"):
        stored(tmp_path, array)


def test_a_nan_that_is_no_null_is_a_missing_id(tmp_path):
    with pytest.raises(DataError, match=r"1 rows have no user id in column 'pid' \(first: row 2\)"):
        stored(tmp_path, pa.array([1.0, float("nan")], from_pandas=False))


def test_an_error_counts_one_problem_and_names_the_first_row_but_no_id():
    frame = pd.DataFrame({"pid": ["u1", "1.5E+11", "1,234", "1.5E+11", "2e7"]})
    with pytest.raises(DataError) as error:
        normalised_ids(frame, "pid", "a.csv")
    text = str(error.value)
    assert (
        "a.csv: 3 ids in exponent notation have lost digits in column 'pid' (first: row 2); export the column" in text
    )
    assert "1.5E" not in text
    assert "\n" not in text


@pytest.mark.parametrize("missing", [None, "", "NA", np.nan, "\\N"])
def test_a_missing_id_is_an_error(missing):
    frame = pd.DataFrame({"pid": ["a", missing, missing]})
    with pytest.raises(DataError, match=r"a\.csv: 2 rows have no user id in column 'pid' \(first: row 2\)"):
        normalised_ids(frame, "pid", "a.csv")


def test_a_missing_user_column():
    with pytest.raises(DataError, match=r"a\.csv: no user column 'pid'; the table has: id, x"):
        normalised_ids(pd.DataFrame({"id": [1], "x": [2]}), "pid", "a.csv")


def test_spellings_are_kept_where_somebody_wrote_them():
    found = normalised_ids(pd.DataFrame({"pid": [7, 7.0, "7", " 7 ", "007", "A", "a"]}, dtype=object), "pid", "a.csv")
    assert found.rows == ["7"] * 5 + ["a"] * 2
    assert found.spellings == {"7": {"7", "007"}, "a": {"A", "a"}}
