"""From user ids to indices 0 .. |U|-1, so that no id ever leaves a silo.

Either the parties share a public *roster*, a list of ids, or each id is hashed with a key into |U| buckets. A
collision is not harmless: whoever leaves a shared bucket is not removed but exchanged for the other one, which moves
the sum by up to twice the clip, and the statement names that epsilon (docs/decisions/0006). The key belongs to the
silos; the server sees neither ids nor key, else it could try all ids and name the indices.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from uldp.data.federation import IntArray
from uldp.data.files import read_table
from uldp.data.id_rules import ReadId
from uldp.data.ids import normalised_ids, read_ids
from uldp.errors import ConfigError, DataError
from uldp.limits import check_whole
from uldp.rng import Secrets, Streams, path_bytes

KEY_BYTES: Final = 32
ReaderOf = Callable[[str], ReadId]
"""How a silo, by its name, reads an id: by the rules of ``[data.ids]``, where there are any."""


def _as_spelled(silo: str) -> ReadId:
    return str


@dataclass(frozen=True)
class Roster:
    """A public list of normalised ids; an id's index is its position."""

    ids: tuple[str, ...]
    location: str = "roster"
    reader: ReaderOf = field(default=_as_spelled, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.ids) < 2:
            reason = (
                f"{len(self.ids)} ids: a roster lists everybody, and user-level privacy hides one person among others"
            )
            raise DataError(reason, location=self.location, value=len(self.ids))
        if len(self._position) < len(self.ids):
            raise DataError(
                f"{len(self.ids) - len(self._position)} ids occur more than once (7 and 007, or A1 and a1,"
                " are one id); list every person once",
                location=self.location,
            )

    @cached_property
    def _position(self) -> dict[str, int]:
        return {user: index for index, user in enumerate(self.ids)}

    @classmethod
    def from_file(
        cls, path: Path | str, user: str | None = None, rule: ReadId = str, reader: ReaderOf = _as_spelled
    ) -> Roster:
        """A text file with an id per line, or a table with ids in column ``user`` or in its only column."""
        path = Path(path)
        if path.suffix.lower() in (".txt", ""):
            import pandas as pd

            lines = [line for line in _read_text(path, "data.roster").splitlines() if line.strip()]
            ids = read_ids(pd.Series(lines, dtype="str"), "the roster", str(path), rule)
        else:
            frame = read_table(path, "data.roster")
            column = user if user in frame.columns or len(frame.columns) != 1 else frame.columns[0]
            ids = normalised_ids(frame, str(column), str(path), rule)
        return cls(tuple(ids.rows), str(path), reader)

    @property
    def users(self) -> int:
        return len(self.ids)

    def indices(self, ids: Sequence[str], location: str) -> IntArray:
        found = np.array([self._position.get(user, -1) for user in ids], dtype=np.int64)
        strangers = {user for user, index in zip(ids, found, strict=True) if index < 0}
        if strangers:
            reason = (
                f"{len(strangers)} user ids ({int((found < 0).sum())} rows) are not on the roster"
                f" {self.location}; add them to the roster or leave their rows out"
            )
            raise DataError(reason, location=location, value=len(strangers))
        return found

    def digest(self) -> str:
        return hashlib.sha256(path_bytes(self.ids)).hexdigest()


@dataclass(frozen=True)
class HashedIds:
    """HMAC-SHA256 of the id under the silos' key, into ``users`` buckets."""

    users: int
    key: bytes = field(repr=False)
    reader: ReaderOf = field(default=_as_spelled, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_whole(self.users, 2, None, "data.users")
        if len(self.key) < KEY_BYTES:
            raise ConfigError(f"a key has {KEY_BYTES} bytes, not {len(self.key)}", location="data.id_key")

    @classmethod
    def with_key_file(cls, users: int, path: Path | str, reader: ReaderOf = _as_spelled) -> HashedIds:
        """The key is a file of 64 hexadecimal digits that all silos share and the server never gets."""
        return cls(users, read_key(Path(path), "data.id_key"), reader)

    @classmethod
    def from_secrets(cls, users: int, secrets: Secrets, reader: ReaderOf = _as_spelled) -> HashedIds:
        """All silos on one machine: the key comes from the run's own secrets."""
        return cls(users, secrets.child("data", "id-key").key, reader)

    def indices(self, ids: Sequence[str], location: str) -> IntArray:
        distinct = set(ids)
        check_room(len(distinct), self.users, location)
        bucket = {user: keyed_hash(self.key, user) % self.users for user in distinct}
        return np.array([bucket[user] for user in ids], dtype=np.int64)

    def digest(self) -> str:
        # No id is a path of this form, so the digest is no id's hash.
        return hmac.digest(self.key, path_bytes(("digest of the key", self.users)), "sha256").hex()


UserIndex = Roster | HashedIds
"""Maps normalised ids to indices 0 .. users-1; each index depends on its id alone. ``digest`` is equal where the same
ids become the same indices; it reveals neither ids nor key."""


def check_room(distinct: int, users: int, location: str) -> None:
    """More ids than buckets is a mistake in |U|, not a collision."""
    if distinct > users:
        reason = (
            f"|U| is smaller than the ids seen: data.users = {users}, but there are {distinct} user ids;"
            f" raise data.users to at least {distinct}, better to ten times as many, or give a roster"
        )
        raise DataError(reason, location=location, value=users)


def select_test_rows(ids: Sequence[str], fraction: float, streams: Streams) -> npt.NDArray[np.bool_]:
    """Which rows belong to users of the test set: about ``fraction`` of the users.

    Each user is decided by a hash of the own id, so adding or removing one user never moves another between
    training and test. Anyone with the seed can repeat the choice; no privacy claim rests on it.
    """
    key = streams.child("data", "held-out users").key
    limit = int(fraction * 2**64)
    test = {user: keyed_hash(key, user) < limit for user in set(ids)}
    return np.array([test[user] for user in ids], dtype=np.bool_)


def keyed_hash(key: bytes, user: str) -> int:
    """64 bits of HMAC-SHA256."""
    return int.from_bytes(hmac.digest(key, user.encode(), "sha256")[:8], "little")


def read_key(path: Path, named: str) -> bytes:
    """The key in a file of 64 hexadecimal digits; ``named`` is where the file was named."""
    text = _read_bytes(path, named).decode("ascii", errors="replace").strip()
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) < KEY_BYTES:
        # The contents are a secret: they are not part of the message.
        reason = f"not a key of {2 * KEY_BYTES} hexadecimal digits; `openssl rand -hex {KEY_BYTES}` makes one"
        raise DataError(reason, location=str(path))
    return key


def _read_bytes(path: Path, named: str) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"cannot read {str(path)!r} ({reason})", location=named, value=str(path)) from None


def _read_text(path: Path, named: str) -> str:
    try:
        text = _read_bytes(path, named).decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:  # what UTF-16 without a mark looks like
        raise DataError("not UTF-8 text; save it as UTF-8", location=str(path))
    return text
