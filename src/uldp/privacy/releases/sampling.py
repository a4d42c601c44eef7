"""Who takes part in a round: some of the users, some of the silos, or all of them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from hashlib import blake2b
from typing import Final

import numpy as np
import numpy.typing as npt

from uldp.errors import require
from uldp.limits import MAX_ROUNDS, check_whole

MIN_RATE: Final = 1e-9
"""The smallest probability with which a user or a record is sampled."""
_GROUP_KEY: Final = b"uldp: participation groups"
"""Of the hash that puts users into groups, without an experiment. Groups are public: no key of them is secret."""
MAX_SLOTS: Final = 1000
"""The largest P of private sampling: the server makes P keys for every user and round."""


@dataclass(frozen=True)
class UserSampling:
    """Every user takes part in a round with probability ``rate``, independently (ULDP-FL, Algorithm 4).

    ``private``: neither the server nor the silos learn who was sampled. ``max_participations`` bounds the number of
    rounds in which one user takes part; 0 for no bound.

    >>> UserSampling(0.1, private=True).slots
    (1, 10)
    """

    rate: float = 1.0
    private: bool = False
    max_participations: int = 0

    def __post_init__(self) -> None:
        require(MIN_RATE <= self.rate <= 1, "method.sample_rate", self.rate, f"from {MIN_RATE:g} to 1")
        check_whole(self.max_participations, 0, MAX_ROUNDS, "method.max_participations")
        require(
            self.max_participations == 0 or self.rate < 1,
            "method.max_participations",
            self.max_participations,
            "0 unless users are sampled (sample_rate below 1): otherwise all of them would stop at the same round",
        )
        if self.private:
            self._check_private()

    def _check_private(self) -> None:
        chosen, slots = self.slots
        require(
            self.rate < 1 and chosen / slots == self.rate,
            "method.sample_rate",
            self.rate,
            f"m / P with 0 < m < P and P from 2 to {MAX_SLOTS} for private sampling, such as 0.1 or the nearest, "
            f"{chosen} / {slots} = {chosen / slots!r}",
        )
        require(
            self.max_participations == 0,
            "method.max_participations",
            self.max_participations,
            "0 with private sampling: nobody knows who took part, so nobody can count",
        )

    @property
    def everybody(self) -> bool:
        """Whether all users take part in every round."""
        return self.rate == 1

    @property
    def by_server(self) -> bool:
        """Whether the server draws the sample, and so knows it."""
        return self.rate < 1 and not self.private

    @property
    def slots(self) -> tuple[int, int]:
        """(m, P) with rate = m / P: of P slots, m open a real weight (:mod:`uldp.aggregation.offers`)."""
        lowest, highest = Fraction(1, MAX_SLOTS), Fraction(MAX_SLOTS - 1, MAX_SLOTS)
        nearest = min(highest, max(lowest, Fraction(self.rate).limit_denominator(MAX_SLOTS)))
        return nearest.numerator, nearest.denominator


@dataclass(frozen=True)
class Participation:
    """Users are in fixed groups, and round t is the turn of group (t - 1) mod ``groups``; one group is everybody.

    A user's group follows from the user index by a keyed hash, the same in every silo, and is no secret: nothing is
    amplified. What it gives is that a user's records are read in the rounds of one group only (decision 17). ``key`` is
    the experiment's: who is together in one experiment is not in another.

    >>> cyclic = Participation(10)
    >>> cyclic.group(1), cyclic.group(11), cyclic.rounds_of_a_user(60)
    (0, 0, 6)
    """

    groups: int = 1
    key: str = ""

    def __post_init__(self) -> None:
        check_whole(self.groups, 1, MAX_ROUNDS, "method.participation_groups")

    def group(self, round_: int) -> int | None:
        """Whose turn a round is; None where it is everybody's."""
        return None if self.groups == 1 else (round_ - 1) % self.groups

    def rounds_of_a_user(self, rounds: int) -> int:
        """In how many of so many rounds a user takes part at most."""
        return -(-rounds // self.groups)

    def members(self, users: int, round_: int) -> npt.NDArray[np.bool_] | None:
        """Which of all users take part in a round; None for all of them."""
        group = self.group(round_)
        return None if group is None else _group_of_users(users, self.groups, self.key) == group


@lru_cache(maxsize=4)
def _group_of_users(users: int, groups: int, key: str = "") -> npt.NDArray[np.uint64]:
    """The group of every user: a hash of the user's index, whatever the number of users is.

    BLAKE2b in counter mode, eight users to a block: the same on every machine and with every version of numpy. Were it
    not, a user would be in two groups.
    """
    own = blake2b(key.encode(), key=_GROUP_KEY).digest() if key else _GROUP_KEY
    blocks = (
        blake2b(block.to_bytes(8, "little"), key=own, person=groups.to_bytes(8, "little")).digest()
        for block in range(-(-users // 8))
    )
    return np.frombuffer(b"".join(blocks), dtype="<u8")[:users].astype(np.uint64) % np.uint64(groups)


@dataclass(frozen=True)
class SiloSampling:
    """The server picks a fixed number of silos for a round, every set with the same probability, and knows which.

    >>> SiloSampling(0.5).per_round(5)
    2
    """

    fraction: float = 1.0

    def __post_init__(self) -> None:
        require(0 < self.fraction <= 1, "method.fraction", self.fraction, "above 0 and at most 1")

    @property
    def all_silos(self) -> bool:
        return self.fraction == 1

    def per_round(self, silos: int) -> int:
        """How many of ``silos`` silos take part in a round; halves are rounded to the even number."""
        return round(self.fraction * silos)

    def silos_per_user(self, max_silos: int, silos: int) -> int:
        """In how many silos of one round a user may have records who has some in ``max_silos`` (0 for all) of them."""
        return min(max_silos or silos, max(1, self.per_round(silos)))

    def check(self, silos: int) -> None:
        """Refuse a fraction that picks nobody."""
        require(
            self.per_round(silos) >= 1,
            "method.fraction",
            self.fraction,
            f"at least {1 / silos:.3g}, so that one of {silos} silos takes part",
        )
