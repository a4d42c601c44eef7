"""Rows that are encoded and weighed in one pass are, integer by integer, those of ``FixedPoint.encode_rows``."""

import numpy as np
import pytest

from uldp.crypto.ring_rows import weigh_rows
from uldp.vectors import FixedPoint, clip_rows

USERS = 12


def rows_of(dimension, clip):
    """Rows at the clip, far below and beyond it, and rows that are not finite."""
    generator = np.random.default_rng(dimension)
    rows = generator.standard_normal((USERS, dimension)) * clip * generator.choice([1e-9, 1e-3, 1, 5], (USERS, 1))
    rows[:6] = clip_rows(rows[:6], clip)
    with np.errstate(over="ignore"):
        rows[7, 0], rows[8, -1], rows[9, 0], rows[10, -1] = np.nan, np.inf, -np.inf, 1e308
    return rows


@pytest.mark.parametrize("clip", [1.0, 0.37, 1e-30, 1e30])
@pytest.mark.parametrize("dimension", [1, 7, 8, 9, 107, 4097, 40_000])
def test_one_pass_gives_the_same_integers(dimension, clip):
    encoding, rows = FixedPoint(clip), rows_of(dimension, clip)
    counts = np.random.default_rng(1).integers(0, 10_001, USERS)
    finite, expected = np.isfinite(rows).all(axis=1), np.zeros(rows.shape, dtype=np.int64)
    with np.errstate(over="ignore"):
        expected[finite], long = encoding.encode_rows(rows[finite])
    for threads in (1, 2):
        out = np.full(rows.shape, 99, dtype=np.int64)
        left_out = weigh_rows(encoding, rows, counts, out, threads)
        assert (out == expected * counts[:, None]).all()
        assert left_out == long + (~finite).sum()


def test_the_limit_itself_passes_and_one_unit_more_counts_as_zero():
    encoding = FixedPoint(1.0)
    units = np.array([[2.0**24, 0.0], [2.0**24, 1.0], [-(2.0**24), 0.0], [0.0, 2.0**24 + 1]]) / 2.0**24
    out = np.empty(units.shape, dtype=np.int64)
    assert weigh_rows(encoding, units, np.full(4, 666), out) == 2
    assert out.tolist() == [[666 * 2**24, 0], [0, 0], [-666 * 2**24, 0], [0, 0]]


@pytest.mark.parametrize(
    "changed",
    [
        {"encoding": FixedPoint(1.0, bits=40)},
        {"encoding": FixedPoint(1.0, saturate=True)},
        {"counts": np.ones(3, dtype=np.int64)},
        {"out": np.empty((2, 4), dtype=np.int64)},
        {"out": np.empty((2, 3), dtype=np.float64)},
        {"out": np.empty((2, 6), dtype=np.int64)[:, ::2]},
    ],
)
def test_what_does_not_fit_is_refused(changed):
    given = {"encoding": FixedPoint(1.0), "rows": np.ones((2, 3)), "counts": np.ones(2, dtype=np.int64)}
    with pytest.raises(ValueError, match="do not fit"):
        weigh_rows(**{**given, "out": np.empty((2, 3), dtype=np.int64), **changed})
