"""1-out-of-P oblivious transfer: the sender offers P messages, the chooser gets one, the sender learns not which.

T. Chou and C. Orlandi, "The simplest protocol for oblivious transfer", LATINCRYPT 2015, over the prime-order group of
Ed25519 (libsodium, by PyNaCl)::

    sender    a random           A = a G
    chooser   b random, index i  B = b G + i A
    sender    k_j = H(a (B - j A))       for every j
    chooser   k_i = H(b A)

B is uniform in the group whatever i is, so the sender learns nothing about i, not even with unlimited means. The other
keys are a (i - j) A away from b A in the exponent: whoever finds one of them solves a Diffie-Hellman problem. H is a
random oracle over the whole exchange and its ``context``, so that keys of other rounds and users are unrelated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from nacl import exceptions as nacl_errors
from nacl.bindings import (
    crypto_core_ed25519_add,
    crypto_core_ed25519_is_valid_point,
    crypto_core_ed25519_scalar_reduce,
    crypto_core_ed25519_sub,
    crypto_scalarmult_ed25519_base_noclamp,
    crypto_scalarmult_ed25519_noclamp,
)

from uldp.errors import ConfigError, MessageRefused, require
from uldp.rng import PathPart, SecretStream, path_bytes

POINT_BYTES: Final = 32

Context = tuple[PathPart | bytes, ...]


def _scalar(stream: SecretStream) -> bytes:
    """Uniform modulo the group's order up to 2^-259, and not zero."""
    while True:
        scalar = bytes(crypto_core_ed25519_scalar_reduce(stream.words(8).astype("<u8").tobytes()))
        if any(scalar):
            return scalar


def check_point(point: bytes, location: str) -> None:
    """Refuse what is not an element of the prime-order group (other than its neutral element)."""
    if len(point) != POINT_BYTES or not crypto_core_ed25519_is_valid_point(point):
        raise MessageRefused("a point of the oblivious transfer is none", location=location)


def _oracle(context: Context, offer: bytes, choice: bytes) -> Callable[[bytes], bytes]:
    """H of the whole exchange, but for the point. The slot's number is in that: another slot has another point."""
    prefix = hashlib.blake2b(path_bytes((*context, offer, choice)), digest_size=32, person=b"uldp.transfer")

    def key(point: bytes) -> bytes:
        state = prefix.copy()
        state.update(path_bytes((point,)))
        return state.digest()

    return key


@dataclass(frozen=True)
class Sender:
    """Who offers. One sender serves many choosers and contexts."""

    scalar: bytes = field(repr=False)
    slots: int

    @classmethod
    def draw(cls, stream: SecretStream, slots: int) -> Sender:
        require(slots >= 2, "crypto.transfer", slots, "a choice needs at least 2 slots")
        return cls(_scalar(stream), slots)

    @cached_property
    def offer(self) -> bytes:
        """A, for the choosers."""
        return bytes(crypto_scalarmult_ed25519_base_noclamp(self.scalar))

    @cached_property
    def _step(self) -> bytes:
        """a A: the keys of neighbouring slots differ by it."""
        return bytes(crypto_scalarmult_ed25519_noclamp(self.scalar, self.offer))

    def keys(self, choice: bytes, context: Context, location: str) -> list[bytes]:
        """The keys of all slots; the chooser can derive one of them."""
        try:
            point = bytes(crypto_scalarmult_ed25519_noclamp(self.scalar, choice))  # refuses what is not in the group
        except (nacl_errors.CryptoError, TypeError, ValueError) as error:
            raise MessageRefused("a point of the oblivious transfer is none", location=location) from error
        keys, key = [], _oracle(context, self.offer, choice)
        for _ in range(self.slots):
            keys.append(key(point))
            point = bytes(crypto_core_ed25519_sub(point, self._step))
        return keys


@dataclass(frozen=True)
class Chooser:
    """Who chooses, from the offers of one sender."""

    offer: bytes
    slots: int
    location: str

    def __post_init__(self) -> None:
        check_point(self.offer, self.location)

    @cached_property
    def _multiples(self) -> list[bytes]:
        """A, 2 A, .. (P - 1) A."""
        multiples = [self.offer]
        while len(multiples) < self.slots - 1:
            multiples.append(bytes(crypto_core_ed25519_add(multiples[-1], self.offer)))
        return multiples

    def choose(self, index: int, stream: SecretStream, context: Context) -> tuple[bytes, bytes]:
        """B, for the sender, and the key of slot ``index``."""
        if not 0 <= index < self.slots:
            raise ConfigError(f"slot {index} of {self.slots}", location="crypto.transfer", value=index)
        scalar = _scalar(stream)
        choice = bytes(crypto_scalarmult_ed25519_base_noclamp(scalar))
        if index:
            choice = bytes(crypto_core_ed25519_add(choice, self._multiples[index - 1]))
        point = bytes(crypto_scalarmult_ed25519_noclamp(scalar, self.offer))
        return choice, _oracle(context, self.offer, choice)(point)
