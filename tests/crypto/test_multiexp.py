"""Products of powers against a naive twin."""

import numpy as np
import pytest
from gmpy2 import gcd, invert, mpz, powmod
from hypothesis import given, settings
from hypothesis import strategies as st

from uldp.crypto import multiexp
from uldp.crypto.integers import uniform_units
from uldp.crypto.multiexp import ExponentPlan, Split, products
from uldp.errors import ConfigError
from uldp.rng import Secrets

N = mpz(2) ** 89 - 1
N *= mpz(2) ** 107 - 1
N2 = N * N


def naive(bases, exponents, modulus):
    results = []
    for column in exponents.T:
        product = mpz(1)
        for base, exponent in zip(bases, column.tolist(), strict=True):
            power = powmod(base, abs(exponent), modulus)
            product = product * (invert(power, modulus) if exponent < 0 else power) % modulus
        results.append(product)
    return results


def draw_bases(count, n=N, seed=0):
    return uniform_units(Secrets.simulated_from_seed(seed).stream(), n * n, count, radical=n)


def draw_exponents(bases, columns, bits, seed=0):
    limit = 1 << (bits - 1)
    return np.random.default_rng(seed).integers(-limit + 1, limit, size=(bases, columns), dtype=np.int64)


@st.composite
def cases(draw):
    bits = draw(st.integers(1, 63))
    bases, columns = draw(st.integers(0, 12)), draw(st.integers(0, 8))
    limit = (1 << (bits - 1)) - 1
    exponent = st.one_of(st.sampled_from([0, limit, -limit]), st.integers(-limit, limit))
    values = draw(st.lists(exponent, min_size=bases * columns, max_size=bases * columns))
    return draw_bases(bases, seed=draw(st.integers(0, 5))), np.array(values, np.int64).reshape(bases, columns), bits


@given(cases())
@settings(max_examples=80, deadline=None)
def test_products_are_those_of_the_naive_twin(case):
    bases, exponents, bits = case
    assert products(bases, exponents, bits, N2, 1) == naive(bases, exponents, N2)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (7, 30), (40, 5), (23, 101)])
def test_workers_and_blocks_do_not_matter(shape, workers, monkeypatch):
    monkeypatch.setattr(multiexp, "WORTH_A_FORK", 0.0)
    monkeypatch.setattr(multiexp, "BLOCK", 64)
    bases, exponents = draw_bases(shape[0]), draw_exponents(*shape, 25)
    assert products(bases, exponents, 25, N2, workers) == naive(bases, exponents, N2)


@pytest.mark.parametrize("pieces", [1, 2, 3, 7, 25])
@pytest.mark.parametrize("groups", [1, 2, 5])
def test_every_plan_gives_the_same(pieces, groups, monkeypatch):
    monkeypatch.setattr(
        ExponentPlan, "cheapest", classmethod(lambda cls, b, c, w, e: cls(b, c, w, pieces, groups * pieces))
    )
    bases, exponents = draw_bases(5), draw_exponents(5, 9, 25)
    assert products(bases, exponents, 25, N2, 1) == naive(bases, exponents, N2)


def test_small_moduli_where_heads_collide_with_one():
    for n in (mpz(15), mpz(35), mpz(143)):
        bases = [x for x in range(1, 40) if gcd(x, n) == 1]
        exponents = draw_exponents(len(bases), 20, 6)
        assert products([mpz(x) for x in bases], exponents, 6, n * n, 1) == naive(bases, exponents, n * n)


def test_edges():
    none = np.zeros((0, 3), np.int64)
    assert products([], none, 5, N2, 2) == [1, 1, 1]
    assert products(draw_bases(3), np.zeros((3, 0), np.int64), 5, N2, 2) == []
    assert products(draw_bases(3), np.zeros((3, 2), np.int64), 5, N2, 1) == [1, 1]
    assert products(draw_bases(1), np.array([[1, -1]]), 2, N2, 1) == [
        draw_bases(1)[0],
        invert(draw_bases(1)[0], N2),
    ]


@pytest.mark.parametrize(
    "exponents, bits",
    [
        (np.array([[8]]), 4),
        (np.array([[-8]]), 4),
        (np.array([[-(2**63)]]), 63),
        (np.array([[1]]), 0),
        (np.array([[1]]), 64),
        (np.array([[1], [1]]), 4),
        (np.array([1]), 4),
        (np.array([[1.0]]), 4),
        (np.array([[1]], np.int32), 4),
    ],
)
def test_wrong_exponents_are_refused(exponents, bits):
    with pytest.raises(ConfigError):
        products(draw_bases(1), exponents, bits, N2, 1)


def test_wrong_moduli_and_bases_are_refused():
    exponents = np.array([[1]])
    for bases, modulus in [([mpz(2)], N2 + 1), ([mpz(2) ** 89 - 1], N2), ([mpz(0)], N2), ([N], N2)]:
        with pytest.raises(ConfigError):
            products(bases, exponents, 4, modulus, 1)


def test_split_numbers_multiply_like_whole_ones():
    a, b = draw_bases(2)
    for unit in (a, b, mpz(1), N + 1, N2 - 1):
        split = Split.of(unit, N)
        assert split.head * (1 + N * split.tail) % N2 == unit
        assert split.head * split.inverse % N == 1
        assert 0 <= split.tail < N
        assert split.times(Split.of(b, N), N) == Split.of(unit * b % N2, N)


@pytest.mark.parametrize("bases, columns", [(1, 1), (20, 16), (40, 107), (100, 1000), (3000, 10), (5, 10**6)])
def test_plans_keep_the_table_small(bases, columns):
    for entries in (1, 100, 50_000):
        plan = ExponentPlan.cheapest(bases, columns, 25, entries)
        assert sum(plan.sizes) == bases * plan.pieces
        assert plan.entries == 1 + sum(2**size - 1 for size in plan.sizes)
        assert plan.entries <= max(entries, bases + 1)
        assert plan.pieces * plan.piece_bits >= 25
