"""One run of the private weighting protocol for ``uldp bench protocol``: both machines, no network, no training."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Final

import numpy as np
from gmpy2 import mpz

from uldp.aggregation.base import RoundRequest
from uldp.aggregation.key_agreement import KeyRequest, SiloKeys
from uldp.aggregation.paillier import SECURE_BITS, PaillierWeighting
from uldp.aggregation.paillier_messages import ChoicesRequest, EncryptedWeights, SealedSeed
from uldp.aggregation.paillier_server import PaillierServer
from uldp.aggregation.paillier_silo import PaillierSilo
from uldp.aggregation.ratios import PSEUDO_COUNT
from uldp.bench.machine import Case
from uldp.bench.parties import Parties, plan_of
from uldp.crypto.paillier import PrivateKey
from uldp.protocol import messages as m
from uldp.protocol.turns import RequestType
from uldp.rng import Secrets, SecretStream, Streams
from uldp.sessions.plan import Plan
from uldp.vectors import Integers, Vector, clip_rows

Times = dict[str, float]

CLIP: Final = 1.0


class ProtocolPhase(StrEnum):
    """What is timed apart. The last four are parts of an oblivious transfer."""

    KEYS = "key exchange"
    HISTOGRAM = "histogram"
    ENCRYPTING = "encrypting weights"
    RAISING = "raising weights"
    TABLE = "randomiser table"
    WEIGHTING = "silo weighting"
    DECRYPTION = "aggregation and decryption"
    AT_SERVER = "transfer at the server"
    AT_SILO = "transfer in a silo"
    CHECKS = "checks of choices"
    ENCRYPTION = "encryption"


SETUP: Final = (
    ProtocolPhase.KEYS,
    ProtocolPhase.HISTOGRAM,
    ProtocolPhase.ENCRYPTING,
    ProtocolPhase.RAISING,
    ProtocolPhase.TABLE,
)
ROUND: Final = (ProtocolPhase.WEIGHTING, ProtocolPhase.DECRYPTION)
PHASES: Final[Mapping[RequestType, tuple[str, str]]] = {
    KeyRequest: (ProtocolPhase.KEYS, ProtocolPhase.KEYS),
    SiloKeys: (ProtocolPhase.KEYS, ProtocolPhase.KEYS),
    SealedSeed: (ProtocolPhase.HISTOGRAM, ProtocolPhase.HISTOGRAM),
    EncryptedWeights: (ProtocolPhase.ENCRYPTING, ProtocolPhase.RAISING),
}
"""The phases that the server's and the silos' parts of an exchange belong to."""

QUICK_BITS: Final = 512


@dataclass(frozen=True)
class Target:
    """What a case should reach: ``measure`` at least or at most ``limit``."""

    measure: str
    limit: float
    text: str
    at_least: bool = True

    def is_met(self, case: Case) -> bool:
        value = float(case[self.measure])
        return value >= self.limit if self.at_least else value <= self.limit


@dataclass(frozen=True)
class Shape:
    """A federation. ``rounds`` decides whether a table of randomisers pays.

    ``slots``: parameters in one ciphertext, None for what takes less time. ``choices``: P of private sampling, from
    which a user is sampled with probability 1 / P; 0 for everybody in every round.
    """

    dimension: int
    users: int
    rounds: int = 50
    target: Target | None = None
    repeats: int = 3
    check_memory: bool = False
    silos: int = 3
    key_bits: int = SECURE_BITS
    max_records: int = 480
    pseudo_count: int = PSEUDO_COUNT
    slots: int | None = None
    choices: int = 0
    noise_multiplier: float = 5.0
    workers: int = 1

    @property
    def name(self) -> str:
        return f"d={self.dimension} U={self.users}" + ("" if self.rounds > 1 else ", one round only")

    def with_small_key(self) -> Shape:
        """For tests. The common multiple of the weights must fit a small key too, and fits it several times then."""
        return replace(self, key_bits=QUICK_BITS, max_records=30, slots=1, target=None, repeats=1, check_memory=False)


class Run(Parties[PaillierServer, PaillierSilo]):
    """An experiment of ours without network and training: the server's machine and the silos'."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        # Simulated: the keys protect nobody here, and all cases shall have the same.
        secrets = Secrets.simulated_from_seed(0)
        generator = Streams.from_seed(0).child("bench", shape.name).generator()
        super().__init__(_plan(shape, secrets), generator.integers(1, 11, (shape.silos, shape.users)), secrets)
        raw = generator.standard_normal((shape.silos, shape.users, shape.dimension))
        self.rows: Vector = np.stack([clip_rows(rows, CLIP) for rows in raw])
        self.naive_noise: Integers = np.rint(
            generator.normal(0.0, self.plan.release.silo_noise_std, (shape.silos, shape.dimension))
        ).astype(np.int64)
        self._sizes: dict[tuple[str, str], list[int]] = {}

    @cached_property
    def integers(self) -> Integers:
        """The encoded rows, as both sides raise ciphertexts to them."""
        encoding = self.plan.release.encoding
        return np.stack([encoding.encode_rows(rows)[0] for rows in self.rows])

    def setup(self) -> Times:
        """All exchanges before the first round. Opening the sealed seed counts as part of the histogram.

        The time of the table is that of one silo, and next to nothing where an earlier run has left the table: all
        silos of this process share it.
        """
        times: Times = defaultdict(float, {ProtocolPhase.TABLE: 0.0})
        for kind in self.plan.setup:
            at_server, at_silos = PHASES[kind]
            start = time.perf_counter()
            requests = {name: self.server.ask(kind, name) for name in self.silos}
            asking = time.perf_counter() - start
            responses, responding = self._responses(requests)
            if kind is SealedSeed and self.uses_table:
                # Silos make the table with their first response. The same ones again take the time of all the rest.
                responses, again = self._responses(requests)
                times[ProtocolPhase.TABLE], responding = max(0.0, responding - again), again
            start = time.perf_counter()
            for name, body in responses.items():
                self.server.check(name, body)
            self.server.collect(kind, responses)
            times[at_server] += asking + time.perf_counter() - start
            times[at_silos] += responding
            for name, body in requests.items():
                self._weigh(name, at_server, body, responses[name])
        return times

    def _responses(self, requests: Mapping[str, m.Message]) -> tuple[dict[str, m.Message], float]:
        """All silos' responses, and the seconds they took."""
        start = time.perf_counter()
        responses = {name: silo.respond(requests[name]) for name, silo in self.silos.items()}
        return responses, time.perf_counter() - start

    @property
    def slots(self) -> int:
        """Parameters in one ciphertext."""
        return self.plan.aggregation.costs(self.plan.release, self.plan.rounds)["slots"]

    @property
    def uses_table(self) -> bool:
        """Whether silos take randomisers from a table; they know it once they have the server's modulus."""
        return self.silos[self.plan.silos[0]]._uses_table

    def round(self, number: int) -> Times:
        """One round."""
        request = self.update_request(number)
        start = time.perf_counter()
        vectors = {name: self.update(index, request) for index, name in enumerate(self.silos)}
        released = time.perf_counter()
        for name, vector in vectors.items():
            self.server.check_vector(name, vector)
        self.server.total(vectors)
        times: Times = {
            ProtocolPhase.WEIGHTING: released - start,
            ProtocolPhase.DECRYPTION: time.perf_counter() - released,
        }
        if number == 1:
            for name, vector in vectors.items():
                self._weigh(name, ProtocolPhase.WEIGHTING, request, m.Update(number, vector, 0))
        return times

    def update(self, index: int, request: m.UpdateRequest) -> bytes:
        """What silo ``index`` sends in a round."""
        return self.release(index, request, [(np.arange(self.shape.users), self.rows[index])]).vector

    def transfer(self, number: int) -> Times:
        """The oblivious transfer of one round for all users, where they are sampled in private: what the server takes,
        what one silo takes, and what is in neither: the checks of all silos' choices, and the encryptions."""
        server, silo = self.server, self.silos[self.plan.silos[0]]
        server.key = key = TimedKey(server.key.p, server.key.q)
        start = time.perf_counter()
        offer = server.offer(number)
        offered = time.perf_counter()
        choices = silo.respond(ChoicesRequest(number, offer))
        chosen = time.perf_counter()
        for name in self.plan.silos:
            server.check(name, choices)
        checked = time.perf_counter()
        server.begin_round(number, None)
        server.collect(ChoicesRequest, dict.fromkeys(self.plan.silos, choices))
        request = RoundRequest(number, "", server.weights())
        sealed = time.perf_counter()
        silo.opened_weights(request)
        opened = time.perf_counter()
        return {
            ProtocolPhase.AT_SERVER: offered - start + sealed - checked - key.seconds,
            ProtocolPhase.AT_SILO: chosen - offered + opened - sealed,
            ProtocolPhase.CHECKS: checked - chosen,
            ProtocolPhase.ENCRYPTION: key.seconds,
        }

    def _weigh(self, silo: str, phase: str, request: m.Message, response: m.Message) -> None:
        """Count the bytes to and from ``silo``."""
        sizes = self._sizes.setdefault((phase, silo), [0, 0])
        for way, body in enumerate((request, response)):
            sizes[way] += len(m.encode(self.plan.digest, silo, body))

    def bytes_per_silo(self, phase: str) -> dict[str, int]:
        """Of the silo that sends and gets most: the first one also sends the sealed seeds."""
        sizes = [self._sizes.get((phase, silo), [0, 0]) for silo in self.plan.silos]
        return {"to_silo": max(size[0] for size in sizes), "from_silo": max(size[1] for size in sizes)}


class TimedKey(PrivateKey):
    """Adds up how long its encryptions take."""

    seconds = 0.0

    def encrypt_all(self, ms: Sequence[int], stream: SecretStream, workers: int) -> list[mpz]:
        start = time.perf_counter()
        encrypted = super().encrypt_all(ms, stream, workers)
        object.__setattr__(self, "seconds", self.seconds + time.perf_counter() - start)  # keys are frozen
        return encrypted


def _plan(shape: Shape, secrets: Secrets) -> Plan:
    same = {key: getattr(shape, key) for key in ("key_bits", "slots", "max_records", "pseudo_count", "workers")}
    aggregation = PaillierWeighting(**same)
    return plan_of(
        aggregation,
        shape.users,
        shape.silos,
        shape.dimension,
        secrets,
        weighting="records",
        clip=CLIP,
        rounds=shape.rounds,
        noise_multiplier=shape.noise_multiplier,
        sample_rate=1 / shape.choices if shape.choices else 1.0,
        sampling="private" if shape.choices else "open",
    )
