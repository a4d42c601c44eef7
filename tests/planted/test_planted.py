"""Errors that break a guarantee are caught. The whole table is ``make planted``; here one of each kind."""

from __future__ import annotations

import pytest
from tests.planted.errors import ERRORS
from tests.planted.plant import PACKAGE, caught_by


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.name)
def test_a_patch_fits_the_package(error):
    assert (PACKAGE / error.file).read_text().count(error.old) == 1


def test_an_error_is_caught_in_a_copy_of_the_package():
    (error,) = [one for one in ERRORS if one.name == "weights that sum to 1.2"]
    assert "shift of a canary" in caught_by(error)


@pytest.mark.slow
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.name)
def test_every_error_is_caught(error):
    assert caught_by(error)
