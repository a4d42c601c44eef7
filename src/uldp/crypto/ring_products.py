"""The sum over users of their polynomials times their ciphertexts: the hot loop of private weighting by ring-LWE."""

from __future__ import annotations

import functools
import itertools
import threading
import time
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from uldp.crypto.ring import Integers
from uldp.crypto.ring_transforms import LIMBS, MAX_VALUE, PRIMES, N, Polynomials, compiled, read_only, tables
from uldp.native.threads import in_threads

COMPONENTS: Final = 2
#: A thread's share is at least this many transforms: less is done before the thread is awake.
_SHARE: Final = 32


def blocks_of(parameters: int) -> int:
    """How many polynomials hold this many parameters.

    >>> blocks_of(4096), blocks_of(4097)
    (1, 2)
    """
    return -(-parameters // N)


#: Limbs and blocks, from and to.
_Part = tuple[tuple[int, int], tuple[int, int]]


class _Room(threading.local):
    """The workspaces of a thread."""

    def __init__(self) -> None:
        self.floats, self.integers = np.empty(N), np.empty(N, dtype=np.int64)


_ROOM: Final = _Room()


@functools.cache
def seconds_per_product() -> float:
    """How long one core of this machine takes for one user's block of N parameters."""
    users = 64
    values, ciphertexts = np.ones((users, N), dtype=np.int64), np.ones((users, COMPONENTS, LIMBS, N), dtype=np.uint64)
    times = []
    for _ in range(3):  # the first one may compile
        start = time.process_time()
        ProductSum(N).add(values, ciphertexts)
        times.append(time.process_time() - start)
    return min(times) / users


class ProductSum:
    """sum over users u of X_u (c0_u, c1_u), for each block of N parameters; users come in any portions.

    Args:
        parameters: d, the numbers per user. The last block is padded with zeros.
        threads: on how many threads blocks are spread.

    Example:
        >>> from uldp.crypto import ring
        >>> products = ProductSum(2)
        >>> ciphertexts = np.ones((3, 2, 2, N), dtype=np.uint64)  # the constant 1 in both components
        >>> products.add(np.array([[1, 2], [3, 4], [5, 6]]), ciphertexts)
        >>> ring.centred(ring.to_coefficients(products.total())[0, 0, :, :2]).to_integers()
        [9, 12]
    """

    def __init__(self, parameters: int, threads: int = 1) -> None:
        self._blocks, self._threads = blocks_of(parameters), threads
        self._totals = np.zeros((LIMBS, self._blocks, COMPONENTS, N))

    def add(self, values: Integers, ciphertexts: Polynomials, users: Integers | None = None) -> None:
        """Add users' polynomials times their ciphertexts.

        Args:
            values: integers (rows, at most d) below 2^50 in magnitude.
            ciphertexts: residues (users, 2, 2, N) as evaluations.
            users: whose ciphertext belongs to each row; by default all in order.

        Raises:
            ValueError: if shapes do not fit, or a value is out of range. The sum is worthless then.
        """
        chosen = np.arange(len(ciphertexts)) if users is None else np.asarray(users, dtype=np.int64)
        self._check(values, ciphertexts, chosen)
        given = (read_only(values), values.shape[1], read_only(chosen), read_only(ciphertexts))
        kernel = compiled("add_products")  # here, not in several threads at once

        def work(part: _Part) -> bool:
            rooms = (_ROOM.floats, _ROOM.integers, read_only(tables()))
            return bool(kernel(*given, *part, *rooms, self._totals.reshape(-1)))

        parts = self._parts(len(values), blocks_of(values.shape[1]))
        threads = min(self._threads, len(parts))
        done = in_threads(work, parts, threads) if threads > 1 else map(work, parts)
        if not all([*done]):
            raise ValueError(f"values are below {MAX_VALUE} in magnitude")

    def total(self) -> Polynomials:
        """The sums (blocks, 2, 2, N): component c0 and c1 of each block, as evaluations."""
        totals = np.moveaxis(self._totals, 0, 2)
        primes = np.array(PRIMES, dtype=np.float64).reshape(LIMBS, 1)
        return np.where(totals < 0, totals + primes, totals).astype(np.uint64)

    def _parts(self, rows: int, blocks: int) -> list[_Part]:
        """Limbs and blocks, from and to: several parts for each thread, none of them tiny."""
        most = min(4 * self._threads, rows * blocks * LIMBS // _SHARE)
        if self._threads == 1 or most < 2:
            return [((0, LIMBS), (0, blocks))]
        if blocks < self._threads:
            return [((limb, limb + 1), (block, block + 1)) for limb in range(LIMBS) for block in range(blocks)]
        cuts = [blocks * part // most for part in range(most + 1)] if most < blocks else [*range(blocks + 1)]
        return [((0, LIMBS), part) for part in itertools.pairwise(cuts)]

    def _check(self, values: npt.NDArray[Any], ciphertexts: npt.NDArray[Any], users: Integers) -> None:
        """Kernels do not look where they read."""
        if not (
            values.dtype == np.int64
            and ciphertexts.dtype == np.uint64
            and values.ndim == 2
            and blocks_of(values.shape[1]) <= self._blocks
            and ciphertexts.shape[1:] == (COMPONENTS, LIMBS, N)
            and users.shape == values.shape[:1]
            and users.min(initial=0) >= 0
            and users.max(initial=-1) < len(ciphertexts)
        ):
            raise ValueError("values, ciphertexts and users do not fit together")
