"""Exact arithmetic in Z_q[x] / (x^N + 1) with N = 4096 and q = p1 p2: what ring-LWE ciphertexts are made of.

A polynomial is an array (..., 2, n) of uint64: its residues modulo the two primes, n = N numbers each. They are
*coefficients* or *evaluations* (values at the N odd powers of a root of order 2N, in an order of this module's own):
products are pointwise between evaluations, sums between two of a kind. A number modulo q is (2, 1): it can
be added to all evaluations. Everything here is arithmetic on integers: exact, and the same everywhere.

>>> x = from_integers(np.array([0, 1] + [0] * (N - 2)))
>>> high = from_integers(np.array([0] * (N - 1) + [5]))
>>> product = to_coefficients(multiply(to_evaluations(x), to_evaluations(high)))  # x * 5 x^(N-1) = -5
>>> centred(product[:, :2]).to_integers()
[-5, 0]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from uldp.crypto.ring_transforms import LIMBS as LIMBS
from uldp.crypto.ring_transforms import PRIMES as PRIMES
from uldp.crypto.ring_transforms import N as N
from uldp.crypto.ring_transforms import Polynomials as Polynomials
from uldp.crypto.ring_transforms import transformed
from uldp.errors import MessageRefused

Integers = npt.NDArray[np.int64]

MODULUS: Final = PRIMES[0] * PRIMES[1]
RESIDUE_BYTES: Final = 6

_WORD: Final = 48
_HALF: Final = 24


def _per_limb(*values: int) -> Polynomials:
    return np.array(values, dtype=np.uint64).reshape(LIMBS, 1)


_P: Final = _per_limb(*PRIMES)


def add(a: Polynomials, b: Polynomials) -> Polynomials:
    """a + b, coefficients with coefficients or evaluations with evaluations."""
    return _below_prime(a + b)


def subtract(a: Polynomials, b: Polynomials) -> Polynomials:
    """a - b."""
    return _below_prime(a + (_P - b))


def negate(a: Polynomials) -> Polynomials:
    """-a."""
    return _below_prime(_P - a)


def multiply(a: Polynomials, b: Polynomials) -> Polynomials:
    """The pointwise product: of two polynomials if both are evaluations.

    The quotient a b / p is taken in floats: below 2^48, with three roundings, it is off by less than 1. So the
    remainder modulo 2^64, as a signed number, is within [-p, 2p).
    """
    quotient = (a.astype(np.float64) * b.astype(np.float64) * (1.0 / _P.astype(np.float64))).astype(np.uint64)
    remainder = (a * b - quotient * _P).view(np.int64)
    return _below_prime(np.where(remainder < 0, remainder + _P.view(np.int64), remainder).view(np.uint64))


def _below_prime(a: Polynomials) -> Polynomials:
    """Numbers below 2 p as residues: of one below p, a - p wraps around to something larger."""
    return np.asarray(np.minimum(a, a - _P))


# --- integers ---------------------------------------------------------------------------------------------------------


def from_integers(values: Integers) -> Polynomials:
    """Signed integers (..., n) as residues (..., 2, n)."""
    return np.asarray(np.asarray(values, dtype=np.int64)[..., None, :] % _P.view(np.int64)).view(np.uint64)


def from_parts(high: Integers, low: Integers, shift: int) -> Polynomials:
    """high 2^shift + low, integers (..., n) that need more than 64 bits, as residues (..., 2, n)."""
    factor = _per_limb(*(pow(2, shift, p) for p in PRIMES))
    return add(multiply(from_integers(high), factor), from_integers(low))


def number(value: int) -> Polynomials:
    """An integer of any size as a constant (2, 1): to be added to evaluations, or to one coefficient."""
    return _per_limb(*(value % p for p in PRIMES))


@dataclass(frozen=True)
class WideIntegers:
    """Signed integers high 2^48 + low with 0 <= low < 2^48."""

    high: Integers
    low: Integers

    def to_integers(self) -> list[int]:
        """As Python's integers, flat."""
        pairs = zip(self.high.ravel().tolist(), self.low.ravel().tolist(), strict=True)
        return [(high << _WORD) + low for high, low in pairs]

    def to_floats(self, exponent: int = 0) -> npt.NDArray[np.float64]:
        """The integers times 2^exponent, rounded once."""
        return np.ldexp(self.high.astype(np.float64), exponent + _WORD) + np.ldexp(
            self.low.astype(np.float64), exponent
        )


def centred(coefficients: Polynomials) -> WideIntegers:
    """Residues (..., 2, n) as the integers of least magnitude, from -(q-1)/2 to (q-1)/2.

    v = r1 + p1 t with t = (r2 - r1) / p1 modulo p2, |t| <= (p2 - 1) / 2. Only for the largest t can v exceed (q-1)/2.
    """
    p1, p2 = PRIMES
    r = coefficients[..., 0, :].astype(np.int64)
    t = multiply(subtract(coefficients, from_integers(r)), number(pow(p1, -1, p2)))[..., 1, :].astype(np.int64)
    over = (t > (p2 - 1) // 2) | ((t == (p2 - 1) // 2) & (r > (p1 - 1) // 2))
    t -= np.where(over, p2, 0)
    t_high, t_low = t >> _HALF, t & (2**_HALF - 1)
    p_high, p_low = p1 >> _HALF, p1 & (2**_HALF - 1)
    middle = t_high * p_low + t_low * p_high
    low = ((middle & (2**_HALF - 1)) << _HALF) + t_low * p_low + r
    return WideIntegers(t_high * p_high + (middle >> _HALF) + (low >> _WORD), low & (2**_WORD - 1))


# --- transforms -------------------------------------------------------------------------------------------------------


def to_evaluations(coefficients: Polynomials) -> Polynomials:
    """The values of polynomials (..., 2, N) at the odd powers of the roots of order 2N."""
    return transformed(coefficients, inverse=False)


def to_coefficients(evaluations: Polynomials) -> Polynomials:
    """The polynomials of evaluations (..., 2, N)."""
    return transformed(evaluations, inverse=True)


# --- on the wire ------------------------------------------------------------------------------------------------------


def check_residues(residues: Any, shape: tuple[int, ...], location: str) -> Polynomials:
    """Refuse what is not an array of residues of this shape (..., 2, n)."""
    if not isinstance(residues, np.ndarray) or residues.dtype != np.uint64 or residues.shape != shape:
        found = getattr(residues, "shape", type(residues).__name__)
        raise MessageRefused(f"residues of shape {shape} are expected, not {found}", location=location)
    if (residues >= _P).any():
        raise MessageRefused("a residue is not below its prime", location=location)
    return residues


def pack(residues: Polynomials) -> bytes:
    """Residues in six bytes each, the lowest first."""
    return np.ascontiguousarray(residues, dtype="<u8").reshape(-1, 1).view(np.uint8)[:, :RESIDUE_BYTES].tobytes()


def unpack(data: bytes, shape: tuple[int, ...], location: str) -> Polynomials:
    """Residues of this shape (..., 2, n) from their bytes; anything else is refused."""
    count = int(np.prod(shape))
    if len(data) != RESIDUE_BYTES * count:
        reason = f"{RESIDUE_BYTES * count} bytes of residues are expected, not {len(data)}"
        raise MessageRefused(reason, location=location)
    words = np.zeros((count, 8), dtype=np.uint8)
    words[:, :RESIDUE_BYTES] = np.frombuffer(data, dtype=np.uint8).reshape(count, RESIDUE_BYTES)
    return check_residues(words.view("<u8").astype(np.uint64).reshape(shape), shape, location)
