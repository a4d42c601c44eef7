"""Randomness is an argument, addressed by path; what must stay secret has a type of its own.

``Streams`` is for everything that must be reproducible from a public seed: allocation of records, initial
parameters, order of records, dropout. ``Secrets`` is for everything that a privacy claim rests on: noise, masks,
keys, the sample of users. The two are different types, so that one cannot stand in for the other by accident.

Secrets come from the operating system. In a simulation they may come from the seed instead, and are then marked
``simulated``: whoever knows the seed can take the noise off again, and every result says so.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from uldp.errors import ConfigError

PathPart = str | int
_KEY_BYTES: Final = 32
_ZEROS: Final = memoryview(bytes(1 << 18))


def path_bytes(path: Iterable[PathPart | bytes]) -> bytes:
    """``path`` as bytes; distinct paths give distinct bytes.

    Every part is written with its type and its length, so that ("a", "b") and ("ab",) differ, and so do 1 and "1".
    """
    written = []
    for part in path:
        text = part if isinstance(part, bytes) else str(part).encode()
        kind = b"i" if isinstance(part, int) else b"s" if isinstance(part, str) else b"b"
        written += [kind, len(text).to_bytes(8, "little"), text]
    return b"".join(written)


def _derive(key: bytes, purpose: bytes, path: tuple[PathPart, ...]) -> bytes:
    """A 32-byte key for ``path`` below ``key``; distinct paths give independent keys."""
    return hashlib.blake2b(path_bytes(path), key=key, digest_size=_KEY_BYTES, person=purpose).digest()


def _seed_key(seed: int, purpose: bytes) -> bytes:
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ConfigError(f"a seed is a whole number from 0 up, not {seed!r}", location="run.seed", value=seed)
    return hashlib.blake2b(str(seed).encode(), digest_size=_KEY_BYTES, person=purpose).digest()


@dataclass(frozen=True)
class Streams:
    """Reproducible randomness: a tree of independent generators below one seed.

    >>> streams = Streams.from_seed(0)
    >>> a = streams.child("silo", 1, "round", 2).generator().integers(100)
    >>> b = streams.child("silo", 1).child("round", 2).generator().integers(100)
    >>> bool(a == b)
    True
    """

    key: bytes

    @classmethod
    def from_seed(cls, seed: int) -> Streams:
        return cls(_seed_key(seed, b"uldp.streams"))

    def child(self, *path: PathPart) -> Streams:
        """The subtree at ``path``; one part at a time or all at once come to the same."""
        key = self.key
        for part in path:
            key = _derive(key, b"uldp.streams", (part,))
        return Streams(key)

    def generator(self) -> np.random.Generator:
        """A fresh generator; two calls give two generators with the same sequence."""
        return np.random.Generator(np.random.Philox(key=int.from_bytes(self.key[:16], "little")))

    def word(self) -> int:
        """64 bits, for counter-based generators that are addressed by further coordinates."""
        return int.from_bytes(self.key[:8], "little")


class SecretStream:
    """A cryptographic keystream (ChaCha20). Each byte is given out once."""

    def __init__(self, key: bytes, *, simulated: bool) -> None:
        self.simulated = simulated
        self._encryptor = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """``count`` uniform 64-bit words."""
        words = np.empty(count, dtype=np.uint64)
        self.fill(words)
        return words

    def fill(self, words: npt.NDArray[np.uint64]) -> None:
        """Overwrite ``words`` with uniform 64-bit words; as :meth:`words`, without new memory."""
        if not len(words):
            return
        for start in range(0, len(words), len(_ZEROS) // 8):
            view = words[start : start + len(_ZEROS) // 8].view(np.uint8).data
            self._encryptor.update_into(_ZEROS[: len(view)], view)
        if sys.byteorder == "big":
            words.byteswap(inplace=True)


@dataclass(frozen=True)
class Secrets:
    """Randomness on which a privacy claim rests: a tree of keys, from the OS or marked ``simulated``."""

    key: bytes
    simulated: bool

    @classmethod
    def from_os(cls) -> Secrets:
        """Keys nobody can guess."""
        return cls(os.urandom(_KEY_BYTES), simulated=False)

    @classmethod
    def from_key(cls, key: bytes) -> Secrets:
        """The tree of a key that came from :meth:`from_os` and was kept, so that a run can be resumed."""
        if len(key) != _KEY_BYTES:
            raise ConfigError(f"a secret key has {_KEY_BYTES} bytes, not {len(key)}", location="secrets")
        return cls(key, simulated=False)

    @classmethod
    def simulated_from_seed(cls, seed: int) -> Secrets:
        """Reproducible stand-ins for a simulation. They protect nobody who knows the seed."""
        return cls(_seed_key(seed, b"uldp.simulated"), simulated=True)

    def child(self, *path: PathPart) -> Secrets:
        key = self.key
        for part in path:
            key = _derive(key, b"uldp.secrets", (part,))
        return Secrets(key, simulated=self.simulated)

    def stream(self) -> SecretStream:
        """The keystream at this path. Ask for it once per path: a second call repeats the first one's bytes."""
        return SecretStream(_derive(self.key, b"uldp.keystream", ()), simulated=self.simulated)

    def __repr__(self) -> str:
        return f"Secrets(simulated={self.simulated})"
