"""Large whole numbers: drawn uniformly from a keystream, and written with a fixed width.

Numbers are drawn by rejection, never by reduction modulo the bound: a reduced number is biased, and a mask that is
biased does not hide. How the stream is used is part of the contract, because two parties that hold equal streams must
get equal numbers: see :func:`uniform_below`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from gmpy2 import gcd, mpz

from uldp.errors import ConfigError, MessageRefused
from uldp.rng import SecretStream

BLOCK_WORDS: Final = 1 << 17  # 1 MB of keystream at a time: bounds memory whatever the count


def uniform_below(stream: SecretStream, bound: int, count: int) -> list[mpz]:
    """``count`` independent numbers, each uniform in [0, bound).

    A candidate takes as many whole words of the stream as the bits of ``bound - 1`` fill, lowest word first; the bits
    beyond are dropped, and a candidate that is not below the bound is thrown away. No word is read beyond the last
    accepted candidate, so two calls for a and b numbers give what one call for a + b would give. A bound of 1 reads
    nothing.

    >>> from uldp.rng import Secrets
    >>> [int(x) for x in uniform_below(Secrets.simulated_from_seed(0).stream(), 1, 3)]
    [0, 0, 0]
    """
    if bound < 1 or count < 0:
        raise ConfigError(f"{count} numbers below {bound} cannot be drawn", location="crypto.integers")
    limit = mpz(bound)
    bits = (limit - 1).bit_length()
    if not bits:
        return [mpz(0)] * count
    words = -(-bits // 64)
    block = max(1, BLOCK_WORDS // words)
    drawn: list[mpz] = []
    while missing := count - len(drawn):
        rows = stream.words(min(missing, block) * words).reshape(-1, words)
        rows[:, -1] &= np.uint64((1 << (bits - 64 * (words - 1))) - 1)
        candidates = _split_integers(rows.astype("<u8", copy=False).tobytes(), 8 * words)
        drawn += [candidate for candidate in candidates if candidate < limit]
    return drawn


def uniform_units(stream: SecretStream, modulus: int, count: int, *, radical: int | None = None) -> list[mpz]:
    """``count`` independent numbers, each uniform among those in [0, modulus) that are coprime to the modulus.

    The stream is used as by :func:`uniform_below`; what is not coprime is thrown away. ``radical`` is a divisor of the
    modulus with the same prime factors (n for a modulus n^2), which makes the test cheaper.
    """
    base = mpz(modulus if radical is None else radical)
    drawn: list[mpz] = []
    while missing := count - len(drawn):
        candidates = uniform_below(stream, modulus, missing)
        drawn += candidates if coprime(candidates, base) else [x for x in candidates if gcd(x, base) == 1]
    return drawn


def coprime(values: Iterable[int], modulus: int) -> bool:
    """Whether all values are coprime to the modulus: one gcd of their product, for a gcd costs many products."""
    return bool(gcd(product(values, modulus), modulus) == 1)


def product(values: Iterable[int], modulus: int) -> mpz:
    """The product of the values modulo ``modulus``."""
    result = mpz(1)
    for value in values:
        result = result * (value % modulus) % modulus
    return result


def pack(values: Sequence[int], width: int) -> bytes:
    """The values one after the other, ``width`` bytes each, lowest byte first.

    >>> pack([1, 258], 2).hex()
    '01000201'
    """
    try:
        return b"".join([mpz(value).to_bytes(width, "little") for value in values])
    except OverflowError:
        raise ConfigError(f"a value does not fit into {width} bytes", location="crypto.integers") from None


def unpack(data: bytes, width: int, count: int, location: str) -> list[mpz]:
    """The ``count`` values that :func:`pack` wrote; another length is refused.

    >>> [int(x) for x in unpack(bytes.fromhex("01000201"), 2, 2, "example")]
    [1, 258]
    """
    if len(data) != width * count:
        reason = f"{count} numbers of {width} bytes take {width * count} bytes, not {len(data)}"
        raise MessageRefused(reason, location=location)
    return _split_integers(data, width)


def _split_integers(data: bytes, width: int) -> list[mpz]:
    return [mpz.from_bytes(data[start : start + width], "little") for start in range(0, len(data), width)]
