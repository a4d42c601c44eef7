"""What a data set is to the registry: a description, and a way to load it as a federation.

Two kinds: :class:`PooledDataset` is dealt out to users and silos; :class:`SiloedDataset` is read from files that say in
which silo a record lies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np

from uldp.data.allocate import PREFERRED_SHARE, allocate, allocate_given
from uldp.data.federation import Federation, LabelArray, Records, SiloData, Task
from uldp.data.schema import Schema
from uldp.data.store import DataFiles, Located, locate
from uldp.errors import ConfigError, require
from uldp.rng import Streams

Options = Mapping[str, Any]

EXPONENTS: Final = {"user_exponent": 0.5, "silo_exponent": 2.0}
SPLIT_OPTIONS: Final = {"test_fraction": 0.2}
"""Of a data set that comes without a division into training and test."""
SILOED_OPTIONS: Final = {"user_exponent": 0.5, "preferred_share": PREFERRED_SHARE}


@dataclass(frozen=True)
class DatasetInfo:
    """What ``uldp datasets`` and ``uldp data describe`` show. Sizes are the defaults where a set can have any size.

    ``labels`` names the classes, ``scaling`` says by which public constants features are scaled and where these come
    from, ``quirks`` are what one should know before trusting a number.
    """

    name: str
    description: str
    source: str
    licence: str
    records: int
    features: tuple[int, ...]
    classes: int
    users: int = 100
    silos: int = 5
    allocation: str = "zipf"
    labels: tuple[str, ...] = ()
    scaling: str = ""
    quirks: tuple[str, ...] = ()
    survival: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@runtime_checkable
class Dataset(Protocol):
    """An entry of the registry."""

    @property
    def info(self) -> DatasetInfo: ...

    @property
    def options(self) -> Options:
        """Further options of ``load`` with their defaults."""
        ...

    @property
    def files(self) -> DataFiles | None:
        """The files it is read from; None where it needs none."""
        ...

    def load(
        self, users: int, silos: int, allocation: str, streams: Streams, options: Options, data_dir: Path | None = None
    ) -> Federation: ...


@dataclass(frozen=True)
class Pool:
    """Records that belong to nobody yet."""

    train: Records
    test: Records
    task: Task
    schema: Schema | None = None


@dataclass(frozen=True)
class PooledDataset:
    """A data set without users and silos: ``read`` yields a pool, and an allocation deals it out.

    ``read`` gets the files that were found, the streams and the options.
    """

    info: DatasetInfo
    read: Callable[[Located, Streams, Options], Pool]
    own_options: Options = field(default_factory=dict)
    files: DataFiles | None = None

    @property
    def options(self) -> Options:
        return {**EXPONENTS, **self.own_options}

    def load(
        self, users: int, silos: int, allocation: str, streams: Streams, options: Options, data_dir: Path | None = None
    ) -> Federation:
        """Every training record to a user and a silo."""
        pool = self.read({} if self.files is None else locate(self.files, data_dir), streams, options)
        exponents = {key: options[key] for key in EXPONENTS}
        user, silo = allocate(pool.train.labels, users, silos, allocation, streams.child("allocation"), **exponents)
        all_of = SiloData("", pool.train.features, pool.train.labels, user)
        dealt = tuple(replace(all_of.take(silo == s), name=f"silo-{s + 1}") for s in range(silos))
        return Federation(self.info.name, dealt, users, pool.task, pool.test, schema=pool.schema)


@dataclass(frozen=True)
class Centres:
    """Records whose silos are known and whose users are not."""

    train: Mapping[str, Records]
    test: Records
    task: Task


@dataclass(frozen=True)
class SiloedDataset:
    """A data set in files that lie in silos of their own; only the users are allocated.

    ``least`` is how many records a user has at least in a silo that has any of them.
    """

    info: DatasetInfo
    files: DataFiles
    read: Callable[[Located], Centres]
    least: int = 1

    @property
    def options(self) -> Options:
        return SILOED_OPTIONS

    def load(
        self, users: int, silos: int, allocation: str, streams: Streams, options: Options, data_dir: Path | None = None
    ) -> Federation:
        if silos != self.info.silos:
            reason = f"{self.info.name} has {self.info.silos} silos of its own, not {silos}; leave data.silos out"
            raise ConfigError(reason, location="data.silos", value=silos)
        centres = self.read(locate(self.files, data_dir))
        sizes = [len(records) for records in centres.train.values()]
        chosen = {key: options[key] for key in SILOED_OPTIONS}
        owners = allocate_given(sizes, users, allocation, streams.child("allocation"), least=self.least, **chosen)
        dealt = tuple(
            SiloData(name, records.features, records.labels, user)
            for (name, records), user in zip(centres.train.items(), owners, strict=True)
        )
        return Federation(self.info.name, dealt, users, centres.task, centres.test)


def split(records: Records, fraction: float, streams: Streams, *, stratify: bool) -> tuple[Records, Records]:
    """Training and test records, at random; with ``stratify`` each class has its share in both."""
    check_fraction(fraction)
    generator = streams.child("split").generator()
    test = np.zeros(len(records), dtype=np.bool_)
    strata: LabelArray = records.labels if stratify else np.zeros(len(records), dtype=np.int64)
    for label in np.unique(strata):
        rows = np.flatnonzero(strata == label)
        test[generator.permutation(rows)[: round(fraction * len(rows))]] = True
    return records.take(~test), records.take(test)


def check_fraction(fraction: float) -> None:
    """Refuse a test fraction that leaves nothing to train on or nothing to test with."""
    require(0 < fraction < 1, "data.options.test_fraction", fraction, "a number between 0 and 1")
