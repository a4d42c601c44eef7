"""Messages between server and silos: typed, versioned, size-limited, checked on arrival. Never pickled.

A message travels in an envelope that names the protocol version, the experiment (by digest) and the silo it belongs
to. Vectors are little-endian arrays in ``bytes`` fields; whoever reads one says how long it must be.
"""

from __future__ import annotations

from functools import cache
from typing import Final, Union

import msgspec
import numpy as np
import numpy.typing as npt

from uldp._version import __version__
from uldp.errors import MessageRefused

PROTOCOL_VERSION: Final = 8
OVERHEAD_BYTES: Final = 1 << 16
"""Room for everything in a message that is not a vector."""
OUTPUT_TOLERANCE: Final = (1e-3, 1e-4)
"""How far the first outputs of one model may lie apart on two machines: relative, and beside that absolute."""


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Base class of all messages. The class name is its tag on the wire."""


class Handshake(Message, frozen=True):
    """What both sides say of themselves, and must say alike.

    ``uldp_version`` is the version of uldp: two versions that speak the same protocol may still train or account
    differently. ``layers`` is a digest of the model's layers and parameters by name, kind and shape. ``outputs`` is
    what the model computes from public inputs before any training (float64): the same layers may compute something
    else, and only the other machine knows what a factory ``package.module:factory`` is there. They are compared up to
    rounding, for machines differ in it.
    """

    silos: int
    users: int
    dimension: int
    uldp_version: str
    layers: str
    outputs: bytes


class Hello(Handshake, frozen=True):
    """Server: this is the experiment. Do you hold the same?"""


class Welcome(Handshake, frozen=True):
    """Silo: yes, so it is here too. ``roster`` is a digest of how ids become users here; all silos must agree."""

    roster: str


class CountsRequest(Message, frozen=True):
    """Server: how many records of each user do you hold?"""


class Counts(Message, frozen=True):
    """Silo: record counts n_su, int64."""

    counts: bytes


class UserTotals(Message, frozen=True):
    """Server: what the method makes of all silos' counts for every user (N_u, or how many records to keep), int64."""

    values: bytes


class Accepted(Message, frozen=True):
    """Silo: that agrees with what I sent."""


class RoundMessage(Message, frozen=True):
    """Base class of what an aggregation exchanges within a round, before the updates."""

    round: int


class UpdateRequest(Message, frozen=True):
    """Server: train from this model (float64).

    ``sample`` says who takes part: one bit per silo where the server picks silos, then one bit per user where users are
    sampled and silos are told; empty means everybody. ``weights`` are encrypted
    weights for this round, where users are sampled without the silos knowing: one for each user, or several to choose
    from, sealed. ``present`` has one bit per silo where a round is repeated without some of them; empty means that all
    are there.
    """

    round: int
    model: bytes
    sample: bytes
    weights: bytes = b""
    present: bytes = b""


class Update(Message, frozen=True):
    """Silo: my protected sum, residues modulo 2^64 or ciphertexts.

    ``saturated`` is reported by methods without a guarantee only. ``present`` is that of the request: a late response
    to another one is not taken for it.
    """

    round: int
    vector: bytes
    saturated: int
    present: bytes = b""


class MetricsRequest(Message, frozen=True):
    """Server: how good is the model that ``round`` ended with, on the people you hold out? Asked once, at the end."""

    round: int
    model: bytes


class Metrics(Message, frozen=True):
    """Silo: sums over my hold-out records, protected, without noise: residues modulo 2^64."""

    round: int
    sums: bytes


class Close(Message, frozen=True):
    """Server: that was the last round; end the session."""


class Closed(Message, frozen=True):
    """Silo: the session is over, and its secrets may be destroyed."""


CORE: Final[tuple[type[Message], ...]] = (
    Hello, Welcome, CountsRequest, Counts, UserTotals, Accepted, UpdateRequest, Update,
    MetricsRequest, Metrics, Close, Closed,
)  # fmt: skip
"""The messages of every experiment. An aggregation adds those of its own setup (``Plan.kinds``)."""


class _Versioned(msgspec.Struct, frozen=True):
    """Of a message that cannot be read: what version it claims."""

    version: int


class Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What goes over the wire."""

    version: int
    experiment: str
    silo: str
    body: msgspec.Raw


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Envelope)
_UNREADABLE: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


@cache
def _body_decoder(kinds: tuple[type[Message], ...]) -> msgspec.msgpack.Decoder[Message]:
    return msgspec.msgpack.Decoder(Union[kinds])  # noqa: UP007


def encode_body(body: Message) -> bytes:
    """A body alone, for storing: equal for all silos that get the same."""
    return _ENCODER.encode(body)


def decode_body(data: bytes, kinds: tuple[type[Message], ...]) -> Message:
    """What :func:`encode_body` wrote, if it is one of ``kinds``."""
    try:
        return _body_decoder(kinds).decode(data)
    except _UNREADABLE as error:
        raise MessageRefused(f"not a message of this protocol: {error}", location="checkpoint") from error


def encode(experiment: str, silo: str, body: Message) -> bytes:
    """A message as bytes."""
    return _ENCODER.encode(Envelope(PROTOCOL_VERSION, experiment, silo, msgspec.Raw(encode_body(body))))


class _Tag(msgspec.Struct):
    type: str


class _TagOnly(msgspec.Struct):
    body: _Tag


def kind_of(data: bytes) -> str:
    """The name of a message's class, without reading the rest: for logs.

    >>> kind_of(encode("digest", "ward-a", CountsRequest()))
    'CountsRequest'
    """
    return msgspec.msgpack.decode(data, type=_TagOnly).body.type


def open_envelope(data: bytes, kinds: tuple[type[Message], ...] = CORE) -> tuple[Envelope, Message]:
    """The envelope and its body, unchecked but for their types."""
    envelope = _DECODER.decode(data)
    return envelope, _body_decoder(kinds).decode(envelope.body)


def decode(
    data: bytes,
    *,
    experiment: str,
    silo: str,
    limit: int,
    handshake: Handshake | None = None,
    kinds: tuple[type[Message], ...] = CORE,
) -> Message:
    """The body of a message that must belong to this experiment and silo and have at most ``limit`` bytes.

    ``kinds`` are the messages that the experiment knows. ``handshake`` is what a handshake must say. It is compared
    first, for it tells more than two unequal digests.
    """
    if len(data) > limit:
        raise MessageRefused(
            f"{len(data)} bytes, at most {limit} are expected", location=f"silo {silo}", value=len(data)
        )
    try:
        envelope, body = open_envelope(data, kinds)
    except _UNREADABLE as error:
        _check_version(_claimed_version(data), silo)
        raise MessageRefused(f"not a message of this protocol: {error}", location=f"silo {silo}") from error
    _check_version(envelope.version, silo)
    if handshake is not None and isinstance(body, Handshake):
        check_handshake(body, handshake, f"silo {silo}")
    if envelope.experiment != experiment:
        raise MessageRefused(
            f"belongs to experiment {envelope.experiment[:12]}, this side has {experiment[:12]} (`uldp doctor FILE` "
            "prints a file's); compare the files",
            location=f"silo {silo}",
            value=envelope.experiment,
        )
    if envelope.silo != silo:
        raise MessageRefused(f"is signed for silo {envelope.silo!r}", location=f"silo {silo}", value=envelope.silo)
    if handshake is not None and isinstance(body, Handshake):
        check_outputs(body, handshake, f"silo {silo}")
    return body


def _claimed_version(data: bytes) -> int:
    """Messages of other versions may have other fields: they are told apart all the same."""
    try:
        return msgspec.msgpack.decode(data, type=_Versioned).version
    except _UNREADABLE:
        return PROTOCOL_VERSION


def _check_version(version: int, silo: str) -> None:
    if version != PROTOCOL_VERSION:
        raise MessageRefused(
            f"protocol version {version}, here it is {PROTOCOL_VERSION} (uldp {__version__}); install the same uldp on "
            "all sides",
            location=f"silo {silo}",
            value=version,
        )


def check_handshake(theirs: Handshake, ours: Handshake, location: str) -> None:
    """Refuse a handshake that says something else than ours, and say what. Outputs come later."""
    if theirs.uldp_version != ours.uldp_version:
        raise MessageRefused(
            f"the other side runs uldp {theirs.uldp_version}, this one {ours.uldp_version}; install the same version "
            "on all sides",
            location=location,
            value=theirs.uldp_version,
        )
    for name in ("silos", "users", "dimension"):
        value, here = getattr(theirs, name), getattr(ours, name)
        if value != here:
            raise MessageRefused(
                f"the other side says {name} = {value}, here it is {here}; compare the files",
                location=location,
                value=value,
            )
    if theirs.layers != ours.layers:
        raise MessageRefused(
            f"the model's layers are others on the other side ({theirs.layers[:12]}, here {ours.layers[:12]}); compare "
            "the files, and the code behind model.name",
            location=location,
            value=theirs.layers,
        )


def check_outputs(theirs: Handshake, ours: Handshake, location: str) -> None:
    """Refuse a model that computes something else, where the experiment is the same: another seed is another x_0."""
    if not _close(theirs.outputs, ours.outputs):
        raise MessageRefused(
            "the model has the layers of the other side's, and gives other outputs before training; compare the code "
            "behind model.name, and PyTorch's versions",
            location=location,
        )


def _close(theirs: bytes, ours: bytes) -> bool:
    if len(theirs) != len(ours) or len(theirs) % 8:
        return False
    first, second = (np.frombuffer(data, dtype="<f8") for data in (theirs, ours))
    return bool(np.allclose(first, second, rtol=OUTPUT_TOLERANCE[0], atol=OUTPUT_TOLERANCE[1], equal_nan=True))


def size_limit(users: int, dimension: int, *, silos: int = 1, item: int = 8, user: int = 8) -> int:
    """The largest message of a federation with these numbers: ``item`` bytes a coordinate, ``user`` bytes a user."""
    return OVERHEAD_BYTES + max(user * users, item * dimension) + 8 * dimension + users + 256 * silos


def pack(array: npt.NDArray[np.generic]) -> bytes:
    """An array as little-endian bytes."""
    return np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def unpack_floats(data: bytes, length: int, location: str) -> npt.NDArray[np.float64]:
    """``length`` finite float64 numbers."""
    _check_length(data, 8 * length, location)
    values = np.frombuffer(data, dtype="<f8").astype(np.float64)
    if not np.isfinite(values).all():
        raise MessageRefused("the vector holds NaN or infinity", location=location)
    return values


def unpack_residues(data: bytes, length: int, location: str) -> npt.NDArray[np.uint64]:
    """``length`` residues modulo 2^64."""
    _check_length(data, 8 * length, location)
    return np.frombuffer(data, dtype="<u8").astype(np.uint64)


def unpack_counts(data: bytes, length: int, largest: int, location: str) -> npt.NDArray[np.int64]:
    """``length`` counts from 0 to ``largest``."""
    _check_length(data, 8 * length, location)
    counts = np.frombuffer(data, dtype="<i8").astype(np.int64)
    if length and (counts.min() < 0 or counts.max() > largest):
        raise MessageRefused(f"a count lies outside 0 .. {largest}", location=location)
    return counts


def pack_bits(mask: npt.NDArray[np.bool_]) -> bytes:
    return np.packbits(mask).tobytes()


def unpack_bits(data: bytes, length: int, location: str) -> npt.NDArray[np.bool_]:
    """``length`` bits."""
    _check_length(data, (length + 7) // 8, location)
    return np.unpackbits(np.frombuffer(data, dtype=np.uint8), count=length).astype(np.bool_)


def _check_length(data: bytes, expected: int, location: str) -> None:
    if len(data) != expected:
        raise MessageRefused(
            f"a vector of {len(data)} bytes, {expected} are expected", location=location, value=len(data)
        )
