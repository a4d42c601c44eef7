"""What a data set is to the registry: a description, and a way to load it as a federation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Protocol

import numpy as np

from uldp.data.allocate import allocate
from uldp.data.federation import Federation, IntArray, LabelArray, Records, SiloData, Task
from uldp.data.schema import Schema
from uldp.errors import ConfigError
from uldp.rng import Streams

Options = Mapping[str, Any]

COMMON_OPTIONS: Final = {"test_fraction": 0.2, "user_exponent": 0.5, "silo_exponent": 2.0}


@dataclass(frozen=True)
class DatasetInfo:
    """What ``uldp datasets`` shows. Sizes are the defaults where a set can have any size."""

    name: str
    description: str
    source: str
    licence: str
    records: int
    features: tuple[int, ...]
    classes: int
    users: int
    silos: int
    allocation: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Dataset(Protocol):
    """An entry of the registry. A data set with silos of its own implements ``load`` itself."""

    @property
    def info(self) -> DatasetInfo: ...

    @property
    def options(self) -> Options:
        """Further options of ``load`` with their defaults."""
        ...

    def load(self, users: int, silos: int, allocation: str, streams: Streams, options: Options) -> Federation: ...


@dataclass(frozen=True)
class Pool:
    """Records that belong to nobody yet."""

    train: Records
    test: Records
    task: Task
    schema: Schema | None = None


@dataclass(frozen=True)
class PooledDataset:
    """A data set without users and silos: ``read`` yields a pool, and an allocation deals it out."""

    info: DatasetInfo
    read: Callable[[Streams, Options], Pool]
    own_options: Options = field(default_factory=dict)

    @property
    def options(self) -> Options:
        return {**COMMON_OPTIONS, **self.own_options}

    def load(self, users: int, silos: int, allocation: str, streams: Streams, options: Options) -> Federation:
        pool = self.read(streams, options)
        user, silo = allocate(
            pool.train.labels,
            users,
            silos,
            allocation,
            streams.child("allocation"),
            user_exponent=options["user_exponent"],
            silo_exponent=options["silo_exponent"],
        )
        dealt = tuple(_silo(pool.train, user, silo == s, f"silo-{s + 1}") for s in range(silos))
        return Federation(self.info.name, dealt, users, pool.task, pool.test, schema=pool.schema)


def _silo(records: Records, user: IntArray, rows: np.typing.NDArray[np.bool_], name: str) -> SiloData:
    return SiloData(name, records.features[rows], records.labels[rows], user[rows])


def split(records: Records, fraction: float, streams: Streams, *, stratify: bool) -> tuple[Records, Records]:
    """Training and test records, at random; with ``stratify`` each class has its share in both."""
    if not 0 < fraction < 1:
        raise ConfigError(f"a number between 0 and 1, not {fraction!r}", place="data.test_fraction", value=fraction)
    generator = streams.child("split").generator()
    test = np.zeros(len(records), dtype=np.bool_)
    for rows in _strata(records.labels, stratify):
        test[generator.permutation(rows)[: round(fraction * len(rows))]] = True
    return _take(records, ~test), _take(records, test)


def _strata(labels: LabelArray, stratify: bool) -> list[IntArray]:
    if not stratify:
        return [np.arange(len(labels))]
    return [np.flatnonzero(labels == label) for label in np.unique(labels)]


def _take(records: Records, rows: np.typing.NDArray[np.bool_]) -> Records:
    return Records(records.features[rows], records.labels[rows])
