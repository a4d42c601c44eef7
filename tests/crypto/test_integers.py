"""Large numbers are uniform, equal for equal streams, and written with a fixed width."""

import numpy as np
import pytest
from gmpy2 import gcd, mpz
from scipy.stats import chisquare

from uldp.crypto import integers
from uldp.crypto.integers import coprime, pack, uniform_below, uniform_units, unpack
from uldp.errors import ConfigError, MessageRefused
from uldp.rng import Secrets


def stream(seed=0):
    return Secrets.simulated_from_seed(seed).stream()


@pytest.mark.parametrize("bound", [2, 3, 10, 64, 129])
def test_small_bounds_are_hit_evenly(bound):
    drawn = uniform_below(stream(bound), bound, 20_000)
    assert chisquare(np.bincount([int(x) for x in drawn], minlength=bound)).pvalue > 1e-4


@pytest.mark.parametrize("bound", [3 << 62, 3 << 126, (5 << 200) + 1])
def test_numbers_are_rejected_and_not_reduced(bound):
    # Reduction of 2^k candidates modulo 3 * 2^(k-2) would put half of all numbers into the lowest third.
    thirds = [int(3 * x // bound) for x in uniform_below(stream(), bound, 6000)]
    assert chisquare(np.bincount(thirds, minlength=3)).pvalue > 1e-4


@pytest.mark.parametrize("bound", [1, 2, 5, 2**64 - 1, 2**64, 2**64 + 1, 2**512 - 9, (1 << 600) + 1])
def test_numbers_are_below_the_bound(bound):
    drawn = uniform_below(stream(), bound, 300)
    assert len(drawn) == 300
    assert all(0 <= x < bound for x in drawn)
    assert max(drawn) >= bound // 2 or bound == 1


@pytest.mark.parametrize("bound", [1, 3, 2**64, (1 << 6143) + 12345])
def test_how_the_calls_are_cut_does_not_matter(bound, monkeypatch):
    whole = uniform_below(stream(), bound, 60)
    source = stream()
    assert (
        uniform_below(source, bound, 17) + uniform_below(source, bound, 0) + uniform_below(source, bound, 43) == whole
    )
    monkeypatch.setattr(integers, "BLOCK_WORDS", 7)
    assert uniform_below(stream(), bound, 60) == whole


def test_the_documented_use_of_the_stream():
    bound = 3 << 70
    words = [int(word) for word in stream().words(200)]
    candidates = [(low | high << 64) % 2**72 for low, high in zip(words[0::2], words[1::2], strict=True)]
    assert uniform_below(stream(), bound, 40) == [x for x in candidates if x < bound][:40]


def test_units_are_the_candidates_that_are_coprime():
    units = uniform_units(stream(), 15, 4000)
    assert set(units) == {x for x in range(15) if gcd(x, 15) == 1}
    assert chisquare(np.bincount([int(x) for x in units])[[1, 2, 4, 7, 8, 11, 13, 14]]).pvalue > 1e-4
    candidates = uniform_below(stream(), 225, 3000)
    assert uniform_units(stream(), 225, 1000, radical=15) == [x for x in candidates if gcd(x, 15) == 1][:1000]


@pytest.mark.parametrize("bound, count", [(0, 1), (-3, 1), (5, -1)])
def test_what_cannot_be_drawn_is_refused(bound, count):
    with pytest.raises(ConfigError):
        uniform_below(stream(), bound, count)


def test_coprime():
    assert coprime([], 15)
    assert coprime([1, 2, 16], 15)
    assert not coprime([1, 3, 2], 15)
    assert not coprime([0], 15)


def test_what_is_packed_is_unpacked():
    values = [mpz(0), mpz(1), mpz(2) ** 80 - 1]
    data = pack(values, 10)
    assert len(data) == 30
    assert unpack(data, 10, 3, "here") == values
    assert unpack(b"", 10, 0, "here") == []


@pytest.mark.parametrize("value", [256, -1])
def test_a_value_that_does_not_fit_is_not_packed(value):
    with pytest.raises(ConfigError):
        pack([value], 1)


@pytest.mark.parametrize("length", [0, 29, 31, 60])
def test_another_length_is_refused(length):
    with pytest.raises(MessageRefused, match=r"^here: "):
        unpack(bytes(length), 10, 3, "here")
