"""DEFAULT: federated averaging with two-sided learning rates, without any privacy. The line to compare with.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017;
Yang, Fang, Liu, "Achieving Linear Speedup with Partial Worker Participation", ICLR 2021, for the two rates.

Silo s trains on all of its records and sends x_s - x_t. Server: x_(t+1) = x_t + eta_g mean_s.

Nothing is clipped. What is sent still passes through the integer sum, so it needs a public range: a coordinate beyond
``value_range`` is cut off there, and the run reports how many were.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from uldp.data.federation import SiloData
from uldp.learners.base import Learner
from uldp.methods.base import Contribution, Facts, require, require_limit
from uldp.methods.local import TrainsLocally
from uldp.methods.silo_mean import SiloMean
from uldp.privacy.events import Event, NonPrivate
from uldp.rng import Secrets, Streams
from uldp.vectors import FixedPoint, Vector


@dataclass(frozen=True, kw_only=True)
class FedAvg(TrainsLocally, SiloMean):
    """Plain federated averaging."""

    value_range: float = 1024.0

    summary: ClassVar[str] = "federated averaging: the non-private line to compare with"
    paper: ClassVar[str] = "FedAvg (AISTATS 2017), two-sided learning rates"
    unit: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_limit("value_range", self.value_range)
        require(
            self.noise_multiplier == 0,
            "noise_multiplier",
            self.noise_multiplier,
            "0 (this method adds no noise)",
            "privacy",
        )

    def silo(
        self, x: Vector, data: SiloData, learner: Learner, streams: Streams, secrets: Secrets
    ) -> Iterator[Contribution]:
        yield None, learner.silo_delta(x, data, self.local, streams)[None, :]

    def encoding(self, facts: Facts) -> FixedPoint:
        return FixedPoint(limit=self.value_range, bits=48, saturate=True)

    def event(self, facts: Facts, silos_heard: int) -> Event:
        return NonPrivate()
