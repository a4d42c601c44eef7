"""DP-SGD inside each silo: what ULDP-GROUP and record-level DP share.

Every silo trains by DP-SGD (:class:`uldp.privacy.releases.NoisedModel`) and sends its model change. Server:
x_(t+1) = x_t + eta_g mean_s (x_s - x_t).

Symbols: q ``record_rate``, B ``batch_size``, C ``clip``, sigma ``noise_multiplier``, eta_l ``local_lr``. q and
``local_steps`` are one number, or a list with one for each silo.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from uldp.methods.silo_mean import SiloMean
from uldp.privacy.releases import NoisedModel, PublicFacts


@dataclass(frozen=True, kw_only=True)
class DpSgd(SiloMean):
    """Record-level DP-SGD in every silo, models averaged."""

    clip: float = 1.0
    local_steps: int | tuple[int, ...] = 100
    local_lr: float = 0.1
    record_rate: float | tuple[float, ...] = 0.05
    batch_size: float = 64.0
    value_range: float = 1024.0

    paper: ClassVar[str] = "DP-SGD (CCS 2016)"

    def release(self, facts: PublicFacts) -> NoisedModel:
        return NoisedModel(
            facts=facts,
            clip=self.clip,
            noise_multiplier=self.noise_multiplier,
            steps=self.local_steps,
            rate=self.record_rate,
            batch_size=self.batch_size,
            lr=self.local_lr,
            value_range=self.value_range,
        )
