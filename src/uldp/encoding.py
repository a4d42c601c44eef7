"""MessagePack of what is saved, refused in Python's way where memory ends.

msgspec crashes the process where its buffer cannot grow any more. So room for it is asked for before.

>>> encode({"state": b"abc"}) == msgspec.msgpack.encode({"state": b"abc"})
True
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np


def encode(value: Any) -> bytes:
    """The bytes of a struct or tree; :class:`MemoryError` where they do not fit."""
    np.empty(3 * size_bound(value), dtype=np.uint8)  # not touched: the old buffer and the next, half as large again
    return msgspec.msgpack.encode(value)


def size_bound(value: Any) -> int:
    """At least the number of bytes that ``value`` is encoded in."""
    if isinstance(value, bytes | bytearray | memoryview):
        return len(value) + 16
    if isinstance(value, str):
        return 4 * len(value) + 16
    if isinstance(value, msgspec.Struct):
        return sum(len(name) + size_bound(getattr(value, name)) for name in value.__struct_fields__) + 16
    if isinstance(value, Mapping):
        return sum(size_bound(name) + size_bound(held) for name, held in value.items()) + 16
    if isinstance(value, list | tuple):
        return sum(map(size_bound, value)) + 16
    return 32
