"""Who a silo is, and what two silos share: signing keys, key agreement, keys for a purpose, sealed messages.

The server relays everything, so it could put itself between two silos. Therefore each silo signs its agreement key with
a long-term key whose public half is in the experiment. Ed25519 signs, X25519 agrees, HKDF-SHA256 and keyed BLAKE2b
derive, ChaCha20 with Poly1305 seals. The paper agrees in a finite field; ``docs/decisions/0008`` says why we do not.

Silos of one process check the same signatures, and each pair computes its secret twice. Here both are done once.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Final
from weakref import WeakValueDictionary

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from uldp.errors import MessageRefused
from uldp.rng import PathPart, Secrets, SecretStream, path_bytes

KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
TAG_BYTES: Final = 16
SECURITY_BITS: Final = 128
"""Of X25519 against classical computers; what else hides something, ring-LWE or Paillier, is meant to have as many."""
_NONCE: Final = bytes(12)  # every key seals one message only


@dataclass(frozen=True)
class SigningKey:
    """A silo's long-term key (Ed25519)."""

    secrets: Secrets = field(repr=False)

    @cached_property
    def _key(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.secrets.child("signing").key)

    @property
    def public(self) -> bytes:
        return self._key.public_key().public_bytes_raw()

    def sign(self, *parts: PathPart | bytes) -> bytes:
        """A signature over all parts, each with its length."""
        return self._key.sign(path_bytes(parts))


def verify(public: bytes, signature: bytes, parts: tuple[PathPart | bytes, ...], location: str) -> None:
    """Refuse a signature over ``parts`` that the holder of ``public`` did not make."""
    try:
        _verify(public, signature, parts)
    except (InvalidSignature, ValueError) as error:
        reason = "the signature of its key does not fit its identity in the experiment; somebody may sit in between"
        raise MessageRefused(reason, location=location) from error


@lru_cache(maxsize=4096)  # only what was found valid is remembered: everything else raises
def _verify(public: bytes, signature: bytes, parts: tuple[PathPart | bytes, ...]) -> None:
    Ed25519PublicKey.from_public_bytes(public).verify(signature, path_bytes(parts))


@dataclass(frozen=True)
class AgreementKey:
    """One experiment's half of a key agreement (X25519)."""

    secrets: Secrets = field(repr=False)

    @cached_property
    def _key(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(self.secrets.child("agreement").key)

    @cached_property
    def public(self) -> bytes:
        return self._key.public_key().public_bytes_raw()

    def with_peer(self, peer: bytes, location: str) -> SharedKey:
        """What this key and the ``peer``'s public half have in common."""
        ends = b"".join(sorted((self.public, peer)))
        # Whoever put it there holds this private half, or the peer's, and found the same secret.
        known = _SHARED.get((ends, self.secrets.simulated))
        if known is not None:
            return known
        try:
            shared = self._key.exchange(X25519PublicKey.from_public_bytes(peer))
        except ValueError as error:  # wrong length, or a point of low order: the shared secret would be known to all
            reason = "its public key is not usable (of low order, or not 32 bytes)"
            raise MessageRefused(reason, location=location) from error
        if peer == self.public:
            raise MessageRefused("sent this silo's own public key back", location=location)
        found = SharedKey(shared, ends, self.secrets.simulated)
        _SHARED[ends, found.simulated] = found
        return found


@dataclass(frozen=True)
class SharedKey:
    """A secret that several parties hold, and the keys that follow from it for one purpose each."""

    secret: bytes = field(repr=False)
    context: bytes
    """What every key below is bound to besides its purpose: whose secret this is."""
    simulated: bool

    @cached_property
    def _root(self) -> bytes:
        return HKDF(SHA256(), KEY_BYTES, salt=None, info=self.context).derive(self.secret)

    def key(self, *purpose: PathPart | bytes) -> bytes:
        """A key for ``purpose``; other purposes get independent ones."""
        return self.key_of(path_bytes(purpose))

    def key_of(self, path: bytes) -> bytes:
        """The key for a purpose that was written with :func:`uldp.rng.path_bytes`, once for many secrets."""
        return hashlib.blake2b(path, key=self._root, digest_size=KEY_BYTES, person=b"uldp.shared").digest()

    def stream(self, *purpose: PathPart | bytes) -> SecretStream:
        """The keystream for ``purpose``: all who hold the secret get the same."""
        return SecretStream(self.key(*purpose), simulated=self.simulated)

    def seal(self, message: bytes, *purpose: PathPart | bytes) -> bytes:
        """``message`` encrypted and authenticated. Seal one message per purpose."""
        return seal(self.key("seal", *purpose), message)

    def open(self, sealed: bytes, *purpose: PathPart | bytes, location: str) -> bytes:
        """The message in ``sealed``, if a holder of this secret sealed it for this purpose."""
        reason = "a sealed message was changed, or sealed by somebody else"
        return unseal(self.key("seal", *purpose), sealed, location, reason)


_SHARED: Final[WeakValueDictionary[tuple[bytes, bool], SharedKey]] = WeakValueDictionary()
"""Secrets that some party of this process holds, by their two public halves. They go with the last who holds them."""


def seal(key: bytes, message: bytes) -> bytes:
    """``message`` encrypted and authenticated under a key that seals nothing else."""
    return ChaCha20Poly1305(key).encrypt(_NONCE, message, None)


def unseal(key: bytes, sealed: bytes, location: str, reason: str) -> bytes:
    """The message in ``sealed``, if it was sealed under ``key``; else it is refused for this ``reason``."""
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, sealed, None)
    except (InvalidTag, ValueError) as error:
        raise MessageRefused(reason, location=location) from error
