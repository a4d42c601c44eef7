"""Settings of the methods that train inside a silo."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from uldp.data.federation import SiloData
from uldp.errors import UldpError
from uldp.learners.base import Learner, LocalTraining
from uldp.methods.base import Method
from uldp.rng import Streams
from uldp.vectors import Vector


@dataclass(frozen=True, kw_only=True)
class LocalTrainingMixin(Method):
    """Q epochs of mini-batches with an optimiser of their own."""

    local_epochs: int = 10
    local_lr: float = 0.1
    batch_size: int = 64
    optimizer: str = "sgd"
    weight_decay: float = 0.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.local_training  # checks the settings

    @property
    def local_training(self) -> LocalTraining:
        return LocalTraining(
            self.local_epochs, self.local_lr, self.batch_size, self.optimizer, self.weight_decay, self.momentum
        )


def silo_change(x: Vector, data: SiloData, learner: Learner, training: LocalTraining, streams: Streams) -> Vector:
    """x_s - x_t of a silo that trains on all of its records; not a number where the model raises.

    A model may raise on one person's record. An error would tell about it.
    """
    try:
        return learner.silo_delta(x, data, training, streams)
    except (MemoryError, UldpError):
        raise
    except Exception:
        return np.full(len(x), np.nan)
