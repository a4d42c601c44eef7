"""One run of the private weighting protocol for ``uldp bench protocol``: both machines, no network, no training."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from gmpy2 import mpz

from uldp.aggregation.base import RoundQuestion
from uldp.aggregation.paillier import SECURE_BITS, PaillierWeighting
from uldp.aggregation.paillier_server import PaillierServer
from uldp.aggregation.paillier_silo import PaillierSilo
from uldp.aggregation.ratios import PSEUDO_COUNT
from uldp.crypto.paillier import PrivateKey
from uldp.data.federation import IntArray
from uldp.methods.uldp_avg import UldpAvg
from uldp.privacy.releases import PublicFacts
from uldp.protocol import messages as m
from uldp.protocol.turns import Question
from uldp.rng import Secrets, SecretStream, Streams
from uldp.sessions.plan import Plan
from uldp.sessions.silo import signing_key
from uldp.vectors import Integers, Vector, clip_rows

Case = dict[str, Any]
Times = dict[str, float]

CLIP: Final = 1.0
KEYS: Final = "key exchange"
HISTOGRAM: Final = "histogram"
ENCRYPTING: Final = "encrypting weights"
RAISING: Final = "raising weights"
TABLE: Final = "randomiser table"
WEIGHTING: Final = "silo weighting"
DECRYPTION: Final = "aggregation and decryption"
SETUP: Final = (KEYS, HISTOGRAM, ENCRYPTING, RAISING, TABLE)
ROUND: Final = (WEIGHTING, DECRYPTION)

AT_SERVER: Final = "transfer at the server"
AT_SILO: Final = "transfer in a silo"
CHECKS: Final = "checks of choices"
ENCRYPTION: Final = "encryption"

PHASES: Final[Mapping[Question, tuple[str, str]]] = {
    m.AskKey: (KEYS, KEYS),
    m.TellKeys: (KEYS, KEYS),
    m.TellSeed: (HISTOGRAM, HISTOGRAM),
    m.TellWeights: (ENCRYPTING, RAISING),
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

    def met(self, case: Case) -> bool:
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


class Run:
    """An experiment of ours without network and training: the server's machine and the silos'."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        # Simulated: the keys protect nobody here, and all cases shall have the same.
        secrets = Secrets.simulated_from_seed(0)
        self.plan = _plan(shape, secrets)
        aggregation, streams = self.plan.aggregation, Streams.from_seed(0).child("bench", shape.name)
        assert isinstance(aggregation, PaillierWeighting)
        generator = streams.generator()
        self.counts: IntArray = generator.integers(1, 11, (shape.silos, shape.users))
        raw = generator.standard_normal((shape.silos, shape.users, shape.dimension))
        self.rows: Vector = np.stack([clip_rows(rows, CLIP) for rows in raw])
        self.naive_noise: Integers = np.rint(
            generator.normal(0.0, self.plan.release.noise_scale, (shape.silos, shape.dimension))
        ).astype(np.int64)
        self._sizes: dict[tuple[str, str], list[int]] = {}
        self._secrets = secrets.child("silos")
        self.server: PaillierServer = aggregation.server(self.plan, secrets.child("server"))
        self.silos: dict[str, PaillierSilo] = {
            name: aggregation.silo(
                self.plan, index, self.counts[index], self._secrets.child(index), signing_key(secrets, index)
            )
            for index, name in enumerate(self.plan.silos)
        }

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
        times: Times = {TABLE: 0.0}
        for question in self.plan.setup:
            at_server, at_silos = PHASES[question]
            start = time.perf_counter()
            asked = {name: self.server.ask(question, name) for name in self.silos}
            asking = time.perf_counter() - start
            answers, answering = self._answers(asked)
            if question is m.TellSeed and self.uses_table:
                # Silos make the table with their first answer. The same answers again take the time of all the rest.
                answers, again = self._answers(asked)
                times[TABLE], answering = max(0.0, answering - again), again
            start = time.perf_counter()
            for name, body in answers.items():
                self.server.check(name, body)
            self.server.collect(question, answers)
            _add(times, at_server, asking + time.perf_counter() - start)
            _add(times, at_silos, answering)
            for name, body in asked.items():
                self._weigh(name, at_server, body, answers[name])
        return times

    def _answers(self, asked: Mapping[str, m.Body]) -> tuple[dict[str, m.Body], float]:
        """All silos' answers, and the seconds they took."""
        start = time.perf_counter()
        answers = {name: silo.answer(asked[name]) for name, silo in self.silos.items()}
        return answers, time.perf_counter() - start

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
        asked = m.AskUpdate(number, m.pack(np.zeros(self.shape.dimension)), b"")
        start = time.perf_counter()
        vectors = {name: self.release(index, asked) for index, name in enumerate(self.silos)}
        released = time.perf_counter()
        for name, vector in vectors.items():
            self.server.check_vector(name, vector)
        self.server.total(vectors)
        times = {WEIGHTING: released - start, DECRYPTION: time.perf_counter() - released}
        for name, vector in vectors.items():
            if number == 1:
                self._weigh(name, WEIGHTING, asked, m.Update(number, vector, 0))
        return times

    def release(self, index: int, asked: m.AskUpdate) -> bytes:
        """What silo ``index`` sends in a round."""
        question = RoundQuestion(asked.round, hashlib.sha256(m.encode_body(asked)).hexdigest(), asked.weights)

        def covered(purpose: str, further: Sequence[str]) -> Secrets:
            return self._secrets.child(index, purpose, asked.round, *further)

        users = np.arange(self.shape.users)
        side = self.silos[self.plan.silos[index]]
        side.check_question(question)
        accumulator = side.accumulator(None, question)
        accumulator.add(users, self.rows[index])
        return accumulator.release(covered).vector

    def transfer(self, number: int) -> Times:
        """The oblivious transfer of one round for all users, where they are sampled in private: what the server takes,
        what one silo takes, and what is in neither: the checks of all silos' choices, and the encryptions."""
        server, silo = self.server, self.silos[self.plan.silos[0]]
        server.key = key = TimedKey(server.key.p, server.key.q)
        start = time.perf_counter()
        offer = server.offer(number)
        offered = time.perf_counter()
        points = silo.choose(number, offer)
        chosen = time.perf_counter()
        for name in self.plan.silos:
            server.check_choices(name, points)
        checked = time.perf_counter()
        question = RoundQuestion(number, "", server.weights_for(number, points), offer)
        sealed = time.perf_counter()
        silo._opened_weights(question)
        opened = time.perf_counter()
        return {
            AT_SERVER: offered - start + sealed - checked - key.seconds,
            AT_SILO: chosen - offered + opened - sealed,
            CHECKS: checked - chosen,
            ENCRYPTION: key.seconds,
        }

    def _weigh(self, silo: str, phase: str, question: m.Body, answer: m.Body) -> None:
        """Count the bytes to and from ``silo``."""
        both = [len(m.encode(self.plan.digest, silo, body)) for body in (question, answer)]
        sizes = self._sizes.setdefault((phase, silo), [0, 0])
        sizes[0] += both[0]
        sizes[1] += both[1]

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
    aggregation = PaillierWeighting(
        key_bits=shape.key_bits,
        slots=shape.slots,
        max_records=shape.max_records,
        pseudo_count=shape.pseudo_count,
        workers=shape.workers,
    )
    method = UldpAvg(
        weighting="records",
        clip=CLIP,
        rounds=shape.rounds,
        noise_multiplier=shape.noise_multiplier,
        sample_rate=1 / shape.choices if shape.choices else 1.0,
        sampling="private" if shape.choices else "open",
    )
    plan = Plan(
        digest=hashlib.sha256(b"bench protocol").hexdigest(),
        method=method,
        release=method.release(PublicFacts(shape.users, shape.silos, shape.dimension, aggregation.rounding)),
        rounds=shape.rounds,
        silos=tuple(f"silo-{index}" for index in range(shape.silos)),
        aggregation=aggregation,
    )
    return plan.with_identities([signing_key(secrets, index).public for index in range(shape.silos)])


def _add(times: Times, phase: str, seconds: float) -> None:
    times[phase] = times.get(phase, 0.0) + seconds
