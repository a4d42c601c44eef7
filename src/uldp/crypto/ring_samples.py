"""Random polynomials: uniform ones, ternary secrets, Gaussian errors and a checked bound of their operator norm."""

from __future__ import annotations

import functools
import hashlib
from decimal import Decimal, localcontext
from typing import Final

import numpy as np
import numpy.typing as npt

from uldp.crypto.ring import LIMBS, PRIMES, Integers, N, Polynomials
from uldp.rng import PathPart, SecretStream, path_bytes

ERROR_WIDTH: Final = Decimal("3.2")
"""The standard deviation of errors: P(k) proportional to exp(-k^2 / (2 width^2))."""
MAX_ERROR: Final = 41
"""Errors beyond have probability below 2^-120."""
MAX_OPERATOR_NORM: Final = 2048.0
"""B_e: errors that stretch a polynomial further are drawn anew."""

_CANDIDATE: Final = np.uint64(2**48 - 1)
_SHAKE_RATE: Final = 168


def uniform_residues(stream: SecretStream, shape: tuple[int, ...]) -> Polynomials:
    """Uniform residues (..., 2, n) modulo the two primes: numbers of 48 bits from a prime up are drawn anew."""
    primes = np.broadcast_to(np.array(PRIMES, dtype=np.uint64).reshape(LIMBS, 1), shape).reshape(-1)
    residues = stream.words(primes.size) & _CANDIDATE
    while (refused := np.flatnonzero(residues >= primes)).size:
        residues[refused] = stream.words(refused.size) & _CANDIDATE
    return residues.reshape(shape)


def public_polynomial(*path: PathPart | bytes) -> Polynomials:
    """The uniform polynomial (2, N) that belongs to a public path, the same for all parties (SHAKE128).

    Nobody chooses it: a hash of the path does.

    >>> bool((public_polynomial("pk", 1) == public_polynomial("pk", 1)).all())
    True
    """
    digest, blocks = hashlib.shake_128(b"uldp.ring" + path_bytes(path)), 1
    while True:  # one candidate in 2^30 is refused: the second turn is rare, the third unheard of
        data = np.frombuffer(digest.digest(LIMBS * N * 6 + blocks * _SHAKE_RATE), dtype=np.uint8)
        count = len(data) // 6
        words = np.zeros((count, 8), dtype=np.uint8)
        words[:, :6] = data[: 6 * count].reshape(count, 6)
        candidates = words.view("<u8").astype(np.uint64).ravel()
        first = np.flatnonzero(candidates < PRIMES[0])[:N]
        rest = candidates[first[-1] + 1 :]
        second = rest[rest < PRIMES[1]][:N]
        if len(second) == N:
            return np.stack([candidates[first], second])
        blocks *= 2


def ternary(stream: SecretStream, shape: tuple[int, ...]) -> Integers:
    """Independent uniform numbers of {-1, 0, 1}: five to a byte below 3^5 = 243, other bytes are dropped."""
    count = int(np.prod(shape))
    found: list[Integers] = []
    while (missing := count - sum(map(len, found))) > 0:
        data = stream.words(missing // 37 + 4).astype("<u8").view(np.uint8)
        found.append(_five_digits()[data[data < 243]].ravel()[:missing])
    return np.concatenate([np.zeros(0, dtype=np.int64), *found]).reshape(shape)


@functools.cache
def _five_digits() -> Integers:
    return np.arange(243)[:, None] // 3 ** np.arange(5) % 3 - 1


def errors(stream: SecretStream, shape: tuple[int, ...]) -> Integers:
    """Independent discrete Gaussians of width 3.2, to 2^-120: a uniform word finds its place among the quantiles.

    Where the 64 bits of a word fall on a quantile, another word decides.
    """
    high, low = _quantiles()
    words = stream.words(int(np.prod(shape)))
    places = np.searchsorted(high, words, side="right")
    for row in np.flatnonzero(high[places - 1] == words):
        equal = np.flatnonzero(high == words[row])
        places[row] = equal[0] + int((low[equal] <= stream.words(1)[0]).sum())
    return (places - (MAX_ERROR + 1)).reshape(shape)


@functools.cache
def _quantiles() -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """floor(2^128 P(error < k)) for k = -41, ..., 41 in two words; the first is 0."""
    with localcontext() as context:
        context.prec = 80
        weights = [(-Decimal(k * k) / (2 * ERROR_WIDTH**2)).exp() for k in range(-MAX_ERROR, MAX_ERROR + 1)]
        total, below, marks = sum(weights), Decimal(0), []
        for weight in weights:
            marks.append(int(below / total * 2**128))
            below += weight
    return (
        np.array([mark >> 64 for mark in marks], dtype=np.uint64),
        np.array([mark & (2**64 - 1) for mark in marks], dtype=np.uint64),
    )


def operator_norms(polynomials: Integers) -> npt.NDArray[np.float64]:
    """How far multiplication by each integer polynomial (..., n) can stretch a vector, from above.

    It is the largest |e(zeta)| over the odd powers zeta of exp(i pi / n): a fast Fourier transform of e_k times
    exp(i pi k / n). Its floating-point error is below 2^-40 of the 2-norm of all values; 2^-30 is added.
    """
    n = polynomials.shape[-1]
    values = np.abs(np.fft.fft(polynomials * np.exp(1j * np.pi * np.arange(n) / n), axis=-1))
    return np.asarray(values.max(axis=-1) * (1 + 2.0**-30) + 2.0**-30 * np.sqrt((values**2).sum(axis=-1)))


def bounded_errors(stream: SecretStream, count: int) -> Integers:
    """``count`` error polynomials (count, N), each of an operator norm of at most 2048."""
    found = errors(stream, (count, N))
    while (long := np.flatnonzero(operator_norms(found) > MAX_OPERATOR_NORM)).size:
        found[long] = errors(stream, (long.size, N))
    return found
