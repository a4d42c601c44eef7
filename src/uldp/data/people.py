"""Whose records a federation of own tables holds, so that two runs can be recognised as being about the same people.

Ids are compared in their one spelling (``ids``), whatever the path, the format or the order of a table, and whether
they became users by a roster or by hashing. None of this is written down as it is: ``uldp.runs.people`` keeps digests
of it under a key of the owner.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from uldp.data.federation import FloatArray


@dataclass(frozen=True)
class People:
    """All ids of the silos' tables, those held out included, and for each table a digest of what it holds besides."""

    ids: frozenset[str] = field(repr=False)
    tables: frozenset[bytes] = field(repr=False)


def table_digest(names: Sequence[str], features: FloatArray) -> bytes:
    """A digest of a table's features without its ids, in whatever order rows and columns stand.

    It recognises a copy in which ids were exchanged for others. Like every digest of records it can confirm a guess.
    """
    columns = (
        name.encode() + b"\0" + np.sort(column).tobytes() for name, column in zip(names, features.T, strict=True)
    )
    digests = sorted(hashlib.blake2b(column, digest_size=32).digest() for column in columns)
    return hashlib.blake2b(b"".join(digests), digest_size=32).digest()
