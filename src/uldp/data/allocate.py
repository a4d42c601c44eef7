"""Who owns which record, and in which silo it lies: allocations for data that does not say.

The patterns are those of the ULDP-FL paper (section 5.1). A *bounded Zipf* distribution with exponent a over
n ranks has P(rank i) proportional to i^-a, i = 1 .. n; exponent 0 is the uniform distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from uldp.data.federation import IntArray, LabelArray
from uldp.elementary import power
from uldp.errors import ConfigError, require
from uldp.rng import Streams

ALLOCATIONS: Final = ("uniform", "zipf", "non-iid", "stratified", "as-is")
GIVEN_ALLOCATIONS: Final = ("uniform", "zipf")
LABELS_PER_USER: Final = 2
PREFERRED_SHARE: Final = 0.8

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
    - ``stratified``: equal shares of every class for all users, to one record, and all of a user's records in one silo;
      silos have equally many users, to one (SRR-FL: as many users as silos, each a client).
    """
    _check(labels, users, silos, kind, user_exponent, silo_exponent)
    if kind == "stratified":
        user = _equal_shares(labels, users, streams)
        return user, user % silos
    if kind == "uniform":
        user_exponent = silo_exponent = 0.0
    popularity = _popularity(users, user_exponent, streams)
    if kind == "non-iid":
        user = _users_with_two_labels(labels, popularity, streams)
    else:
        user = _draw(popularity, len(labels), streams.child("user"))
    order = np.argsort(streams.child("silo-order").generator().random((users, silos)), axis=1)
    rank = _draw(bounded_zipf(silos, silo_exponent), len(user), streams.child("silo"))
    return user, order[user, rank].astype(np.int64)


def allocate_given(
    sizes: Sequence[int],
    users: int,
    kind: str,
    streams: Streams,
    *,
    user_exponent: float = 0.5,
    preferred_share: float = PREFERRED_SHARE,
    least: int = 1,
) -> tuple[IntArray, ...]:
    """The user index of every record, silo by silo, for data whose silos are given. Silo sizes stay as they are.

    - ``uniform``: each record to a uniformly random user.
    - ``zipf``: records per user by a bounded Zipf over the users, at least one each. Of a user's records
      ``preferred_share`` lie in one silo that is drawn for the user, the others in the other silos. Over all users
      the share is exact to one record, for each user to one record up or down, as long as the sizes admit it (one silo
      with most of the records does not); larger silos are preferred by more users.

    ``least`` records at least belong to each pair of a user and a silo that has any: records are dealt out in lots of
    ``least``, and what a silo has beyond whole lots joins one of them.

    >>> [len(user) for user in allocate_given((30, 20), 10, "zipf", Streams.from_seed(0))]
    [30, 20]
    """
    _check_given(sizes, users, kind, user_exponent, preferred_share, least)
    lots = np.array([size // least for size in sizes], dtype=np.int64)
    if kind == "uniform":
        owners = [streams.child("user", s).generator().integers(users, size=n) for s, n in enumerate(lots)]
    else:
        counts = _at_least_one_each(int(lots.sum()), users, user_exponent, streams)
        held = _with_preferred_silos(counts, lots, preferred_share, streams)
        owners = [np.repeat(np.arange(users), column) for column in held.T]
    return tuple(
        _spread_lots(owner.astype(np.int64), size, least, streams.child("record", s))
        for s, (owner, size) in enumerate(zip(owners, sizes, strict=True))
    )


def bounded_zipf(ranks: int, exponent: float) -> Weights:
    """P(rank i) for i = 1 .. ranks.

    >>> bounded_zipf(5, 2.0).round(2).tolist()
    [0.68, 0.17, 0.08, 0.04, 0.03]
    """
    weights = power(np.arange(1, ranks + 1, dtype=np.float64), -exponent)
    return weights / math.fsum(weights.tolist())


def _check(labels: LabelArray, users: int, silos: int, kind: str, user_exponent: float, silo_exponent: float) -> None:
    if kind not in ALLOCATIONS:
        reason = f"unknown allocation {kind!r}. Known: {', '.join(ALLOCATIONS)}"
        raise ConfigError(reason, location="data.allocation", value=kind)
    if kind == "as-is":
        reason = "'as-is' needs data that says whose each record is; choose uniform, zipf or non-iid"
        raise ConfigError(reason, location="data.allocation", value=kind)
    require(silos >= 1, "data.silos", silos, "at least 1 silo")
    _check_zipf(users, user_exponent=user_exponent, silo_exponent=silo_exponent)
    if kind not in ("non-iid", "stratified"):
        return
    if not np.issubdtype(labels.dtype, np.integer):
        reason = f"{kind!r} is about the classes of a user's records; this data has a numeric label"
        raise ConfigError(reason, location="data.allocation", value=kind)
    if kind == "stratified":
        require(users >= silos, "data.users", users, f"at least {silos}, so that each silo has a user")
        return
    classes = len(np.unique(labels))
    if LABELS_PER_USER * users < classes:
        reason = (
            f"{users} users with at most {LABELS_PER_USER} labels each cannot hold {classes} labels;"
            f" at least {-(-classes // LABELS_PER_USER)} users are needed"
        )
        raise ConfigError(reason, location="data.users", value=users)


def _check_zipf(users: int, **exponents: float) -> None:
    require(users >= 1, "data.users", users, "at least 1 user")
    for name, exponent in exponents.items():
        require(0 <= exponent < math.inf, f"data.options.{name}", exponent, "zero or a positive number")


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


def _equal_shares(labels: LabelArray, users: int, streams: Streams) -> IntArray:
    """Every class dealt out in turn, in random order; a class goes on with the user where the one before stopped."""
    generator = streams.child("user").generator()
    order = np.concatenate([generator.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)])
    user = np.empty(len(labels), dtype=np.int64)
    user[order] = np.arange(len(labels)) % users
    return user


def _slots_per_label(counts: IntArray, slots: int) -> IntArray:
    """One slot for every label, the others in proportion to the counts, by largest remainder."""
    spare = slots - len(counts)
    exact = counts / max(1, counts.sum()) * spare
    share: IntArray = np.floor(exact).astype(np.int64)
    largest = np.argsort(share - exact, kind="stable")[: spare - int(share.sum())]
    share[largest] += 1
    return np.add(share, 1)


def _check_given(
    sizes: Sequence[int], users: int, kind: str, user_exponent: float, preferred_share: float, least: int
) -> None:
    if kind not in GIVEN_ALLOCATIONS:
        known = kind in ALLOCATIONS
        what = f"{kind!r} is not for data whose silos are given" if known else f"unknown allocation {kind!r}"
        raise ConfigError(f"{what}. Known here: {', '.join(GIVEN_ALLOCATIONS)}", location="data.allocation", value=kind)
    _check_zipf(users, user_exponent=user_exponent)
    require(0 <= preferred_share <= 1, "data.options.preferred_share", preferred_share, "a share from 0 to 1")
    if any(0 < size < least for size in sizes):
        reason = f"a silo has {min(size for size in sizes if size)} record(s), but each user in a silo needs {least}"
        raise ConfigError(reason, location="data.allocation", value=kind)
    lots = sum(size // least for size in sizes)
    what = "record" if least == 1 else f"lot of {least} records"
    require(kind != "zipf" or users <= lots, "data.users", users, f"at most {lots} users, so that each has a {what}")


def _at_least_one_each(lots: int, users: int, exponent: float, streams: Streams) -> IntArray:
    """How many lots each user has: one, and of the others so many that the mean follows the Zipf law."""
    wanted = np.maximum(lots * _popularity(users, exponent, streams) - 1, 0)
    if not wanted.any():  # as many lots as users
        wanted += 1
    drawn = _draw(wanted, lots - users, streams.child("user"))
    return np.bincount(drawn, minlength=users).astype(np.int64) + 1


def _with_preferred_silos(counts: IntArray, sizes: IntArray, share: float, streams: Streams) -> IntArray:
    """How many lots each user has in each silo, as a (users, silos) matrix with sums ``counts`` and ``sizes``."""
    preferred, main = _preferred_silos(_main_parts(counts, share, streams), sizes, streams)
    held = np.zeros((len(counts), len(sizes)), dtype=np.int64)
    held[np.arange(len(counts)), preferred] = main
    owners = np.repeat(np.arange(len(counts)), counts - main)
    silo = np.repeat(np.arange(len(sizes)), sizes - held.sum(axis=0))
    silo = _avoid(preferred[owners], streams.child("others").generator().permutation(silo))
    np.add.at(held, (owners, silo), 1)
    return held


def _main_parts(counts: IntArray, share: float, streams: Streams) -> IntArray:
    """``share`` of each count, rounded up or down so that the running sum is never off by more than one."""
    edges = np.floor(np.cumsum(share * counts) + streams.child("rounding").generator().random())
    parts: IntArray = np.diff(edges, prepend=0.0).astype(np.int64)
    return np.minimum(parts, counts)


def _preferred_silos(main: IntArray, sizes: IntArray, streams: Streams) -> tuple[IntArray, IntArray]:
    """A silo for each user's main part, with the chance that the room left for main parts gives it.

    Large parts choose first, while there is room. One that fits nowhere takes what the emptiest silo has.
    """
    generator = streams.child("preferred").generator()
    order = np.lexsort((generator.random(len(main)), -main))
    uniform = generator.random(len(main))
    room = sizes * (main.sum() / max(1, sizes.sum()))
    free = sizes.copy()
    preferred, placed = np.zeros_like(main), main.copy()
    for user in order:
        fits = free >= main[user]
        chance = np.where(fits, np.maximum(room, 0), 0.0)
        if chance.any():
            silo = int(_invert(chance, uniform[user : user + 1])[0])
        else:
            silo = int(np.argmax(free))
            placed[user] = min(placed[user], free[silo])
        preferred[user] = silo
        room[silo] -= placed[user]
        free[silo] -= placed[user]
    return preferred, placed


def _avoid(shunned: IntArray, silo: IntArray) -> IntArray:
    """``silo`` with places exchanged so that no lot lies in the silo it shuns, as far as that can be."""
    silo = silo.copy()
    for lot in np.flatnonzero(silo == shunned):
        if silo[lot] != shunned[lot]:  # mended as the other side of an exchange
            continue
        partners = np.flatnonzero((silo != shunned[lot]) & (shunned != silo[lot]))
        if len(partners):
            other = partners[lot % len(partners)]  # the places are in random order already
            silo[lot], silo[other] = silo[other], silo[lot]
    return silo


def _spread_lots(owner: IntArray, size: int, least: int, streams: Streams) -> IntArray:
    """The owners of lots as owners of ``size`` records, in random order."""
    generator = streams.generator()
    owner = generator.permutation(owner)
    user = np.concatenate([np.repeat(owner, least), np.repeat(owner[:1], size - least * len(owner))])
    shuffled: IntArray = generator.permutation(user)
    return shuffled
