"""Clipping and encoding: the bound holds over the integers, without a tolerance."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uldp.errors import ConfigError, ModelError
from uldp.privacy.releases.sums import IntegerSum
from uldp.vectors import FixedPoint, clip_rows, from_residues, to_residues

finite = st.floats(-1e6, 1e6, allow_nan=False, width=32)
rows = st.lists(st.lists(finite, min_size=3, max_size=3), min_size=1, max_size=5).map(np.array)


def squared_norm(integers) -> int:
    return sum(int(value) ** 2 for value in integers)


@given(rows, st.floats(1e-6, 1e6))
def test_an_encoded_row_is_never_longer_than_the_clip(matrix, clip):
    encoding = FixedPoint(limit=clip)
    for row in clip_rows(matrix, clip):
        encoded, _ = encoding.encode_sum(row[None, :])
        assert squared_norm(encoded) <= encoding.integer_limit**2


@given(rows, st.floats(1e-3, 1e3), st.lists(st.integers(0, 50), min_size=3, max_size=3))
def test_the_shares_of_one_user_over_silos_are_together_never_longer_than_the_clip(matrix, clip, counts):
    from uldp.privacy.releases.weights import record_weights

    totals = np.array([sum(counts)])
    encoding = FixedPoint(limit=clip)
    row = clip_rows(matrix[:1], clip)
    total = 0
    for count in counts:
        weights = record_weights(np.array([count]), totals)
        total = total + encoding.encode_sum(row, weights)[0]
    assert squared_norm(total) <= encoding.integer_limit**2


def test_a_row_that_is_longer_than_its_weight_allows_by_less_than_floats_can_tell_counts_as_zero():
    """Nobody clipped it: the square of the weight needs 62 bits, and rounding it up would let the row pass."""
    weight, row = 2147483467 / 2**31, np.array([16777214, 4434, 21, 1])
    assert squared_norm(row) > Fraction(weight) ** 2 * 2**48
    scaled = (row + 0.5)[None, :] / weight / 2**24
    encoded, left_out = FixedPoint(limit=1.0).encode_sum(scaled, np.array([weight]))
    assert left_out == 1 and not encoded.any()


def test_rows_right_at_the_clip_stay_within_it_in_high_dimension():
    generator = np.random.default_rng(0)
    for dimension in (1, 10, 5012, 200_000):
        row = generator.normal(size=(1, dimension))
        clipped = clip_rows(row, 0.1)
        encoded, _ = FixedPoint(limit=0.1).encode_sum(clipped)
        assert squared_norm(encoded) <= FixedPoint(limit=0.1).integer_limit ** 2
        assert np.linalg.norm(clipped) > 0.1 * (1 - 1e-9)


@pytest.mark.parametrize("dimension", [14, 5012, 8193, 21_840, 100_003])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_clipped_row_does_not_depend_on_the_other_rows(dimension, order, dtype):
    """numpy may add up a matrix in another order than one row; then one user would move another's integers."""
    rows = np.random.default_rng(dimension).normal(size=(5, dimension)).astype(dtype, order=order)
    together = clip_rows(rows, 0.1)
    for count in (1, 2, 3):
        assert (clip_rows(rows[:count], 0.1) == together[:count]).all()
    assert (clip_rows(rows[4:], 0.1) == together[4:]).all()


def test_the_bound_is_checked_once_more_on_the_integers():
    """Rows that somebody forgot to clip count as zero, so the promise does not rest on clipping alone."""
    encoding = FixedPoint(limit=1.0)
    honest, too_long = [[0.6, 0.8 - 1e-7]], [[0.6, 0.81]]
    assert encoding.encode_sum(np.array(honest))[0].any()
    assert not encoding.encode_sum(np.array(too_long))[0].any()
    assert not encoding.encode_sum(np.array(honest) * 1.001, np.array([0.5]))[0].any()


def test_clipping_keeps_short_rows_and_directions():
    short = np.array([[0.1, -0.2]])
    assert (clip_rows(short, 1.0) == short).all()
    np.testing.assert_allclose(clip_rows(np.array([[30.0, -40.0]]), 5.0), [[3.0, -4.0]], rtol=1e-12)


def test_encoding_truncates_toward_zero():
    encoding = FixedPoint(limit=1.0, bits=2)
    encoded, _ = encoding.encode_sum(np.array([[0.49, -0.49, 0.999]]))
    assert encoded.tolist() == [1, -1, 3]


def test_each_row_is_truncated_before_the_sum():
    encoding = FixedPoint(limit=1.0, bits=2)
    encoded, _ = encoding.encode_sum(np.full((4, 1), 0.2))
    assert encoded.tolist() == [0]  # the sum of the floats, 0.8, would be 3 units


def test_values_beyond_a_declared_range_are_cut_off_and_counted():
    encoding = FixedPoint(limit=2.0, bits=8, saturate=True)
    encoded, saturated = encoding.encode_sum(np.array([[5.0, -5.0, 1.0]]))
    assert encoded.tolist() == [256, -256, 128]
    assert saturated == 2


def test_a_user_whose_row_is_not_finite_counts_as_zero_and_changes_nobody_else():
    encoding = FixedPoint(limit=1.0)
    good = np.array([[0.5, 0.5], [0.25, 0.0]])
    bad = np.vstack([good, [[np.nan, 0.1]], [[np.inf, 0.1]]])
    weights = np.array([1.0, 0.5, 1.0, 1.0])
    alone, together = (IntegerSum(encoding, 2, weights) for _ in range(2))
    alone.add(np.array([0, 1]), clip_rows(good, 1.0))
    together.add(np.arange(4), clip_rows(bad, 1.0))
    assert (alone.total == together.total).all()
    assert (alone.left_out, together.left_out) == (0, 2)


def test_a_silo_row_that_is_not_finite_is_an_error():
    with pytest.raises(ModelError, match=r"method\.local_lr"):
        IntegerSum(FixedPoint(limit=1.0), 1, None, private=False).add(None, np.array([[np.nan]]))


def test_an_overflow_is_refused_before_training():
    FixedPoint(limit=1.0).check_range(terms=1e6, noise_std=1e9)
    with pytest.raises(ConfigError, match="63 are there"):
        FixedPoint(limit=1.0).check_range(terms=2**40)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5))
def test_words_and_integers_are_the_same_residues(values):
    integers = np.array(values, dtype=np.int64)
    assert (from_residues(to_residues(integers)) == integers).all()
