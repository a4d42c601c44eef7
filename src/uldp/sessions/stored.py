"""What sessions store between exchanges. What cannot be read is refused in one sentence."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from uldp.errors import RunError

Stored = TypeVar("Stored")


class StoredServer(msgspec.Struct, forbid_unknown_fields=True):
    """What the server stores between rounds."""

    phase: str
    round: int
    x: bytes
    memory: dict[str, bytes]
    user_totals: bytes | None
    saturated: int
    collected: bytes | None
    setup: list[dict[str, bytes]]
    prepared: list[dict[str, bytes]]
    absent: list[str]
    heard: list[int]
    metrics: dict[str, float] = {}


class RoundRelease(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A round's noised sum before masks. ``request`` is a digest of the request, without the list of present silos."""

    request: str
    present: bytes
    noised_sum: bytes
    saturated: int


class StoredSilo(msgspec.Struct, forbid_unknown_fields=True):
    """What a silo stores between messages. ``data`` is a digest of the records that its responses depend on."""

    data: str
    phase: str
    round: int
    user_totals: bytes | None
    request: str
    response: bytes
    setup: list[bytes]
    prepared: list[bytes]
    prepared_round: int
    released: RoundRelease | None = None
    parts: dict[int, str] = {}
    """Large requests that are in a :class:`~uldp.sessions.silo.PartStore`, by index in ``setup``: their names there."""


def decode_state(state: bytes, kind: type[Stored], what: str) -> Stored:
    """What a session stored; ``what`` names it in the error."""
    try:
        return msgspec.msgpack.decode(state, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RunError(f"{what} is unreadable: {error}", location="checkpoint") from error


def read_fields(state: bytes) -> dict[str, Any]:
    """The fields of a saved state, even if another version of uldp saved it: what was released then still counts."""
    try:
        found = msgspec.msgpack.decode(state)
        return {**found, "phase": str(found["phase"]), "round": int(found["round"])}
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"the saved state of the silo is unreadable: {error}", location="checkpoint") from error
