"""Outputs are uniform among the n-th residues, and the proven distance holds where it can be computed exactly."""

import itertools
import math

import numpy as np
import pytest
from gmpy2 import gcd, powmod
from scipy.stats import chisquare

from uldp.crypto import randomisers
from uldp.crypto.paillier import PrivateKey
from uldp.crypto.randomisers import DIGIT_BITS, ResidueTable, bases_needed, direct, distance_bound, is_worthwhile
from uldp.rng import Secrets

KEY = PrivateKey(11, 13)  # both p - 1 are smooth: the group has many characters of small order
PUBLIC = KEY.public
UNITS = [r for r in range(143) if gcd(r, 143) == 1]
RESIDUES = {int(powmod(r, 143, 143**2)): i for i, r in enumerate(UNITS)}
LARGER = PrivateKey.generate(128, Secrets.simulated_from_seed(0).stream())


def stream(seed=0):
    return Secrets.simulated_from_seed(seed).stream()


def counts(outputs):
    return np.bincount([RESIDUES[int(x)] for x in outputs], minlength=len(UNITS))


def exact_distribution(roots):
    """The distribution of prod h_i^(x_i), over the units (the group of residues is isomorphic), by convolution."""
    position = {r: i for i, r in enumerate(UNITS)}
    whole = np.zeros(len(UNITS))
    whole[position[1]] = 1.0
    for root in roots:
        one = np.zeros(len(UNITS))
        cycle = [pow(root, x, 143) for x in range(60)]  # the exponent of the group
        np.add.at(one, [position[cycle[x % 60]] for x in range(1 << DIGIT_BITS)], 2.0**-DIGIT_BITS)
        step = np.zeros(len(UNITS))
        for i, r in enumerate(UNITS):
            if one[i]:
                step[[position[r * s % 143] for s in UNITS]] += one[i] * whole
        whole = step
    return whole


def distance(distribution):
    return 0.5 * np.abs(distribution - 1 / len(UNITS)).sum()


def test_direct_residues_are_uniform():
    assert chisquare(counts(direct(PUBLIC, stream(), 12_000, 1))).pvalue > 1e-4


def test_table_residues_are_uniform():
    table = ResidueTable.build(PUBLIC, stream(1), 1)
    assert chisquare(counts(table.draw(stream(2), 6000, 1))).pvalue > 1e-4


def test_a_table_with_too_few_bases_is_found_out(monkeypatch):
    monkeypatch.setattr(randomisers, "bases_needed", lambda bits: 2)
    table = ResidueTable.build(PUBLIC, stream(1), 1)
    assert chisquare(counts(table.draw(stream(2), 6000, 1))).pvalue < 1e-12


def test_outputs_follow_the_exact_distribution(monkeypatch):
    monkeypatch.setattr(randomisers, "bases_needed", lambda bits: 2)
    roots = [int(r) for r in randomisers.uniform_units(stream(3), PUBLIC.n, 2)]
    drawn = ResidueTable.build(PUBLIC, stream(3), 1).draw(stream(4), 20_000, 1)
    expected = exact_distribution(roots) * 20_000
    met = expected > 0
    assert (counts(drawn)[~met] == 0).all()
    assert chisquare(counts(drawn)[met], expected[met]).pvalue > 1e-4


def test_outputs_are_the_documented_products():
    n, n2 = LARGER.public.n, LARGER.public.n2
    table = ResidueTable.build(LARGER.public, stream(1), 1)
    roots = randomisers.uniform_units(stream(1), n, bases_needed(128))
    windows = [int(word) >> shift & 63 for word in stream(2).words(100) for shift in range(0, 60, 6)]
    product = 1
    for root, low, high in zip(roots, windows[0::2], windows[1::2], strict=False):
        product = product * powmod(root, n * (low + 64 * high), n2) % n2
    assert table.draw(stream(2), 1, 1) == [product]


def test_workers_do_not_matter():
    one, two = (ResidueTable.build(LARGER.public, stream(1), workers) for workers in (1, 2))
    drawn = one.draw(stream(2), 9, 1)
    assert two.draw(stream(2), 9, 2) == drawn
    assert len(set(drawn)) == 9
    assert one.draw(stream(2), 0, 2) == []
    assert direct(LARGER.public, stream(2), 5, 1) == direct(LARGER.public, stream(2), 5, 2)
    assert set(LARGER.decrypt_all(drawn, 1)) == {0}


@pytest.mark.parametrize("bases", [1, 2, 4])
def test_the_bound_holds_on_average_over_the_bases(bases):
    """Exactly, over all choices for one base; over random ones for more."""
    random = np.random.default_rng(0)
    choices = itertools.product(UNITS) if bases == 1 else random.choice(UNITS, size=(150, bases)).tolist()
    squares = [distance(exact_distribution([int(r) for r in roots])) ** 2 for roots in choices]
    assert 0 < np.mean(squares) <= 2 ** (2 * distance_bound(8, bases))


def test_enough_bases_are_uniform_to_the_last_digit():
    roots = np.random.default_rng(1).choice(UNITS, size=100).tolist()
    assert distance(exact_distribution(roots)) < 1e-13


def naive_bound(bits, bases):
    """The sum of the docstring, term by term and in whole numbers."""
    size = 1 << DIGIT_BITS
    total = (size ** (2 * bases) << bits) // size**bases
    for order in range(2, size):
        each, more = divmod(size, order)
        total += (order**2 - 1) * (more * (each + 1) ** 2 + (order - more) * each**2) ** bases
    return (math.log2(total) - 2 * DIGIT_BITS * bases - 2) / 2


@pytest.mark.parametrize("bits, bases", [(8, 1), (16, 3), (256, 20), (64, 30)])
def test_the_bound_is_the_sum_of_the_docstring(bits, bases):
    assert distance_bound(bits, bases) == pytest.approx(naive_bound(bits, bases), abs=1e-9)


@pytest.mark.parametrize("order", [2, 3, 60, 2048, 4095])
def test_the_probability_that_an_order_divides_a_difference(order):
    residues = np.bincount(np.arange(1 << DIGIT_BITS) % order)
    exact = np.log2(np.sum(residues**2)) - 2 * DIGIT_BITS
    assert randomisers.small_orders()[1][order - 2] == pytest.approx(exact)


@pytest.mark.parametrize("bits", [64, 256, 1024, 2048, 3072, 4096])
def test_bases_are_enough_and_not_more(bits):
    bases = bases_needed(bits)
    assert distance_bound(bits, bases) <= -128 < distance_bound(bits, bases - 1)


def test_a_table_pays_for_many_outputs_only():
    assert not is_worthwhile(0, 3072)
    assert not is_worthwhile(10, 3072)
    assert is_worthwhile(10_000, 3072)
    assert not is_worthwhile(10**9, 64)  # one power is cheaper than the lookups of one output
