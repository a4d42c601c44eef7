"""ULDP-GROUP-k: at most k records per user, DP-SGD on them, group privacy (ULDP-FL, Algorithm 2).

Before the first round the silos agree on which records take part: at most k of one user over all silos (the paper's
flags B). How many a silo may keep follows from that user's own counts, which ones from a stream of that user's own:
when somebody leaves, nobody else's records change. (A pointer that moves from user to user, as in the published code,
does not have this.) The flags stay for the whole run. Then see :mod:`uldp.methods.dp_sgd`.

Guarantee. Leaving out a user takes away at most k records, each of which is in a batch with probability q: in every
step the sum moves by at most Binomial(k, q) clips. A mixture of Gaussians, accounted at the exact k.

``group_size`` is a number, or "median" or "max" of the users' record counts. The latter two read the data before any
noise is there; they are for simulations, and the statement says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np

from uldp.data.federation import IntArray, SiloData
from uldp.errors import ConfigError, MessageRefused
from uldp.limits import MAX_ITEMS
from uldp.methods.base import Facts, require
from uldp.methods.dp_sgd import DpSgd
from uldp.rng import Streams

FROM_DATA: Final = ("median", "max")


@dataclass(frozen=True, kw_only=True)
class UldpGroup(DpSgd):
    """DP-SGD on at most k records per user."""

    group_size: int | str = 8
    fitted_size: int = 0
    """What "median" or "max" came to; 0 while nobody has looked."""

    summary: ClassVar[str] = "keeps at most k records per user, DP-SGD in every silo; epsilon grows fast with k"
    paper: ClassVar[str] = "ULDP-FL (PVLDB 2024), Algorithm 2"
    fitted_by: ClassVar[str] = "group_size"
    tells: ClassVar[Mapping[str, str]] = {
        "server": "everybody's record counts",
        "silo": "how many records of everybody to keep, which tells about the counts elsewhere",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        number = isinstance(self.group_size, int) and 1 <= self.group_size <= MAX_ITEMS
        require(
            number or self.group_size in FROM_DATA,
            "group_size",
            self.group_size,
            f"a whole number from 1 to {MAX_ITEMS:,}, 'median' or 'max'",
        )

    @property
    def needs_counts(self) -> bool:
        return True

    def protected_records(self) -> int:
        size = self.fitted_size or self.group_size
        if isinstance(size, str):
            raise ConfigError(
                f"{size!r} depends on the data, which are not here; give a number",
                place="method.group_size",
                value=size,
            )
        return size

    def fitted(self, totals: IntArray) -> UldpGroup:
        """The median or the largest number of records of users who have any."""
        if isinstance(self.group_size, int):
            return self
        present = totals[totals > 0]
        if not len(present):
            return replace(self, fitted_size=1)
        size = present.max() if self.group_size == "max" else np.ceil(np.median(present))
        return replace(self, fitted_size=int(size))

    def tell(self, facts: Facts, counts: IntArray) -> IntArray:
        return keep_counts(counts, self.protected_records())

    def check_told(self, facts: Facts, counts: IntArray, told: IntArray) -> None:
        if (told > np.minimum(counts, self.protected_records())).any():
            raise MessageRefused(
                "told to keep more records of a user than group_size or than there are", place="method"
            )

    def kept(self, data: SiloData, told: IntArray | None, streams: Streams) -> SiloData:
        assert told is not None
        return data.take(flags(data.users, told, streams))

    def notes(self, facts: Facts, counts: IntArray) -> tuple[str, ...]:
        size = self.protected_records()
        records, kept = int(counts.sum()), int(self.tell(facts, counts).sum())
        if kept == records:
            return (f"group_size {size} is not below any user's number of records: nothing is dropped.",)
        return (f"group_size {size} drops {records - kept} of {records} records.",)

    def corrections(self) -> tuple[str, ...]:
        return (
            "The paper converts by Lemma 6 at orders where it does not hold, which under-reports (2100 instead of 3267 "
            "at k = 32 in its Figure 2), and rounds k down to a power of two. We account a mixture of Gaussians at the "
            "exact k (errata U10, U11).",
            "The paper's sampling rates follow from the silos' sizes, which one user changes; here they are public "
            "settings (errata U12).",
        )

    def caveats(self, facts: Facts) -> tuple[str, ...]:
        lines: tuple[str, ...] = (
            "The server sees how many records everybody has in each silo, and decides how many take part. Towards it "
            "this method keeps no user-level promise about presence.",
        )
        if isinstance(self.group_size, str):
            lines += (
                f"group_size = {self.group_size!r} was read from the data: k = {self.protected_records()} itself tells "
                "about the users, and no epsilon covers that. Give a number before real parties take part.",
            )
        return (*lines, *super().caveats(facts))


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
    place = np.empty_like(rank)
    np.put_along_axis(place, rank, np.arange(silos)[:, None].repeat(rank.shape[1], 1), axis=0)
    missing = size - base.sum(axis=0)
    keep[:, over] = (base + (place < missing)).astype(np.int64)
    return keep


def flags(users: IntArray, told: IntArray, streams: Streams) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which records take part: ``told[u]`` of user u's, drawn from a stream of user u's own."""
    flag = np.zeros(len(users), dtype=np.bool_)
    order = np.argsort(users, kind="stable")
    counts = np.bincount(users, minlength=len(told))
    starts = np.cumsum(counts) - counts
    for user in np.flatnonzero(counts):
        own = order[starts[user] : starts[user] + counts[user]]
        if told[user] >= counts[user]:
            flag[own] = True
        elif told[user]:
            flag[streams.child("user", int(user)).generator().permutation(own)[: told[user]]] = True
    return flag
