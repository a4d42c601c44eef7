"""What a cell means: one spelling for one value, whatever file it came from."""

from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uldp.data.values import MISSING, UNKNOWN, canonical, codes, distinct, is_missing, numbers


@pytest.mark.parametrize(
    "same",
    [
        (7, 7.0, "7", " 7 ", "7.0", "+7", "007", np.int64(7), np.float32(7), Decimal("7.0"), b"7"),
        (True, "true", "True", "TRUE", np.bool_(True)),
        (0.1, "0.1", "0.10", ".1"),
        (-3, "-3", "-3.0"),
        (0, "-0", "0.0", -0.0),
        ("ward a", " ward a "),
        ("M\u00fcller", "Mu\u0308ller"),
    ],
)
def test_spellings_of_one_value_agree(same):
    assert len({canonical(value) for value in same}) == 1


@pytest.mark.parametrize("pair", [(1, True), ("a", "A"), ("1e2", 100), ("12", "12a"), (0.1, 0.2), ("", "0")])
def test_different_values_stay_different(pair):
    assert canonical(pair[0]) != canonical(pair[1])


@given(st.integers())
def test_whole_numbers_of_any_length_stay_exact(number):
    assert canonical(number) == canonical(str(number)) == str(number)


def test_a_cell_of_endless_digits_is_read_as_text():
    assert canonical("9" * 5000) == "9" * 5000


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_and_its_text_agree(number):
    assert canonical(number) == canonical(f"{Decimal(repr(number)):f}")


@pytest.mark.parametrize("value", [None, "", "  ", "NA", "NaN", "-nan", "null", "None", "?", float("nan")])
def test_words_for_no_value(value):
    assert is_missing(value)


def test_a_listed_category_is_never_missing():
    found = codes(pd.Series(["none", "", None, "x"]), {"none": 0})
    assert found.tolist() == [0, MISSING, MISSING, UNKNOWN]


@given(st.lists(st.sampled_from(["", "a", "A", "1", "01", "NA", "\u00e9", "e\u0301"]), max_size=12))
def test_different_cells_of_text_are_found_alike_fast_and_slow(texts):
    fast, slow = distinct(pd.Series(texts, dtype="str")), distinct(pd.Series(texts, dtype=object))
    assert fast[0] == slow[0]
    assert fast[1].tolist() == slow[1].tolist()
    assert [fast[0][row] for row in fast[1]] == texts


def test_cells_of_different_types_stay_apart():
    cells, rows = distinct(pd.Series([1, True, 1.0, "1", None, [1], [1]], dtype=object))
    assert cells == [1, True, 1.0, "1", None, [1]]
    assert rows.tolist() == [0, 1, 2, 3, 4, 5, 5]


def test_a_null_is_not_the_category_none():
    assert codes(pd.Series([None, "None"], dtype=object), {"None": 0}).tolist() == [MISSING, 0]


def test_numbers_from_text_and_from_typed_columns_are_the_same():
    typed = pd.Series([1.5, np.nan, 3.0, 0.1 + 0.2])
    values, wrong = numbers(pd.Series(["1.5", "", "3", "0.30000000000000004"]))
    assert np.array_equal(values, numbers(typed)[0], equal_nan=True)
    assert not wrong.any()


DIGITS = st.from_regex(r"[+-]?[0-9]{1,20}(\.[0-9]{0,25})?([eE][+-]?[0-9]{1,2})?", fullmatch=True)


@given(st.lists(DIGITS | st.floats(allow_nan=False, allow_infinity=False).map(repr), min_size=1))
def test_another_cell_of_the_column_never_changes_a_number(texts):
    alone, _ = numbers(pd.Series(texts, dtype="str"))
    beside, _ = numbers(pd.Series([*texts, "a word"], dtype="str"))
    assert alone.tobytes() == beside[:-1].tobytes()
    assert alone.tolist() == [float(text) for text in texts]


def test_what_is_no_finite_number_is_marked():
    _, wrong = numbers(pd.Series(["1", "inf", "abc", "1_000", "1,5", "NA"]))
    assert wrong.tolist() == [False, True, True, True, True, False]
