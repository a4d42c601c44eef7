"""Ids written in another form in another silo are said to be, without showing one."""

import warnings

import numpy as np
import pandas as pd
import pytest

import uldp
from uldp.data.id_forms import different_forms

NUMBERS = [str(number) for number in range(40)]


@pytest.mark.parametrize(
    "other",
    [
        [f"p{number:03}" for number in range(40)],
        [f"p-{number}" for number in range(40)],
        [f"19 {number}" for number in range(40)],
        [f"person{number}@x.org" for number in range(40)],
    ],
)
def test_other_forms_are_named_and_no_id_is_shown(other):
    (note,) = different_forms({"north": NUMBERS, "harbour": other})
    assert "north (digits)" in note and "harbour (" in note and "in one form" in note
    assert not any(user in note for user in other)


@pytest.mark.parametrize(
    "other",
    [
        [f"{number}" for number in range(100, 140)],
        ["x1", *NUMBERS],
        [],
        [*(f"p{number}" for number in range(20)), *NUMBERS[:20]],
    ],
)
def test_forms_that_silos_share_are_no_reason_for_a_note(other):
    assert different_forms({"north": NUMBERS, "harbour": other}) == ()


def test_silos_hang_together_by_a_third_one():
    mixed = [*NUMBERS[:20], *(f"p{number}" for number in range(20))]
    letters = [f"p{number}" for number in range(40)]
    assert different_forms({"a": NUMBERS, "b": letters, "c": mixed}) == ()
    assert different_forms({"a": NUMBERS, "b": letters, "c": letters[:5]})


def test_ids_that_all_begin_with_letters_of_the_silo():
    here, there = ([f"{letter}{number}" for number in range(40)] for letter in ("nq", "hq"))
    (note,) = different_forms({"north": here, "harbour": there})
    assert "begin with the same letters" in note and "nq" not in note and "hq" not in note
    assert different_forms({"north": here, "harbour": [*there, "nq7"]}) == ()
    assert different_forms({"north": ["anna", "ann"], "harbour": ["bert", "berta"]}) == ()


def test_random_identifiers_have_one_form():
    generator = np.random.default_rng(0)
    here, there = ([generator.bytes(8).hex() for _ in range(500)] for _ in range(2))
    assert different_forms({"north": here, "harbour": there}) == ()


def test_python_warns_where_a_frame_has_numbers_and_another_one_text():
    frame = pd.DataFrame({"pid": range(30), "age": range(30, 60), "ill": [0, 1] * 15})
    written = frame.assign(pid=[f"P-{number:04}" for number in frame.pid])
    schema = uldp.Schema.classes("ill", [0, 1]).numeric("age", 0, 110)
    about = {"user": "pid", "label": "ill", "schema": schema, "noise_multiplier": 5.0, "rounds": 1, "progress": False}
    with pytest.warns(UserWarning, match=r"north \(digits\) than in south \(letters-digits\)"):
        uldp.train({"north": frame, "south": written}, **about)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # 7 and "007" are one id: nothing is lost
        same = frame.assign(pid=[str(number) for number in frame.pid])
        uldp.train({"north": frame, "south": same}, **about)
