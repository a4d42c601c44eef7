"""What both state machines of ``lattice`` are built from: sizes, ciphertexts on the wire, noise and its decoding."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from uldp.aggregation.lattice_lookup import WEIGHT_BITS, Roles, SlotRule, Weighting
from uldp.crypto import ring
from uldp.crypto.keys import KEY_BYTES
from uldp.crypto.ring import LIMBS, N, Polynomials
from uldp.crypto.ring_products import blocks_of
from uldp.crypto.ring_samples import public_polynomial, uniform_residues
from uldp.errors import MessageRefused
from uldp.mechanisms.discrete_gaussian import sample_discrete_gaussian
from uldp.rng import SecretStream, path_bytes
from uldp.vectors import Integers

DITHER_BITS: Final = 40
"""k: noise is a discrete Gaussian times 2^k, and a dither below 2^k."""
CIPHERTEXT_BYTES: Final = LIMBS * N * ring.RESIDUE_BYTES
"""Of one component. The other one of a user's ciphertext is public, a hash."""
NONCE_BYTES: Final = KEY_BYTES
BLOCK_USERS: Final = 64
"""Users whose ciphertexts are made, or read, together."""
SHARED_COMPONENTS: Final = 2048
"""Of so many users c1_u (65 KB) is hashed once for all parties of a process; of more, everybody hashes for itself."""


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


def setup_id(digest: str, server: bytes, silos: list[bytes]) -> str:
    """The name of a setup: all public keys. Silos' keys follow from their records, so other records are another one."""
    return hashlib.sha256(path_bytes(("lattice", digest, server, *silos))).hexdigest()


def public_element(setup: str) -> Polynomials:
    """a of the public key b = -a s + e (evaluations); nobody's choice."""
    return public_polynomial("pk", setup)


def public_components(setup: str, round_: int, nonce: bytes, users: Iterable[int]) -> Polynomials:
    """c1_u of these users (n, 2, N), evaluations: never the same for two encryptions, and nobody's choice."""
    return np.stack([_public_component(setup, round_, nonce, user) for user in users])


@lru_cache(maxsize=SHARED_COMPONENTS)
def _public_component(setup: str, round_: int, nonce: bytes, user: int) -> Polynomials:
    found = public_polynomial("ct", setup, round_, nonce, user)
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


def decoded(phase: Polynomials, silos: int) -> Integers:
    """A phase (2, d) in units of the encoding, rounded; the mean of the dithers of so many silos is taken off."""
    wide = ring.centred(phase)
    # floor((high 2^48 + low) / 2^52), with half a unit more and the dithers' mean less
    low = wide.low + (1 << (WEIGHT_BITS - 1)) - silos * ((1 << DITHER_BITS) - 1) // 2
    return (wide.high + (low >> 48)) >> (WEIGHT_BITS - 48)
