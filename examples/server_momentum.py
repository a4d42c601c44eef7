"""ULDP-AVG with momentum on the server: a method in one file (see docs/add-a-method.md).

The server sees noised totals only, so what it does with them costs no privacy: event and noise are inherited.

    uldp run --dataset breast-cancer --method server_momentum:UldpAvgMomentum
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from uldp.methods.base import Facts, State, require
from uldp.methods.uldp_avg import UldpAvg
from uldp.vectors import Vector


@dataclass(frozen=True, kw_only=True)
class UldpAvgMomentum(UldpAvg):
    """x_(t+1) = x_t + v_(t+1), where v_(t+1) = momentum v_t + the step of ULDP-AVG."""

    momentum: float = 0.9

    summary: ClassVar[str] = "ULDP-AVG with momentum on the server"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.momentum < 1, "momentum", self.momentum, "at least 0 and below 1")

    def server(self, state: State, total: Vector, facts: Facts) -> State:
        step = super().server(State(np.zeros_like(state.x)), total, facts).x
        velocity = self.momentum * state.memory.get("velocity", np.zeros_like(step)) + step
        return State(state.x + velocity, {"velocity": velocity})
