"""ULDP-NAIVE: each silo sends its clipped model change with noise for all silos (ULDP-FL, Algorithm 1).

Silo s trains on all of its records::

    x_s = x_t;  Q epochs of SGD;  delta_s = x_s - x_t
    send  delta_s min(1, C / |delta_s|) + N(0, sigma^2 C^2 |S|)

Server: x_(t+1) = x_t + eta_g mean_s. (The paper's line 12 has the sign of the change reversed.)

Guarantee. Nothing ties a silo's change with a user to its change without: both are any vectors of norm C, and they may
point in opposite directions. So one user moves each silo's vector by up to 2 C and the sum by up to 2 C |S|, where the
paper's Theorem 1 says C |S|; the noise of the sum is sigma C |S|. A Gaussian of multiplier sigma / 2 per round, whether
the user is left out or the user's records are replaced.

Symbols: C ``clip``, sigma ``noise_multiplier``, T ``rounds``, Q ``local_epochs``, eta_g ``global_lr``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from uldp.data.federation import SiloData
from uldp.learners.base import Learner
from uldp.methods.base import Contribution, Facts, Observer, require_limit
from uldp.methods.local import TrainsLocally
from uldp.methods.release import check_share, continuous_multiplier
from uldp.methods.silo_mean import SiloMean
from uldp.privacy.events import Event, NonPrivate, sampled_gaussian
from uldp.rng import Secrets, Streams
from uldp.vectors import FixedPoint, Vector, clip_rows


@dataclass(frozen=True, kw_only=True)
class UldpNaive(TrainsLocally, SiloMean):
    """One clipped change per silo, and noise for a user who is in every silo."""

    clip: float = 1.0

    summary: ClassVar[str] = "one clipped change per silo, noise for a user who is in all silos; private, hardly learns"
    paper: ClassVar[str] = "ULDP-FL (PVLDB 2024), Algorithm 1"
    covers_replacement: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_limit("clip", self.clip)

    def silo(
        self, x: Vector, data: SiloData, learner: Learner, streams: Streams, secrets: Secrets
    ) -> Iterator[Contribution]:
        # What is not a number counts as zero.
        yield None, clip_rows(self.change(x, data, learner, streams)[None, :], self.clip)

    def encoding(self, facts: Facts) -> FixedPoint:
        return FixedPoint(limit=self.clip)

    def noise_scale(self, facts: Facts) -> float:
        # Algorithm 1, line 13: variance sigma^2 C^2 |S| in each silo
        return self.noise_multiplier * self.encoding(facts).units * math.sqrt(facts.silos)

    def event(self, facts: Facts, silos_heard: int) -> Event:
        scale, units = self.noise_scale(facts), self.encoding(facts).units
        if scale == 0 or silos_heard <= 0:
            return NonPrivate()
        # Each silo that is heard adds its noise, and moves by up to two clips.
        return sampled_gaussian(continuous_multiplier(scale, silos_heard, units) / (2 * silos_heard))

    def seen_by(self, facts: Facts, observer: Observer) -> Event:
        # Every silo's vector has noise of its own: together they tell as much as their sum does in the worst case, and
        # silos that pool can take nobody else's noise off. A silo that is silent has shown nothing.
        return self.event(facts, facts.silos) if observer.shares(facts) else NonPrivate()

    def corrections(self) -> tuple[str, ...]:
        return (
            "Theorem 1 takes the sensitivity of the sum for C |S|. A silo's change with a user and without may point "
            "in opposite directions, so it is 2 C |S|, and epsilon that of half the noise (errata U2).",
        )

    def check(self, facts: Facts) -> None:
        super().check(facts)
        check_share(self.noise_scale(facts))
