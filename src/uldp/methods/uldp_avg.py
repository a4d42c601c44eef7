"""ULDP-AVG: each user's model is trained inside each silo, and its change is clipped (ULDP-FL, Algorithm 3).

Silo s, for every user u with records here::

    x_su = x_t;  Q epochs of SGD on the user's records;  delta_su = x_su - x_t
    send  sum_u w_su delta_su min(1, C / |delta_su|) + N(0, sigma^2 C^2 / |S|)

Server::

    x_(t+1) = x_t + eta_g / (q |U| |S|) sum_s received

Clip, weights, sum and noise are those of :class:`uldp.privacy.releases.GaussianSum`. With ``weighting = "records"``
this is ULDP-AVG-w.
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
    """Per-user training in every silo, clipped model changes; further arguments are those of :class:`UserSum`.

    Args:
        local_epochs: Q, epochs of a user's training in a round.
        local_lr: Its learning rate.
        batch_size: The size of its batches.
        optimizer: ``sgd``, ``adam`` or ``adamw``.
        weight_decay: Of the optimiser.
        momentum: Of ``sgd``.

    Raises:
        ConfigError: A value outside its range.

    Example:
        >>> UldpAvg(weighting="records", local_epochs=5).local_training.epochs
        5
    """

    summary: ClassVar[str] = "trains one model per user and silo, clips each change"

    def silo(self, x: Vector, data: SiloData, learner: Learner, streams: Streams) -> Iterator[Contribution]:
        yield from learner.user_deltas(x, data, self.local_training, streams)
