"""What a method sees of the data: silos that hold (features, label, user), and a public number of users."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from uldp.caveats import Caveat
from uldp.errors import ConfigError, DataError
from uldp.limits import MAX_PAIRS, MAX_SILOS, MAX_USERS, check_whole

if TYPE_CHECKING:
    from uldp.data.files import Table
    from uldp.data.schema import Schema

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
LabelArray = npt.NDArray[np.int64] | npt.NDArray[np.float32]


@dataclass(frozen=True)
class Task:
    """What is learned.

    Args:
        classes: Labels are 0 .. classes-1; 0 for a numeric label.
        label_scale: With ``label_offset``, public: label in original units = offset + scale * label.
        label_offset: See ``label_scale``.
        survival: The label is a time: positive if the event was observed then, negative if observation ended then.

    Example:
        >>> Task(classes=2).kind, Task(classes=0, label_scale=100.0).kind
        ('classification', 'regression')
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


@dataclass(frozen=True, repr=False)
class Records:
    """Rows of features with their labels, already preprocessed.

    Args:
        features: (records, ...), float32.
        labels: (records,), int64 or float32.

    Raises:
        DataError: The lengths differ.

    Example:
        >>> len(Records(np.zeros((3, 2), np.float32), np.zeros(3, np.int64)))
        3
    """

    features: FloatArray
    labels: LabelArray

    def __post_init__(self) -> None:
        if len(self.features) != len(self.labels):
            raise DataError(f"{len(self.features)} rows of features but {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        """Its size: a notebook, a log or a debugger shows nobody's record."""
        return f"<{len(self)} records of shape {self.features.shape[1:]}>"

    def take(self, rows: npt.NDArray[np.bool_] | IntArray) -> Records:
        """Only some of the rows.

        Args:
            rows: A mask, or the rows' indices.
        """
        return Records(self.features[rows], self.labels[rows])

    @classmethod
    def joined(cls, parts: Sequence[Records]) -> Records:
        """The rows of all parts, one part after the other.

        Args:
            parts: At least one, all with features of the same shape.
        """
        features, labels = zip(*((part.features, part.labels) for part in parts), strict=True)
        return cls(np.concatenate(features), np.concatenate(labels))


@dataclass(frozen=True, repr=False)
class SiloData:
    """One silo's records.

    Args:
        name: The silo's name.
        features: (records, ...), float32, already preprocessed.
        labels: (records,), int64 or float32.
        users: (records,), int64: ``users[i]`` in 0 .. |U|-1 says whose record i is.

    Raises:
        DataError: The lengths differ.

    Example:
        >>> silo = SiloData("north", np.zeros((3, 2), np.float32), np.zeros(3, np.int64), np.array([0, 2, 2]))
        >>> silo.counts(users=4)
        array([1, 0, 2, 0])
    """

    name: str
    features: FloatArray
    labels: LabelArray
    users: IntArray

    def __post_init__(self) -> None:
        if not len(self.features) == len(self.labels) == len(self.users):
            reason = f"{len(self.features)} rows of features, {len(self.labels)} labels, {len(self.users)} users"
            raise DataError(reason, location=f"silo {self.name}")

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"<silo {self.name!r}: {len(self)} records>"

    def counts(self, users: int) -> IntArray:
        """n_su: how many records each user has here.

        Args:
            users: |U|, the number of users.
        """
        return np.bincount(self.users, minlength=users).astype(np.int64)

    def digest(self) -> str:
        """A fingerprint of all records. It stays with them: a digest can confirm a guess about the data."""
        state = hashlib.blake2b(digest_size=32)
        for array in (self.features, self.labels, self.users):
            state.update(str((self.name, array.shape, array.dtype.str)).encode())
            state.update(np.ascontiguousarray(array).tobytes())
        return state.hexdigest()

    def take(self, rows: npt.NDArray[np.bool_] | IntArray) -> SiloData:
        """The same silo with only some of the rows.

        Args:
            rows: A mask, or the rows' indices.
        """
        return replace(self, features=self.features[rows], labels=self.labels[rows], users=self.users[rows])


@dataclass(frozen=True)
class People:
    """Whose records own tables hold, so that two runs can be recognised as being about the same people.

    All ids, those held out included, in their one spelling (``ids``), whatever the path, the format or the order of a
    table; and for each table a digest of what it holds besides. None of this is written down as it is:
    ``uldp.runs.people`` writes digests of it under a key of the owner. ``column`` is the name of the column of ids;
    ``dataset`` the name of a built-in data set, whose users are made up.
    """

    ids: frozenset[str] = field(default=frozenset(), repr=False)
    tables: frozenset[bytes] = field(default=frozenset(), repr=False)
    column: str = ""
    dataset: str = ""


@dataclass(frozen=True, repr=False)
class Federation:
    """Silos that train one model together.

    Args:
        name: What reports call the data.
        silos: The silos' records.
        users: |U|, public; it may exceed the number of users with records.
        task: What is learned.
        test: Records to evaluate on; empty where this party has none.
        caveats: What a privacy statement must say about the data.
        no_guarantee: Why no guarantee holds for these data (their features were scaled by their own statistics, for
            instance); empty where one does.
        hashed_ids: Whether two people may share a user index.
        notes: For whoever holds the data, and for nobody else (how many values were clipped, for instance).
        schema: Where there is one, it applies the same preprocessing to new tables.
        roster: A digest of how ids become users: equal in all silos of one federation.
        holdout: The silos' records of people who take no part in training, in the order of the silos.
        people: The ids behind own tables; None where nobody knows them, as behind arrays.

    Raises:
        DataError: No silo, two silos of one name, fewer than two users, or a user index beyond |U|.

    Example:
        >>> silo = SiloData("north", np.zeros((3, 2), np.float32), np.zeros(3, np.int64), np.array([0, 2, 2]))
        >>> nobody = Records(np.zeros((0, 2), np.float32), np.zeros(0, np.int64))
        >>> Federation("demo", (silo,), users=4, task=Task(2), test=nobody).counts()
        array([[1, 0, 2, 0]])
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
            reason = f"{self.users} user(s): user-level privacy hides one person among others, so two are needed"
            raise DataError(reason, location="data.users", value=self.users)
        check_size(self.users, len(self.silos))
        for silo in self.silos:
            outside = (silo.users < 0) | (silo.users >= self.users)
            if outside.any():  # the index may be somebody's id, so it is not shown
                first = int(np.argmax(outside))
                reason = f"{int(outside.sum())} user indices do not fit |U| = {self.users} (first: row {first})"
                raise DataError(f"{reason}; raise data.users", location=f"silo {silo.name}", value=first)
            if silo.features.shape[1:] != self.test.features.shape[1:] and len(self.test):
                reason = f"features of shape {silo.features.shape[1:]}, in test {self.test.features.shape[1:]}"
                raise DataError(reason, location=f"silo {silo.name}")

    @classmethod
    def from_frames(
        cls,
        silos: Mapping[str, Table],
        *,
        user: str,
        label: str,
        schema: Schema | Mapping[str, Any] | None = None,
        test: Table | None = None,
        test_fraction: float | None = None,
        users: int | Sequence[str | int] | None = None,
        seed: int = 0,
    ) -> Federation:
        """A federation of data frames (or files), one per silo.

        Args:
            silos: The tables by the silos' names.
            user: The column of user ids.
            label: The column to predict.
            schema: Public constants. Without one they are read from the data, with a warning and a caveat.
            test: A table to evaluate on.
            test_fraction: Instead: the fraction of the users to evaluate on; 0.2 if neither is given, 0 for nobody.
            users: |U|, the public number of users (ids are hashed into it), or a list of all ids. Without it the ids in
                the data count as public, and the statement says so.
            seed: Decides which users are held out for testing.

        Raises:
            DataError: A table cannot be read as the schema says; the message names columns and rows, never a cell.
        """
        from uldp.data.memory import tables_in_memory

        about: dict[str, Any] = {"user": user, "label": label, "schema": schema, "users": users, "seed": seed}
        return tables_in_memory(silos, test=test, test_fraction=test_fraction, **about)

    @classmethod
    def from_files(cls, silos: Mapping[str, Path | str], **settings: Any) -> Federation:
        """A federation of CSV or Parquet files, one per silo.

        Args:
            silos: The files' paths by the silos' names.
            settings: The other arguments of :meth:`from_frames`.

        Raises:
            DataError: A file cannot be read as the schema says; the message names columns and rows, never a cell.
        """
        return cls.from_frames(silos, **settings)

    @classmethod
    def from_arrays(
        cls,
        silos: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike]],
        *,
        test: tuple[npt.ArrayLike, npt.ArrayLike],
        classes: int = 0,
        users: int | None = None,
    ) -> Federation:
        """A federation of arrays: (features, labels, users) for each silo.

        Args:
            silos: By the silos' names. Features are taken as they are: scale them by public constants. Users are whole
                numbers from 0.
            test: (features, labels) to evaluate on.
            classes: Labels are 0 .. classes-1; 0 for numbers.
            users: |U|, public; without it the largest user in the data counts as public.

        Raises:
            DataError: Shapes do not fit together, numbers are not finite, or labels are not classes.
        """
        from uldp.data.memory import arrays_in_memory

        return arrays_in_memory(silos, test, classes, users)

    @classmethod
    def from_dataset(cls, name: str, *, seed: int = 0, **settings: Any) -> Federation:
        """A built-in data set.

        Args:
            name: As ``uldp data list`` shows it.
            seed: Decides which user and which silo a record is allocated to.
            settings: ``users``, ``silos``, ``allocation`` and ``options``, as in ``[data]`` of an experiment file.

        Raises:
            ConfigError: There is no such data set or setting.
        """
        from uldp.data.memory import load_dataset

        return load_dataset(name, seed, settings)

    def __repr__(self) -> str:
        """What it consists of; no record, and nobody's id."""
        shown = ", ".join(f"{silo.name} {len(silo)}" for silo in self.silos[:5])
        shown += f" and {len(self.silos) - 5} more" if len(self.silos) > 5 else ""
        learned = f"{self.task.classes} classes" if self.task.classes else self.task.kind
        about = f"{len(self.silos)} silo(s) with records: {shown}; {self.users} users, features of shape"
        return f"<Federation {self.name!r}: {about} {self.feature_shape}, {learned}, {len(self.test)} test records>"

    def __iter__(self) -> Iterator[SiloData]:
        return iter(self.silos)

    @property
    def feature_shape(self) -> tuple[int, ...]:
        return tuple(self.silos[0].features.shape[1:])

    def counts(self) -> IntArray:
        """n_su as a (silos, users) matrix. For tests and descriptions: no party of a federation knows it."""
        return np.stack([silo.counts(self.users) for silo in self.silos])

    def without(self, user: int) -> Federation:
        """The neighbouring federation: all records of one user removed from all silos, |U| unchanged.

        Args:
            user: The user's index.
        """
        silos, holdout = (tuple(s.take(s.users != user) for s in part) for part in (self.silos, self.holdout))
        return replace(self, silos=silos, holdout=holdout)


def check_size(users: int, silos: int) -> None:
    """Refuse more users or silos than fit into memory, before anything is made for them."""
    check_whole(users, 2, MAX_USERS, "data.users")
    check_whole(silos, 1, MAX_SILOS, "data.silos")
    if users * silos > MAX_PAIRS:
        most = MAX_PAIRS // users
        raise ConfigError(f"at most {most:,} with {users:,} users, not {silos:,}", location="data.silos", value=silos)
