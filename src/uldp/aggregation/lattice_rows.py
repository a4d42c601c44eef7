"""How a silo's rows meet the encrypted weights of ``lattice``: one user to a ciphertext, or several that share one.

Whoever has no row counts as zeros, and the number of products follows from public facts, or the time would tell who is
there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from uldp.aggregation.lattice_ring import Scheme
from uldp.crypto.ring import Polynomials
from uldp.crypto.ring_products import ProductSum
from uldp.data.federation import IntArray
from uldp.vectors import Integers, Rows

BLOCK_NUMBERS: Final = 1 << 23
"""At most so many numbers of rows are multiplied at a time, but those of at least eight users."""
ROWS: Final = 128

Weigh = Callable[[IntArray, Rows, Integers], int]
"""Writes n_su x_su of these users, and returns how many rows count as zero."""


class RowProducts(Protocol):
    """sum_u X_su (c0_u, c1_u) over the users of a round."""

    def add(self, users: IntArray, rows: Rows, weigh: Weigh) -> int:
        """Add the rows of these users, one of each; return how many count as zero."""

    def total(self) -> Polynomials:
        """The sums (blocks, 2, 2, N), evaluations, with zeros for all who have no row."""


def row_products(scheme: Scheme, ciphertexts: Polynomials, members: npt.NDArray[np.bool_] | None) -> RowProducts:
    """The products of a round. ``members``: whose turn it is, in public; None for everybody's."""
    taking_part = np.ones(scheme.roles.users, dtype=np.bool_) if members is None else members
    kind = _LoneRows if scheme.together == 1 else _SharedRows
    return kind(scheme, ciphertexts, taking_part)


class _LoneRows:
    """One user to a ciphertext. Rows are multiplied some at a time: the sums pass through the cache once for them."""

    def __init__(self, scheme: Scheme, ciphertexts: Polynomials, members: npt.NDArray[np.bool_]) -> None:
        self._ciphertexts, self._missing = ciphertexts, members.copy()
        self._size = min(ROWS, max(8, BLOCK_NUMBERS // scheme.dimension))
        self._sum = ProductSum(scheme.dimension, scheme.threads)
        self._waiting = np.empty((self._size, scheme.dimension), dtype=np.int64)
        self._owners = np.zeros(0, dtype=np.int64)

    def add(self, users: IntArray, rows: Rows, weigh: Weigh) -> int:
        start = left_out = 0
        while start < len(rows):
            begin = len(self._owners)
            owners = users[start : start + self._size - begin]
            part = slice(start, start + len(owners))
            left_out += weigh(owners, rows[part], self._waiting[begin : begin + len(owners)])
            self._owners = np.append(self._owners, owners)
            start = part.stop
            if len(self._owners) == self._size:
                self._multiply()
        return left_out

    def total(self) -> Polynomials:
        self._multiply()
        self._waiting[:] = 0
        rest = np.flatnonzero(self._missing)
        for start in range(0, len(rest), self._size):
            self._owners = rest[start : start + self._size]
            self._multiply()
        return self._sum.total()

    def _multiply(self) -> None:
        self._sum.add(self._waiting[: len(self._owners)], self._ciphertexts, self._owners)
        self._missing[self._owners] = False
        self._owners = self._owners[:0]


class _SharedRows:
    """Several users to a ciphertext: their rows stand behind one another, in the order of the users."""

    def __init__(self, scheme: Scheme, ciphertexts: Polynomials, members: npt.NDArray[np.bool_]) -> None:
        self._ciphertexts, self._threads = ciphertexts, scheme.threads
        self._needed = np.unique(np.flatnonzero(members) // scheme.together)
        self._polynomials = np.zeros((scheme.ciphertexts, scheme.together * scheme.dimension), dtype=np.int64)
        self._rows = self._polynomials.reshape(-1, scheme.dimension)

    def add(self, users: IntArray, rows: Rows, weigh: Weigh) -> int:
        weighed = np.empty(rows.shape, dtype=np.int64)
        left_out = weigh(users, rows, weighed)
        self._rows[users] = weighed
        return left_out

    def total(self) -> Polynomials:
        products = ProductSum(self._polynomials.shape[1], self._threads)
        for start in range(0, len(self._needed), ROWS):
            some = self._needed[start : start + ROWS]
            products.add(self._polynomials[some], self._ciphertexts, some)
        return products.total()
