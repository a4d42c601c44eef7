"""Products of matrices: right for all shapes, and every element a chain that nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest

from uldp.learners.kernels.products import MAX_TERMS, descend, multiply, multiply_list
from uldp.learners.kernels.transposes import transpose
from uldp.native.jit import entry

SPARE = 16


@entry
def call_multiply(ws, a, row_a, k_a, parts, part_a, k, b, row_b, z, row_z, c, row_c, m, n):
    multiply(ws, a, row_a, k_a, parts, part_a, k, b, row_b, z, row_z, c, row_c, m, n)


@entry
def call_descend(ws, a, row_a, k_a, k, b, row_b, rate, c, row_c, m, n):
    descend(ws, a, row_a, k_a, k, b, row_b, rate, c, row_c, m, n)


@entry
def call_list(ws, iw, places, values, count, b, row_b, z, row_z, c, row_c, m, n):
    multiply_list(ws, iw, places, values, count, b, row_b, z, row_z, c, row_c, m, n)


@entry
def call_transpose(ws, source, row, target, target_row, m, n):
    transpose(ws, source, row, target, target_row, m, n)


def chain(a, b, z):
    """Z + A B in float64, rounded to float32 after every fused multiply-add: the kernel's own arithmetic."""
    total = z.copy()
    for k in range(a.shape[1]):
        total = (a[:, k : k + 1].astype(np.float64) * b[k : k + 1] + total).astype(np.float32)
    return total


def product(a, b, z, shift=0, fill=np.nan):
    """The kernel's product in a workspace that holds ``fill`` everywhere else; what surrounds the result must stay."""
    (m, k), n = a.shape, b.shape[1]
    row = -(-n // 8) * 8
    at_a, at_b = shift, shift + m * k + SPARE
    at_z = at_b + k * row + SPARE
    at_c = at_z + m * row + SPARE
    ws = np.full(at_c + m * n + SPARE, fill, dtype=a.dtype)
    ws[at_a : at_a + m * k] = a.ravel()
    for start, matrix in ((at_b, b), (at_z, z)):
        for r, values in enumerate(matrix):
            ws[start + r * row : start + r * row + n] = values
    before = ws.copy()
    call_multiply(ws, at_a, k, 1, 1, 0, k, at_b, row, at_z, row, at_c, n, m, n)
    result = ws[at_c : at_c + m * n].reshape(m, n).copy()
    ws[at_c : at_c + m * n] = before[at_c : at_c + m * n]
    np.testing.assert_array_equal(ws, before)
    return result


def matrices(m, n, k, dtype=np.float32, seed=0):
    generator = np.random.default_rng(seed)
    return tuple(generator.normal(size=shape).astype(dtype) for shape in ((m, k), (k, n), (m, n)))


@pytest.mark.parametrize("n", range(1, 41))
def test_a_product_is_its_chain_of_multiply_adds_in_all_shapes(n):
    for m in range(1, 41):
        a, b, z = matrices(m, n, (m * 7 + n) % 41)
        # A float64 product of two float32 is exact; only its sum with the total is rounded twice.
        np.testing.assert_allclose(product(a, b, z), chain(a, b, z), rtol=1e-6, atol=1e-6)


def test_an_element_does_not_change_with_other_rows_alignment_or_what_lay_there():
    a, b, z = matrices(23, 19, 31)
    whole = product(a, b, z)
    for first, last in ((0, 1), (3, 7), (1, 23), (22, 23)):
        np.testing.assert_array_equal(product(a[first:last], b, z[first:last]), whole[first:last])
    for columns in (1, 8, 9, 17):
        np.testing.assert_array_equal(product(a, b[:, :columns], z[:, :columns]), whole[:, :columns])
    for shift in range(1, 9):
        np.testing.assert_array_equal(product(a, b, z, shift), whole)
    np.testing.assert_array_equal(product(a, b, z, fill=1e30), whole)


def test_nan_and_infinity_reach_their_row_and_no_other():
    a, b, z = matrices(9, 11, 5)
    good = product(a, b, z)
    a[4, 2] = np.nan
    bad = product(a, b, z)
    assert np.isnan(bad[4]).all()
    np.testing.assert_array_equal(np.delete(bad, 4, 0), np.delete(good, 4, 0))


@pytest.mark.parametrize("n", [1, 5, 8, 13, 16, 17, 30, 33, 40])
@pytest.mark.parametrize("k", range(1, MAX_TERMS + 1))
def test_a_descent_adds_a_multiple_of_the_product_and_leaves_what_is_around(k, n):
    row, rate = -(-n // 8) * 8, np.float32(-0.3)
    for m in range(1, 20):
        a, b, c = matrices(m, n, k, seed=m)
        ws = np.full(m * k + (k + m) * row + 3 * SPARE, np.nan, dtype=np.float32)
        at_b = m * k + SPARE
        at_c = at_b + k * row + SPARE
        ws[: m * k], ws[at_c - 1] = a.T.ravel(), rate  # A lies transposed, as a layer's input does
        for start, matrix in ((at_b, b), (at_c, c)):
            for r, values in enumerate(matrix):
                ws[start + r * row : start + r * row + n] = values
        before = ws.copy()
        call_descend(ws, 0, 1, m, k, at_b, row, at_c - 1, at_c, row, m, n)
        found = ws[at_c : at_c + m * row].reshape(m, row)
        gradient = product(a, b, np.zeros_like(c))
        exact = rate.astype(np.float64) * gradient + c  # a product of two float32 is exact there
        np.testing.assert_allclose(found[:, :n], exact.astype(np.float32), rtol=2e-7, atol=0)
        np.testing.assert_array_equal(found[:, n:], before[at_c : at_c + m * row].reshape(m, row)[:, n:])
        np.testing.assert_array_equal(ws[:at_c], before[:at_c])
        assert np.isnan(ws[at_c + m * row :]).all()


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 11])
@pytest.mark.parametrize("n", [1, 5, 8, 13, 16, 17, 40])
def test_a_list_of_entries_gives_the_product_with_a_sparse_matrix(rows, n):
    generator = np.random.default_rng(rows * 100 + n)
    row = -(-n // 8) * 8
    blocks = generator.normal(size=(6, rows, row)).astype(np.float32)
    values = generator.normal(size=4).astype(np.float32)
    chosen = np.array([5, 0, 3, 3])
    z = generator.normal(size=(rows, row)).astype(np.float32)
    ws = np.concatenate([blocks.ravel(), values, z.ravel(), np.full(rows * row + SPARE, np.nan, np.float32)])
    at_values = blocks.size
    at_z = at_values + 4
    at_c = at_z + z.size
    places = np.concatenate([[99], chosen * rows * row]).astype(np.int64)
    call_list(ws, places, 1, at_values, 4, 0, row, at_z, row, at_c, row, rows, n)
    found = ws[at_c : at_c + rows * row].reshape(rows, row)
    expected = z[:, :n] + np.einsum("t,trn->rn", values, blocks[chosen][:, :, :n])
    np.testing.assert_allclose(found[:, :n], expected, rtol=0, atol=2e-6)
    assert np.isnan(found[:, n:]).all(), "what lies behind a row stays"


def test_no_entries_leave_the_start():
    ws = np.arange(64, dtype=np.float32)
    call_list(ws, np.zeros(1, np.int64), 0, 0, 0, 0, 8, 8, 8, 40, 8, 2, 8)
    np.testing.assert_array_equal(ws[40:56], ws[8:24])


@pytest.mark.parametrize(("m", "n"), [(1, 1), (8, 8), (9, 3), (3, 17), (40, 40)])
def test_transposition(m, n):
    row, turned = -(-n // 8) * 8, -(-m // 8) * 8
    ws = np.zeros(row * turned * 2 + 64, dtype=np.float32)
    source = np.random.default_rng(0).normal(size=(m, n)).astype(np.float32)
    for r in range(m):
        ws[r * row : r * row + n] = source[r]
    target = row * turned + 8
    call_transpose(ws, 0, row, target, turned, m, n)
    np.testing.assert_array_equal(ws[target : target + row * turned].reshape(row, turned)[:n, :m], source.T)
