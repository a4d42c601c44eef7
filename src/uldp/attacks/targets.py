"""Whose membership is attacked: people with few and with many records, spread over silos or in one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from uldp.data.federation import Federation, IntArray, Records, SiloData
from uldp.errors import ConfigError
from uldp.limits import MAX_ITEMS, check_whole
from uldp.rng import Streams

RECORDS: Final = (1, 8, 32)
"""How many records the attacked people have."""
MAX_PEOPLE: Final = 160
"""Of one kind: more of them cost time and narrow no interval by much."""
MAX_SIZES: Final = 8


@dataclass(frozen=True)
class Kind:
    """People with so many records, spread over silos or in one.

    >>> str(Kind(8, spread=True)), str(Kind(1, spread=False))
    ('8 records, spread', '1 record')
    """

    records: int
    spread: bool

    def __str__(self) -> str:
        if self.records == 1:
            return "1 record"
        return f"{self.records} records, {'spread' if self.spread else 'one silo'}"


def kinds_of(records: Sequence[int]) -> tuple[Kind, ...]:
    """Every number of records, spread and in one silo.

    Raises:
        ConfigError: A number is out of range or there twice, or there are too many.
    """
    if not 1 <= len(records) <= MAX_SIZES or len(set(records)) < len(records):
        raise ConfigError(f"1 to {MAX_SIZES} different numbers, such as 1,8,32", location="records")
    sizes = sorted(check_whole(size, 1, MAX_ITEMS, "records") for size in records)
    return tuple(Kind(size, spread) for size in sizes for spread in ((True, False) if size > 1 else (False,)))


@dataclass(frozen=True)
class Targets:
    """A federation in which everybody is attacked.

    Args:
        federation: Users 0 .. |U|-1, each with records.
        kinds: All kinds.
        kind: (users,), the index of everybody's kind.
        source: Whose records these are, in words.
    """

    federation: Federation
    kinds: tuple[Kind, ...]
    kind: IntArray
    source: str

    @property
    def records(self) -> Records:
        """All records, silo by silo."""
        return Records.joined([Records(silo.features, silo.labels) for silo in self.federation])

    @property
    def owners(self) -> IntArray:
        """Whose record each of them is."""
        return np.concatenate([silo.users for silo in self.federation])

    def words(self) -> str:
        """For people: how many of each kind."""
        counts = np.bincount(self.kind, minlength=len(self.kinds))
        listed = "; ".join(f"{count} with {kind}" for count, kind in zip(counts, self.kinds, strict=True))
        return f"{self.federation.users} people from {self.source}: {listed}"


def deal_targets(federation: Federation, kinds: Sequence[Kind], source: str, streams: Streams) -> Targets:
    """Give the federation's records to people of these kinds. Silos keep their records, owners change.

    Every kind gets about the same number of records, single ones half of it.

    Raises:
        ConfigError: There are too few records for two people of every kind.
    """
    sizes = np.array([len(silo) for silo in federation])
    shares = np.array([0.5 if kind.records == 1 else 1.0 for kind in kinds])
    budget = int(sizes.sum()) * shares / shares.sum()
    numbers = [min(MAX_PEOPLE, int(part // kind.records)) for part, kind in zip(budget, kinds, strict=True)]
    generator = streams.child("targets").generator()
    left = [list(generator.permutation(size)) for size in sizes]
    owners = [np.full(size, -1, dtype=np.int64) for size in sizes]
    kind_of: list[int] = []
    for index in sorted(range(len(kinds)), key=lambda i: (-kinds[i].records, kinds[i].spread)):
        for _ in range(numbers[index]):
            taken = _take(kinds[index], left, generator)
            for silo, row in taken:
                owners[silo][row] = len(kind_of)
            if taken:
                kind_of.append(index)
    found = np.bincount(np.array(kind_of, dtype=np.int64), minlength=len(kinds))
    if found.min() < 2:
        lacking = kinds[int(found.argmin())]
        reason = f"{int(sizes.sum())} records are too few for two people with {lacking}; attack smaller numbers"
        raise ConfigError(reason, location="records", value=lacking.records)
    silos = tuple(
        _own(silo, whose).take(np.flatnonzero(whose >= 0)) for silo, whose in zip(federation, owners, strict=True)
    )
    dealt = replace(federation, silos=silos, users=len(kind_of), holdout=(), people=None, roster="", hashed_ids=False)
    return Targets(dealt, tuple(kinds), np.array(kind_of, dtype=np.int64), source)


def _own(silo: SiloData, whose: IntArray) -> SiloData:
    return replace(silo, users=whose)


def _take(kind: Kind, left: list[list[int]], generator: np.random.Generator) -> list[tuple[int, int]]:
    """Records for one person, off ``left``; none if there are not enough."""
    free = np.array([len(rows) for rows in left])
    if not kind.spread:
        able: npt.NDArray[np.float64] = np.where(free >= kind.records, free, 0).astype(np.float64)
        if not able.any():
            return []
        silo = int(generator.choice(len(left), p=able / able.sum()))
        return [(silo, left[silo].pop()) for _ in range(kind.records)]
    if free.sum() < kind.records:
        return []
    chosen = generator.permutation(np.repeat(np.arange(len(left)), free))[: kind.records]
    return [(int(silo), left[int(silo)].pop()) for silo in chosen]
