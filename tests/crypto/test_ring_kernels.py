"""The compiled ring: the same residues with every instruction set, on any number of threads, in any portions."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
from ring_digest import digest

from uldp.crypto import ring
from uldp.crypto.ring import LIMBS, PRIMES, N
from uldp.crypto.ring_products import COMPONENTS, ProductSum
from uldp.crypto.ring_transforms import MAX_VALUE, compiled, tables
from uldp.errors import ConfigError
from uldp.native.jit import CHECK_VARIABLE

PROGRAM = Path(__file__).with_name("ring_digest.py")
MACHINES = {
    "AVX2, no AVX-512": {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+fma,+avx2,+bmi,+bmi2"},
    "no AVX2": {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "+fma,+avx"},
    "no fused multiply-add": {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "+sse2"},
    "every access checked": {CHECK_VARIABLE: "1"},
}


@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="names of x86-64's instruction sets")
@pytest.mark.parametrize(
    "machine", [next(iter(MACHINES)), *(pytest.param(m, marks=pytest.mark.slow) for m in MACHINES)]
)
def test_every_instruction_set_gives_the_same_residues(machine):
    done = subprocess.run(
        [sys.executable, str(PROGRAM)],
        env={**os.environ, **MACHINES[machine]},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == digest()


def random_products(users, parameters, seed=0):
    generator = np.random.default_rng(seed)
    ciphertexts = np.stack([generator.integers(0, p, (users, COMPONENTS, N), dtype=np.uint64) for p in PRIMES], axis=2)
    return generator.integers(-(2**35), 2**35, size=(users, parameters)), ciphertexts


@pytest.mark.parametrize("parameters", [100, 3 * N, 40 * N + 5])
def test_threads_and_portions_change_nothing(parameters):
    values, ciphertexts = random_products(11, parameters)
    whole, spread, portions = ProductSum(parameters), ProductSum(parameters, threads=3), ProductSum(parameters)
    whole.add(values, ciphertexts)
    spread.add(values, ciphertexts)
    order = np.random.default_rng(1).permutation(11)
    for part in (order[:1], order[1:1], order[1:9], order[9:]):
        portions.add(values[part], ciphertexts, part)
    np.testing.assert_array_equal(spread.total(), whole.total())
    np.testing.assert_array_equal(portions.total(), whole.total())


def test_many_users_add_up():
    """Sums are kept below 0.6 p after every user, however many there are."""
    users, largest = 3000, np.array(PRIMES, dtype=np.uint64).reshape(LIMBS, 1) - np.uint64(1)
    ciphertexts = np.broadcast_to(largest, (1, COMPONENTS, LIMBS, N)).copy()
    products = ProductSum(1)
    products.add(np.full((users, 1), MAX_VALUE - 1), ciphertexts, np.zeros(users, dtype=np.int64))
    expected = [users * (MAX_VALUE - 1) * (p - 1) % p for p in PRIMES]
    assert (products.total() == np.array(expected, dtype=np.uint64).reshape(LIMBS, 1)).all()


def test_rows_may_be_shorter_than_the_sum():
    """A row of fewer numbers is one with zeros behind."""
    values, ciphertexts = random_products(2, 600)
    short, padded = ProductSum(2 * N), ProductSum(2 * N)
    short.add(values, ciphertexts)
    padded.add(np.pad(values, ((0, 0), (0, 2 * N - 600))), ciphertexts)
    np.testing.assert_array_equal(short.total(), padded.total())


@pytest.mark.parametrize("value", [MAX_VALUE, -MAX_VALUE - 1, 2**63 - 1, -(2**63)])
def test_values_out_of_range_are_refused(value):
    values, ciphertexts = random_products(2, 5000)
    values[1, 4999] = value
    with pytest.raises(ValueError, match="below 1125899906842624 in magnitude"):
        ProductSum(5000).add(values, ciphertexts)


def test_arrays_that_do_not_fit_are_refused():
    values, ciphertexts = random_products(2, 10)
    for wrong in (
        (values[0], ciphertexts),
        (values.astype(np.int32), ciphertexts),
        (values, ciphertexts.astype(np.int64)),
        (values, ciphertexts[:1]),
        (values, ciphertexts[:, :1]),
        (values, ciphertexts[..., :-1]),
        (values, ciphertexts, np.array([0, 2])),
        (values, ciphertexts, np.array([0, -1])),
        (values, ciphertexts, np.array([0])),
        (np.zeros((2, N + 1), dtype=np.int64), ciphertexts),
    ):
        with pytest.raises(ValueError, match="do not fit together"):
            ProductSum(10).add(*wrong)
    with pytest.raises(ValueError, match="polynomials are"):
        ring.to_evaluations(ciphertexts[..., :-1])


def test_without_a_compiler_the_remedy_is_named(monkeypatch):
    monkeypatch.setattr(numba.core.config, "DISABLE_JIT", 1)
    with pytest.raises(ConfigError, match="NUMBA_DISABLE_JIT is set; unset it, or take 'masked'"):
        compiled.__wrapped__("evaluations")


def test_factors_are_centred_and_their_quotients_correctly_rounded():
    """What the bounds at the kernels' head rest on."""
    for p, table in zip(PRIMES, tables(), strict=True):
        nodes = table[: 74 * 112].reshape(74, 2, 7, 8)
        factors, quotients = nodes[:, 0].ravel(), nodes[:, 1].ravel()
        assert (np.abs(factors) <= p // 2).all() and (factors == np.rint(factors)).all()
        assert all(int(f) / p == q for f, q in zip(factors, quotients, strict=True))
        assert table[-1] == p
