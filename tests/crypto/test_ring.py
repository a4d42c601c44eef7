"""Ring arithmetic against big integers: every operation, at extreme and at random values."""

from __future__ import annotations

import numpy as np
import pytest

from uldp.crypto import ring
from uldp.crypto.ring import LIMBS, MODULUS, PRIMES, N
from uldp.crypto.ring_products import COMPONENTS, MAX_VALUE, ProductSum, blocks_of
from uldp.errors import MessageRefused

P = np.array(PRIMES, dtype=object).reshape(LIMBS, 1)
#: Coefficients lie this many bits apart in one big integer: 96 + 96 + 12 of a product, its sign, and some to spare.
SLOT = 208


def as_integers(residues):
    """(2, n) residues as big integers modulo q."""
    p1, p2 = PRIMES
    inverse = pow(p1, -1, p2)
    return [int(a) + p1 * ((int(b) - int(a)) * inverse % p2) for a, b in zip(*residues, strict=True)]


def exact_product(a, b):
    """a b modulo x^N + 1 for two lists of integers: Kronecker's substitution, a single product of Python's."""
    packed = [sum(int(value) << (SLOT * k) for k, value in enumerate(row)) for row in (a, b)]
    product = packed[0] * packed[1]
    slots = []
    for _ in range(2 * N):
        low = product & ((1 << SLOT) - 1)
        low -= (low >> (SLOT - 1)) << SLOT
        slots.append(low)
        product = (product - low) >> SLOT
    return [low - high for low, high in zip(slots[:N], slots[N:], strict=True)]


def random_residues(generator, *shape):
    limbs = [generator.integers(0, p, size=(*shape, N), dtype=np.uint64) for p in PRIMES]
    return np.stack(limbs, axis=-2)


EXTREMES = {
    "zero": np.zeros((LIMBS, N), dtype=np.uint64),
    "largest": np.broadcast_to(P.astype(np.uint64) - np.uint64(1), (LIMBS, N)).copy(),
    "middle": np.broadcast_to(P.astype(np.uint64) // np.uint64(2), (LIMBS, N)).copy(),
    "random": random_residues(np.random.default_rng(1)),
}


@pytest.mark.parametrize("right", EXTREMES)
@pytest.mark.parametrize("left", EXTREMES)
def test_pointwise_operations_are_exact(left, right):
    a, b = EXTREMES[left], EXTREMES[right]
    big, other = a.astype(object), b.astype(object)
    assert (ring.add(a, b) == (big + other) % P).all()
    assert (ring.subtract(a, b) == (big - other) % P).all()
    assert (ring.negate(a) == -big % P).all()
    assert (ring.multiply(a, b) == big * other % P).all()


@pytest.mark.parametrize("right", EXTREMES)
@pytest.mark.parametrize("left", EXTREMES)
def test_a_product_of_polynomials_is_the_one_of_big_integers(left, right):
    a, b = EXTREMES[left], EXTREMES[right]
    product = ring.to_coefficients(ring.multiply(ring.to_evaluations(a), ring.to_evaluations(b)))
    expected = exact_product(as_integers(a), as_integers(b))
    assert as_integers(product) == [value % MODULUS for value in expected]


@pytest.mark.parametrize("name", EXTREMES)
def test_transforms_undo_each_other(name):
    a = EXTREMES[name]
    assert (ring.to_coefficients(ring.to_evaluations(a)) == a).all()
    assert (ring.to_evaluations(ring.to_coefficients(a)) == a).all()


def test_transforms_take_stacks_of_polynomials():
    stack = random_residues(np.random.default_rng(2), 3, 2)
    whole = ring.to_evaluations(stack)
    assert whole.shape == stack.shape
    for k in np.ndindex(3, 2):
        assert (whole[k] == ring.to_evaluations(stack[k])).all()
    assert (ring.to_coefficients(whole) == stack).all()


def test_evaluations_are_those_at_the_odd_powers_of_a_root():
    a = random_residues(np.random.default_rng(3))
    x = ring.to_evaluations(ring.from_integers(np.eye(1, N, 1, dtype=np.int64)[0]))
    found = ring.to_evaluations(a)
    for limb, p in enumerate(PRIMES):
        roots = [int(root) for root in x[limb]]
        assert len(set(roots)) == N and all(pow(root, N, p) == p - 1 for root in roots)
        for k in (0, 1, 7, 8, 63, 64, 1000, N - 1):
            value = 0
            for coefficient in reversed(a[limb]):
                value = (value * roots[k] + int(coefficient)) % p
            assert int(found[limb, k]) == value


def test_integers_and_back():
    edge = [0, 1, -1, 2**63 - 1, -(2**63), PRIMES[0], -PRIMES[1], 2**48]
    values = np.array(edge, dtype=np.int64)
    assert (ring.from_integers(values) == np.array(edge, dtype=object) % P).all()
    assert ring.centred(ring.from_integers(values)).to_integers() == edge
    assert ring.centred(ring.from_parts(values, values[::-1], 30)).to_integers() == [
        (high << 30) + low for high, low in zip(edge, edge[::-1], strict=True)
    ]


def test_centred_is_exact_at_the_edges():
    half = (MODULUS - 1) // 2
    edge = [half, half - 1, -half, -half + 1, half - PRIMES[0], -half + PRIMES[0], 0, -1, 2**94, -(2**94)]
    residues = np.concatenate([ring.number(value) for value in edge], axis=1)
    found = ring.centred(residues)
    assert found.to_integers() == edge
    assert (ring.centred(ring.number(half + 1))).to_integers() == [-half]
    assert (found.low >= 0).all() and (found.low < 2**48).all()
    np.testing.assert_allclose(found.to_floats(-76), [value / 2**76 for value in edge], rtol=2**-52)


@pytest.mark.parametrize("parameters", [1, 14, 107, 4095, 4096, 4097, 9000])
def test_sums_of_products_are_exact(parameters):
    users = 5
    generator = np.random.default_rng(parameters)
    values = generator.integers(-MAX_VALUE + 1, MAX_VALUE, size=(users, parameters))
    values[0], values[1] = MAX_VALUE - 1, 1 - MAX_VALUE
    ciphertexts = random_residues(generator, users, COMPONENTS)
    ciphertexts[0, 0], ciphertexts[1, 0] = EXTREMES["largest"], EXTREMES["largest"]
    products = ProductSum(parameters)
    for portion in (slice(0, 1), slice(1, 1), slice(1, 5)):
        products.add(values[portion], ciphertexts[portion])
    total = products.total()
    assert total.shape == (blocks_of(parameters), COMPONENTS, LIMBS, N)
    assert (total < P.astype(np.uint64)).all()
    last = blocks_of(parameters) - 1
    rows = np.zeros((users, N), dtype=np.int64)
    rows[:, : parameters - last * N] = values[:, last * N :]
    evaluations = ring.to_evaluations(ring.from_integers(rows)).astype(object)
    for component in range(COMPONENTS):
        expected = (evaluations * ciphertexts[:, component].astype(object)).sum(axis=0) % P
        assert (total[last, component] == expected).all()


def test_residues_travel_in_six_bytes():
    residues = random_residues(np.random.default_rng(4), 3)
    data = ring.pack(residues)
    assert len(data) == 3 * 12 * N
    assert (ring.unpack(data, residues.shape, "here") == residues).all()
    assert ring.pack(ring.number(1)) == b"\1\0\0\0\0\0" * 2


def test_what_is_no_residue_is_refused():
    one = ring.number(1)
    assert ring.check_residues(one, (2, 1), "here") is one
    for wrong in (one[0], one.astype(np.int64), np.zeros((3, 1), np.uint64), [[1], [2]], None):
        with pytest.raises(MessageRefused, match=r"here: residues of shape \(2, 1\) are expected"):
            ring.check_residues(wrong, (2, 1), "here")
    for limb, p in enumerate(PRIMES):
        large = one.copy()
        large[limb] = p
        with pytest.raises(MessageRefused, match="here: a residue is not below its prime"):
            ring.check_residues(large, (2, 1), "here")
        with pytest.raises(MessageRefused, match="not below its prime"):
            ring.unpack(ring.pack(large), (2, 1), "here")
    with pytest.raises(MessageRefused, match="12 bytes of residues are expected, not 13"):
        ring.unpack(bytes(13), (2, 1), "here")
