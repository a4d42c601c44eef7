"""Who trains together with whom: users of like size in chunks, the longest first, so that the active ones lead.

How wide a user's batches are padded depends on the user's own number of records only, never on the others': the same
padding gives the same rounding, so that a user's row stays the same, bit by bit, when other users come or go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from uldp.data.federation import IntArray
from uldp.learners.noise import Noise


def _ladder(few: tuple[int, ...], per_octave: tuple[int, ...]) -> IntArray:
    return np.array(sorted({*few} | {w * 2**k for k in range(40) for w in per_octave}), dtype=np.int64)


#: To which widths batches are padded, by what a record costs compared with a step. Where arithmetic rules, many
#: narrow steps; where the calls of a step rule, few wide chunks.
LADDERS: Final = {
    "fine": _ladder((1, 2, 3, 4, 5, 6, 7), (8, 10, 12, 14)),
    "middle": _ladder((1, 2, 4, 8), (16, 24)),
    "coarse": _ladder((), (4,))[::2],
}


#: At most so many entries of orders in a chunk (with their keys some 32 bytes each), and so many steps at a time.
_ORDER_ENTRIES: Final = 2**21
_BLOCK_STEPS: Final = 32


def padded_width(records: IntArray, batch_size: int, ladder: str) -> IntArray:
    """The width to which batches of users with so many records are padded."""
    steps = LADDERS[ladder]
    widths: IntArray = np.minimum(steps[np.searchsorted(steps, records)], batch_size)
    return widths


@dataclass(frozen=True)
class Chunk:
    """Users that train together, by falling number of batches. ``rows[start : start + count]`` are a user's records.

    At least two places: with a single one, matrix products take another path and round differently. ``real`` says
    how many of the places are users; the last one may be a repetition.
    """

    users: IntArray
    starts: IntArray
    counts: IntArray
    rows: IntArray
    width: int
    batch_size: int

    @property
    def real(self) -> int:
        return len(np.unique(self.users))

    def only(self, place: int) -> Chunk:
        """The user in one place, twice: as if nobody else were there."""
        two = np.array([place, place])
        return replace(self, users=self.users[two], starts=self.starts[two], counts=self.counts[two])

    @property
    def batches(self) -> IntArray:
        """Batches per epoch, of every user."""
        return -(-self.counts // self.batch_size)

    def phases(self, epochs: int) -> Iterator[tuple[range, int]]:
        """Steps during which the same number of users train: (steps, users)."""
        ends = self.batches[: self.real] * epochs
        first = 0
        for end in np.unique(ends):
            yield range(first, int(end)), int((ends >= end).sum())
            first = int(end)


def group_users(users: IntArray) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """(who has records, where each one's rows start, how many they are, all rows user by user)."""
    rows = np.argsort(users, kind="stable").astype(np.int64)
    who, starts, counts = np.unique(users[rows], return_index=True, return_counts=True)
    return who.astype(np.int64), starts.astype(np.int64), counts.astype(np.int64), rows


def chunks(
    users: IntArray, batch_size: int, ladder: str, capacity: Callable[[int], int], places: int = 2
) -> Iterator[Chunk]:
    """All users that have records, in chunks of at most ``capacity(width)`` users and at least ``places`` places."""
    who, starts, counts, rows = group_users(users)
    widths = padded_width(counts, batch_size, ladder)
    # Users with several batches keep an order of their records: those within a factor of two share a chunk.
    octaves = np.where(counts > batch_size, np.frexp(counts)[1], 0)
    # Widest first: the largest pieces of work begin first, and the cores finish together.
    for octave, width in sorted(set(zip(octaves.tolist(), widths.tolist(), strict=True)), reverse=True):
        members = np.flatnonzero((octaves == octave) & (widths == width))
        members = members[np.argsort(-counts[members], kind="stable")]
        size = capacity(width)
        if octave:
            size = min(size, _ORDER_ENTRIES // (2**octave + _BLOCK_STEPS * batch_size))
        size = max(places, size)
        for first in range(0, len(members), size):
            part = members[first : first + size]
            if len(part) < places:
                part = np.repeat(part, places)
            yield Chunk(who[part], starts[part], counts[part], rows, width, batch_size)


class Batches:
    """The records of a chunk's users, step by step."""

    def __init__(self, chunk: Chunk, noise: Noise) -> None:
        self._chunk = chunk
        self._noise = noise
        self.width = chunk.width
        self._batches = chunk.batches
        self._epochs = np.zeros(0, dtype=np.int64)
        self._orders = np.zeros((0, 0, 0), dtype=np.int64)
        #: Every user has one batch: it is the same in every epoch.
        self.constant = bool((self._batches == 1).all())

    def block(self, steps: range, active: int) -> tuple[IntArray, npt.NDArray[np.bool_]]:
        """(row numbers, mask), both (steps, active, width). Padding repeats a record of the same user."""
        chunk = self._chunk
        numbers = np.arange(steps.start, steps.stop)[:, None]
        epoch, batch = np.divmod(numbers, self._batches[None, :active])
        first = batch * chunk.batch_size
        places = first[:, :, None] + np.arange(chunk.width)
        end = np.minimum(first + chunk.batch_size, chunk.counts[:active])[:, :, None]
        mask = places < end
        places = np.minimum(places, end - 1)
        if not self.constant:
            span = int((epoch[-1] - epoch[0]).max()) + 1
            orders = self._orders_from(epoch[0], span)
            places = orders[np.arange(active)[:, None], (epoch - epoch[0])[:, :, None], places]
        return chunk.rows[chunk.starts[:active, None] + places], mask

    def _orders_from(self, epoch: IntArray, span: int) -> IntArray:
        """(users, span, records): each user's orders of the records in ``span`` epochs from ``epoch`` on."""
        kept = self._orders[: len(epoch)]
        if kept.shape[:2] != (len(epoch), span):
            kept = np.zeros((len(epoch), span, int(self._chunk.counts.max())), dtype=np.int64)
            new = np.arange(len(epoch))
        else:
            new = np.flatnonzero(self._epochs[: len(epoch)] != epoch)
        if len(new):
            users = np.repeat(new, span)
            epochs = (epoch[new, None] + np.arange(span)).reshape(-1)
            orders = self._noise.orders(users, epochs, self._chunk.counts[users])
            kept[new, :, : orders.shape[1]] = orders.reshape(len(new), span, -1)
        self._epochs, self._orders = epoch.copy(), kept
        return kept

    def parts(self, width: int) -> Iterator[tuple[int, IntArray, npt.NDArray[np.bool_]]]:
        """All records once, ``width`` at a time: (position of the first one, row numbers, mask)."""
        chunk = self._chunk
        for first in range(0, int(chunk.counts.max()), width):
            places = first + np.arange(width)[None, :]
            mask = np.broadcast_to(places < chunk.counts[:, None], (len(chunk.users), width))
            yield (
                first,
                chunk.rows[chunk.starts[:, None] + np.minimum(places, chunk.counts[:, None] - 1)],
                mask,
            )
