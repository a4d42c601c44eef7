"""Masks modulo 2^64: what one adds, the other takes away."""

import os
import subprocess
import sys

import numpy as np
import pytest

from uldp.crypto import masks
from uldp.crypto.masks import BLOCK, LONG, MANY_KEYS, add_masks, add_masks_of
from uldp.native.jit import CHECK_VARIABLE
from uldp.rng import SecretStream


def stream(letter=b"k"):
    return SecretStream(letter * 32, simulated=True)


def generated_keys(count):
    return [bytes([index % 256, index // 256, *range(30)]) for index in range(count)]


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


@pytest.mark.parametrize("length", [1, 7, 8, 9, 31, 64, 129])
@pytest.mark.parametrize("keys", [MANY_KEYS, MANY_KEYS + 1, 3 * MANY_KEYS + 5])
def test_masks_of_many_keys_are_their_keystreams(keys, length):
    secrets, negative = generated_keys(keys), [index % 3 == 0 for index in range(keys)]
    start = np.arange(length, dtype=np.uint64)
    together = start.copy()
    add_masks_of(together, secrets, negative)
    one_by_one = start.copy()
    for key, minus in zip(secrets, negative, strict=True):
        add_masks(one_by_one, SecretStream(key, simulated=True), negative=minus)
    assert (together == one_by_one).all()
    add_masks_of(together, secrets, [not minus for minus in negative])
    assert (together == start).all()


def test_few_keys_and_long_vectors_get_the_same_masks():
    keys = generated_keys(MANY_KEYS)
    long = np.zeros(LONG, dtype=np.uint64)
    add_masks_of(long, keys, [False] * MANY_KEYS)
    short = np.zeros(LONG - 1, dtype=np.uint64)
    add_masks_of(short, keys, [False] * MANY_KEYS)
    assert (long[:-1] == short).all()
    few = np.zeros(9, dtype=np.uint64)
    for part in (keys[:5], keys[5:]):
        add_masks_of(few, part, [False] * len(part))
    assert (few == short[:9]).all()


def test_masks_of_no_key_and_of_no_word_change_nothing():
    words = np.arange(5, dtype=np.uint64)
    add_masks_of(words, [], [])
    assert words.tolist() == [0, 1, 2, 3, 4]
    add_masks_of(words[:0], generated_keys(MANY_KEYS), [True] * MANY_KEYS)


def test_without_a_compiler_masks_are_the_same(monkeypatch):
    keys = generated_keys(MANY_KEYS)
    compiled, without = np.zeros(9, dtype=np.uint64), np.zeros(9, dtype=np.uint64)
    add_masks_of(compiled, keys, [False] * MANY_KEYS)
    monkeypatch.setattr(masks, "compiled", lambda: None)
    add_masks_of(without, keys, [False] * MANY_KEYS)
    assert (compiled == without).all()


@pytest.mark.parametrize(
    "settings",
    [{CHECK_VARIABLE: "1"}, {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}],
    ids=["checked", "generic"],
)
def test_masks_are_the_same_for_other_processors_and_with_every_access_checked(settings):
    program = (
        "import numpy as np; from uldp.crypto.masks import add_masks_of; x = np.zeros(21, dtype=np.uint64); "
        "add_masks_of(x, [bytes([k] * 32) for k in range(37)], [k % 2 == 1 for k in range(37)]); print(x.tolist())"
    )
    here = np.zeros(21, dtype=np.uint64)
    add_masks_of(here, [bytes([k] * 32) for k in range(37)], [k % 2 == 1 for k in range(37)])
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | settings, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(here.tolist())
