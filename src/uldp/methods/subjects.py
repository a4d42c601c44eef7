"""What CentralSubDP and LocalSubDP share.

Marathe and Kanani: "Subject Granular Differential Privacy in Federated Learning". A *subject* of that paper is a user
here, a *federation user* of that paper is a silo.

Two modes. ``sound``, the default: subjects are sampled, not items; at most K of a subject's items are averaged and
clipped once; noise and divisor are public; a subject may be in several silos, and that is accounted. ``published``: the
paper to the letter. Batches have a fixed size, items are clipped one by one, and the noise follows from Z, the largest
number of items of one subject in the batch that was drawn. ``privacy.epsilon`` is then what the paper claims, and no
finite epsilon holds: the size of the noise tells about the subject. It is there to be compared with.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Self

import numpy as np
import numpy.typing as npt

from uldp.data.federation import IntArray, SiloData
from uldp.errors import ConfigError
from uldp.learners.base import Learner
from uldp.learners.noise import order_keys
from uldp.limits import MAX_SILOS
from uldp.methods.base import Facts, require
from uldp.methods.picking import PicksSilos
from uldp.privacy.statement import show_epsilon
from uldp.privacy.subjects import published_noise
from uldp.rng import SecretStream, Streams
from uldp.vectors import Vector, clip_rows

MODES: Final = ("sound", "published")
TABLE_SILOS: Final = (2, 5, 10)
TABLE_ITEMS: Final = (10, 100)
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class SubjectLevel(PicksSilos):
    """Modes, the number of silos of a subject, and silos that are picked in a round."""

    mode: str = "sound"
    max_silos: int = 0
    """A subject has records in at most so many silos; 0 for no limit."""
    claimed_epsilon: float = 0.0
    """``published``: what the noise is made for. Filled in from ``privacy.epsilon`` and ``privacy.delta``."""
    claimed_delta: float = 1e-5
    pooled_records: int = 0
    """``published``: the number of all silos' records, which the paper takes for known."""
    picked_silos: int = 1
    """``published``: s, the number of silos in a round."""

    fitted_by: ClassVar[str] = "mode"
    paper: ClassVar[str] = "Subject Granular DP (Marathe, Kanani)"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.mode in MODES, "mode", self.mode, f"one of {', '.join(MODES)}")
        self._check_counts(0, MAX_SILOS, "max_silos")
        require(
            not self.published or self.noise_multiplier == 0,
            "noise_multiplier",
            self.noise_multiplier,
            "left out: with method.mode = 'published' the noise follows from privacy.epsilon and the batches drawn",
            "privacy",
        )

    @property
    def published(self) -> bool:
        return self.mode == "published"

    @property
    def claims(self) -> bool:
        return self.published

    def claiming(self, epsilon: float, delta: float, facts: Facts) -> Self:
        picked = max(1, self.silos_per_round(facts))
        return replace(self, claimed_epsilon=epsilon, claimed_delta=delta, picked_silos=picked)

    def fitted(self, totals: IntArray) -> Self:
        return replace(self, pooled_records=int(totals.sum())) if self.published else self

    def spanned(self, facts: Facts) -> int:
        """In how many silos of one round a subject may have records."""
        return min(self.max_silos or facts.silos, max(1, self.silos_per_round(facts)))

    def check_counts(self, facts: Facts, counts: IntArray) -> None:
        most = int((counts > 0).sum(axis=0).max(initial=0))
        if self.spanned_counts and self.max_silos and most > self.max_silos:
            raise ConfigError(
                f"somebody has records in more than {self.max_silos} silos; raise it, or leave it out (no limit)",
                place="method.max_silos",
                value=self.max_silos,
            )

    @property
    def spanned_counts(self) -> bool:
        """Whether the guarantee depends on how many silos a subject is in."""
        return not self.published

    def batch_rate(self, records: int) -> float:
        """The paper's q for a batch of B of so many records."""
        return min(1.0, self.published_batch / max(records, 1))

    @property
    @abstractmethod
    def published_batch(self) -> int:
        """B, of the published mode."""

    @abstractmethod
    def published_steps(self, facts: Facts) -> int:
        """How many batches the paper accounts for."""

    def sigma(self, size: int, records: int, steps: int) -> float:
        """sigma_Z for a batch whose largest group has ``size`` items, drawn from so many records."""
        return published_noise(self.claimed_epsilon, self.claimed_delta, size, self.batch_rate(records), steps)

    # --- what is said about it ------------------------------------------------------------------------------------

    @property
    def void(self) -> str:
        if not self.published:
            return ""
        return (
            f"mode = 'published' claims epsilon {self.claimed_epsilon:g} at delta {self.claimed_delta:g} for a subject "
            "(our user), and no finite epsilon holds, because its noise depends on the data"
        )

    def assumptions(self, facts: Facts) -> tuple[str, ...]:
        if not self.spanned_counts or not self.max_silos or self.max_silos >= facts.silos:
            return ()
        return (
            f"Assumed: nobody has records in more than {self.max_silos} silos (method.max_silos). Where all data are "
            "in one place this was checked; in a federation nobody can.",
        )

    def caveats(self, facts: Facts) -> tuple[str, ...]:
        lines = list(self._published_caveats(facts)) if self.published else []
        if self.samples_silos:
            lines.append(
                f"The server picks {self.silos_per_round(facts)} of {facts.silos} silos a round and knows which; the "
                "numbers are for somebody whose silos are picked in every round."
            )
        return (*lines, *super().caveats(facts))

    def _published_caveats(self, facts: Facts) -> tuple[str, ...]:
        """Claimed and true, reason by reason."""
        if not self.pooled_records or not self.claimed_epsilon:
            return ()
        average = max(1, self.pooled_records // facts.silos)
        rate = self.batch_rate(average)
        noise = self.sigma(1, self.pooled_records if self.pools else average, self.published_steps(facts))
        # A batch of fixed size takes another item where one is missing: the sum moves by up to two clips.
        fixed = noise if rate == 1 else noise / 2

        def true(*, items: int = 1, silos: int = 1) -> str:
            return show_epsilon(self.epsilon_of_fixed_noise(fixed, rate, facts, items=items, silos=silos))

        silos = sorted({*(s for s in TABLE_SILOS if s < facts.silos), facts.silos})
        several = ", ".join(f"{true(silos=s)} in {s}" for s in silos)
        many = ", ".join(f"{true(items=n)} with {n}" for n in sorted({min(n, average) for n in TABLE_ITEMS}))
        return (
            f"Claimed {self.claimed_epsilon:g}, true: none. The noise is sigma_Z with Z from the very batch that was "
            "drawn, so its size tells whether a subject with many items is there (errata D1). What follows is the "
            f"worst case if the noise were fixed at sigma_1 = {noise:.3g}, for a silo of average size (q = {rate:.3g}, "
            f"{self.published_steps_of_a_silo()} steps).",
            *self._published_remarks(facts),
            f"Silos add up: epsilon is {true()} for a subject with one item in one silo, {several} silos (errata D3).",
            f"q is an item's; a subject with more items in a silo is hit more often: {many} items (errata D2).",
            "Batches of a fixed size are no Poisson samples: an item that leaves lets another one in, so a step moves "
            "by two clips, which the numbers above take into account and the claim does not (errata D6).",
        )

    @abstractmethod
    def epsilon_of_fixed_noise(self, noise: float, rate: float, facts: Facts, *, items: int, silos: int) -> float:
        """What a subject with so many items in each of so many silos faces if every batch got the same noise."""

    pools: ClassVar[bool] = False
    """Whether the paper's q is a share of all silos' records together."""

    @abstractmethod
    def published_steps_of_a_silo(self) -> int:
        """How many batches one silo draws."""

    def _published_remarks(self, facts: Facts) -> tuple[str, ...]:
        return ()


def sampled_subjects(users: IntArray, rate: float, stream: SecretStream) -> Mask:
    """Which records belong to sampled subjects: each subject with probability ``rate``, on its own."""
    if rate == 1 or not len(users):
        return np.ones(len(users), dtype=np.bool_)
    # A coin per place in the roster, so that nobody's coin moves when others leave. P(word < floor(q 2^64)) is q up to
    # 2^-64, and never above it.
    coins = stream.words(int(users.max()) + 1) < np.uint64(math.floor(rate * 2.0**64))
    return np.asarray(coins[users])


def some_of_each(users: IntArray, most: int, streams: Streams) -> Mask:
    """At most ``most`` records of every user, by a random order of that user's own: others leaving change nothing."""
    if not len(users):
        return np.zeros(0, dtype=np.bool_)
    order = np.lexsort((order_keys(users, streams), users))
    counts = np.bincount(users)
    rank = np.arange(len(users)) - np.repeat(np.cumsum(counts) - counts, counts)
    chosen = np.empty(len(users), dtype=np.bool_)
    chosen[order] = rank < most
    return chosen


def fixed_batch(records: int, size: int, stream: SecretStream) -> IntArray:
    """``size`` of so many records, every set alike; all of them if there are fewer."""
    return np.sort(np.argsort(stream.words(records), kind="stable")[:size])


def largest_group(users: IntArray) -> int:
    """Z: the largest number of records of one user."""
    return int(np.bincount(users).max()) if len(users) else 0


def clipped_gradients(x: Vector, data: SiloData, learner: Learner, clip: float, streams: Streams) -> Vector:
    """The sum over subjects of the clipped gradient of their mean loss. One that is not finite counts as zero."""
    total = np.zeros(len(x))
    for _, rows in learner.user_gradients(x, data, streams):
        finite = np.isfinite(rows).all(axis=1)
        for row in clip_rows(rows if finite.all() else rows[finite], clip):  # in the order of users
            total += row
    return total


def refuse_without_claim(claimed_epsilon: float) -> None:
    """The published noise has to be made for something."""
    if not claimed_epsilon > 0:
        raise ConfigError(
            "method.mode = 'published' makes its noise for an epsilon that it claims; give one", place="privacy.epsilon"
        )
