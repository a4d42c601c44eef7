"""What silos must learn about users' record counts before the first round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from uldp.data.federation import IntArray
from uldp.errors import MessageRefused


class CountExchange(ABC):
    """From all silos' record counts to what each silo learns about each user: a total, or how many records to keep."""

    shown_to_server: ClassVar[str] = "everybody's record counts"
    """What the server sees of it in the clear."""
    shown_to_silos: ClassVar[str]

    @abstractmethod
    def totals(self, counts: IntArray) -> IntArray:
        """(silos, users): what each silo learns, from the (silos, users) counts."""

    @abstractmethod
    def check(self, counts: IntArray, user_totals: IntArray) -> None:
        """Refuse totals that contradict the silo's own counts."""


@dataclass(frozen=True)
class RecordTotals(CountExchange):
    """Every silo learns every user's total N_u, and weighs by n_su / N_u (ULDP-FL, Eq. 3)."""

    shown_to_silos: ClassVar[str] = "everybody's record totals"

    def totals(self, counts: IntArray) -> IntArray:
        return np.broadcast_to(counts.sum(axis=0, dtype=np.int64), counts.shape)

    def check(self, counts: IntArray, user_totals: IntArray) -> None:
        if (user_totals < counts).any():
            # Such totals would give weights above 1, and with them a larger sensitivity than the noise is made for.
            raise MessageRefused("a total is smaller than this silo's own count", location="method")


@dataclass(frozen=True)
class RecordLimits(CountExchange):
    """Every silo learns how many records of a user to keep: at most ``size`` over all silos (ULDP-FL, Algorithm 2)."""

    size: int

    shown_to_silos: ClassVar[str] = "how many records of everybody to keep, which tells about the counts elsewhere"

    def totals(self, counts: IntArray) -> IntArray:
        return keep_counts(counts, self.size)

    def check(self, counts: IntArray, user_totals: IntArray) -> None:
        if (user_totals > np.minimum(counts, self.size)).any():
            raise MessageRefused(
                "told to keep more records of a user than group_size or than there are", location="method"
            )


def keep_counts(counts: IntArray, size: int) -> IntArray:
    """(silos, users): how many records each silo keeps, at most ``size`` of one user over all silos.

    In proportion to the user's own counts, by largest remainders; of equal ones the silo that comes first in an order
    of the user's own. Each column follows from that column and its index alone.
    """
    silos = len(counts)
    totals = counts.sum(axis=0, dtype=np.int64)
    over = totals > size
    keep = counts.astype(np.int64).copy()
    if not over.any():
        return keep
    share = counts[:, over].astype(object) * size  # exact integers
    base = share // totals[over]
    rest = share % totals[over]
    order = (np.arange(silos)[:, None] + np.flatnonzero(over)[None, :]) % silos
    # Rank the remainders within each user, largest first.
    rank = np.lexsort((order, -rest.astype(np.float64)), axis=0)
    position = np.empty_like(rank)
    np.put_along_axis(position, rank, np.arange(silos)[:, None].repeat(rank.shape[1], 1), axis=0)
    missing = size - base.sum(axis=0)
    keep[:, over] = (base + (position < missing)).astype(np.int64)
    return keep
