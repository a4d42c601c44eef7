"""CentralSubDP: one clipped gradient per subject and round (Marathe and Kanani, Algorithm 1, FedSGD).

See :mod:`uldp.methods.subjects`. ``sound``. The server samples subjects with probability q (one coin for all silos);
silo s, for every sampled subject u with items here::

    g_su = gradient of the mean loss over at most K of the subject's items
    send  sum_u w_su (-g_su) min(1, C / |g_su|) + N(0, sigma^2 C^2 / |S|)

Server: x_(t+1) = x_t + eta / (q f |U|) sum_s received; f is the share of silos picked. The noise goes onto the sum,
once, and in shares of the silos: no server need be trusted with a sum that has none.

Guarantee. With ``weighting = "none"`` a subject moves the sum by one clip in each of up to s silos (``max_silos``), so
the release is a Gaussian of multiplier sigma / s, Poisson-sampled at q for those who do not know the sample (one coin
for all silos, so ids are the same in all of them). With weights that sum to at most 1 ("uniform", "records") it is a
Gaussian of multiplier sigma, whatever s is: ULDP-SGD with at most K items per subject, where the two papers meet.

``published``. Silos send (1/B) sum_i of clipped item gradients, and Z in the clear; the server adds N(0, sigma_Z^2 C^2)
for each silo to the average (B times more than its own argument asks for) and divides by s.

Symbols: K ``items``, q ``sample_rate``, C ``clip``, eta ``global_lr``, B ``batch_size``, sigma ``noise_multiplier``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from uldp.data.federation import IntArray, SiloData
from uldp.learners.base import Learner
from uldp.limits import MAX_ITEMS
from uldp.methods.base import Contribution, Facts, Observer, State, require
from uldp.methods.subjects import SubjectLevel, fixed_batch, largest_group, refuse_without_claim, some_of_each
from uldp.methods.user_sum import UserSum
from uldp.methods.weights import WEIGHTINGS
from uldp.privacy.events import Event, NonPrivate
from uldp.privacy.subjects import item_epsilon
from uldp.rng import Secrets, Streams
from uldp.vectors import Vector, clip_rows


@dataclass(frozen=True, kw_only=True)
class CentralSubDp(SubjectLevel, UserSum):
    """FedSGD on sampled subjects, noise once on the sum."""

    weighting: str = "none"
    items: int = 4
    batch_size: int = 64

    summary: ClassVar[str] = "one gradient of a few items per subject and silo, noise once on the sum"
    weightings: ClassVar[tuple[str, ...]] = ("none", *WEIGHTINGS)
    pools: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_counts(1, MAX_ITEMS, "items", "batch_size")
        for key, plain in (("sample_rate", 1), ("weighting", "none")):
            value = getattr(self, key)
            require(not self.published or value == plain, key, value, f"{plain!r} with mode = 'published'")
        require(
            not (self.samples_silos and self.private_sampling),
            "fraction",
            self.fraction,
            "1 with private sampling of subjects",
        )

    def silo(
        self, x: Vector, data: SiloData, learner: Learner, streams: Streams, secrets: Secrets
    ) -> Iterator[Contribution]:
        if self.published:
            refuse_without_claim(self.claimed_epsilon)
            total = learner.clipped_sums(data, self.clip)(x, self._batch(data, secrets), 0, streams)
            yield None, (total / self.batch_size)[None, :]
            return
        some = data.take(some_of_each(data.users, self.items, streams.child("items")))
        for users, gradients in learner.user_gradients(x, some, streams):
            yield users, clip_rows(-gradients, self.clip)

    def _batch(self, data: SiloData, secrets: Secrets) -> IntArray:
        return fixed_batch(len(data), self.batch_size, secrets.child("batches").stream())

    def remark(self, data: SiloData, secrets: Secrets) -> int:
        return largest_group(data.users[self._batch(data, secrets)]) if self.published else 0

    @property
    def largest_remark(self) -> int:
        return self.batch_size if self.published else 0

    def server_noise(self, facts: Facts, remarks: Sequence[int]) -> float:
        # Algorithm 1, line 17: for each silo that took part, onto the average
        if not self.published:
            return 0.0
        variance = math.fsum(self._sigma(facts, size) ** 2 for size in remarks if size)
        return math.sqrt(variance) * self.encoding(facts).units

    def _sigma(self, facts: Facts, size: int) -> float:
        return self.sigma(size, self.pooled_records, self.published_steps(facts))

    @property
    def published_batch(self) -> int:
        return self.batch_size

    def published_steps(self, facts: Facts) -> int:
        return self.silos_per_round(facts) * self.rounds

    def published_steps_of_a_silo(self) -> int:
        return self.rounds

    def epsilon_of_fixed_noise(self, noise: float, rate: float, facts: Facts, *, items: int, silos: int) -> float:
        # An item moves an average by C / B, and the sum of s averages carries the noise of all of them.
        on_the_sum = noise * self.batch_size * math.sqrt(self.silos_per_round(facts))
        most = self.batch_size * silos
        return item_epsilon(on_the_sum, rate, self.rounds, self.claimed_delta, items=items * silos, at_most=most)

    def server(self, state: State, total: Vector, facts: Facts) -> State:
        if self.published:
            return State(state.x - self.global_lr / self.silos_per_round(facts) * total)  # Algorithm 1, line 20
        step = self.global_lr / (self.sample_rate * self.fraction * facts.users)
        return State(state.x + step * total)

    def weights(self, facts: Facts, counts: IntArray, totals: IntArray | None) -> Vector | None:
        return None if self.weighting == "none" else super().weights(facts, counts, totals)

    @property
    def user_weighting(self) -> str | None:
        return None if self.weighting == "none" else self.weighting

    @property
    def spanned_counts(self) -> bool:
        return super().spanned_counts and self.weighting == "none"

    def reach(self, facts: Facts) -> float:
        return float(self.spanned(facts)) if self.weighting == "none" else 1.0

    def loss_if_sums_are_seen(self, facts: Facts) -> float:
        # One clip in each of s sums with noise sigma C / sqrt(|S|): mu^2 = s |S| / sigma^2
        if self.weighting == "none":
            return math.sqrt(self.spanned(facts) * facts.silos)
        return super().loss_if_sums_are_seen(facts)

    def event(self, facts: Facts, silos_heard: int) -> Event:
        return NonPrivate() if self.published else super().event(facts, silos_heard)

    def seen_by(self, facts: Facts, observer: Observer) -> Event:
        return NonPrivate() if self.published else super().seen_by(facts, observer)

    def terms(self, facts: Facts) -> int:
        return facts.users * (self.spanned(facts) if self.weighting == "none" else 1) + facts.silos

    def check(self, facts: Facts) -> None:
        super().check(facts)
        if self.published and self.claimed_epsilon and self.pooled_records:
            # The server's noise must fit too: at most as large as for a batch of one subject's items
            largest = self.server_noise(facts, [self.batch_size] * self.silos_per_round(facts))
            self.encoding(facts).check_range(self.terms(facts), largest)

    def _published_remarks(self, facts: Facts) -> tuple[str, ...]:
        return (
            "The server is trusted: it sees sums without noise, and Z of every silo. The claim's q = B / all records "
            "is too small for a silo that holds a part of them (errata D6).",
            f"Noise is added to averages over {self.batch_size} items: {self.batch_size} times as much as the paper's "
            "own argument asks for, so the numbers below are far under the claim, and it learns little (errata D4).",
        )

    def corrections(self) -> tuple[str, ...]:
        return (
            "The paper adds noise per silo, to averages; here once, to the sum, in shares that the silos add "
            "(errata D4).",
            "A subject in several silos is accounted for, subjects are sampled as a whole, and the noise is public "
            "(errata D1 to D3).",
        )
