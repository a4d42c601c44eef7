"""The cryptosystem against its textbook formulas, and what it refuses."""

import pytest
from gmpy2 import gcd, invert, is_prime, lcm, mpz, next_prime, powmod
from hypothesis import given, settings
from hypothesis import strategies as st

from uldp.crypto.integers import uniform_units
from uldp.crypto.paillier import PrivateKey, PublicKey, signed_residue
from uldp.errors import ConfigError, MessageRefused
from uldp.rng import Secrets

KEY = PrivateKey.generate(256, Secrets.simulated_from_seed(5).stream())
PUBLIC = KEY.public
N, N2 = PUBLIC.n, PUBLIC.n2

plaintexts = st.integers(0, int(N) - 1)
units = st.integers(1, int(N) - 1).filter(lambda r: gcd(r, N) == 1)
short = st.integers(-(2**40), 2**40)


def textbook_encrypt(m, r):
    return powmod(N + 1, m, N2) * powmod(r, N, N2) % N2


def textbook_decrypt(c):
    order = lcm(KEY.p - 1, KEY.q - 1)
    return (powmod(c, order, N2) - 1) // N * invert((powmod(N + 1, order, N2) - 1) // N, N) % N


@given(plaintexts, units)
@settings(max_examples=40, deadline=None)
def test_both_keys_encrypt_and_decrypt_as_in_the_textbook(m, r):
    c = textbook_encrypt(m, r)
    assert PUBLIC.encrypt(m, r) == KEY.encrypt(m, r) == c
    assert KEY.decrypt(c) == textbook_decrypt(c) == m
    assert KEY.nth_root(c) == r


@given(plaintexts, plaintexts, units, units, short)
@settings(max_examples=40, deadline=None)
def test_homomorphisms(a, b, r, s, k):
    x, y = PUBLIC.encrypt(a, r), PUBLIC.encrypt(b, s)
    assert KEY.decrypt(PUBLIC.add(x, y)) == (a + b) % N
    assert KEY.decrypt(powmod(x, k, N2)) == a * k % N
    assert KEY.decrypt(PUBLIC.add(x, PUBLIC.factor(k))) == (a + k) % N


@given(st.integers(-(2**600), 2**600))
def test_a_factor_is_a_power_of_g(m):
    assert PUBLIC.factor(m) == powmod(N + 1, m, N2)


@given(st.integers(-(2**300), 2**300), st.integers(3, 2**200).map(lambda n: n | 1))
def test_signed_is_the_nearest_to_zero(x, n):
    centred = signed_residue(x, n)
    assert (centred - x) % n == 0
    assert abs(centred) <= n // 2


@pytest.mark.parametrize("workers", [1, 2])
def test_many_at_once(workers):
    ms = [0, 1, -1, N - 1, 2**200]
    cs = KEY.encrypt_all(ms, Secrets.simulated_from_seed(1).stream(), workers)
    assert KEY.decrypt_all(cs, workers) == [m % N for m in ms]
    assert len({KEY.nth_root(c) for c in cs}) == len(ms)
    assert KEY.encrypt_all(ms, Secrets.simulated_from_seed(1).stream(), 3 - workers) == cs
    assert KEY.encrypt_all([], Secrets.simulated_from_seed(1).stream(), workers) == []


def test_the_randomness_of_many_ciphertexts_is_uniform():
    """encrypt_all skips a power that only permutes the units; here each unit must still be met."""
    key = PrivateKey(11, 13)
    cs = key.encrypt_all([3] * 3000, Secrets.simulated_from_seed(2).stream(), 1)
    assert {int(key.nth_root(c)) for c in cs} == {r for r in range(143) if gcd(r, 143) == 1}
    assert set(key.decrypt_all(cs, 1)) == {3}


@pytest.mark.parametrize("bits", [64, 66, 128, 256, 510])
def test_generated_keys(bits):
    for seed in range(5):
        key = PrivateKey.generate(bits, Secrets.simulated_from_seed(seed).stream())
        assert key.public.bits == bits
        assert key.p.bit_length() == key.q.bit_length() == bits // 2
        assert is_prime(key.p)
        assert is_prime(key.q)
        assert key.p != key.q
        assert PublicKey.from_peer(key.public.n, bits, "here") == key.public
        again = PrivateKey.generate(bits, Secrets.simulated_from_seed(seed).stream())
        assert (again.p, again.q) == (key.p, key.q)


@pytest.mark.parametrize("bits", [0, 2, 62, 65, 257])
def test_odd_and_tiny_keys_are_refused(bits):
    with pytest.raises(ConfigError, match="even number of bits"):
        PrivateKey.generate(bits, Secrets.simulated_from_seed(0).stream())


@pytest.mark.parametrize("p, q", [(11, 11), (15, 7), (7, 15), (3, 7), (11, 23)])
def test_factors_that_make_no_key_are_refused(p, q):
    with pytest.raises(ConfigError):
        PrivateKey(p, q)


def test_a_private_key_does_not_show_itself():
    KEY.decrypt(PUBLIC.encrypt(1, 1))
    cached = [value for name, value in vars(KEY).items() if name not in ("p", "q")]
    shown = repr(KEY) + str(KEY) + repr(cached)
    assert repr(KEY) == "PrivateKey(bits=256)"
    assert str(KEY.p) not in shown
    assert str(KEY.q) not in shown


def test_widths():
    assert (PUBLIC.bits, PUBLIC.plain_width, PUBLIC.width) == (256, 32, 64)


@pytest.mark.parametrize("bad", [mpz(0), N2, N2 + 1, mpz(-1), N, KEY.p, KEY.p * 5, KEY.q * KEY.q])
@pytest.mark.parametrize("position", [0, 3])
def test_what_is_no_ciphertext_is_refused(bad, position):
    good = uniform_units(Secrets.simulated_from_seed(0).stream(), N2, 5, radical=N)
    PUBLIC.check(good, "silo 1")
    PUBLIC.check([], "silo 1")
    good[position] = bad
    with pytest.raises(MessageRefused, match=r"^silo 1: "):
        PUBLIC.check(good, "silo 1")


PRIME = next_prime(mpz(1) << 255)
MODULI = {
    "negative": -N,
    "zero": 0,
    "short": N >> 1,
    "long": N << 1,
    "even": N - 1,
    "small factor": 65521 * next_prime((mpz(1) << 255) // 65521),
    "a prime": PRIME,
    "a power": next_prime(mpz(3) << 126) ** 2,
    "cube": next_prime((mpz(1) << 255) // 2**170 + 1) ** 3,
}


@pytest.mark.parametrize("name", MODULI)
def test_what_is_no_modulus_is_refused(name):
    with pytest.raises(MessageRefused, match=r"^server: "):
        PublicKey.from_peer(MODULI[name], 256, "server")
