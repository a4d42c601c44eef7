"""``masked``: pairwise masks hide every silo's sum; the server sees the total only.

For every pair of silos one adds a mask to its sum and the other subtracts it, so that all masks cancel in the total,
exactly, modulo 2^64: the model is that of ``plain``, bit for bit. A mask is a keystream under a key that the two silos
agreed on, derived from the experiment, the pair, the round and the request. Another request in the same round gets
other masks, so two responses cannot be subtracted.

A round may be repeated without silos that do not respond, with masks between the others only. What a server could make
of both attempts, and what limits it, is in ``docs/decisions/0012``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from uldp.aggregation.base import Aggregation, AggregationContext, ModularSumServer, ModularSumSilo, RoundRequest
from uldp.aggregation.key_agreement import (
    AGREE_KEYS,
    KeyRequest,
    PairwiseKeys,
    SealedSeeds,
    SiloKey,
    SiloKeys,
    check_key,
    relay,
)
from uldp.caveats import Caveat, Severity
from uldp.crypto.keys import SharedKey, SigningKey
from uldp.data.federation import IntArray
from uldp.errors import MessageRefused
from uldp.privacy.releases import Release
from uldp.protocol.messages import Message
from uldp.protocol.turns import RequestType, Route
from uldp.rng import Secrets
from uldp.vectors import Residues

ONE_SILO: Final = Caveat(
    "one-silo", "There is only one silo, so the total that the server sees is its sum.", Severity.LIMITS
)


@dataclass(frozen=True)
class Masked(Aggregation):
    """The server sees the noised total, but no single silo's sum."""

    name: ClassVar[str] = "masked"
    summary: ClassVar[str] = "the server sees the noised total only"
    needs_key_agreement: ClassVar[bool] = True
    repeatable: ClassVar[bool] = True

    def route(self, release: Release) -> Route:
        return Route(AGREE_KEYS + super().route(release).setup)

    def caveats(self, release: Release) -> tuple[Caveat, ...]:
        return (ONE_SILO,) if release.facts.silos == 1 else ()

    def server(self, context: AggregationContext, secrets: Secrets) -> MaskedServer:
        return MaskedServer(context, secrets)

    def silo(
        self, context: AggregationContext, index: int, counts: IntArray, secrets: Secrets, identity: SigningKey
    ) -> MaskedSilo:
        return MaskedSilo(context, index, counts, secrets, identity)


class MaskedServer(ModularSumServer):
    """Relays the keys."""

    _keys: SiloKeys

    def ask(self, request: RequestType, silo: str) -> Message:
        return KeyRequest(b"") if request is KeyRequest else self._keys

    def check(self, silo: str, body: Message) -> None:
        if isinstance(body, SiloKey):
            check_key(self._context, silo, body, b"")
        elif isinstance(body, SealedSeeds) and body.sealed:
            raise MessageRefused("sent sealed messages, which this aggregation does not use", location=f"silo {silo}")

    def collect(self, request: RequestType, responses: Mapping[str, Message]) -> None:
        if request is KeyRequest:
            self._keys = relay(self._context, responses)


class MaskedSilo(ModularSumSilo):
    """Adds the masks."""

    def __init__(
        self, context: AggregationContext, index: int, counts: IntArray, secrets: Secrets, identity: SigningKey
    ) -> None:
        super().__init__(context, index, counts, secrets)
        self._pairwise = PairwiseKeys(context, index, secrets, identity)
        self._shared: dict[int, SharedKey] = {}

    def respond(self, body: Message) -> Message:
        match body:
            case KeyRequest(modulus):
                if modulus:
                    raise MessageRefused("a modulus is not used in this aggregation", location=self._location)
                return self._pairwise.introduce(b"")
            case SiloKeys():
                self._shared = self._pairwise.pair(body, b"")
                return SealedSeeds([])
            case _:
                return super().respond(body)

    def protect(self, residues: Residues, request: RoundRequest) -> Residues:
        present = request.present
        # The digest covers which silos are present: another set of silos gets other masks.
        others = {i: key for i, key in self._shared.items() if present is None or present[i]}
        return self._pairwise.mask(residues, others, "mask", request.round, request.digest)

    def protect_metrics(self, residues: Residues, request: RoundRequest) -> Residues:
        return self._pairwise.mask(residues, self._shared, "metrics", request.round, request.digest)
