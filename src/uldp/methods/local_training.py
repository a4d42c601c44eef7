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
    """The settings of methods that train inside a silo, user by user or on all of its records.

    Args:
        local_epochs: Q.
        local_lr: eta_l.
        batch_size: B.
        optimizer: ``sgd``, ``adam`` or ``adamw``.
        weight_decay: As in ``torch.optim``.
        momentum: Of ``sgd``.

    Raises:
        ConfigError: A value outside its range.

    Example:
        >>> from uldp.methods.uldp_avg import UldpAvg
        >>> UldpAvg(local_epochs=2, local_lr=0.5).local_training.epochs
        2
    """

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
    """x_s - x_t of a silo that trains on all of its records; NaN where the model raises.

    A model may raise on one person's record, and an error would reveal something about it.
    """
    try:
        return learner.silo_delta(x, data, training, streams)
    except (MemoryError, UldpError):
        raise
    except Exception:
        return np.full(len(x), np.nan)
