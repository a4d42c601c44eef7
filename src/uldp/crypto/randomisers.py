"""Fresh n-th residues: what a ciphertext is multiplied by so that its randomness shows nothing, even to the key holder.

The key holder takes n-th roots. A product of powers of its own ciphertexts therefore shows it how the product was
made, whatever noise is in the plaintext. Multiplied by r^n with r uniform in Z_n^*, the product has uniform randomness.
No computational assumption can help here, since the adversary has the key; the distance below is statistical.

:func:`direct` takes r^n itself: exactly uniform, and an exponentiation of full size each. :class:`ResidueTable` takes

    h_1^(x_1) ... h_k^(x_k),    h_i = rho_i^n with rho_i uniform, x_i uniform in [0, N), N = 2^12,

from tables of the powers of the h_i, at about a tenth of the price. The h_i may be known to everybody, as long as they
were drawn honestly; the x_i are secret and fresh for each output.

Distance. The n-th residues are a group G, isomorphic to Z_n^* = Z_p^* x Z_q^*. For given h let Y be the output and U
uniform. By Cauchy-Schwarz and Parseval, 4 d(Y, U)^2 <= sum over characters chi != 1 of |E_x chi(Y)|^2. The mean over
the h_i of |E_x chi(Y)|^2 is the product over i of E_(x,x') E_h chi(h)^(x - x'), and the inner mean is 1 if the order of
chi divides x - x' and 0 otherwise. Hence

    E_h d(Y, U)^2 <= 1/4 sum_(chi != 1) P[ord(chi) divides x - x']^k.

Z_p^* and Z_q^* are cyclic, so at most m^2 - 1 characters other than 1 have an order that divides m. For m >= N only
x = x' counts, with probability 1/N, and there are fewer than n characters at all:

    E_h d(Y, U)^2 <= 1/4 (sum_(m=2)^(N-1) (m^2 - 1) P[m divides x - x']^k + n / N^k),

whatever p and q are. By Jensen, the distance of (h, Y) from (h, U) is at most the root of it (:func:`distance_bound`).
The order 2 alone asks for 256 bases, where 2^-128 is wanted; this is why digits are not longer than 12 bits. Several
outputs from one table are at most as far from uniform as the sum of their distances.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
from gmpy2 import mpz

from uldp.crypto.integers import uniform_units
from uldp.crypto.multiexp import Split, flat
from uldp.crypto.paillier import PublicKey
from uldp.crypto.parallel import spread
from uldp.rng import SecretStream

DISTANCE: Final = -128.0
"""log2 of the largest admitted statistical distance of one output from uniform."""

DIGIT_BITS: Final = 12
_WINDOW_BITS: Final = 6  # a digit is looked up as two windows: two tables of 64 entries instead of one of 4096
_WINDOWS: Final = DIGIT_BITS // _WINDOW_BITS
_ENTRIES: Final = 1 << _WINDOW_BITS
_PER_WORD: Final = 64 // _WINDOW_BITS

# Costs in multiplications modulo n^2, measured at 6144 bits.
_POWER_PER_BIT: Final = 1.2
_ENTRY_COST: Final = 1.0
_LOOKUP_COST: Final = 0.6


def distance_bound(bits: int, bases: int) -> float:
    """log2 of the bound on the distance of one output from uniform, for n of ``bits`` bits; derived above.

    >>> distance_bound(3072, 278) < -128 < distance_bound(3072, 270)
    True
    """
    characters, divides = small_orders()
    small = np.logaddexp2.reduce(characters + bases * divides)
    return float(np.logaddexp2(small, bits - DIGIT_BITS * bases) - 2.0) / 2.0


@lru_cache(maxsize=1)
def small_orders() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """log2(m^2 - 1) and log2 P[m divides x - x'] for 2 <= m < N and x, x' uniform in [0, N)."""
    size = 1 << DIGIT_BITS
    orders = np.arange(2, size)
    each, more = np.divmod(size, orders)  # ``more`` residue classes have one member more than the others
    pairs = more * (each + 1) ** 2 + (orders - more) * each**2
    return np.log2(orders**2 - 1.0), np.log2(pairs) - 2 * DIGIT_BITS


@lru_cache(maxsize=64)
def bases_needed(bits: int) -> int:
    """The fewest bases with which the distance is at most 2^-128.

    >>> bases_needed(3072)
    278
    """
    bases = 1
    while distance_bound(bits, bases) > DISTANCE:
        bases += 1
    return bases


def is_worthwhile(count: int, bits: int) -> bool:
    """Whether a table and ``count`` outputs from it cost fewer multiplications than ``count`` direct ones.

    >>> is_worthwhile(300, 3072), is_worthwhile(400, 3072)
    (False, True)
    """
    table = bases_needed(bits) * (direct_cost(bits) + _WINDOWS * _ENTRIES * _ENTRY_COST)
    return table + count * lookup_cost(bits) < count * direct_cost(bits)


def direct_cost(bits: int) -> float:
    """Multiplications of a residue that is drawn directly."""
    return _POWER_PER_BIT * bits


def lookup_cost(bits: int) -> float:
    """Multiplications of a residue from a table."""
    return bases_needed(bits) * _WINDOWS * _LOOKUP_COST


def direct(public: PublicKey, stream: SecretStream, count: int, workers: int) -> list[mpz]:
    """``count`` residues r^n with r uniform in Z_n^*."""
    roots = uniform_units(stream, public.n, count)
    return spread(lambda part: [public.residue(roots[i]) for i in part], count, workers, public.width)


class ResidueTable:
    """Powers of random n-th residues, from which fresh ones are made; see the top of this file.

    Window w of base i is entry ``64 (2 i + w) + digit``: h_i^(64^w digit), split as in ``uldp.crypto.multiexp``.
    """

    def __init__(self, public: PublicKey, bases: int, numbers: Sequence[mpz]) -> None:
        """Of the heads and tails in turn that :meth:`build` made."""
        self.public = public
        self.bases = bases
        self._heads, self._tails = numbers[0::2], numbers[1::2]

    @classmethod
    def build(cls, public: PublicKey, stream: SecretStream, workers: int) -> ResidueTable:
        """A table from bases that the stream decides. At 3072 bits: 278 powers of full size, and 33 MB."""
        roots = uniform_units(stream, public.n, bases_needed(public.bits))

        def work(part: range) -> list[mpz]:
            return [number for i in part for number in flat(_powers(public.residue(roots[i]), public.n))]

        return cls(public, len(roots), spread(work, len(roots), workers, public.plain_width))

    def draw(self, stream: SecretStream, count: int, workers: int) -> list[mpz]:
        """``count`` fresh residues; the stream must be secret. Each takes as many whole words as its digits fill."""
        lookups = self.bases * _WINDOWS
        words = stream.words(count * -(-lookups // _PER_WORD)).reshape(count, -(-lookups // _PER_WORD))
        shifts = np.arange(_PER_WORD, dtype=np.uint64) * np.uint64(_WINDOW_BITS)
        starts = np.arange(lookups) * _ENTRIES

        def work(part: range) -> list[mpz]:
            digits = ((words[i, :, None] >> shifts) & np.uint64(_ENTRIES - 1) for i in part)
            return [self._product((starts + row.ravel()[:lookups].astype(np.int64)).tolist()) for row in digits]

        return spread(work, count, workers, self.public.width)

    def _product(self, picks: list[int]) -> mpz:
        n, n2, heads, tails = self.public.n, self.public.n2, self._heads, self._tails
        product, total = mpz(1), mpz(0)
        for pick in picks:
            product = product * heads[pick] % n2
            total += tails[pick]
        return product * (total % n * n + 1) % n2


def _powers(base: mpz, n: mpz) -> list[Split]:
    """The windows of one base: base^0 .. base^63, then the same of base^64."""
    table: list[Split] = []
    step = Split.of(base, n)
    for _ in range(_WINDOWS):
        entry = Split.of(1, n)
        for _ in range(_ENTRIES):
            table.append(entry)
            entry = entry.times(step, n)
        step = entry
    return table
