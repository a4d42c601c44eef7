"""SEAL as a second oracle: it multiplies our polynomials and ciphertexts, modulo our primes, to the same residues."""

from __future__ import annotations

import numpy as np
import pytest

from uldp.crypto import ring
from uldp.crypto.ring import LIMBS, PRIMES, N
from uldp.crypto.ring_products import COMPONENTS, ProductSum

seal = pytest.importorskip("seal", reason="seal-python is not installed here")

#: SEAL keeps the last of its primes for itself; and it reads coefficients from t / 2 up as negative.
THIRD = 2**48 - 163839
PLAIN = 2**60 - 1


@pytest.fixture(scope="module")
def context():
    parameters = seal.EncryptionParameters(seal.scheme_type.bfv)
    parameters.set_poly_modulus_degree(N)
    parameters.set_coeff_modulus([seal.Modulus(p) for p in (*PRIMES, THIRD)])
    parameters.set_plain_modulus(PLAIN)
    found = seal.SEALContext(parameters, True, seal.sec_level_type.none)
    assert found.parameters_set()
    return found


def ciphertext(context, header, residues):
    """A ciphertext of SEAL with these residues (2, 2, N), coefficients."""
    found = seal.Ciphertext()
    found.load_bytes(context, header + residues.astype("<u8").tobytes())
    return found


def plaintext(values):
    """The polynomial as SEAL reads it: hexadecimal, the highest power first; it has no terms that are zero."""
    terms = [f"{int(value) % PLAIN:X}x^{k}" for k, value in enumerate(values) if value]
    return seal.Plaintext(" + ".join(reversed(terms)).replace("x^0", ""))


def residues_of(found):
    data = np.frombuffer(found.to_string()[-8 * COMPONENTS * LIMBS * N :], dtype="<u8")
    return data.astype(np.uint64).reshape(COMPONENTS, LIMBS, N)


@pytest.mark.parametrize("count", [14, 107, 513, N])
def test_sums_of_products_are_those_of_seal(context, count):
    generator, users = np.random.default_rng(count), 3
    values = generator.integers(-(2**49), 2**49, size=(users, count))
    ciphertexts = np.stack([generator.integers(0, p, (users, COMPONENTS, N), dtype=np.uint64) for p in PRIMES], axis=2)
    fresh = seal.Encryptor(context, seal.KeyGenerator(context).create_public_key()).encrypt(seal.Plaintext("1"))
    header = fresh.to_string()[: -ciphertexts[0].nbytes]
    evaluator = seal.Evaluator(context)
    theirs = evaluator.add_many(
        [
            evaluator.multiply_plain(ciphertext(context, header, c), plaintext(row))
            for row, c in zip(values, ciphertexts, strict=True)
        ]
    )
    products = ProductSum(count)
    products.add(values, ring.to_evaluations(ciphertexts))
    np.testing.assert_array_equal(ring.to_coefficients(products.total())[0], residues_of(theirs))
