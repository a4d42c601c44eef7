"""Errors that break a guarantee are caught. The whole table is ``make planted``; here one of each kind."""

from __future__ import annotations

import pytest
from tests.planted.errors import ERRORS
from tests.planted.plant import PACKAGE, State, caught_by, row_of, run

from uldp.methods.registry import METHODS

WEIGHTS = next(one for one in ERRORS if one.name == "weights that sum to 1.2")


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.name)
def test_a_patch_fits_the_package(error):
    assert (PACKAGE / error.file).read_text().count(error.old) == 1


def test_half_of_the_noise_is_planted_in_every_private_method():
    """fedavg has no noise."""
    halved = {error.method for error in ERRORS if error.name == f"half of the noise, {error.method}"}
    assert halved == set(METHODS) - {"fedavg"}


def test_an_error_is_caught_in_a_copy_of_the_package_and_nothing_without_it(tmp_path):
    state = State(tmp_path / "state.jsonl", control=False)
    run([WEIGHTS], 2, state, float("inf"), control=False)
    known = State(tmp_path / "state.jsonl", control=False).of(WEIGHTS)
    assert [line["seed"] for line in known] == [0, 1]
    assert row_of(WEIGHTS, known).startswith("weights that sum to 1.2 | 2 of 2 | ")
    assert all("shift of a canary, without noise" in line["against"] for line in known)
    assert State(tmp_path / "state.jsonl", control=True).of(WEIGHTS) == []
    assert list(caught_by(WEIGHTS, control=True)) == [(0, [])]


@pytest.mark.slow
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.name)
def test_every_error_is_caught(error):
    assert all(against for _, against in caught_by(error))
