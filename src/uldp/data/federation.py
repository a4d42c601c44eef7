"""What a method sees of the data: silos that hold (features, label, user), and a public number of users."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from uldp.caveats import Caveat
from uldp.errors import ConfigError, DataError
from uldp.limits import MAX_PAIRS, MAX_SILOS, MAX_USERS, check_whole

if TYPE_CHECKING:
    from uldp.data.people import People
    from uldp.data.schema import Schema

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
LabelArray = npt.NDArray[np.int64] | npt.NDArray[np.float32]


@dataclass(frozen=True)
class Task:
    """What is learned: ``classes`` labels (0 .. classes-1), or a number when ``classes`` is 0.

    ``label_scale`` and ``label_offset`` are public: label in original units = offset + scale * label. With
    ``survival`` the label is a time: positive if the event was observed then, negative if observation ended then.
    """

    classes: int
    label_scale: float = 1.0
    label_offset: float = 0.0
    survival: bool = False

    @property
    def kind(self) -> str:
        if self.survival:
            return "survival"
        return "classification" if self.classes else "regression"


@dataclass(frozen=True)
class Records:
    """Rows of features with their labels. Features are (records, ...) and already preprocessed."""

    features: FloatArray
    labels: LabelArray

    def __post_init__(self) -> None:
        if len(self.features) != len(self.labels):
            raise DataError(f"{len(self.features)} rows of features but {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class SiloData:
    """One silo's records; ``users[i]`` in 0 .. |U|-1 says whose record i is."""

    name: str
    features: FloatArray
    labels: LabelArray
    users: IntArray

    def __post_init__(self) -> None:
        if not len(self.features) == len(self.labels) == len(self.users):
            raise DataError(
                f"{len(self.features)} rows of features, {len(self.labels)} labels, {len(self.users)} users",
                location=f"silo {self.name}",
            )

    def __len__(self) -> int:
        return len(self.labels)

    def counts(self, users: int) -> IntArray:
        """n_su: how many records each of the ``users`` users has here."""
        return np.bincount(self.users, minlength=users).astype(np.int64)

    def digest(self) -> str:
        """A fingerprint of all records. It stays with them: a digest can confirm a guess about the data."""
        state = hashlib.blake2b(digest_size=32)
        for array in (self.features, self.labels, self.users):
            state.update(str((self.name, array.shape, array.dtype.str)).encode())
            state.update(np.ascontiguousarray(array).tobytes())
        return state.hexdigest()

    def take(self, rows: npt.NDArray[np.bool_] | IntArray) -> SiloData:
        """The same silo with only these rows."""
        return replace(self, features=self.features[rows], labels=self.labels[rows], users=self.users[rows])


@dataclass(frozen=True)
class Federation:
    """Silos that train one model together. ``users`` is |U|, public, and may exceed the users with records.

    ``caveats`` are what a privacy statement must say about the data. ``no_guarantee`` says why no guarantee holds for
    these data (for instance because the features were scaled by statistics of them). ``hashed_ids`` says
    that two people may share a user index. ``notes`` are for whoever holds the data and go nowhere
    else (for instance how many values were clipped). ``schema``, where there is one, applies the same
    preprocessing to new tables. ``roster`` is a digest of how ids become users: equal in all silos of one federation.
    ``holdout`` are the silos' records of people who take no part in training, in the order of the silos; empty where
    nobody is held out. ``people`` are the ids behind own tables; None where users are made up.
    """

    name: str
    silos: tuple[SiloData, ...]
    users: int
    task: Task
    test: Records
    caveats: tuple[Caveat, ...] = field(default=())
    no_guarantee: str = ""
    hashed_ids: bool = False
    notes: tuple[str, ...] = field(default=())
    schema: Schema | None = None
    roster: str = ""
    holdout: tuple[SiloData, ...] = ()
    people: People | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.silos:
            raise DataError("a federation needs at least one silo", location="data.silos")
        names = [silo.name for silo in self.silos]
        if len(set(names)) != len(names):
            raise DataError(f"two silos have the same name: {', '.join(names)}", location="data.silos")
        if self.users < 2:
            raise DataError(
                f"{self.users} user(s): user-level privacy hides one person among others, so two are needed",
                location="data.users",
                value=self.users,
            )
        check_size(self.users, len(self.silos))
        for silo in self.silos:
            if len(silo) and not (silo.users.min() >= 0 and silo.users.max() < self.users):
                raise DataError(
                    f"user index {int(silo.users.max())} does not fit |U| = {self.users}; raise data.users",
                    location=f"silo {silo.name}",
                    value=int(silo.users.max()),
                )
            if silo.features.shape[1:] != self.test.features.shape[1:] and len(self.test):
                raise DataError(
                    f"features of shape {silo.features.shape[1:]}, in test {self.test.features.shape[1:]}",
                    location=f"silo {silo.name}",
                )

    def __iter__(self) -> Iterator[SiloData]:
        return iter(self.silos)

    @property
    def feature_shape(self) -> tuple[int, ...]:
        return tuple(self.silos[0].features.shape[1:])

    def counts(self) -> IntArray:
        """n_su as a (silos, users) matrix. For tests and descriptions: no party of a federation knows it."""
        return np.stack([silo.counts(self.users) for silo in self.silos])

    def without(self, user: int) -> Federation:
        """The neighbouring federation: all records of ``user`` removed from all silos, |U| unchanged."""
        silos, holdout = (tuple(s.take(s.users != user) for s in part) for part in (self.silos, self.holdout))
        return replace(self, silos=silos, holdout=holdout)


def check_size(users: int, silos: int) -> None:
    """Refuse more users or silos than fit into memory, before anything is made for them."""
    check_whole(users, 2, MAX_USERS, "data.users")
    check_whole(silos, 1, MAX_SILOS, "data.silos")
    if users * silos > MAX_PAIRS:
        most = MAX_PAIRS // users
        raise ConfigError(f"at most {most:,} with {users:,} users, not {silos:,}", location="data.silos", value=silos)
