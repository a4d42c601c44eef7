"""Who owns which record, and in which silo it lies: allocations for data that does not say.

The patterns are those of the ULDP-FL paper (section 5.1). A *bounded Zipf* distribution with exponent a over
n ranks has P(rank i) proportional to i^-a, i = 1 .. n; exponent 0 is the uniform distribution.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from uldp.data.federation import IntArray, LabelArray
from uldp.errors import ConfigError
from uldp.rng import Streams

ALLOCATIONS: Final = ("uniform", "zipf", "non-iid", "as-is")
LABELS_PER_USER: Final = 2

Weights = npt.NDArray[np.float64]


def allocate(
    labels: LabelArray,
    users: int,
    silos: int,
    kind: str,
    streams: Streams,
    *,
    user_exponent: float = 0.5,
    silo_exponent: float = 2.0,
) -> tuple[IntArray, IntArray]:
    """The user index and the silo index of every record.

    - ``uniform``: each record to a uniformly random user and a uniformly random silo.
    - ``zipf``: records per user by a bounded Zipf over the users; then each user's records by a bounded Zipf
      over the silos, in that user's own random order. With 5 silos the shares are .68/.17/.08/.04/.03.
    - ``non-iid``: as ``zipf``, and each user holds at most two labels (exponents 0 give the uniform variant).
    """
    _check(labels, users, silos, kind, user_exponent, silo_exponent)
    if kind == "uniform":
        user_exponent = silo_exponent = 0.0
    popularity = _popularity(users, user_exponent, streams)
    if kind == "non-iid":
        user = _users_with_two_labels(labels, popularity, streams)
    else:
        user = _draw(popularity, len(labels), streams.child("user"))
    return user, _silos_of(user, users, silos, silo_exponent, streams)


def bounded_zipf(ranks: int, exponent: float) -> Weights:
    """P(rank i) for i = 1 .. ranks.

    >>> bounded_zipf(5, 2.0).round(2).tolist()
    [0.68, 0.17, 0.08, 0.04, 0.03]
    """
    weights: Weights = np.arange(1, ranks + 1, dtype=np.float64) ** -exponent
    shares: Weights = weights / weights.sum()
    return shares


def _check(labels: LabelArray, users: int, silos: int, kind: str, user_exponent: float, silo_exponent: float) -> None:
    if kind not in ALLOCATIONS:
        raise ConfigError(
            f"unknown allocation {kind!r}. Known: {', '.join(ALLOCATIONS)}",
            place="data.allocation",
            value=kind,
        )
    if kind == "as-is":
        raise ConfigError(
            "'as-is' needs data that says whose each record is; choose uniform, zipf or non-iid",
            place="data.allocation",
            value=kind,
        )
    if users < 1:
        raise ConfigError(f"at least 1 user, not {users}", place="data.users", value=users)
    if silos < 1:
        raise ConfigError(f"at least 1 silo, not {silos}", place="data.silos", value=silos)
    for name, exponent in (("user_exponent", user_exponent), ("silo_exponent", silo_exponent)):
        if not 0 <= exponent < float("inf"):
            raise ConfigError(f"zero or a positive number, not {exponent}", place=f"data.{name}", value=exponent)
    if kind == "non-iid":
        _check_labels(labels, users)


def _check_labels(labels: LabelArray, users: int) -> None:
    if not np.issubdtype(labels.dtype, np.integer):
        raise ConfigError(
            "'non-iid' limits the labels of a user, so it needs classes; this data has a numeric label",
            place="data.allocation",
            value="non-iid",
        )
    classes = len(np.unique(labels))
    if LABELS_PER_USER * users < classes:
        raise ConfigError(
            f"{users} users with at most {LABELS_PER_USER} labels each cannot hold {classes} labels;"
            f" at least {-(-classes // LABELS_PER_USER)} users are needed",
            place="data.users",
            value=users,
        )


def _popularity(users: int, exponent: float, streams: Streams) -> Weights:
    """Each user's share of the records. Ranks are shuffled, so that an index says nothing about a size."""
    order = streams.child("rank").generator().permutation(users)
    return bounded_zipf(users, exponent)[order]


def _draw(shares: Weights, count: int, streams: Streams) -> IntArray:
    """``count`` independent draws of an index, by inversion of the distribution function."""
    return _invert(shares, streams.generator().random(count))


def _invert(shares: Weights, uniform: Weights) -> IntArray:
    edges = np.cumsum(shares)
    # Scaled by the last edge, so that rounding in the sum can never yield an index beyond the end.
    drawn: IntArray = np.searchsorted(edges, uniform * edges[-1], side="right").astype(np.int64)
    np.minimum(drawn, len(shares) - 1, out=drawn)
    return drawn


def _silos_of(user: IntArray, users: int, silos: int, exponent: float, streams: Streams) -> IntArray:
    order = np.argsort(streams.child("silo-order").generator().random((users, silos)), axis=1)
    rank = _draw(bounded_zipf(silos, exponent), len(user), streams.child("silo"))
    return order[user, rank].astype(np.int64)


def _users_with_two_labels(labels: LabelArray, popularity: Weights, streams: Streams) -> IntArray:
    """Every user gets two slots, each for one label; a record goes to a user with a slot for its label.

    The slots are dealt out in proportion to how common a label is, so that sizes of users keep following
    their popularity. Both slots may be for one label: so binary data, too, becomes unlike between users.
    """
    found, inverse, counts = np.unique(labels, return_inverse=True, return_counts=True)
    slots = _slots_per_label(counts, LABELS_PER_USER * len(popularity))
    dealt = streams.child("slots").generator().permutation(np.repeat(np.arange(len(found)), slots))
    uniform = streams.child("user").generator().random(len(labels))
    user = np.empty(len(labels), dtype=np.int64)
    for label in range(len(found)):
        holders = np.flatnonzero(dealt == label) // LABELS_PER_USER
        rows = np.flatnonzero(inverse == label)
        user[rows] = holders[_invert(popularity[holders], uniform[rows])]
    return user


def _slots_per_label(counts: IntArray, slots: int) -> IntArray:
    """One slot for every label, the others in proportion to the counts, by largest remainder."""
    spare = slots - len(counts)
    exact = counts / max(1, counts.sum()) * spare
    share: IntArray = np.floor(exact).astype(np.int64)
    largest = np.argsort(share - exact, kind="stable")[: spare - int(share.sum())]
    share[largest] += 1
    return np.add(share, 1)
