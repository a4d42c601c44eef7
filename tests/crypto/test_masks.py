"""Masks modulo 2^64: what one adds, the other takes away."""

import numpy as np
import pytest

from uldp.crypto.masks import BLOCK, add_masks
from uldp.rng import SecretStream


def stream(letter=b"k"):
    return SecretStream(letter * 32, simulated=True)


@pytest.mark.parametrize("length", [0, 1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
def test_masks_are_the_keystream_and_cancel(length):
    start = np.arange(length, dtype=np.uint64)
    words = start.copy()
    add_masks(words, stream())
    assert (words - start == stream().words(length)).all()
    add_masks(words, stream(), negative=True)
    assert (words == start).all()


def test_a_masked_vector_is_uniform_whatever_it_was():
    words = np.zeros(1 << 16, dtype=np.uint64)
    add_masks(words, stream())
    top = np.bincount((words >> np.uint64(60)).astype(np.int64), minlength=16)
    expected = len(words) / 16
    assert ((top - expected) ** 2 / expected).sum() < 44.3  # chi-square, 15 degrees of freedom, level 1e-4


def test_another_key_gives_other_masks():
    one, other = np.zeros(100, np.uint64), np.zeros(100, np.uint64)
    add_masks(one, stream(b"a"))
    add_masks(other, stream(b"b"))
    assert (one != other).all()
