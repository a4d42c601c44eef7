"""A digest of transforms and of sums of products, for a process with other instruction sets (test_ring_kernels)."""

from __future__ import annotations

import hashlib

import numpy as np

from uldp.crypto import ring
from uldp.crypto.ring import PRIMES, N
from uldp.crypto.ring_products import ProductSum
from uldp.crypto.ring_transforms import MAX_VALUE


def digest() -> str:
    generator, known = np.random.default_rng(0), hashlib.sha256()
    ciphertexts = np.stack([generator.integers(0, p, size=(9, 2, N), dtype=np.uint64) for p in PRIMES], axis=2)
    for parameters in (14, 107, 600, N + 1):
        products = ProductSum(parameters)
        products.add(generator.integers(1 - MAX_VALUE, MAX_VALUE, size=(9, parameters)), ciphertexts)
        known.update(products.total().tobytes())
        known.update(ring.to_coefficients(products.total()).tobytes())
    return known.hexdigest()


if __name__ == "__main__":
    print(digest())
