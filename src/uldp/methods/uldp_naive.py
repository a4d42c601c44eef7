"""ULDP-NAIVE: each silo sends its clipped model change with noise for all silos (ULDP-FL, Algorithm 1).

Silo s trains on all of its records::

    x_s = x_t;  Q epochs of SGD;  delta_s = x_s - x_t
    send  delta_s min(1, C / |delta_s|) + N(0, sigma^2 C^2 |S|)

Server: x_(t+1) = x_t + eta_g mean_s. (The paper's line 12 has the sign of the change reversed.)

The guarantee is that of :class:`uldp.privacy.releases.ClippedSilo`: half of what the paper's Theorem 1 says.

Symbols: C ``clip``, sigma ``noise_multiplier``, T ``rounds``, Q ``local_epochs``, eta_g ``global_lr``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from uldp.data.federation import SiloData
from uldp.learners.base import Learner
from uldp.methods.local_training import LocalTrainingMixin, silo_change
from uldp.methods.silo_mean import SiloMean
from uldp.privacy.releases import ClippedSilo, Contribution, PublicFacts
from uldp.rng import Streams
from uldp.vectors import Vector


@dataclass(frozen=True, kw_only=True)
class UldpNaive(LocalTrainingMixin, SiloMean):
    """One clipped change per silo, and noise for a user who is in every silo."""

    clip: float = 1.0

    summary: ClassVar[str] = "one clipped change per silo, noise for a user who is in all silos; private, hardly learns"
    paper: ClassVar[str] = "ULDP-FL (PVLDB 2024), Algorithm 1"

    def release(self, facts: PublicFacts) -> ClippedSilo:
        return ClippedSilo(facts=facts, clip=self.clip, noise_multiplier=self.noise_multiplier)

    def silo(self, x: Vector, data: SiloData, learner: Learner, streams: Streams) -> Iterator[Contribution]:
        yield None, silo_change(x, data, learner, self.local_training, streams)[None, :]

    def corrections(self) -> tuple[str, ...]:
        return (
            "Theorem 1 takes the sensitivity of the sum for C |S|. A silo's change with a user and without may point "
            "in opposite directions, so it is 2 C |S|, and epsilon that of half the noise (errata U2).",
        )
