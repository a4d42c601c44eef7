"""The messages of ``lattice`` beyond the key exchange; the protocol is in :mod:`uldp.aggregation.lattice`."""

from __future__ import annotations

from typing import Final

from uldp.protocol.messages import Accepted, Message, RoundMessage
from uldp.protocol.turns import Exchange, Phase


class RingKey(Message, frozen=True):
    """Server: my ring-LWE public key, and the common seed, sealed by the first silo for you (nothing for itself)."""

    sealed: bytes
    public: bytes


class MaskedCounts(Message, frozen=True):
    """Silo: my masked record counts of all users, and, sealed for the keeper, the tables of those whom I deal."""

    counts: bytes
    tables: bytes


class LookUp(Message, frozen=True):
    """Server: the tables that the dealer sealed for you, and, sealed for you too, which entry of each I ask for."""

    tables: bytes
    indices: bytes


class TableEntries(Message, frozen=True):
    """Silo: the entries, sealed for the server."""

    entries: bytes


class RingWeights(Message, frozen=True):
    """Server: everybody's blinded weight, encrypted; they hold for all rounds."""

    weights: bytes


LOOK_UP_WEIGHTS: Final = (
    Exchange(RingKey, MaskedCounts, "dealt", individual=True),
    Exchange(LookUp, TableEntries, "weighed", individual=True, replayed=False),
)
RING_WEIGHTS: Final = (Exchange(RingWeights, Accepted, Phase.READY),)


class TransferRequest(RoundMessage, frozen=True):
    """Server: users of this round are sampled; offer the tables of those whom you deal."""


class Transfer(RoundMessage, frozen=True):
    """Silo, as dealer: a table of blinds for each of my users, sealed for the keeper.

    ``choices``, also sealed for the keeper: which entry I take of the server's tables, where nobody knows the sample.
    """

    tables: bytes
    choices: bytes


class SlotRequest(RoundMessage, frozen=True):
    """Server: the dealer's tables, and, sealed for you, which entry of each I take.

    ``offers`` are tables of mine, sealed for you, and ``choices`` which entry of each the dealer takes, sealed by it.
    """

    tables: bytes
    indices: bytes
    offers: bytes
    choices: bytes


class SlotEntries(RoundMessage, frozen=True):
    """Silo, as keeper: the server's entries, sealed for it, and the dealer's, sealed for the dealer."""

    entries: bytes
    answers: bytes


class AnswerRequest(RoundMessage, frozen=True):
    """Server: what the keeper sealed for you, the dealer."""

    answers: bytes


class WeightShares(RoundMessage, frozen=True):
    """Silo, as dealer: the silos' shares of my users' weights, sealed for all silos."""

    shares: bytes


TRANSFER: Final = (
    Exchange(TransferRequest, Transfer, "offered"),
    Exchange(SlotRequest, SlotEntries, "transferred", individual=True, replayed=False),
)
ANSWERS: Final = (Exchange(AnswerRequest, WeightShares, "shared", individual=True, replayed=False),)
