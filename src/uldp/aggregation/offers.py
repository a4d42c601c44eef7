"""What the server offers for one user when users are sampled in private (ULDP-FL, Section 4.1).

Of P slots, m open a real weight and P - m open an encrypted zero; the silos choose one slot by oblivious transfer, all
the same one, and learn neither which kind they got nor does the server. So a user is sampled with probability m / P.

A ciphertext is long, so it is not sent P times: the real and the zero one are sealed once each, under two fresh keys,
in random order, and a slot opens the position and the key of one of the two::

    P x seal(k_j; position, key)    seal(key_0; ciphertext)    seal(key_1; ciphertext)
"""

from __future__ import annotations

from collections.abc import Sequence

from uldp.crypto.integers import uniform_below
from uldp.crypto.keys import KEY_BYTES, TAG_BYTES, seal, unseal
from uldp.crypto.transfer import POINT_BYTES, Context
from uldp.errors import MessageRefused
from uldp.rng import SecretStream

_SLOT_BYTES = 1 + KEY_BYTES + TAG_BYTES


def user_bytes(slots: int, width: int) -> int:
    """Bytes of one user's offer, with ciphertexts of ``width`` bytes."""
    return slots * _SLOT_BYTES + 2 * (width + TAG_BYTES)


def context(digest: str, round_: int, user: int) -> Context:
    """What the keys of one user's choice in one round are bound to."""
    return ("private sampling", digest, round_, user)


def make_offer(keys: Sequence[bytes], chosen: int, real: bytes, dummy: bytes, stream: SecretStream) -> bytes:
    """One user's offer: ``chosen`` of the slots, drawn at random, open ``real``, the others ``dummy``."""
    taken = _draw_subset(len(keys), chosen, stream)
    swapped = int(uniform_below(stream, 2, 1)[0])
    body_keys = [stream.words(KEY_BYTES // 8).astype("<u8").tobytes() for _ in range(2)]
    slots = []
    for slot, key in enumerate(keys):
        position = (0 if slot in taken else 1) ^ swapped
        slots.append(seal(key, bytes([position]) + body_keys[position]))
    bodies = (dummy, real) if swapped else (real, dummy)
    return b"".join([*slots, *(seal(key, body) for key, body in zip(body_keys, bodies, strict=True))])


def _draw_subset(slots: int, count: int, stream: SecretStream) -> set[int]:
    """``count`` of ``slots`` slots, every subset alike: the first of a random order."""
    order = list(range(slots))
    for position in range(count):
        other = position + int(uniform_below(stream, slots - position, 1)[0])
        order[position], order[other] = order[other], order[position]
    return set(order[:count])


def open_offer(offer: bytes, slots: int, index: int, key: bytes, location: str) -> bytes:
    """The ciphertext that slot ``index`` of an offer opens with ``key``."""
    reason = "what was offered does not open with the chosen key"
    inside = unseal(key, offer[_SLOT_BYTES * index : _SLOT_BYTES * (index + 1)], location, reason)
    which, inner = inside[0], inside[1:]
    if which > 1 or len(inner) != KEY_BYTES:
        raise MessageRefused("a slot of the offer is malformed", location=location)
    bodies = offer[_SLOT_BYTES * slots :]
    half = len(bodies) // 2
    return unseal(inner, bodies[half * which : half * (which + 1)], location, reason)


def split_by_user(data: bytes, size: int, users: int, location: str) -> list[bytes]:
    """``data`` in pieces of ``size`` bytes, one per user."""
    if len(data) != size * users:
        raise MessageRefused(
            f"{users} users take {size * users} bytes, not {len(data)}", location=location, value=len(data)
        )
    return [data[start : start + size] for start in range(0, len(data), size)]


def cut_points(points: bytes, users: int, location: str) -> list[bytes]:
    """The users' points."""
    return split_by_user(points, POINT_BYTES, users, location)
