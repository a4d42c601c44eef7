"""The look-up of ``lattice``: from masked record counts to a blinded weight that only the server learns.

Three parties take part for user u, and no two roles are one silo's: the server, the dealer D = u mod |S| and the keeper
K = u + 1 mod |S|. With M = N_max + 1, all numbers modulo M or modulo q::

    m_su = n_su + masks of pairs + [s = D] rho_u          silos to server; their sum is alpha_u = N_u + rho_u
    T_u[i] = W((i - rho_u) mod M) - mu_u + k_ui           dealer to keeper, sealed; pads k from the key of D and server
    alpha_u                                               server to keeper, sealed; back comes T_u[alpha_u]
    a_u = T_u[alpha_u] - k_(u, alpha_u) = W(N_u) - mu_u   at the server

rho_u, which only the dealer knows, hides N_u in alpha_u; mu_u, which all silos know, hides W(N_u) in a_u. The keeper
sees a uniform index and a uniformly padded table. What must never happen: that the server reads T_u (differences of
neighbouring entries are rho_u), that the dealer reads alpha_u, or that any of these secrets serves a second setup.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from uldp.aggregation.base import Sample
from uldp.crypto import ring
from uldp.crypto.integers import uniform_below
from uldp.crypto.keys import SharedKey
from uldp.crypto.ring import LIMBS, Polynomials
from uldp.crypto.ring_samples import MAX_OPERATOR_NORM, uniform_residues
from uldp.data.federation import IntArray
from uldp.errors import MessageRefused
from uldp.privacy.releases.sampling import UserSampling
from uldp.rng import SecretStream
from uldp.vectors import Vector

WEIGHT_BITS: Final = 52
"""G: a weight of 1 is 2^52."""
ERROR_BOUND: Final = int(MAX_OPERATOR_NORM)
"""B_e: by how much, at most, the error of a ciphertext adds to the weight in it."""
ENTRY_BYTES: Final = LIMBS * ring.RESIDUE_BYTES
INDEX_BYTES: Final = 4


@dataclass(frozen=True)
class Weighting:
    """n_su and W(N): records in units, rounded up, at most ``cap`` units of a user; ``uniform``: 1 in every silo."""

    cap: int
    silos: int
    uniform: bool = False
    unit: int = 1

    @property
    def most(self) -> int:
        """How many records of a user count in a silo."""
        return self.cap * self.unit

    @property
    def entries(self) -> int:
        """M: N_u is below it."""
        return self.cap * self.silos + 1

    def counted(self, counts: IntArray) -> IntArray:
        """n_su of all users, as reported in the setup and multiplied with in every round."""
        return np.ones_like(counts) if self.uniform else np.minimum(-(-counts // self.unit), self.cap)

    def table(self) -> IntArray:
        """W(0) = 0, W(N) = floor(2^G / N) - B_e.

        So N_u (W(N_u) + B_e) <= 2^G: whatever the errors are within their bound, one user's rows weigh 1 at most.
        """
        totals = np.arange(1, self.entries, dtype=np.int64)
        return np.concatenate([[0], (1 << WEIGHT_BITS) // totals - ERROR_BOUND])

    def in_the_clear(self, counts: IntArray) -> Vector:
        """w_su of all silos and users without errors, for those who hold all counts (silos, users)."""
        counted = np.stack([self.counted(each) for each in counts])
        return np.asarray(counted * (self.table()[counted.sum(axis=0)] / 2.0**WEIGHT_BITS))


@dataclass(frozen=True)
class Roles:
    """Who deals and who keeps whose table: rotated over users, so that two silos share the totals of some only."""

    users: int
    silos: int

    def dealt_by(self, silo: int) -> IntArray:
        """The users whose dealer is ``silo``."""
        return np.arange(silo, self.users, self.silos)

    def keeper(self, dealer: int) -> int:
        """Who keeps the tables of this dealer; another silo, for there are two or more."""
        return (dealer + 1) % self.silos

    def dealer(self, keeper: int) -> int:
        """Whose tables this keeper keeps."""
        return (keeper - 1) % self.silos


@dataclass(frozen=True)
class SlotRule:
    """How many entries a table of a round has, and which of them sample a user."""

    chosen: int
    count: int
    private: bool

    @classmethod
    def of(cls, sampling: UserSampling) -> SlotRule:
        """Two entries where the server draws the sample: entry 1 samples."""
        return cls(*sampling.slots, private=True) if sampling.private else cls(1, 2, private=False)

    def transfer_bytes(self, roles: Roles) -> tuple[int, int]:
        """What the largest silo gets and sends in the transfers of a round: tables, places in them, and entries."""
        dealt = -(-roles.users // roles.silos)
        table, place = self.count * ENTRY_BYTES, INDEX_BYTES
        if not self.private:
            return dealt * (table + place), dealt * (table + ENTRY_BYTES)
        shares = roles.users * ENTRY_BYTES
        return dealt * (2 * (table + place) + ENTRY_BYTES) + shares, dealt * (table + place + 3 * ENTRY_BYTES)

    def sampled(self, first: IntArray, second: IntArray) -> Sample:
        """b(i, j)."""
        return np.asarray((first + second) % self.count < self.chosen)

    def rotations(self, key: SharedKey, way: tuple[str | int, ...], users: int) -> IntArray:
        """By how much the tables of one way are rotated; the keeper does not know it."""
        return uniform_indices(key.stream("rotations", *way), self.count, users)


def tables(values: Iterable[Polynomials], rotations: IntArray, pads: SecretStream) -> Iterator[bytes]:
    """For every user the table T[i] = value[i - rotation] + pad, from values (2, entries)."""
    for value, rotation in zip(values, rotations.tolist(), strict=True):
        rotated = np.roll(value, rotation, axis=-1)
        padded = ring.add(rotated, uniform_residues(pads, rotated.shape))
        yield ring.pack(np.ascontiguousarray(padded.T))


def entries_of(data: bytes, entries: int, indices: IntArray, location: str) -> bytes:
    """T_u[alpha_u] of tables of this many entries each."""
    size = ENTRY_BYTES * entries
    if len(data) != size * len(indices):
        reason = f"{len(indices)} tables of {size} bytes are expected, not {len(data)} bytes"
        raise MessageRefused(reason, location=location, value=len(data))
    starts = (user * size + ENTRY_BYTES * index for user, index in enumerate(indices.tolist()))
    return b"".join(data[start : start + ENTRY_BYTES] for start in starts)


def pads_at(pads: SecretStream, entries: int, indices: IntArray) -> Polynomials:
    """k_(u, index) of these users, (n, 2, 1)."""
    found = [uniform_residues(pads, (LIMBS, entries))[:, [index]] for index in indices.tolist()]
    return np.stack(found) if found else np.zeros((0, LIMBS, 1), dtype=np.uint64)


def pack_numbers(numbers: Polynomials) -> bytes:
    """Numbers modulo q (n, 2, 1), twelve bytes each."""
    return ring.pack(numbers)


def unpack_numbers(data: bytes, count: int, location: str) -> Polynomials:
    """What :func:`pack_numbers` wrote; numbers that are not modulo q are refused."""
    return ring.unpack(data, (count, LIMBS, 1), location)


def pack_indices(indices: IntArray) -> bytes:
    return indices.astype("<u4").tobytes()


def unpack_indices(data: bytes, count: int, entries: int, location: str) -> IntArray:
    """``count`` numbers modulo ``entries``."""
    if len(data) != INDEX_BYTES * count:
        reason = f"{count} indices of {INDEX_BYTES} bytes are expected, not {len(data)} bytes"
        raise MessageRefused(reason, location=location, value=len(data))
    indices = np.frombuffer(data, dtype="<u4").astype(np.int64)
    if len(indices) and indices.max() >= entries:
        raise MessageRefused(f"an index lies outside the table of {entries} entries", location=location)
    return indices


def uniform_indices(stream: SecretStream, entries: int, count: int) -> IntArray:
    """``count`` numbers, uniform modulo ``entries``."""
    return np.array([int(number) for number in uniform_below(stream, entries, count)], dtype=np.int64)
