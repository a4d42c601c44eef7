"""One clipped vector per silo, with noise for a user who is in every silo (ULDP-FL, Algorithm 1).

Guarantee. Nothing ties a silo's vector with a user to its vector without: both are any vectors of norm C, and they may
point in opposite directions. So one user moves each silo's vector by up to 2 C and the sum by up to 2 C |S|, where the
paper's Theorem 1 says C |S|; the noise of the sum is sigma C |S|. A Gaussian of multiplier sigma / 2 per round, whether
the user's records are removed or replaced.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from uldp.data.federation import SiloData
from uldp.errors import require
from uldp.learners.base import Learner
from uldp.privacy.events import Event, NonPrivate, sampled_gaussian
from uldp.privacy.releases.base import Adversary, Release, SiloPart
from uldp.privacy.releases.sums import Contribution, check_share, continuous_multiplier, require_limit, single_row
from uldp.rng import Secrets, Streams
from uldp.vectors import FixedPoint, Vector, clip_rows


@dataclass(frozen=True, kw_only=True)
class ClippedSilo(Release):
    """sum_s (clip(row_s, C) + N(0, sigma^2 C^2 |S|)).

    Args:
        clip: C, the largest L2 norm of a silo's row.
        noise_multiplier: sigma.

    Raises:
        ConfigError: A value outside its range.

    Example:
        >>> from uldp.privacy.releases import PublicFacts
        >>> release = ClippedSilo(facts=PublicFacts(100, 5, 10), clip=1.0, noise_multiplier=5.0)
        >>> release.silo_noise_std > 5 * release.encoding.integer_limit
        True
    """

    clip: float
    noise_multiplier: float

    shared_noise: ClassVar[bool] = True
    replace_one: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_limit("method.clip", self.clip)
        require(0 <= self.noise_multiplier < math.inf, "privacy.noise_multiplier", self.noise_multiplier, "0 or more")

    @property
    def privacy_unit(self) -> str:
        return "user"

    @property
    def encoding(self) -> FixedPoint:
        return FixedPoint(limit=self.clip)

    @property
    def silo_noise_std(self) -> float:
        # Algorithm 1, line 13: variance sigma^2 C^2 |S| in each silo
        return self.noise_multiplier * self.encoding.integer_limit * math.sqrt(self.facts.silos)

    def rows(
        self, method: SiloPart, x: Vector, data: SiloData, learner: Learner, streams: Streams, secrets: Secrets
    ) -> Iterator[Contribution]:
        yield None, clip_rows(single_row(method.silo(x, data, learner, streams), self.facts.dimension), self.clip)

    def event(self, silos_heard: int) -> Event:
        if self.silo_noise_std == 0 or silos_heard <= 0:
            return NonPrivate()
        # Each silo that is heard adds its noise, and moves by up to two clips.
        multiplier = continuous_multiplier(self.silo_noise_std, silos_heard, self.encoding.integer_limit)
        return sampled_gaussian(multiplier / (2 * silos_heard))

    def view(self, adversary: Adversary) -> Event:
        # Every silo's vector has noise of its own: together they reveal as much as their sum in the worst case, and
        # silos that collude can subtract nobody else's noise. A silo that is silent has shown nothing.
        return self.event(self.facts.silos) if adversary.shares(self.facts) else NonPrivate()

    def check(self) -> None:
        super().check()
        check_share(self.silo_noise_std)
