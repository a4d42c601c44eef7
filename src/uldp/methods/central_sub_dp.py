"""CentralSubDP: one clipped gradient per subject and round (Marathe and Kanani, Algorithm 1, FedSGD).

The server samples subjects with probability q (one coin for all silos); silo s, for every sampled subject u with items
here::

    g_su = gradient of the mean loss over at most K of the subject's items
    send  sum_u w_su (-g_su) min(1, C / |g_su|) + N(0, sigma^2 C^2 / |S|)

Server: x_(t+1) = x_t + eta / (q f |U|) sum_s received; f is the share of silos picked. The noise goes onto the sum,
once, and in shares of the silos: no server need be trusted with a sum that has none.

The guarantee is that of :class:`uldp.privacy.releases.GaussianSum`. With ``weighting = "none"`` a subject moves the sum
by one clip in each of up to s silos (``max_silos``). With weights that sum to at most 1 ("uniform", "records") it moves
by one clip, whatever s is: ULDP-SGD with at most K items per subject, where the two papers meet.

Symbols: K ``items``, q ``sample_rate``, C ``clip``, eta ``global_lr``, sigma ``noise_multiplier``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from uldp.data.federation import SiloData
from uldp.learners.base import Learner
from uldp.limits import MAX_ITEMS, check_whole
from uldp.methods.subjects import SubjectLevel
from uldp.methods.user_sum import UserSum
from uldp.privacy.releases import Contribution, GaussianSum, PublicFacts
from uldp.privacy.releases.noised_model import some_of_each
from uldp.rng import Streams
from uldp.vectors import Vector


@dataclass(frozen=True, kw_only=True)
class CentralSubDp(SubjectLevel, UserSum):
    """FedSGD on sampled subjects, noise once on the sum."""

    weighting: str = "none"
    items: int = 4

    summary: ClassVar[str] = "one gradient of a few items per subject and silo, noise once on the sum"
    weightings: ClassVar[tuple[str, ...]] = ("none", "uniform", "records")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self.items, 1, MAX_ITEMS, "method.items")

    def release(self, facts: PublicFacts) -> GaussianSum:
        return replace(super().release(facts), max_silos=self.max_silos, silo_sampling=self.silo_sampling)

    def silo(self, x: Vector, data: SiloData, learner: Learner, streams: Streams) -> Iterator[Contribution]:
        some = data.take(some_of_each(data.users, self.items, streams.child("items")))
        for users, gradients in learner.user_gradients(x, some, streams):
            yield users, -gradients

    def published_step(self, facts: PublicFacts) -> float:
        return self.global_lr / (self.sample_rate * self.fraction * facts.users)

    def corrections(self) -> tuple[str, ...]:
        return (
            "The paper adds noise per silo, to averages; here once, to the sum, in shares that the silos add "
            "(errata D4).",
            "A subject in several silos is accounted for, subjects are sampled as a whole, and the noise is public "
            "(errata D1 to D3).",
        )
