"""The messages of ``paillier`` beyond the key exchange; the protocol is in :mod:`uldp.aggregation.paillier`."""

from __future__ import annotations

from typing import Final

from uldp.protocol.messages import Accepted, Message, RoundMessage
from uldp.protocol.turns import Exchange, Phase


class SealedSeed(Message, frozen=True):
    """Server: the common seed, sealed by the first silo for you (nothing for the first silo itself)."""

    sealed: bytes


class BlindedShares(Message, frozen=True):
    """Silo: my share of everybody's blinded denominator, masked, modulo n."""

    shares: bytes


class EncryptedWeights(Message, frozen=True):
    """Server: everybody's inverse blinded denominator, encrypted; they hold for all rounds."""

    weights: bytes


class ChoicesRequest(RoundMessage, frozen=True):
    """Server: choose a slot for every user, without telling me which. ``offer`` is my point for it."""

    offer: bytes


class Choices(RoundMessage, frozen=True):
    """Silo: the choices that all silos make alike, one point per user."""

    points: bytes


BLIND_COUNTS: Final = (Exchange(SealedSeed, BlindedShares, "blinded", individual=True),)
FIXED_WEIGHTS: Final = (Exchange(EncryptedWeights, Accepted, Phase.READY),)
CHOICES: Final = (Exchange(ChoicesRequest, Choices, "chosen"),)
