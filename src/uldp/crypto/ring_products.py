"""The sum over users of their polynomials times their ciphertexts: the hot loop of private weighting by ring-LWE."""

from __future__ import annotations

from typing import Final

import numpy as np

from uldp.crypto import ring
from uldp.crypto.ring import LIMBS, Integers, N, Polynomials

COMPONENTS: Final = 2
MAX_VALUE: Final = 2**51
"""Values of users are smaller than this in magnitude."""


def blocks_of(parameters: int) -> int:
    """How many polynomials hold this many parameters.

    >>> blocks_of(4096), blocks_of(4097)
    (1, 2)
    """
    return -(-parameters // N)


class ProductSum:
    """sum over users u of X_u (c0_u, c1_u), for each block of N parameters; users come in any portions.

    Args:
        parameters: d, the numbers per user. The last block is padded with zeros.
        threads: on how many threads blocks are spread.

    Example:
        >>> products = ProductSum(2)
        >>> ciphertexts = np.ones((3, 2, 2, N), dtype=np.uint64)  # the constant 1 in both components
        >>> products.add(np.array([[1, 2], [3, 4], [5, 6]]), ciphertexts)
        >>> ring.centred(ring.to_coefficients(products.total())[0, 0, :, :2]).to_integers()
        [9, 12]
    """

    def __init__(self, parameters: int, threads: int = 1) -> None:
        self._parameters, self._threads = parameters, threads
        self._total = np.zeros((blocks_of(parameters), COMPONENTS, LIMBS, N), dtype=np.uint64)

    def add(self, values: Integers, ciphertexts: Polynomials) -> None:
        """Add users: their integers (users, d), and their ciphertexts (users, 2, 2, N) as evaluations."""
        for row, ciphertext in zip(values, ciphertexts, strict=True):
            padded = np.zeros(len(self._total) * N, dtype=np.int64)
            padded[: self._parameters] = row
            polynomials = ring.to_evaluations(ring.from_integers(padded.reshape(-1, N)))
            self._total = ring.add(self._total, ring.multiply(polynomials[:, None], ciphertext))

    def total(self) -> Polynomials:
        """The sums (blocks, 2, 2, N): component c0 and c1 of each block, as evaluations."""
        return self._total.copy()
