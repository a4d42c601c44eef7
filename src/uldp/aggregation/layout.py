"""Where coordinates lie in Paillier plaintexts, and what both machines of ``paillier`` are built from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import gmpy2
from gmpy2 import mpz

from uldp.aggregation.ratios import Ratios
from uldp.crypto.paillier import signed_residue


@dataclass(frozen=True)
class Layout:
    """Where the coordinates of a total are in the plaintexts: ``slots`` of ``width`` bits in each.

    A coordinate's value is L (total + dithers / L), a signed number below 2^(width - 1) in size, so that neighbours
    never touch: with ``width * slots < key_bits`` the whole plaintext stays below n / 2.
    """

    multiple: int
    width: int
    slots: int
    dimension: int
    silos: int

    @property
    def ciphertexts(self) -> int:
        return -(-self.dimension // self.slots)

    def pack(self, values: Sequence[int]) -> list[mpz]:
        """The plaintexts of these coordinates' values."""
        groups = (values[start : start + self.slots] for start in range(0, len(values), self.slots))
        return [sum((mpz(v) << (self.width * i) for i, v in enumerate(group)), start=mpz(0)) for group in groups]

    def unpack(self, plaintexts: Sequence[mpz]) -> list[mpz] | None:
        """The values in signed plaintexts; None if one cannot have come from :meth:`pack`."""
        values: list[mpz] = []
        modulus = mpz(1) << self.width
        for rest in plaintexts:
            for _ in range(min(self.slots, self.dimension - len(values))):
                value = signed_residue(rest, modulus)
                values.append(value)
                rest = (rest - value) >> self.width
            if rest:
                return None
        return values

    def decode(self, value: mpz) -> mpz:
        """A coordinate's total in fixed-point units. Of all dithers but one the mean is taken off; that one rounds."""
        return gmpy2.f_div(value - mpz(self.multiple - 1) * (self.silos - 1) // 2, self.multiple)


@dataclass(frozen=True)
class PaillierScheme:
    """The size of the key, how many processes compute, the layout, and the weights."""

    key_bits: int
    workers: int
    layout: Layout
    ratios: Ratios
