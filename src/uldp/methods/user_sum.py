"""What ULDP-AVG and ULDP-SGD share: clipped, weighted rows of users, summed over silos, with noise shared by the silos.

Kato, Xiong, Takagi, Cao, Yoshikawa: "ULDP-FL: Federated Learning with Across Silo User-Level Differential Privacy",
PVLDB 17(11), 2024; Algorithms 3 and 4, Theorem 3.

Guarantee. One user moves the total by at most C, because each row is clipped to C and sum_s w_su <= 1. Each of the |S|
silos adds N(0, sigma^2 C^2 / |S|), so the total carries N(0, sigma^2 C^2): a Gaussian of multiplier sigma per round.
With user-level sub-sampling (Algorithm 4) it is Poisson-sampled at q, for those who do not know the sample.

Symbols: C ``clip``, sigma ``noise_multiplier``, T ``rounds``, eta_g ``global_lr``, q ``sample_rate``, w_su ``weights``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Final

from uldp.data.federation import IntArray
from uldp.limits import MAX_ROUNDS
from uldp.methods.base import Facts, Method, Observer, State, require, require_limit
from uldp.methods.release import check_share, continuous_multiplier
from uldp.methods.weights import WEIGHTINGS, record_weights, uniform_weights
from uldp.privacy.events import Event, NonPrivate, sampled_gaussian
from uldp.vectors import FixedPoint, Vector

SAMPLINGS: Final = ("open", "private")
MOST_SLOTS: Final = 1000
"""The largest P of private sampling: the server makes so many keys for every user and round."""


@dataclass(frozen=True, kw_only=True)
class UserSum(Method):
    """A method whose release is sum_s sum_u w_su clip(row_su, C) + noise."""

    clip: float = 1.0
    global_lr: float = 1.0
    weighting: str = "uniform"
    sampling: str = "open"
    """``private``: neither the server nor the silos know who was sampled (needs ``aggregation.name = "paillier"``)."""
    max_participations: int = 0
    """With sub-sampling: in how many rounds one user takes part at most; 0 for no limit."""

    paper: ClassVar[str] = "ULDP-FL (PVLDB 2024), Algorithms 3 and 4"
    weightings: ClassVar[tuple[str, ...]] = WEIGHTINGS

    def __post_init__(self) -> None:
        super().__post_init__()
        require_limit("clip", self.clip)
        require(0 < self.global_lr < math.inf, "global_lr", self.global_lr, "a positive number")
        known = self.weightings
        require(self.weighting in known, "weighting", self.weighting, f"one of {', '.join(known)}")
        self._check_counts(0, MAX_ROUNDS, "max_participations")
        require(
            self.max_participations == 0 or self.sample_rate < 1,
            "max_participations",
            self.max_participations,
            "0 unless users are sampled (sample_rate below 1): otherwise all of them would stop at the same round",
        )
        require(self.sampling in SAMPLINGS, "sampling", self.sampling, f"one of {', '.join(SAMPLINGS)}")
        if self.private_sampling:
            self._check_slots()

    def _check_slots(self) -> None:
        chosen, slots = self.sampling_slots
        require(
            self.sample_rate < 1 and chosen / slots == self.sample_rate,
            "sample_rate",
            self.sample_rate,
            f"m / P with 0 < m < P and P from 2 to {MOST_SLOTS} for private sampling, such as 0.1 or the nearest, "
            f"{chosen} / {slots} = {chosen / slots!r}",
        )
        require(
            self.max_participations == 0,
            "max_participations",
            self.max_participations,
            "0 with private sampling: nobody knows who took part, so nobody can count",
        )

    @property
    def private_sampling(self) -> bool:
        return self.sampling == "private"

    @property
    def sampling_slots(self) -> tuple[int, int]:
        least, most = Fraction(1, MOST_SLOTS), Fraction(MOST_SLOTS - 1, MOST_SLOTS)
        nearest = min(most, max(least, Fraction(self.sample_rate).limit_denominator(MOST_SLOTS)))
        return nearest.numerator, nearest.denominator

    @property
    def needs_counts(self) -> bool:
        return self.weighting == "records"

    @property
    def participation_limit(self) -> int:
        return self.max_participations

    @property
    def user_weighting(self) -> str | None:
        return self.weighting

    def weights(self, facts: Facts, counts: IntArray, totals: IntArray | None) -> Vector | None:
        if totals is None:
            return uniform_weights(facts.users, facts.silos)
        return record_weights(counts, totals)

    def encoding(self, facts: Facts) -> FixedPoint:
        return FixedPoint(limit=self.clip)

    def noise_scale(self, facts: Facts) -> float:
        # Algorithm 3, lines 17 and 24: variance sigma^2 C^2 / |S| in each silo; without those that may be missing
        return self.noise_multiplier * self.encoding(facts).units / math.sqrt(facts.silos - self.compensate)

    def server(self, state: State, total: Vector, facts: Facts) -> State:
        # Algorithm 3, line 6; Algorithm 4, line 10
        step = self.global_lr / (self.sample_rate * facts.users * facts.silos)
        return State(state.x + step * total)

    def event(self, facts: Facts, silos_heard: int) -> Event:
        # Theorem 3. A silent silo takes its share of the noise with it.
        return self._gaussian(facts, silos_heard, self.reach(facts), self.sample_rate)

    def reach(self, facts: Facts) -> float:
        """By how many clips one user moves the total: 1, for weights sum to at most 1 over silos."""
        return 1.0

    def loss_if_sums_are_seen(self, facts: Facts) -> float:
        """sigma times mu of a round towards somebody who sees each silo's sum, with noise sigma C / sqrt(|S|) each.

        mu^2 = |S| sum_s w_su^2 / sigma^2. Uniform weights: sum_s w_su^2 = 1/|S|. By records it is 1 for a user whose
        records are all in one silo.
        """
        return math.sqrt(facts.silos) if self.weighting == "records" else 1.0

    def seen_by(self, facts: Facts, observer: Observer) -> Event:
        if observer.who == "world":
            return self.event(facts, observer.shares(facts))
        rate = 1.0 if observer.sample else self.sample_rate
        if observer.who == "silos" or not observer.sums:
            return self._gaussian(facts, observer.shares(facts), self.reach(facts), rate)
        # A silo that sent nothing has shown nothing.
        return self._gaussian(facts, facts.silos, self.loss_if_sums_are_seen(facts), 1.0)

    def seen_over(self, facts: Facts, observer: Observer, releases: Sequence[int]) -> Mapping[Event, int]:
        # Who knows the sample gets no amplification, but no user is in more rounds than the limit. Towards the world
        # the limit costs nothing: given what was seen before, a user is sampled with probability at most q.
        if self.max_participations and observer.who != "world" and observer.sample:
            releases = sorted(releases, reverse=True)[: self.max_participations]
        return super().seen_over(facts, observer, releases)

    def _gaussian(self, facts: Facts, shares: int, sensitivity: float, sample_rate: float) -> Event:
        """The sampled Gaussian of ``shares`` shares of noise against ``sensitivity`` clips."""
        scale = self.noise_scale(facts)
        if scale == 0 or shares <= 0:
            return NonPrivate()
        units = self.encoding(facts).units
        multiplier = continuous_multiplier(scale, shares, units)
        # Rounding at a known point moves each of d coordinates by less than a unit more (docs/errata.md, U13).
        sensitivity *= 1 + facts.dither * math.sqrt(facts.dimension) / units
        return sampled_gaussian(multiplier / sensitivity, sample_rate)

    def check(self, facts: Facts) -> None:
        super().check(facts)
        check_share(self.noise_scale(facts))

    def corrections(self) -> tuple[str, ...]:
        if self.sample_rate == 1:
            return ("Theorem 3 is stated by RDP; a Gaussian is accounted exactly here, which gives less (errata U4).",)
        return (
            "Algorithm 4 as printed zeroes the users that were sampled; here the others are left out (errata U3).",
            "Lemma 4 is for samples of fixed size; Poisson samples are accounted as such, by PLD (errata U4).",
        )
