"""What the methods that send one vector per silo share: the server adds the mean, x_(t+1) = x_t + eta_g mean_s."""

from __future__ import annotations

import math
from dataclasses import dataclass

from uldp.methods.base import Facts, Method, State, require
from uldp.vectors import Vector


@dataclass(frozen=True, kw_only=True)
class SiloMean(Method):
    """One row per silo; users are not sampled, and no noise is shared that a silo could take with it."""

    global_lr: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.global_lr < math.inf, "global_lr", self.global_lr, "a positive number")
        require(self.sample_rate == 1, "sample_rate", self.sample_rate, "1 (this method does not sample users)")
        require(
            self.compensate == 0,
            "compensate",
            self.compensate,
            "0 (each silo's noise covers that silo's own vector, so a missing one costs nothing)",
            "privacy",
        )

    def server(self, state: State, total: Vector, facts: Facts) -> State:
        return State(state.x + self.global_lr / facts.silos * total)

    def terms(self, facts: Facts) -> int:
        return facts.silos
