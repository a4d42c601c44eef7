"""The written-out functions keep their stated errors, and give the same bits on every machine."""

from __future__ import annotations

import hashlib
import math

import mpmath
import numpy as np
import pytest

from uldp import elementary

DRAWS = np.random.Generator(np.random.Philox(key=7))
WIDE, NARROW, TINY = DRAWS.uniform(-700, 700, 800), DRAWS.uniform(-2, 2, 800), DRAWS.uniform(-1, 1, 800) * 1e-7
RATIOS = np.concatenate([np.ldexp(1 + DRAWS.random(800), DRAWS.integers(-900, 900, 800)), 1 + NARROW / 4, 1 + TINY])
CASES = {
    "exp": (mpmath.exp, np.concatenate([WIDE, NARROW, TINY]), 3e-16),
    "log": (mpmath.log, RATIOS, 4e-16),
    "log1p": (mpmath.log1p, np.concatenate([RATIOS, np.abs(TINY), np.abs(TINY) * 1e-9]), 6e-16),
    "tanh": (mpmath.tanh, np.concatenate([WIDE / 30, NARROW, TINY]), 6e-16),
    "logistic": (lambda x: 1 / (1 + mpmath.exp(-x)), np.concatenate([WIDE, NARROW, TINY]), 5e-16),
}


def error(found, exact):
    return float(abs((mpmath.mpf(float(found)) - exact) / exact))


@pytest.mark.parametrize("name", CASES)
def test_errors_are_as_stated(name):
    reference, given, bound = CASES[name]
    with mpmath.workdps(40):
        found = getattr(elementary, name)(given)
        assert max(error(y, reference(mpmath.mpf(float(x)))) for x, y in zip(given, found, strict=True)) < bound


def test_errors_of_powers_sines_and_cosines_are_as_stated():
    with mpmath.workdps(40):
        for exponent in (-0.5, -2.0, 1.3):
            for base, found in zip(range(1, 500), elementary.power(np.arange(1.0, 500.0), exponent), strict=True):
                bound = 4e-16 * (1 + abs(exponent) * math.log(base))
                assert error(found, mpmath.mpf(base) ** mpmath.mpf(exponent)) < bound
        turns = np.concatenate([DRAWS.integers(0, 2**53, 800) * 2.0**-53, np.arange(9) / 8])
        for turn, *pair in zip(turns, *elementary.sine_cosine(turns), strict=True):
            angle = 2 * mpmath.pi * mpmath.mpf(float(turn))
            for found, exact in zip(pair, (mpmath.sin(angle), mpmath.cos(angle)), strict=True):
                assert abs(mpmath.mpf(float(found)) - exact) < 4e-16


def test_what_is_not_an_ordinary_number():
    odd = np.array([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e300, -1e300])
    with np.errstate(all="raise", under="ignore"):
        np.testing.assert_array_equal(elementary.exp(odd), [math.nan, math.inf, 0, 1, 1, math.inf, 0])
        np.testing.assert_array_equal(elementary.tanh(odd), [math.nan, 1, -1, 0, -0.0, 1, -1])
        np.testing.assert_array_equal(elementary.logistic(odd), [math.nan, 1, 0, 0.5, 0.5, 1, 0])
        logs = [math.nan, math.inf, math.nan, -math.inf, -math.inf]
        np.testing.assert_array_equal(elementary.log(odd)[[0, 1, 2, 3, 4]], logs)
        assert np.isnan(elementary.log(odd)[-1])
    assert math.isnan(elementary.mean(np.array([math.inf, -math.inf])))
    assert math.isnan(elementary.mean(np.array([1e308, 1e308])))


def test_sums_of_rows():
    for width in (0, 1, 2, 3, 7, 100, 1001):
        rows = DRAWS.normal(size=(5, width))
        found = elementary.row_sums(rows.copy())
        np.testing.assert_allclose(found, [math.fsum(row) for row in rows], rtol=0, atol=1e-13)
        np.testing.assert_array_equal(elementary.row_sums(rows[2:3]), found[2:3])


def test_every_machine_gives_these_bits():
    """Found on one machine (x86-64 with AVX2) and written down here: another one must give the same.

    The inputs are whole multiples of a power of two, so that they are exact on every machine.
    """
    found = hashlib.sha256()
    inputs = np.arange(-(2**15), 2**15) * 2.0**-9
    for name in ("exp", "tanh", "logistic"):
        found.update(getattr(elementary, name)(inputs).tobytes())
    positive = np.arange(1, 2**16) * 2.0**-10
    for name in ("log", "log1p"):
        found.update(getattr(elementary, name)(positive).tobytes())
    words = np.arange(1, 2**12, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(11)
    found.update(elementary.normal_pairs(words, words[::-1]).tobytes())
    found.update(elementary.row_sums(elementary.power(positive, -0.7)[None]).tobytes())
    assert found.hexdigest() == "07f810f90c1f60632d03464f718bc2e9e9f039317fa078de8cddf649fd3b84c6"
