"""Many products of powers of the same bases modulo n^2: prod_u base_u^(e_uj) for every column j.

The method is Straus's: the bases are taken in groups, the product of every subset of a group is in a table, and a
column costs one multiplication per group and bit of the exponents, plus one squaring per bit. Two things are added.

*Split numbers.* A multiplication modulo n^2 is made cheaper by the shape of the modulus. Any unit is

    T = t (1 + n a)  modulo n^2,    t = T mod n,    a = (T div n) / t mod n,

and (1 + n a)(1 + n b) = 1 + n (a + b). So a table holds the pair (t, a): a running product is multiplied by t, which is
half as long as T, and the a are simply added up; 1 + n times their sum enters once, at the end. At 6144 bits this takes
6 us where ``acc * T % n2`` takes 11, and Barrett, Montgomery or late reduction by hand take longer still.

*Pieces.* Exponents may be cut into pieces of fewer bits, with base^(2^length) as a further base for each. This saves
squarings and needs larger tables; it pays for many columns and few bases.

The running time depends on the exponents (bits that are zero cost nothing), so it must not be shown to others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from gmpy2 import f_divmod, gcd, invert, isqrt, mpz, powmod

from uldp.crypto.integers import product
from uldp.crypto.parallel import spread
from uldp.errors import ConfigError, require
from uldp.vectors import Integers

MAX_BITS: Final = 63

_PLACE: Final = "crypto.multiexp"
_TABLE_BYTES: Final = 40 << 20
_OBJECT_BYTES: Final = 128  # of the two numbers of an entry, besides their digits
_MAX_GROUP: Final = 16
BLOCK: Final = 1 << 18  # exponents whose bits are unpacked at a time

# Costs in multiplications by an entry, measured at 6144 bits.
_SQUARING: Final = 1.65
_ENTRY: Final = 2.25
WORTH_A_FORK: Final = 4000.0


class Split(NamedTuple):  # made by the ten thousand: a frozen dataclass takes three times as long to make
    """The unit ``head`` (1 + n ``tail``) modulo n^2, with the inverse of the head modulo n."""

    head: mpz
    tail: mpz
    inverse: mpz

    @classmethod
    def of(cls, unit: int, n: mpz) -> Split:
        quotient, head = f_divmod(mpz(unit), n)
        inverse = invert(head, n)
        return cls(head, quotient * inverse % n, inverse)

    def times(self, other: Split, n: mpz) -> Split:
        """The product. The heads multiply as integers: what exceeds n is n q = head * n * (q / head)."""
        quotient, head = f_divmod(self.head * other.head, n)
        inverse = self.inverse * other.inverse % n
        return Split(head, (self.tail + other.tail + quotient * inverse) % n, inverse)


def flat(table: Sequence[Split]) -> list[mpz]:
    """Heads and tails in turn, as the processes exchange them."""
    return [part for entry in table for part in (entry.head, entry.tail)]


@dataclass(frozen=True)
class ExponentPlan:
    """How many pieces each exponent is cut into, and into how many groups the bases of all pieces fall."""

    bases: int
    columns: int
    bits: int
    pieces: int
    groups: int

    @classmethod
    def cheapest(cls, bases: int, columns: int, bits: int, entries: int) -> ExponentPlan:
        """The plan with the fewest multiplications among those whose table has at most ``entries`` entries."""
        plans = [cls(bases, columns, bits, 1, bases)]  # one base a group: the smallest table of all
        lengths = sorted({-(-bits // pieces) for pieces in range(1, bits + 1)})
        for pieces in [-(-bits // length) for length in lengths]:
            count = bases * pieces
            groups = {-(-count // size) for size in range(1, min(_MAX_GROUP, count) + 1)}
            candidates = (cls(bases, columns, bits, pieces, number) for number in groups)
            plans += [plan for plan in candidates if plan.entries <= entries]
        return min(plans, key=lambda plan: plan.cost)

    @property
    def piece_bits(self) -> int:
        return -(-self.bits // self.pieces)

    @property
    def sizes(self) -> list[int]:
        """Bases in each group: as equal as can be, for the largest group makes the table large."""
        small, rest = divmod(self.bases * self.pieces, self.groups)
        return [small] * (self.groups - rest) + [small + 1] * rest

    @property
    def entries(self) -> int:
        """Entries of all tables; the empty product is common to all."""
        small, rest = divmod(self.bases * self.pieces, self.groups)
        return 1 - self.groups + ((self.groups + rest) << small)

    @property
    def cost(self) -> float:
        powers = self.bases * (self.pieces - 1) * self.piece_bits * _SQUARING
        column = self.piece_bits * (_SQUARING + self.groups)
        return powers + self.entries * _ENTRY + self.columns * column


def products(bases: Sequence[mpz], exponents: Integers, bits: int, modulus: mpz, workers: int) -> list[mpz]:
    """prod_u bases[u]^exponents[u, j] modulo ``modulus``, for every column j of ``exponents``.

    ``modulus`` is the square of a Paillier modulus, and the bases are units; exponents are signed and below 2^(bits-1)
    in absolute value. 2^(bits-1) is added to all of them, so that none is negative, and taken off by one factor.

    >>> [int(x) for x in products([mpz(2), mpz(3)], np.array([[1, -1], [2, 0]]), 3, mpz(35**2), 1)]
    [18, 613]
    """
    _check(len(bases), exponents, bits)
    modulus = mpz(modulus)
    n = isqrt(modulus)
    whole = product(bases, modulus)
    if n * n != modulus or gcd(whole, n) != 1:
        raise ConfigError("the modulus is not a square, or a base is not a unit", location=_PLACE)
    columns = exponents.shape[1]
    if not bases or not columns:
        return [mpz(1)] * columns
    entry_bytes = 2 * ((n.bit_length() + 7) // 8) + _OBJECT_BYTES
    plan = ExponentPlan.cheapest(len(bases), columns, bits, _TABLE_BYTES // entry_bytes)
    if plan.cost < WORTH_A_FORK:
        workers = 1
    table = _Table.build(bases, plan, n, workers)
    correction = invert(powmod(whole, mpz(1) << (bits - 1), modulus), modulus)
    shifted = exponents.astype(np.uint64) + np.uint64(1 << (bits - 1))

    def work(part: range) -> list[mpz]:
        return [table.product(picks) * correction % modulus for picks in table.picks(shifted, part)]

    return spread(work, columns, workers, (modulus.bit_length() + 7) // 8)


def _check(bases: int, exponents: Integers, bits: int) -> None:
    require(1 <= bits <= MAX_BITS, _PLACE, bits, f"exponents of 1 to {MAX_BITS} bits")
    if exponents.dtype != np.int64 or exponents.ndim != 2 or len(exponents) != bases:
        reason = f"one row of int64 exponents for each of {bases} bases, not {exponents.shape} of {exponents.dtype}"
        raise ConfigError(reason, location=_PLACE)
    limit = 1 << (bits - 1)
    if exponents.size and not -limit < int(exponents.min()) <= int(exponents.max()) < limit:
        raise ConfigError(f"an exponent has more than {bits - 1} bits and a sign", location=_PLACE)


@dataclass(frozen=True)
class _Table:
    """The subset products of all groups in one list; entry 0 is the empty product."""

    plan: ExponentPlan
    n: mpz
    heads: list[mpz]
    tails: list[mpz]

    @classmethod
    def build(cls, bases: Sequence[mpz], plan: ExponentPlan, n: mpz, workers: int) -> _Table:
        step = mpz(1) << plan.piece_bits
        factors = list(bases)
        for _ in range(plan.pieces - 1):
            factors += [powmod(base, step, n * n) for base in factors[-len(bases) :]]
        starts = np.cumsum([0, *plan.sizes]).tolist()

        def work(part: range) -> list[mpz]:
            return [x for i in part for x in flat(_subsets(factors[starts[i] : starts[i + 1]], n))]

        parts = spread(work, plan.groups, workers, (n.bit_length() + 7) // 8)
        return cls(plan, n, [mpz(1), *parts[0::2]], [mpz(0), *parts[1::2]])

    def picks(self, exponents: npt.NDArray[np.uint64], part: range) -> Iterator[list[list[int]]]:
        """For each column of ``part``, the entries to multiply by: one list per bit, the highest bit first."""
        sizes = np.array(self.plan.sizes)
        group_starts = np.cumsum(sizes) - sizes
        places = (np.arange(sizes.sum()) - np.repeat(group_starts, sizes)).astype(np.uint64)[:, None]
        before = (np.cumsum((1 << sizes) - 1) - ((1 << sizes) - 1))[:, None]  # entries of the groups before
        bits = self.plan.piece_bits
        shifts = [np.uint64(piece * bits) for piece in range(self.plan.pieces)]
        block = max(1, BLOCK // int(sizes.sum()))
        for start in range(part.start, part.stop, block):
            columns = exponents[:, start : min(start + block, part.stop)]
            pieces = np.concatenate([columns >> shift for shift in shifts])
            rows = np.empty((columns.shape[1], bits, len(sizes)), dtype=np.int64)
            for bit in range(bits):
                ones = ((pieces >> np.uint64(bits - 1 - bit)) & np.uint64(1)) << places
                subsets = np.add.reduceat(ones, group_starts, axis=0).astype(np.int64)
                rows[:, bit] = np.where(subsets > 0, before + subsets, 0).T
            yield from (row.tolist() for row in rows)

    def product(self, picks: list[list[int]]) -> mpz:
        """Square and multiply, heads in the product and tails in the sum."""
        n2, heads, tails = self.n * self.n, self.heads, self.tails
        product, total = mpz(1), mpz(0)
        for row in picks:
            product = product * product % n2
            total <<= 1
            for pick in row:
                if pick:
                    product = product * heads[pick] % n2
                    total += tails[pick]
        return product * (total % self.n * self.n + 1) % n2


def _subsets(factors: Sequence[mpz], n: mpz) -> list[Split]:
    """The products of all non-empty subsets; bit i of position + 1 says whether factor i is in it."""
    table: list[Split] = []
    for factor in factors:
        single = Split.of(factor, n)
        table += [single, *(entry.times(single, n) for entry in table)]
    return table
