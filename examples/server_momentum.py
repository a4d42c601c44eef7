"""ULDP-AVG with momentum on the server: a method in one file (see docs/add-a-method.md).

The server sees noised totals only, so what it does with them costs no privacy: the release is inherited.

    uldp run --dataset breast-cancer --method server_momentum:UldpAvgMomentum
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from uldp import RoundFacts, State
from uldp.errors import require
from uldp.methods.uldp_avg import UldpAvg
from uldp.vectors import Vector


@dataclass(frozen=True, kw_only=True)
class UldpAvgMomentum(UldpAvg):
    """x_(t+1) = x_t + v_(t+1), where v_(t+1) = server_momentum v_t + the step of ULDP-AVG."""

    server_momentum: float = 0.9

    summary: ClassVar[str] = "ULDP-AVG with momentum on the server"

    def __post_init__(self) -> None:
        super().__post_init__()
        value = self.server_momentum
        require(0 <= value < 1, "method.server_momentum", value, "at least 0 and below 1")

    def server(self, state: State, total: Vector, facts: RoundFacts) -> State:
        step = super().server(State(np.zeros_like(state.x)), total, facts).x
        velocity = self.server_momentum * state.memory.get("velocity", np.zeros_like(step)) + step
        return State(state.x + velocity, {"velocity": velocity})
