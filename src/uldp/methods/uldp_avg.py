"""ULDP-AVG: in each silo a model is trained for each user, and its delta is clipped (ULDP-FL, Algorithm 3).

Silo s, for every user u with records here::

    x_su = x_t;  Q epochs of SGD on the user's records;  delta_su = x_su - x_t
    send  sum_u w_su delta_su min(1, C / |delta_su|) + N(0, sigma^2 C^2 / |S|)

Server::

    x_(t+1) = x_t + eta_g / (q |U| |S|) sum_s received

Clip, weights, sum and noise are those of :class:`uldp.privacy.releases.GaussianSum`. With ``weighting = "records"``
this is ULDP-AVG-w. Symbols are those of :mod:`uldp.methods.user_sum`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from uldp.data.federation import SiloData
from uldp.learners.base import Learner
from uldp.methods.local_training import LocalTrainingMixin
from uldp.methods.user_sum import UserSum
from uldp.privacy.releases import Contribution
from uldp.rng import Streams
from uldp.vectors import Vector


@dataclass(frozen=True, kw_only=True)
class UldpAvg(LocalTrainingMixin, UserSum):
    """Per-user training in every silo, clipped model deltas; further arguments are those of :class:`UserSum`.

    Args:
        local_epochs: Q, the number of epochs for which each user's model is trained in a round.
        local_lr: The learning rate of this training.
        batch_size: The number of records in a batch.
        optimizer: ``sgd``, ``adam`` or ``adamw``.
        weight_decay: The optimiser's weight decay.
        momentum: The momentum of ``sgd``.

    Raises:
        ConfigError: A value outside its range.

    Example:
        >>> UldpAvg(weighting="records", local_epochs=5).local_training.epochs
        5
    """

    summary: ClassVar[str] = "trains one model per user and silo, clips each model delta"

    def silo(self, x: Vector, data: SiloData, learner: Learner, streams: Streams) -> Iterator[Contribution]:
        yield from learner.user_deltas(x, data, self.local_training, streams)
