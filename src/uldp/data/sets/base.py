"""What a data set is to the registry: a description, and a way to load it as a federation.

Three kinds: :class:`PooledDataset` needs no files; :class:`FiledDataset` is read from files and dealt out to users and
silos; :class:`SiloedDataset` is read from files that say in which silo a record lies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np

from uldp.data.allocate import PREFERRED_SHARE, allocate, allocate_given
from uldp.data.federation import Federation, IntArray, LabelArray, Records, SiloData, Task
from uldp.data.schema import Schema
from uldp.data.store import DataFiles, Located, locate
from uldp.errors import ConfigError
from uldp.rng import Streams

Options = Mapping[str, Any]

EXPONENTS: Final = {"user_exponent": 0.5, "silo_exponent": 2.0}
COMMON_OPTIONS: Final = {"test_fraction": 0.2, **EXPONENTS}
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
    users: int
    silos: int
    allocation: str
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
        self,
        users: int,
        silos: int,
        allocation: str,
        streams: Streams,
        options: Options,
        data_dir: Path | None = None,
    ) -> Federation: ...


@dataclass(frozen=True)
class Pool:
    """Records that belong to nobody yet."""

    train: Records
    test: Records
    task: Task
    schema: Schema | None = None

    def deal(
        self, name: str, users: int, silos: int, allocation: str, streams: Streams, options: Options
    ) -> Federation:
        """Every training record to a user and a silo."""
        user, silo = allocate(
            self.train.labels,
            users,
            silos,
            allocation,
            streams.child("allocation"),
            user_exponent=options["user_exponent"],
            silo_exponent=options["silo_exponent"],
        )
        dealt = tuple(_silo(self.train, user, silo == s, f"silo-{s + 1}") for s in range(silos))
        return Federation(name, dealt, users, self.task, self.test, schema=self.schema)


@dataclass(frozen=True)
class PooledDataset:
    """A data set without users, silos and files: ``read`` yields a pool, and an allocation deals it out."""

    info: DatasetInfo
    read: Callable[[Streams, Options], Pool]
    own_options: Options = field(default_factory=dict)

    @property
    def options(self) -> Options:
        return {**COMMON_OPTIONS, **self.own_options}

    @property
    def files(self) -> None:
        return None

    def load(
        self,
        users: int,
        silos: int,
        allocation: str,
        streams: Streams,
        options: Options,
        data_dir: Path | None = None,
    ) -> Federation:
        pool = self.read(streams, options)
        return pool.deal(self.info.name, users, silos, allocation, streams, options)


@dataclass(frozen=True)
class FiledDataset:
    """A data set in files, without users and silos."""

    info: DatasetInfo
    files: DataFiles
    read: Callable[[Located, Streams, Options], Pool]
    own_options: Options = field(default_factory=dict)

    @property
    def options(self) -> Options:
        return {**EXPONENTS, **self.own_options}

    def load(
        self,
        users: int,
        silos: int,
        allocation: str,
        streams: Streams,
        options: Options,
        data_dir: Path | None = None,
    ) -> Federation:
        pool = self.read(locate(self.files, data_dir), streams, options)
        return pool.deal(self.info.name, users, silos, allocation, streams, options)


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
        self,
        users: int,
        silos: int,
        allocation: str,
        streams: Streams,
        options: Options,
        data_dir: Path | None = None,
    ) -> Federation:
        if silos != self.info.silos:
            raise ConfigError(
                f"{self.info.name} has {self.info.silos} silos of its own, not {silos}; leave data.silos out",
                location="data.silos",
                value=silos,
            )
        centres = self.read(locate(self.files, data_dir))
        owners = allocate_given(
            [len(records) for records in centres.train.values()],
            users,
            allocation,
            streams.child("allocation"),
            user_exponent=options["user_exponent"],
            preferred_share=options["preferred_share"],
            least=self.least,
        )
        dealt = tuple(
            SiloData(name, records.features, records.labels, user)
            for (name, records), user in zip(centres.train.items(), owners, strict=True)
        )
        return Federation(self.info.name, dealt, users, centres.task, centres.test)


def _silo(records: Records, user: IntArray, rows: np.typing.NDArray[np.bool_], name: str) -> SiloData:
    return SiloData(name, records.features[rows], records.labels[rows], user[rows])


def split(records: Records, fraction: float, streams: Streams, *, stratify: bool) -> tuple[Records, Records]:
    """Training and test records, at random; with ``stratify`` each class has its share in both."""
    check_fraction(fraction)
    generator = streams.child("split").generator()
    test = np.zeros(len(records), dtype=np.bool_)
    for rows in _strata(records.labels, stratify):
        test[generator.permutation(rows)[: round(fraction * len(rows))]] = True
    return _take(records, ~test), _take(records, test)


def check_fraction(fraction: float) -> None:
    """Refuse a test fraction that leaves nothing to train on or nothing to test with."""
    if not 0 < fraction < 1:
        raise ConfigError(
            f"a number between 0 and 1, not {fraction!r}", location="data.options.test_fraction", value=fraction
        )


def _strata(labels: LabelArray, stratify: bool) -> list[IntArray]:
    if not stratify:
        return [np.arange(len(labels))]
    return [np.flatnonzero(labels == label) for label in np.unique(labels)]


def _take(records: Records, rows: np.typing.NDArray[np.bool_]) -> Records:
    return Records(records.features[rows], records.labels[rows])
