"""What both state machines of ``lattice`` are built from: sizes, ciphertexts on the wire, noise and its decoding."""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from uldp.aggregation.lattice_lookup import WEIGHT_BITS, Roles, SlotRule, Weighting
from uldp.crypto import ring
from uldp.crypto.keys import KEY_BYTES
from uldp.crypto.ring import LIMBS, N, Polynomials
from uldp.crypto.ring_products import blocks_of
from uldp.crypto.ring_samples import errors, public_polynomial, ternary, uniform_residues
from uldp.errors import MessageRefused
from uldp.mechanisms.discrete_gaussian import sample_discrete_gaussian
from uldp.rng import Secrets, SecretStream, path_bytes
from uldp.vectors import Integers

DITHER_BITS: Final = 40
"""k: noise is a discrete Gaussian times 2^k, and a dither below 2^k."""
CIPHERTEXT_BYTES: Final = LIMBS * N * ring.RESIDUE_BYTES
"""Of one component. The other one of an encrypted weight is public, a hash."""
NONCE_BYTES: Final = KEY_BYTES
AT_ONCE: Final = 64
"""Ciphertexts that are made, or read, together."""
SHARED_COMPONENTS: Final = 2048
"""So many c1 (65 KB each) are hashed once for all parties of a process; of more, everybody hashes for itself."""


def users_together(dimension: int) -> int:
    """g: how many users share a ciphertext. Their rows have room for one another in one polynomial.

    >>> users_together(31), users_together(2048), users_together(2049)
    (132, 2, 1)
    """
    return max(1, N // dimension)


def weight_bytes(users: int, dimension: int) -> int:
    """The encrypted weights of all users: a nonce, and a component of each ciphertext."""
    return NONCE_BYTES + -(-users // users_together(dimension)) * CIPHERTEXT_BYTES


@dataclass(frozen=True)
class Scheme:
    """What follows from the settings and the public facts."""

    weighting: Weighting
    roles: Roles
    rule: SlotRule | None
    """Where users are sampled."""
    dimension: int
    threads: int

    @property
    def blocks(self) -> int:
        """How many polynomials hold the parameters."""
        return blocks_of(self.dimension)

    @property
    def together(self) -> int:
        """g."""
        return users_together(self.dimension)

    @property
    def ciphertexts(self) -> int:
        """User u is number u mod g in ciphertext floor(u / g)."""
        return -(-self.roles.users // self.together)

    @property
    def weight_bytes(self) -> int:
        return weight_bytes(self.roles.users, self.dimension)

    def joined(self, numbers: Polynomials) -> Polynomials:
        """One number of each user (n, 2, 1), from the first of a ciphertext on, as the ciphertexts' plaintexts.

        The sum of a_i x^(-i d) over the users i of a ciphertext, evaluations (m, 2, N), where x^(-k) = -x^(N - k); or
        the numbers themselves, constants, where nobody shares. Times the sum of X_i x^(i d), rows behind one another,
        its first d coefficients are those of the sum of a_i X_i: a_i X_k with i != k is elsewhere, for g d <= N.
        """
        if self.together == 1:
            return numbers
        users = np.arange(len(numbers))
        ciphertext, place = np.divmod(users, self.together)
        coefficients = np.zeros((-(-len(numbers) // self.together), LIMBS, N), dtype=np.uint64)
        signed = np.where((place == 0)[:, None], numbers[..., 0], ring.negate(numbers)[..., 0])
        coefficients[ciphertext, :, -place * self.dimension % N] = signed
        return ring.to_evaluations(coefficients)


def setup_id(digest: str, server: bytes, silos: list[bytes]) -> str:
    """The name of a setup: all public keys. Silos' keys follow from their records, so other records are another one."""
    return hashlib.sha256(path_bytes(("lattice", digest, server, *silos))).hexdigest()


def public_element(setup: str) -> Polynomials:
    """a of the public key b = -a s + e (evaluations); nobody's choice."""
    return public_polynomial("pk", setup)


def public_components(setup: str, round_: int, nonce: bytes, numbers: Iterable[int]) -> Polynomials:
    """c1 of the ciphertexts with these numbers (n, 2, N), evaluations.

    Never the same for two encryptions, and nobody's choice.
    """
    return np.stack([_public_component(setup, round_, nonce, number) for number in numbers])


@functools.lru_cache(maxsize=SHARED_COMPONENTS)
def _public_component(setup: str, round_: int, nonce: bytes, number: int) -> Polynomials:
    found = public_polynomial("ct", setup, round_, nonce, number)
    found.flags.writeable = False
    return found


# --- a silo's update --------------------------------------------------------------------------------------------------


@dataclass
class Body:
    """A silo's sum: c0 cut to the parameters (2, d), coefficients; c1 of whole blocks (blocks, 2, N), evaluations.

    c0 has no coefficient without a parameter: errors spread rows over all N of them, and beyond d there is no noise.
    """

    c0: Polynomials
    c1: Polynomials

    @classmethod
    def zero(cls, scheme: Scheme) -> Body:
        c0 = np.zeros((LIMBS, scheme.dimension), dtype=np.uint64)
        return cls(c0, np.zeros((scheme.blocks, LIMBS, N), dtype=np.uint64))

    @classmethod
    def uniform(cls, scheme: Scheme, stream: SecretStream) -> Body:
        """A mask: uniform modulo both primes, on both components."""
        c0 = uniform_residues(stream, (LIMBS, scheme.dimension))
        return cls(c0, uniform_residues(stream, (scheme.blocks, LIMBS, N)))

    @classmethod
    def unpack(cls, data: bytes, scheme: Scheme, location: str) -> Body:
        """What :meth:`pack` wrote; another number of parameters, limbs or blocks is refused."""
        split = LIMBS * ring.RESIDUE_BYTES * scheme.dimension
        expected = split + scheme.blocks * CIPHERTEXT_BYTES
        if len(data) != expected:
            reason = (
                f"{scheme.dimension} coefficients and {scheme.blocks} blocks of {LIMBS} limbs take {expected} bytes, "
                f"not {len(data)}"
            )
            raise MessageRefused(reason, location=location, value=len(data))
        c0 = ring.unpack(data[:split], (LIMBS, scheme.dimension), location)
        return cls(c0, ring.unpack(data[split:], (scheme.blocks, LIMBS, N), location))

    def pack(self) -> bytes:
        return ring.pack(self.c0) + ring.pack(self.c1)

    def add(self, other: Body, *, negative: bool = False) -> None:
        combine = ring.subtract if negative else ring.add
        self.c0, self.c1 = combine(self.c0, other.c0), combine(self.c1, other.c1)


def cut(coefficients: Polynomials, dimension: int) -> Polynomials:
    """The coefficients of blocks (blocks, 2, N) that have a parameter, (2, d)."""
    joined = np.ascontiguousarray(coefficients.swapaxes(0, 1)).reshape(LIMBS, -1)
    return np.ascontiguousarray(joined[:, :dimension])


def noise(scale: float, count: int, gaussian: SecretStream, dither: SecretStream) -> Polynomials:
    """z = 2^k DG(2^(G-k) scale) + a dither below 2^k, residues (2, count); ``scale`` is in units of the encoding.

    Noise in multiples of 2^k alone would show the sum modulo 2^k without any.
    """
    drawn = sample_discrete_gaussian(scale * 2.0 ** (WEIGHT_BITS - DITHER_BITS), count, gaussian)
    below = (dither.words(count) >> np.uint64(64 - DITHER_BITS)).view(np.int64)
    return ring.from_parts(drawn, below, DITHER_BITS)


@functools.cache
def seconds_per_block() -> tuple[float, float]:
    """How long one core takes to finish a block of N parameters, whatever the users, and to mask it for one pair."""
    stream, secret = Secrets.from_os().stream(), public_polynomial("measured")
    finishing, masking = [], []
    for _ in range(3):  # the first one may compile
        start = time.process_time()
        small = [ring.from_integers(draw(stream, (N,))) for draw in (ternary, errors, errors)]
        zero = [ring.multiply(ring.to_evaluations(each), secret) for each in small]
        ring.add(ring.to_coefficients(zero[0]), noise(2.0**24, N, stream, stream))
        finished = time.process_time()
        ring.add(zero[1], uniform_residues(stream, (LIMBS, N)))
        ring.add(zero[2], uniform_residues(stream, (LIMBS, N)))
        finishing.append(finished - start)
        masking.append(time.process_time() - finished)
    return min(finishing), min(masking)


def decoded(phase: Polynomials, silos: int) -> Integers:
    """A phase (2, d) in units of the encoding, rounded; the mean of the dithers of so many silos is taken off."""
    wide = ring.centred(phase)
    # floor((high 2^48 + low) / 2^52), with half a unit more and the dithers' mean less
    low = wide.low + (1 << (WEIGHT_BITS - 1)) - silos * ((1 << DITHER_BITS) - 1) // 2
    return (wide.high + (low >> 48)) >> (WEIGHT_BITS - 48)
