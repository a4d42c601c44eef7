"""The interface of an aggregation: two state machines without I/O, one for the server and one for a silo.

Each takes part in the setup (the exchanges between the handshake and the first round) and in every round. Its state
follows from its secrets and the messages it received, so it is restored by replaying them.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from uldp.caveats import Caveat
from uldp.crypto.keys import SigningKey
from uldp.data.federation import IntArray
from uldp.errors import ConfigError, MessageRefused, RunError
from uldp.privacy.distance import Distance
from uldp.privacy.releases import PublicFacts, Release
from uldp.privacy.releases.sums import IntegerSum, add_noise
from uldp.protocol import messages as m
from uldp.protocol.turns import SHOW_COUNTS, RequestType, Route
from uldp.rng import Secrets
from uldp.vectors import NOISE_DEVIATIONS, Integers, Residues, Rows, Vector, from_residues, to_residues

Sample = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class AggregationContext:
    """What both sides agree on. ``identities`` are the silos' public signing keys, in the order of the silos.

    ``release`` is made once: the noise is drawn and accounted for from the same value.
    """

    digest: str
    release: Release
    rounds: int
    silos: tuple[str, ...]
    identities: tuple[bytes, ...] = ()

    @property
    def facts(self) -> PublicFacts:
        return self.release.facts

    def with_identities(self, identities: Sequence[bytes]) -> Self:
        """A copy with the silos' public keys, which change the digest: all parties must agree on them."""
        together = hashlib.sha256(self.digest.encode())
        for identity in identities:
            together.update(identity)
        return replace(self, digest=together.hexdigest(), identities=tuple(identities))


@dataclass(frozen=True)
class RoundRequest:
    """The server's request for updates of a round. ``digest`` covers all of it and is the same for all silos."""

    round: int
    digest: str
    weights: bytes
    present: Sample | None = None
    """Which silos take part, where a round is repeated without some; None for all."""


@dataclass(frozen=True)
class SiloUpdate:
    """What a silo sends, with the numbers of coordinates cut off and of rows left out."""

    vector: bytes
    saturated: int
    left_out: int
    noised_sum: bytes = b""
    """The noised sum before it was masked: for repeats with fewer silos, and for audits. It stays in the silo."""


BoundSecrets = Callable[[str, Sequence[str]], Secrets]
"""Gives the secret randomness for a purpose, derived from everything that the released vector depends on, so that only
the same release gets the same randomness (``docs/decisions/0005``)."""


class ServerSide(ABC):
    """The server's state machine. By default there is no setup and there are no encrypted weights."""

    def __init__(self, context: AggregationContext, secrets: Secrets) -> None:
        self._context = context
        self._secrets = secrets
        self._round = 0
        self._sample: Sample | None = None

    def ask(self, request: RequestType, silo: str) -> m.Message:
        """The request of this type to ``silo``, in the setup or in a round before its updates."""
        raise self._unexpected_exchange(request.__name__)

    def check(self, silo: str, body: m.Message) -> None:  # noqa: B027
        """Refuse an invalid response to a request of :meth:`ask`, without changing anything."""

    def collect(self, request: RequestType, responses: Mapping[str, m.Message]) -> None:  # noqa: B027
        """Use all silos' responses to a request of :meth:`ask`."""

    def prune_response(self, body: m.Message) -> m.Message:
        """What to store of a setup response, for replay, after the next exchange is over."""
        return body

    def begin_round(self, round_: int, sample: Sample | None) -> None:
        """Called before the first request of a round; ``sample`` is None unless the server draws one."""
        self._round, self._sample = round_, sample

    def weights(self) -> bytes:
        """Encrypted weights in a round's request for updates, where silos do not learn the sample."""
        return b""

    def _unexpected_exchange(self, exchange: str) -> RunError:
        """The error for an exchange that is not on this aggregation's route; the turn table excludes it."""
        return RunError(f"{exchange} is no part of this aggregation", location="server")

    @abstractmethod
    def check_vector(self, silo: str, vector: bytes) -> None:
        """Refuse a malformed vector."""

    @abstractmethod
    def total(self, vectors: Mapping[str, bytes]) -> Residues:
        """The total in fixed-point units, modulo 2^64."""


class Accumulator(ABC):
    """A silo's running sum in a round."""

    @abstractmethod
    def add(self, users: IntArray | None, rows: Rows) -> None:
        """Add the rows of these users (None for the silo's own). A row that is not finite counts as zero."""

    @abstractmethod
    def release(self, bound_secrets: BoundSecrets) -> SiloUpdate:
        """Add the noise and protect the sum: the result is what the silo sends."""


class SiloSide(ABC):
    """A silo's state machine."""

    def __init__(self, context: AggregationContext, index: int, counts: IntArray, secrets: Secrets) -> None:
        self._context = context
        self._index = index
        self._counts = counts
        self._secrets = secrets

    @property
    def _location(self) -> str:
        return f"silo {self._context.silos[self._index]}"

    def respond(self, body: m.Message) -> m.Message:
        """The response to one of the aggregation's requests. A refused request changes nothing."""
        raise MessageRefused(f"{type(body).__name__} has no place in this aggregation", location=self._location)

    def check_request(self, request: RoundRequest) -> None:
        """Refuse a malformed request of a round."""
        if request.weights:
            raise MessageRefused("encrypted weights are not used in this aggregation", location=self._location)

    @abstractmethod
    def accumulator(self, weights: Vector | None, request: RoundRequest) -> Accumulator:
        """Sums a round's rows with these weights; None where all weights are 1, or encrypted."""

    @abstractmethod
    def protect_metrics(self, residues: Residues, request: RoundRequest) -> Residues:
        """Protect a silo's metric sums, which carry no noise; the server adds up the results modulo 2^64."""

    def repeat_update(self, noised_sum: bytes, request: RoundRequest) -> bytes:
        """The same noised sum, protected for the silos that are present now."""
        raise MessageRefused("a round cannot be repeated in this aggregation", location=self._location)


@dataclass(frozen=True)
class Aggregation(ABC):
    """How the silos' vectors become one total."""

    name: ClassVar[str]
    summary: ClassVar[str]
    server_sees_each_silo: ClassVar[bool] = False
    hides_counts: ClassVar[bool] = False
    """Whether weighting by records works without any single party seeing another's record counts."""
    hides_sample: ClassVar[bool] = False
    """Whether the sample of users is hidden from the silos."""
    silo_pairs_learn: ClassVar[bool] = False
    """Whether two colluding silos learn some users' hidden record totals, and whether those users were sampled."""
    needs_key_agreement: ClassVar[bool] = False
    """Whether silos agree on keys with one another, and so need each other's public signing keys."""
    rounding: ClassVar[float] = 0
    """See :class:`uldp.privacy.releases.PublicFacts`."""
    shuffles: ClassVar[bool] = False
    """Whether a shuffler stands between the silos and the server."""
    repeatable: ClassVar[bool] = False
    """Whether a round can be repeated without silos that do not respond."""

    def route(self, release: Release) -> Route:
        """The exchanges after the handshake."""
        return Route(SHOW_COUNTS if release.exchange is not None else ())

    def check(self, release: Release, rounds: int) -> None:
        """Refuse a release that this aggregation cannot sum."""
        if release.user_sampling.private:
            raise ConfigError(
                f"private sampling needs aggregation.name = 'lattice' (or 'paillier'): {self.name} tells the silos the "
                "sample",
                location="method.sampling",
                value="private",
            )

    @property
    def residual(self) -> float:
        """See :class:`uldp.privacy.releases.PublicFacts`."""
        return 0.0

    def distance(self, release: Release) -> Distance:
        """How far the server's view of a round is from the view that the event describes."""
        return Distance()

    @property
    def secure(self) -> bool:
        """Whether the keys are large enough to rely on; small ones are for tests."""
        return True

    def item_bytes(self) -> int:
        """Bytes of one coordinate in a message."""
        return 8

    def user_bytes(self, release: Release) -> int:
        """Bytes of one user in a message."""
        return 8

    def caveats(self, release: Release) -> tuple[Caveat, ...]:
        """What a privacy statement must say about this aggregation."""
        return ()

    def notes(self, release: Release, counts: IntArray) -> tuple[str, ...]:
        """Notes for the party that holds the data, from record counts: (silos, users), or (1, users) of one silo.

        They carry no noise and are shown to nobody else.
        """
        return ()

    def costs(self, release: Release, rounds: int) -> Mapping[str, int]:
        """The costs of a round, for ``uldp plan``."""
        facts = release.facts
        sample = 0 if release.user_sampling.everybody else math.ceil(facts.users / 8)
        return {"update_bytes": self.item_bytes() * facts.dimension, "request_bytes": 8 * facts.dimension + sample}

    def advice(self, release: Release, rounds: int) -> str:
        """What would make a round cheaper, if anything would."""
        return ""

    @abstractmethod
    def server(self, context: AggregationContext, secrets: Secrets) -> ServerSide:
        """The server's state machine."""

    @abstractmethod
    def silo(
        self, context: AggregationContext, index: int, counts: IntArray, secrets: Secrets, identity: SigningKey
    ) -> SiloSide:
        """The state machine of the silo with this index; ``counts`` are its record counts of all users."""


def largest_total(release: Release) -> float:
    """The largest total in fixed-point units: rows and noise."""
    noise = NOISE_DEVIATIONS * release.silo_noise_std * math.sqrt(release.facts.silos)
    return release.max_rows * release.encoding.integer_limit + noise


def out_of_range() -> MessageRefused:
    return MessageRefused(
        "the silos' vectors do not add up to a total in range; a silo, or its keys, deviated from the protocol",
        location="server",
    )


def check_total(total: Sequence[int] | Integers, context: AggregationContext) -> Residues:
    """``total`` modulo 2^64. Raise MessageRefused if it is out of range, as it is where masks do not cancel."""
    largest = largest_total(context.release) + context.facts.silos
    lowest, highest = (total.min(), total.max()) if isinstance(total, np.ndarray) else (min(total), max(total))
    if lowest < -largest or highest > largest:
        raise out_of_range()
    return to_residues(np.asarray(total, dtype=np.int64))


class ModularSumServer(ServerSide):
    """Adds up the silos' vectors modulo 2^64."""

    def check_vector(self, silo: str, vector: bytes) -> None:
        m.unpack_residues(vector, self._context.facts.dimension, f"silo {silo}")

    def total(self, vectors: Mapping[str, bytes]) -> Residues:
        dimension = self._context.facts.dimension
        total = np.zeros(dimension, dtype=np.uint64)
        for silo, vector in vectors.items():
            total += m.unpack_residues(vector, dimension, f"silo {silo}")
        return check_total(from_residues(total), self._context)


class ModularSumSilo(SiloSide):
    """Adds up integers, adds noise, and sends the sum modulo 2^64."""

    def accumulator(self, weights: Vector | None, request: RoundRequest) -> ModularSumAccumulator:
        return ModularSumAccumulator(self._context.release, weights, lambda residues: self.protect(residues, request))

    def repeat_update(self, noised_sum: bytes, request: RoundRequest) -> bytes:
        return m.pack(
            self.protect(m.unpack_residues(noised_sum, self._context.facts.dimension, self._location), request)
        )

    def protect(self, residues: Residues, request: RoundRequest) -> Residues:
        """Protect a silo's noised sum before it is sent."""
        return residues

    def protect_metrics(self, residues: Residues, request: RoundRequest) -> Residues:
        return residues


class ModularSumAccumulator(Accumulator):
    """An exact integer sum, to which the release's noise is added."""

    def __init__(self, release: Release, weights: Vector | None, protect: Callable[[Residues], Residues]) -> None:
        self._release, self._protect = release, protect
        private = release.privacy_unit is not None
        self._sum = IntegerSum(release.encoding, release.facts.dimension, weights, private=private)

    def add(self, users: IntArray | None, rows: Rows) -> None:
        self._sum.add(users, rows)

    def release(self, bound_secrets: BoundSecrets) -> SiloUpdate:
        total, scale = self._sum.total, self._release.silo_noise_std
        digest = hashlib.sha256(m.pack(total)).hexdigest()
        residues = to_residues(add_noise(total, scale, bound_secrets("noise", (repr(scale), digest)).stream()))
        # The number of cut-off coordinates depends on the data: only a release without a guarantee reports it.
        saturated = self._sum.saturated if self._release.privacy_unit is None else 0
        return SiloUpdate(m.pack(self._protect(residues)), saturated, self._sum.left_out, m.pack(residues))
