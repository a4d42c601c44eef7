"""Messages that nobody would send: changed, cut, spliced, of other types, with other fields, out of turn, random.

Each function takes a source of randomness and genuine messages, the one that is due first, and gives back bytes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

INTEGERS: Final = (0, 1, -1, 2, 3, 255, 2**31, 2**53, 2**63 - 1, 2**63, 2**64 - 1, -(2**31), -(2**63))
OTHER_NUMBERS: Final = (True, 1.5, float("nan"), float("inf"), -1, 2**64 - 1)
OTHER_TYPES: Final[tuple[Any, ...]] = (None, *OTHER_NUMBERS, "", "x" * 300, b"", bytes(9), [], {})
LENGTHS: Final = (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff")
"""Headers that promise 2^32 - 1 items, or bytes."""
DEEP: Final = 5_000
"""Lists within lists."""
_MARK: Final = "in the place of which such lists come"

Mutation = Callable[[random.Random, Sequence[bytes]], bytes]


def changed(rng: random.Random, genuine: Sequence[bytes]) -> bytes:
    """Some bytes are others."""
    data = bytearray(genuine[0])
    for _ in range(rng.randint(1, 8)):
        if data:
            data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def truncated(rng: random.Random, genuine: Sequence[bytes]) -> bytes:
    """A part is missing at the beginning, in the middle or at the end."""
    data = genuine[0]
    start, end = sorted(rng.choices(range(len(data) + 1), k=2))
    return rng.choice((data[:start], data[end:], data[:start] + data[end:]))


def spliced(rng: random.Random, genuine: Sequence[bytes]) -> bytes:
    """The beginning of one message and the end of another, or one part twice."""
    first, second = genuine[0], rng.choice(genuine)
    return first[: rng.randint(0, len(first))] + second[rng.randint(0, len(second)) :]


def promising(rng: random.Random, genuine: Sequence[bytes]) -> bytes:
    """Somewhere a header promises more than anybody has."""
    data = genuine[0]
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(LENGTHS) + data[at + 1 :]


def retyped(rng: random.Random, genuine: Sequence[bytes]) -> bytes:
    """A value of the tree is of another type, missing, or there under another name."""
    tree = msgspec.msgpack.decode(genuine[0])
    inside = rng.choice((tree, tree["body"]))
    key = rng.choice(list(inside))
    what = rng.randrange(4)
    if what == 0:
        del inside[key]
    elif what == 1:
        inside[f"{key}2"] = inside[key]
    else:
        inside[key] = rng.choice((*OTHER_TYPES, _MARK))
    deep = b"\x91" * rng.randint(1, DEEP) + b"\x90"
    return msgspec.msgpack.encode(tree).replace(msgspec.msgpack.encode(_MARK), deep)


def edited(rng: random.Random, genuine: Sequence[bytes]) -> bytes:
    """A field of the body has another value of the same type: what only the sessions can refuse."""
    tree = msgspec.msgpack.decode(genuine[0])
    body = tree["body"]
    names = [name for name in body if name != "type"]
    if not names:
        return foreign(rng, genuine)
    for name in rng.sample(names, min(len(names), 2)):
        body[name] = _other(rng, body[name])
    return msgspec.msgpack.encode(tree)


def _other(rng: random.Random, value: Any) -> Any:
    if isinstance(value, int):
        return rng.choice((*INTEGERS, value + 1, value - 1, value))
    if isinstance(value, str):
        return rng.choice((value, "", value[::-1], value + "x", "\ud7ff" * 40))
    if isinstance(value, list):
        return rng.choice((value, [], value[:-1], value * 2, value[::-1], [_other(rng, one) for one in value]))
    size = len(value)
    kinds = (value, b"", value[:-1], value + b"\0", bytes(size), b"\xff" * size, rng.randbytes(size), rng.randbytes(8))
    return rng.choice((*kinds, changed(rng, [value])))


def foreign(rng: random.Random, genuine: Sequence[bytes]) -> bytes:
    """Another message, with this envelope: of another silo, phase, round or experiment."""
    tree = msgspec.msgpack.decode(genuine[0]) | {"body": msgspec.msgpack.decode(rng.choice(genuine))["body"]}
    tree |= rng.choice(({}, {"experiment": "f" * 64}, {"silo": "nobody"}))
    return msgspec.msgpack.encode(tree)


def replayed(rng: random.Random, genuine: Sequence[bytes]) -> bytes:
    """A genuine message that is not due."""
    return rng.choice(genuine)


def noise(rng: random.Random, genuine: Sequence[bytes]) -> bytes:
    """Random bytes, or far too many of them."""
    return rng.randbytes(rng.choice((0, 1, 7, 64, 1000))) if rng.random() < 0.98 else bytes(1 << 20)


MUTATIONS: Final[tuple[Mutation, ...]] = (
    changed, truncated, spliced, promising, retyped, retyped, edited, edited, edited, foreign, replayed, noise,
)  # fmt: skip
"""Those that come further are drawn more often."""


def mutated(rng: random.Random, genuine: Sequence[bytes]) -> bytes:
    """One such message, made from the one that is due, or now and then from another."""
    if rng.random() < 0.2:
        genuine = [rng.choice(genuine), *genuine]
    return rng.choice(MUTATIONS)(rng, genuine)
