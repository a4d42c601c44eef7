"""Randomness of training, addressed by coordinates: no sequence is consumed, so no grouping of users can shift it.

A dropout decision belongs to (user, step, layer, position of the record in its batch, unit), an order of records to
(user, epoch). Both are hashes of these coordinates below one key of the ``Streams``. The hashes are the finalisers
of well-known counter-based generators (splitmix64; a 32-bit xorshift-multiply mixer): good enough for dropout and
shuffling, and cheap. Nothing here is secret, and no privacy claim rests on it.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from uldp.data.federation import IntArray
from uldp.rng import Streams

Words = npt.NDArray[np.uint64]

_GOLDEN: Final = 0x9E3779B97F4A7C15
_STEP: Final = 0xD1B54A32D192ED03
_LAYER: Final = 0xABC98388FB8FAC03
_MASK: Final = 2**64 - 1


def mix(words: Words) -> Words:
    """splitmix64's finaliser: a bijection of 64-bit words in which every input bit moves every output bit."""
    z = words.astype(np.uint64, copy=True)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def _counters(start: int, count: int) -> Words:
    """Well spread words for the coordinates start .. start+count-1."""
    return np.arange(start + 1, start + count + 1, dtype=np.uint64) * np.uint64(_GOLDEN)


def _keys(streams: Streams, users: IntArray) -> Words:
    """One independent key per user."""
    return mix(mix(users.astype(np.uint64) * np.uint64(_GOLDEN)) + np.uint64(streams.word()))


def order_keys(users: IntArray, streams: Streams) -> Words:
    """One word per record, from its user and its position among that user's records; sorted, a random order."""
    return mix(_keys(streams, users) + mix(_places(users) * np.uint64(_GOLDEN)))


def _places(users: IntArray) -> Words:
    """For every record, how many records of the same user come before it."""
    order = np.argsort(users, kind="stable")
    counts = np.bincount(users)
    places = np.empty(len(users), dtype=np.uint64)
    places[order] = (np.arange(len(users)) - np.repeat(np.cumsum(counts) - counts, counts)).astype(np.uint64)
    return places


@dataclass(frozen=True)
class Place:
    """Where dropout happens: the layer, the steps, and the position in the batch of the first record."""

    layer: int
    steps: range
    first: int = 0

    def words(self) -> Words:
        """One word per step."""
        return np.array([(step * _STEP + self.layer * _LAYER) & _MASK for step in self.steps], dtype=np.uint64)


class TrainingRandomness:
    """Dropout and the order of records in the training of some users. This is not DP noise."""

    def __init__(self, streams: Streams, users: IntArray) -> None:
        self._dropout = _keys(streams.child("dropout"), users)
        self._order = _keys(streams.child("order"), users)

    def of(self, user: int) -> TrainingRandomness:
        """The same for the user at position ``user`` alone."""
        alone = copy.copy(self)
        alone._dropout = self._dropout[user : user + 1]
        alone._order = self._order[user : user + 1]
        return alone

    def keys(self) -> Words:
        """(users, 2): each user's keys of dropout and of the order of records."""
        return np.stack([self._dropout, self._order], axis=1)

    def dropout(
        self, rate: float, location: Place, shape: tuple[int, int, int], dtype: Any = np.float32
    ) -> npt.NDArray[Any]:
        """Factors 0 or 1/(1-rate): (steps, users, records, units), for ``shape`` = (users, records, units).

        The users are the first ``shape[0]`` ones. One 32-bit hash decides two neighbouring units, 16 bits each.
        """
        users, records, units = shape
        steps = len(location.steps)
        if rate >= 1.0:
            return np.zeros((steps, *shape), dtype)
        lanes = (units + 1) // 2
        rows = mix(self._dropout[None, :users] + location.words()[:, None])
        rows = mix(rows[:, :, None] + _counters(location.first, records))
        low = rows.astype(np.uint32)[..., None]
        high = (rows >> np.uint64(32)).astype(np.uint32)[..., None]
        bits = low + _counters(0, lanes).astype(np.uint32)
        shifted = bits >> np.uint32(16)
        bits ^= shifted
        bits *= np.uint32(0x21F0AAAD)
        bits ^= high
        np.right_shift(bits, np.uint32(15), out=shifted)
        bits ^= shifted
        bits *= np.uint32(0xD35A2D97)
        np.right_shift(bits, np.uint32(15), out=shifted)
        bits ^= shifted
        kept = bits.view(np.uint16)[..., :units] < round((1.0 - rate) * 65536)
        factors: npt.NDArray[Any] = np.multiply(kept, np.asarray(1.0 / (1.0 - rate), dtype), dtype=dtype)
        return factors

    def orders(self, users: IntArray, epochs: IntArray, counts: IntArray) -> IntArray:
        """For each of ``users`` (positions in this object) a random order of 0..count-1, followed by the rest."""
        location = mix(_counters(0, int(epochs.max(initial=0)) + 1))[epochs]
        keys = mix(mix(self._order[users] + location)[:, None] + _counters(0, int(counts.max(initial=0)))[None, :])
        keys[np.arange(keys.shape[1])[None, :] >= counts[:, None]] = np.uint64(_MASK)
        return np.argsort(keys, axis=1, kind="stable").astype(np.int64)

    def seed(self, user: int, step: int) -> int:
        """A seed for the generator of a module whose random layers are unknown."""
        return int(mix(self._dropout[user : user + 1] + np.uint64((step * _STEP) & _MASK))[0] >> np.uint64(1))
