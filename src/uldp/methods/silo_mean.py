"""What the methods that send one vector per silo share: the server adds the mean, x_(t+1) = x_t + eta_g mean_s."""

from __future__ import annotations

import math
from dataclasses import dataclass

from uldp.errors import require
from uldp.methods.base import Method, State
from uldp.privacy.releases import PublicFacts
from uldp.vectors import Vector


@dataclass(frozen=True, kw_only=True)
class SiloMean(Method):
    """One row per silo; no noise is shared that a silo could take with it."""

    global_lr: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.global_lr < math.inf, "method.global_lr", self.global_lr, "a positive number")
        require(
            self.dropout_tolerance == 0,
            "privacy.dropout_tolerance",
            self.dropout_tolerance,
            "0 (each silo's noise covers that silo's own vector, so a missing one costs nothing)",
        )

    def server(self, state: State, total: Vector, facts: PublicFacts) -> State:
        silos = self.release(facts).silo_sampling.per_round(facts.silos)
        return State(state.x + self.global_lr / silos * total)
