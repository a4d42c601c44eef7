"""Settings of the methods that train inside a silo."""

from __future__ import annotations

from dataclasses import dataclass

from uldp.learners.base import LocalTraining
from uldp.methods.base import Method


@dataclass(frozen=True, kw_only=True)
class TrainsLocally(Method):
    """Q epochs of mini-batches with an optimiser of their own."""

    local_epochs: int = 10
    local_lr: float = 0.1
    batch_size: int = 64
    optimizer: str = "sgd"
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.local  # checks the settings

    @property
    def local(self) -> LocalTraining:
        return LocalTraining(self.local_epochs, self.local_lr, self.batch_size, self.optimizer, self.weight_decay)
