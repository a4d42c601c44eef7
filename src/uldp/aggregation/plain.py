"""``plain``: every silo's noised sum goes to the server as it is; the server adds them up modulo 2^64.

The server sees each silo's sum, so against the server a silo has only its own share of the noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from uldp.aggregation.base import Aggregation, AggregationContext, ModularSumServer, ModularSumSilo
from uldp.crypto.keys import SigningKey
from uldp.data.federation import IntArray
from uldp.rng import Secrets


@dataclass(frozen=True)
class Plain(Aggregation):
    """No protection beyond the noise."""

    name: ClassVar[str] = "plain"
    summary: ClassVar[str] = "the server sees each silo's noised sum"
    server_sees_each_silo: ClassVar[bool] = True
    repeatable: ClassVar[bool] = True

    def server(self, context: AggregationContext, secrets: Secrets) -> ModularSumServer:
        return ModularSumServer(context, secrets)

    def silo(
        self, context: AggregationContext, index: int, counts: IntArray, secrets: Secrets, identity: SigningKey
    ) -> ModularSumSilo:
        return ModularSumSilo(context, index, counts, secrets)
