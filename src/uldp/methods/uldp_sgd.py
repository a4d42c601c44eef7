"""ULDP-SGD: each silo sends its users' clipped gradients (ULDP-FL, Algorithm 3).

Silo s, for every user u with records here::

    g_su = gradient of the mean loss over all of the user's records in the silo, at x_t
    send  sum_u w_su (-g_su) min(1, C / |g_su|) + N(0, sigma^2 C^2 / |S|)

The paper sends +g while its server adds; that climbs the loss. The server step is that of
:mod:`uldp.methods.user_sum`. With ``weighting = "records"`` this is ULDP-SGD-w.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from uldp.data.federation import SiloData
from uldp.learners.base import Learner
from uldp.methods.user_sum import UserSum
from uldp.privacy.releases import Contribution
from uldp.rng import Streams
from uldp.vectors import Vector


@dataclass(frozen=True, kw_only=True)
class UldpSgd(UserSum):
    """One clipped gradient per user and silo."""

    summary: ClassVar[str] = "one gradient per user and silo, clipped; cheap rounds, many of them needed"

    def silo(self, x: Vector, data: SiloData, learner: Learner, streams: Streams) -> Iterator[Contribution]:
        for users, gradients in learner.user_gradients(x, data, streams):
            yield users, -gradients
