"""Sub-sampling of users under ``lattice``: fresh blinded weights in every round, 0 for those outside the sample.

After the setup the server holds a_u = W_u - mu_u. In a round all silos derive a fresh blind nu_u from their common
seed. Dealer D and keeper K of a user are those of the look-up, and a table goes the same way: D to K, rotated and
padded under keys of D and the server; K opens the entry that it is asked for.

*The server draws the sample* b_u. D offers (-nu, mu - nu); the server takes entry b, and encrypts that entry + b a. A
silo adds nu: b mu + b a = b W.

*Nobody knows the sample* (rate m / P). The server draws i and D draws j, both modulo P; the user is sampled if
b(i, j) = [(i + j) mod P < m].

    D to the server, entry i of      b(., j) mu - nu
    the server to D, entry j of      y(.) = b(i, .) a - r,  r fresh
    D to all silos                   y = y(j)

The server encrypts its entry + r, a silo adds nu + y: b mu + r + b a - r = b W. Where j is, y and the keeper's answer
to D are sealed from the server, where i is from D: each of them alone would show the sample. Which entry is asked for
is hidden from K by the rotation. D and K together learn the sample, and so do the server and any silo.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from uldp.aggregation.base import Sample
from uldp.aggregation.lattice_lookup import (
    ENTRY_BYTES,
    INDEX_BYTES,
    Roles,
    SlotRule,
    entries_of,
    pack_indices,
    pack_numbers,
    pads_at,
    tables,
    uniform_indices,
    unpack_indices,
    unpack_numbers,
)
from uldp.aggregation.lattice_messages import AnswerRequest, SlotEntries, SlotRequest, Transfer, WeightShares
from uldp.crypto import ring
from uldp.crypto.keys import TAG_BYTES, SharedKey
from uldp.crypto.ring import LIMBS, Polynomials
from uldp.crypto.ring_samples import uniform_residues
from uldp.data.federation import IntArray
from uldp.errors import MessageRefused
from uldp.rng import Secrets

DEALT: Final = "dealt"
OFFERED: Final = "offered"
"""The two ways of a table: from the dealer to the server, and from the server to the dealer."""


def where(sample: Sample, numbers: Polynomials) -> Polynomials:
    """b_u times the numbers."""
    return np.where(sample, numbers, np.uint64(0))


@dataclass(frozen=True)
class ServerTransfer:
    """The server's part of a round. ``keys`` are those that it shares with the silos, ``blinded`` is a_u.

    ``sample`` is None where nobody knows it.
    """

    roles: Roles
    rule: SlotRule
    keys: Sequence[SharedKey]
    blinded: Polynomials
    secrets: Secrets
    setup: str
    round: int
    sample: Sample | None

    @cached_property
    def drawn(self) -> IntArray:
        """Which entry the server takes: b_u, or i."""
        if self.sample is not None:
            return self.sample.astype(np.int64)
        stream = self.secrets.child("slots", self.setup, self.round).stream()
        return uniform_indices(stream, self.rule.count, self.roles.users)

    @cached_property
    def _masks(self) -> Polynomials:
        """r."""
        stream = self.secrets.child("masks", self.setup, self.round).stream()
        return uniform_residues(stream, (self.roles.users, LIMBS, 1))

    def slot_request(self, keeper: int, transfer: Transfer) -> SlotRequest:
        """What the keeper gets: the dealer's tables and choices as they came, and the server's own."""
        dealer, sealing = self.roles.dealer(keeper), self.keys[keeper]
        way = (self.setup, self.round, dealer)
        sealed = sealing.seal(pack_indices(self._indices(dealer)), "slots", *way)
        offers = sealing.seal(self._offers(dealer), "offers", *way) if self.rule.private else b""
        return SlotRequest(self.round, transfer.tables, sealed, offers, transfer.choices)

    def _indices(self, dealer: int) -> IntArray:
        """Where the server's entries are in the rotated tables of this dealer."""
        users = self.roles.dealt_by(dealer)
        rotations = self.rule.rotations(self.keys[dealer], (self.setup, self.round, DEALT), len(users))
        return np.asarray((self.drawn[users] + rotations) % self.rule.count)

    def _offers(self, dealer: int) -> bytes:
        """y(.) = b(i, .) a - r for the users of this dealer, rotated and padded."""
        users, way = self.roles.dealt_by(dealer), (self.setup, self.round, OFFERED)
        sampled = self.rule.sampled(self.drawn[users][:, None], np.arange(self.rule.count))
        values = ring.subtract(where(sampled[:, None], self.blinded[users]), self._masks[users])
        key = self.keys[dealer]
        rotations = self.rule.rotations(key, way, len(users))
        return b"".join(tables(values, rotations, key.stream("pads", *way)))

    def numbers(self, entries: Mapping[int, SlotEntries], names: Sequence[str]) -> Polynomials:
        """What is encrypted for every user: the entry without its pad, and b a or r. ``entries`` are by keeper."""
        found = np.zeros_like(self.blinded)
        for keeper, body in entries.items():
            found[self.roles.dealt_by(self.roles.dealer(keeper))] = self.entries(keeper, body, f"silo {names[keeper]}")
        if self.sample is not None:
            return ring.add(found, where(self.sample[:, None, None], self.blinded))
        return ring.add(found, self._masks)

    def entries(self, keeper: int, body: SlotEntries, location: str) -> Polynomials:
        """The entries that a keeper sealed for the server, without their pads."""
        dealer = self.roles.dealer(keeper)
        indices = self._indices(dealer)
        sealed = self.keys[keeper].open(body.entries, "entries", self.setup, self.round, dealer, location=location)
        pads = pads_at(self.keys[dealer].stream("pads", self.setup, self.round, DEALT), self.rule.count, indices)
        return ring.subtract(unpack_numbers(sealed, len(indices), location), pads)

    def check(self, silo: int, body: Transfer | SlotEntries | WeightShares, location: str) -> None:
        """Refuse a response of another length, round or sealer."""
        if body.round != self.round:
            raise MessageRefused(f"answered for round {body.round}, not {self.round}", location=location)
        dealt, kept = (len(self.roles.dealt_by(one)) for one in (silo, self.roles.dealer(silo)))
        hidden = self.rule.private
        match body:
            case Transfer(_, offered, choices):
                _check_sealed(offered, dealt * self.rule.count * ENTRY_BYTES, location)
                _check_sealed(choices, dealt * INDEX_BYTES if hidden else None, location)
            case SlotEntries(_, _, answers):
                self.entries(silo, body, location)
                _check_sealed(answers, kept * ENTRY_BYTES if hidden else None, location)
            case WeightShares(_, shares):
                _check_sealed(shares, dealt * ENTRY_BYTES, location)


def _check_sealed(sealed: bytes, size: int | None, location: str) -> None:
    """Refuse a sealed part that cannot hold ``size`` bytes; None for no part at all."""
    expected = 0 if size is None else size + TAG_BYTES
    if len(sealed) != expected:
        reason = f"a sealed part of {len(sealed)} bytes, {expected} are expected"
        raise MessageRefused(reason, location=location, value=len(sealed))


@dataclass(frozen=True)
class SiloTransfer:
    """A silo's part of a round, as dealer of some users and keeper of others.

    ``blinds`` is mu_u, ``seed`` what all silos hold.
    """

    roles: Roles
    rule: SlotRule
    index: int
    shared: Mapping[int, SharedKey]
    server: SharedKey
    seed: SharedKey
    blinds: Polynomials
    secrets: Secrets
    setup: str
    round: int
    location: str

    @cached_property
    def fresh(self) -> Polynomials:
        """nu_u, of this round and no other."""
        return uniform_residues(self.seed.stream("blinds", self.setup, self.round), self.blinds.shape)

    def _way(self, dealer: int) -> tuple[str | int, ...]:
        return (self.setup, self.round, dealer)

    def _drawn(self) -> IntArray:
        """j of the users that this silo deals."""
        stream = self.secrets.child("slots", self.setup, self.round).stream()
        return uniform_indices(stream, self.rule.count, len(self.roles.dealt_by(self.index)))

    def transfer(self) -> Transfer:
        """As dealer: b(., j) mu - nu, rotated and padded, for the keeper; and where j is in the server's tables."""
        users, keeper = self.roles.dealt_by(self.index), self.shared[self.roles.keeper(self.index)]
        way = (self.setup, self.round, DEALT)
        places = np.arange(self.rule.count)
        sampled = self.rule.sampled(places, self._drawn()[:, None]) if self.rule.private else places == 1
        sampled = np.broadcast_to(sampled, (len(users), self.rule.count))
        values = ring.subtract(where(sampled[:, None], self.blinds[users]), self.fresh[users])
        rotations = self.rule.rotations(self.server, way, len(users))
        dealing = b"".join(tables(values, rotations, self.server.stream("pads", *way)))
        choices = b""
        if self.rule.private:
            choices = keeper.seal(pack_indices(self._choices()), "choices", *self._way(self.index))
        return Transfer(self.round, keeper.seal(dealing, "tables", *self._way(self.index)), choices)

    def _choices(self) -> IntArray:
        """Where this dealer's entries are in the server's rotated tables."""
        drawn = self._drawn()
        rotations = self.rule.rotations(self.server, (self.setup, self.round, OFFERED), len(drawn))
        return np.asarray((drawn + rotations) % self.rule.count)

    def slot_entries(self, request: SlotRequest) -> SlotEntries:
        """As keeper: one entry of each table for the server, and one of the server's for the dealer."""
        dealer, location = self.roles.dealer(self.index), self.location
        way, pair, count = self._way(dealer), self.shared[dealer], self.rule.count
        users = len(self.roles.dealt_by(dealer))

        def entries(data: bytes, places: bytes) -> bytes:
            return entries_of(data, count, unpack_indices(places, users, count, location), location)

        dealt = pair.open(request.tables, "tables", *way, location=location)
        slots = self.server.open(request.indices, "slots", *way, location=location)
        found = self.server.seal(entries(dealt, slots), "entries", *way)
        if not self.rule.private:
            return SlotEntries(self.round, found, b"")
        offered = self.server.open(request.offers, "offers", *way, location=location)
        choices = pair.open(request.choices, "choices", *way, location=location)
        return SlotEntries(self.round, found, pair.seal(entries(offered, choices), "answers", *way))

    def shares(self, request: AnswerRequest) -> WeightShares:
        """As dealer: y of its users, for all silos and not for the server."""
        keeper, way = self.shared[self.roles.keeper(self.index)], self._way(self.index)
        answers = keeper.open(request.answers, "answers", *way, location=self.location)
        indices = self._choices()
        pads = pads_at(self.server.stream("pads", self.setup, self.round, OFFERED), self.rule.count, indices)
        mine = ring.subtract(unpack_numbers(answers, len(indices), self.location), pads)
        return WeightShares(self.round, self.seed.seal(pack_numbers(mine), "shares", *way))

    def added(self, shares: bytes) -> Polynomials:
        """What a silo adds to the ciphertexts of a round: nu, and y of all dealers where nobody knows the sample."""
        sizes = [ENTRY_BYTES * len(self.roles.dealt_by(dealer)) + TAG_BYTES for dealer in range(self.roles.silos)]
        expected = sum(sizes) if self.rule.private else 0
        if len(shares) != expected:
            reason = f"shares of weights take {expected} bytes, not {len(shares)}"
            raise MessageRefused(reason, location=self.location, value=len(shares))
        if not self.rule.private:
            return self.fresh
        found, start = np.zeros_like(self.blinds), 0
        for dealer, size in enumerate(sizes):
            part, users = shares[start : start + size], self.roles.dealt_by(dealer)
            opened = self.seed.open(part, "shares", *self._way(dealer), location=self.location)
            found[users] = unpack_numbers(opened, len(users), self.location)
            start += size
        return ring.add(self.fresh, found)
