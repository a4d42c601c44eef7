"""The machines of an aggregation, server and silos, driven directly: no network, no training."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from uldp.aggregation.base import Aggregation, RoundRequest, ServerSide, SiloSide, SiloUpdate
from uldp.data.federation import IntArray
from uldp.methods.uldp_avg import UldpAvg
from uldp.privacy.releases import PublicFacts
from uldp.protocol import messages as m
from uldp.protocol.turns import RequestType
from uldp.rng import Secrets
from uldp.sessions.plan import Plan
from uldp.sessions.silo import signing_key
from uldp.vectors import Rows

Server = TypeVar("Server", bound=ServerSide)
Silo = TypeVar("Silo", bound=SiloSide)


def plan_of(
    aggregation: Aggregation, users: int, silos: int, dimension: int, secrets: Secrets, **settings: Any
) -> Plan:
    """An experiment with ULDP-AVG; ``settings`` are those of the method."""
    method = UldpAvg(**settings)
    facts = PublicFacts(users, silos, dimension, aggregation.rounding, residual=aggregation.residual)
    plan = Plan(
        digest=hashlib.sha256(b"bench protocol").hexdigest(),
        method=method,
        release=method.release(facts),
        rounds=method.rounds,
        silos=tuple(f"silo-{index}" for index in range(silos)),
        aggregation=aggregation,
    )
    return plan.with_identities([signing_key(secrets, index).public for index in range(silos)])


@dataclass(frozen=True)
class SetupExchange:
    """What an exchange of the setup took: seconds at the server and in one silo, bytes to and from the busiest one."""

    request: str
    server: float
    silo: float
    to_silo: int
    from_silo: int


class Parties(Generic[Server, Silo]):
    """Server and silos of a plan."""

    def __init__(self, plan: Plan, counts: IntArray, secrets: Secrets) -> None:
        self.plan, self.counts, self._secrets = plan, counts, secrets.child("silos")
        aggregation = plan.aggregation
        self.server: Server = aggregation.server(plan, secrets.child("server"))  # type: ignore[assignment]
        self.silos: dict[str, Silo] = {
            name: aggregation.silo(  # type: ignore[misc]
                plan, index, counts[index], self._secrets.child(index), signing_key(secrets, index)
            )
            for index, name in enumerate(plan.silos)
        }

    def exchange(self, kind: RequestType) -> SetupExchange:
        """One exchange with all silos."""
        start = time.perf_counter()
        requests = {name: self.server.ask(kind, name) for name in self.silos}
        asked = time.perf_counter()
        responses = {name: silo.respond(requests[name]) for name, silo in self.silos.items()}
        responded = time.perf_counter()
        for name, body in responses.items():
            self.server.check(name, body)
        self.server.collect(kind, responses)
        server, silo = asked - start + time.perf_counter() - responded, (responded - asked) / len(self.silos)
        sizes = [
            max(len(m.encode(self.plan.digest, name, body)) for name, body in way.items())
            for way in (requests, responses)
        ]
        return SetupExchange(kind.__name__, server, silo, sizes[0], sizes[1])

    def release(self, index: int, body: m.UpdateRequest, portions: Iterable[tuple[IntArray, Rows]]) -> SiloUpdate:
        """What silo ``index`` makes of its users' rows in a round."""
        request = RoundRequest(body.round, hashlib.sha256(m.encode_body(body)).hexdigest(), body.weights)

        def bound_secrets(purpose: str, further: Sequence[str]) -> Secrets:
            return self._secrets.child(index, purpose, body.round, *further)

        side = self.silos[self.plan.silos[index]]
        side.check_request(request)
        weights = None
        if not self.plan.aggregation.hides_counts:
            weights = self.plan.release.weights(self.counts[index], self.counts.sum(axis=0))
        accumulator = side.accumulator(weights, request)
        for users, rows in portions:
            accumulator.add(users, rows)
        return accumulator.release(bound_secrets)

    def update_request(self, number: int) -> m.UpdateRequest:
        """The request of a round in which everybody takes part."""
        return m.UpdateRequest(number, m.pack(np.zeros(self.plan.facts.dimension)), b"")
