"""The key exchange that ``masked``, ``paillier`` and ``lattice`` begin with (Protocol 1, steps 1(a) to 1(c)).

Every silo signs its public half of a key agreement with its long-term key; the server relays all of them. Whoever
changes one on the way has no signature for it. The signature also covers the experiment's digest and the server's
modulus, so that silos which got different ones do not come together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from uldp.aggregation.base import AggregationContext
from uldp.crypto.keys import KEY_BYTES, SIGNATURE_BYTES, TAG_BYTES, AgreementKey, SharedKey, SigningKey, verify
from uldp.crypto.masks import add_masks_of
from uldp.errors import ConfigError, MessageRefused
from uldp.protocol.messages import Message
from uldp.protocol.turns import Exchange
from uldp.rng import Secrets, path_bytes
from uldp.vectors import Residues

PURPOSE: Final = "uldp key agreement"


class KeyRequest(Message, frozen=True):
    """Server: your public key? ``modulus`` is the server's own: Paillier's n, or a key for agreement (``lattice``)."""

    modulus: bytes


class SiloKey(Message, frozen=True):
    """Silo: my public half of a key agreement, signed with my long-term key."""

    public: bytes
    signature: bytes


class SiloKeys(Message, frozen=True):
    """Server: all silos' public keys and signatures, in the order of the silos."""

    publics: list[bytes]
    signatures: list[bytes]


class SealedSeeds(Message, frozen=True):
    """Silo: I share a secret with each of them. The first silo adds the common seed, sealed for each of the others."""

    sealed: list[bytes]


AGREE_KEYS: Final = (Exchange(KeyRequest, SiloKey, "introduced"), Exchange(SiloKeys, SealedSeeds, "paired"))


def message_to_sign(context: AggregationContext, silo: int, modulus: bytes, public: bytes) -> tuple[str | bytes, ...]:
    """What silo ``silo`` signs."""
    return (PURPOSE, context.digest, context.silos[silo], modulus, public)


def check_key(context: AggregationContext, silo: str, key: SiloKey, modulus: bytes) -> None:
    """Refuse a key that ``silo`` did not sign."""
    _check_key_of(context, context.silos.index(silo), key, modulus)


def _check_key_of(context: AggregationContext, index: int, key: SiloKey, modulus: bytes) -> None:
    location = f"silo {context.silos[index]}"
    if len(key.public) != KEY_BYTES or len(key.signature) != SIGNATURE_BYTES:
        raise MessageRefused(
            "its public key or signature has the wrong length", location=location, value=len(key.public)
        )
    verify(context.identities[index], key.signature, message_to_sign(context, index, modulus, key.public), location)


def relay(context: AggregationContext, responses: Mapping[str, Message]) -> SiloKeys:
    """All silos' keys, in the order of the silos."""
    keys = [body for name in context.silos if isinstance(body := responses[name], SiloKey)]
    return SiloKeys([key.public for key in keys], [key.signature for key in keys])


def check_seeds(context: AggregationContext, silo: str, body: SealedSeeds) -> None:
    """Refuse anything but one sealed seed for each of the others from the first silo, and none from the others."""
    expected = len(context.silos) - 1 if silo == context.silos[0] else 0
    if len(body.sealed) != expected or any(len(part) != KEY_BYTES + TAG_BYTES for part in body.sealed):
        raise MessageRefused(f"{len(body.sealed)} sealed seeds, {expected} are expected", location=f"silo {silo}")


class PairwiseKeys:
    """A silo's part of the key exchange."""

    def __init__(self, context: AggregationContext, index: int, secrets: Secrets, identity: SigningKey) -> None:
        if len(context.identities) != len(context.silos) or identity.public != context.identities[index]:
            raise ConfigError(
                "its signing key is not the one whose public half stands in the experiment",
                location=f"silo {context.silos[index]}",
            )
        self._context = context
        self._index = index
        self._identity = identity
        self._secrets = secrets
        self._key = AgreementKey(secrets.child("pairing"))
        self._location = f"silo {context.silos[index]}"

    def introduce(self, modulus: bytes) -> SiloKey:
        """This silo's key."""
        parts = message_to_sign(self._context, self._index, modulus, self._key.public)
        return SiloKey(self._key.public, self._identity.sign(*parts))

    def pair(self, keys: SiloKeys, modulus: bytes) -> dict[int, SharedKey]:
        """What this silo shares with each of the others, by their index."""
        silos = self._context.silos
        if len(keys.publics) != len(silos) or len(keys.signatures) != len(silos):
            raise MessageRefused(f"{len(keys.publics)} keys came, {len(silos)} are expected", location=self._location)
        if keys.publics[self._index] != self._key.public:
            raise MessageRefused("the server relays another key as this silo's", location=self._location)
        if len(set(keys.publics)) != len(silos):
            raise MessageRefused("two silos have the same public key", location=self._location)
        shared = {}
        for index, (public, signature) in enumerate(zip(keys.publics, keys.signatures, strict=True)):
            if index != self._index:
                _check_key_of(self._context, index, SiloKey(public, signature), modulus)
                shared[index] = self._key.with_peer(public, f"silo {silos[index]}")
        return shared

    def with_server(self, public: bytes) -> SharedKey:
        """What this silo shares with the server, where the server has such a key too."""
        return self._key.with_peer(public, "server")

    def sealed_seeds(self, shared: Mapping[int, SharedKey], *further: str | int | bytes) -> list[bytes]:
        """Step 1(c): the first silo draws the common seed and seals it for each of the others."""
        if self._index != 0:
            return []
        return [
            key.seal(self._drawn_seed, *self._pair_purpose(other, "seed"), *further)
            for other, key in sorted(shared.items())
        ]

    def common_seed(self, shared: Mapping[int, SharedKey], sealed: bytes, *further: str | int | bytes) -> bytes:
        """The seed that all silos hold and the server does not."""
        if self._index == 0:
            if sealed:
                raise MessageRefused("the first silo draws the seed, and got one", location=self._location)
            return self._drawn_seed
        secret = shared[0].open(sealed, *self._pair_purpose(0, "seed"), *further, location=self._location)
        if len(secret) != KEY_BYTES:
            raise MessageRefused(f"a seed of {len(secret)} bytes", location=self._location)
        return secret

    @property
    def _drawn_seed(self) -> bytes:
        return self._secrets.child("common seed").key

    def _pair_purpose(self, other: int, purpose: str) -> tuple[str | int, ...]:
        return pair_purpose(self._context, self._index, other, purpose)

    def mask(
        self, residues: Residues, shared: Mapping[int, SharedKey], purpose: str, *further: str | int | bytes
    ) -> Residues:
        """``residues`` under the masks of these pairs, which cancel in the sum over their silos, modulo 2^64."""
        residues = residues.copy()
        # A secret is bound to both public halves, and these are signed for the silos' names.
        path = path_bytes((purpose, self._context.digest, *further))
        keys = [key.key_of(path) for key in shared.values()]
        add_masks_of(residues, keys, [self._index > other for other in shared])
        return residues


def pair_purpose(
    context: AggregationContext, silo: int, other: int, purpose: str, *further: str | int
) -> tuple[str | int, ...]:
    """What a key of the pair is for: both silos write it down the same way."""
    low, high = min(silo, other), max(silo, other)
    return (purpose, context.digest, context.silos[low], context.silos[high], *further)
