"""FedAvg with two-sided learning rates, without any privacy: the line to compare with (DEFAULT in ULDP-FL).

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017;
Yang, Fang, Liu, "Achieving Linear Speedup with Partial Worker Participation", ICLR 2021, for the two rates.

Silo s trains on all of its records and sends x_s - x_t. Server: x_(t+1) = x_t + eta_g mean_s. Nothing is clipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from uldp.data.federation import SiloData
from uldp.errors import require
from uldp.learners.base import Learner
from uldp.methods.local_training import LocalTrainingMixin
from uldp.methods.silo_mean import SiloMean
from uldp.privacy.releases import Contribution, PublicFacts, Unprotected
from uldp.privacy.releases.sums import require_limit
from uldp.rng import Streams
from uldp.vectors import Vector


@dataclass(frozen=True, kw_only=True)
class FedAvg(LocalTrainingMixin, SiloMean):
    """Plain federated averaging."""

    value_range: float = 1024.0

    summary: ClassVar[str] = "federated averaging: the non-private line to compare with"
    paper: ClassVar[str] = "FedAvg (AISTATS 2017), two-sided learning rates"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_limit("method.value_range", self.value_range)
        noise = self.noise_multiplier
        require(noise == 0, "privacy.noise_multiplier", noise, "0 (this method adds no noise)")

    def release(self, facts: PublicFacts) -> Unprotected:
        return Unprotected(facts=facts, value_range=self.value_range)

    def silo(self, x: Vector, data: SiloData, learner: Learner, streams: Streams) -> Iterator[Contribution]:
        yield None, learner.silo_delta(x, data, self.local_training, streams)[None, :]
