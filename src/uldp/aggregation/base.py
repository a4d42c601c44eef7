"""What an aggregation is: two machines without I/O, one for the server and one for a silo, and what they hide.

A machine takes part in the setup (the exchanges between the greeting and the first round) and in every round. It keeps
nothing that does not follow from its secrets and the messages it got, so it is restored by being told them again.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from uldp.crypto.keys import SigningKey
from uldp.data.federation import IntArray
from uldp.errors import ConfigError, MessageRefused, RunError
from uldp.methods.base import Contribution, Facts, Method
from uldp.methods.release import add_noise, silo_sum
from uldp.protocol import messages as m
from uldp.protocol.turns import SHOW_COUNTS, Question, Route
from uldp.rng import Secrets
from uldp.vectors import NOISE_DEVIATIONS, Integers, Vector, Words, from_words, to_words

Sample = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Setting:
    """What both sides agree on. ``identities`` are the silos' public signing keys, in the order of the silos."""

    digest: str
    method: Method
    facts: Facts
    silos: tuple[str, ...]
    identities: tuple[bytes, ...] = ()

    def with_identities(self, identities: Sequence[bytes]) -> Self:
        """The same with the silos' public keys: they are part of what is agreed on, so the digest changes."""
        together = hashlib.sha256(self.digest.encode())
        for identity in identities:
            together.update(identity)
        return replace(self, digest=together.hexdigest(), identities=tuple(identities))


@dataclass(frozen=True)
class RoundQuestion:
    """What the server asks for in a round. ``digest`` stands for all of it and is the same for all silos."""

    round: int
    digest: str
    weights: bytes
    offer: bytes = b""
    """The server's point, where users are sampled in private."""
    present: Sample | None = None
    """Which silos take part, where a round is repeated without some; None for all."""


@dataclass(frozen=True)
class Released:
    """What leaves a silo, and what was cut off or left out on the way."""

    vector: bytes
    saturated: int
    left_out: int
    noised: bytes = b""
    """The noised sum before it was protected, where a round can be repeated with fewer silos. It stays in the silo."""


Covered = Callable[[str, Sequence[str]], Secrets]
"""Secret randomness for a purpose, bound to all that the release depends on (``docs/decisions/0005``)."""


class ServerSide(ABC):
    """The server's machine. By itself it has no setup and no encrypted weights."""

    def __init__(self, setting: Setting, secrets: Secrets) -> None:
        self._setting = setting
        self._secrets = secrets

    def ask(self, question: Question, silo: str) -> m.Body:
        """The question of this type for ``silo``."""
        raise self._no_part_in(question.__name__)

    def check(self, silo: str, body: m.Body) -> None:  # noqa: B027
        """Refuse an answer of the setup. Nothing is changed."""

    def collect(self, question: Question, answers: Mapping[str, m.Body]) -> None:  # noqa: B027
        """Use the answers of all silos to a question of the setup."""

    def weights(self, round_: int, sample: Sample | None) -> bytes:
        """What goes with a round's question where silos are not told the sample."""
        return b""

    def offer(self, round_: int) -> bytes:
        """The server's point of a round in which silos choose slots."""
        raise self._no_part_in("AskChoices")

    def check_choices(self, silo: str, points: bytes) -> None:
        """Refuse choices that cannot be."""
        raise self._no_part_in("Choices")

    def weights_for(self, round_: int, points: bytes) -> bytes:
        """What goes with a round's question after silos have chosen: one weight per user opens, nobody knows which."""
        raise self._no_part_in("Choices")

    def _no_part_in(self, exchange: str) -> RunError:
        """For exchanges that are not on this aggregation's route: the turn table never comes to them."""
        return RunError(f"{exchange} is no part of this aggregation", place="server")

    @abstractmethod
    def check_vector(self, silo: str, vector: bytes) -> None:
        """Refuse a vector that cannot be one."""

    @abstractmethod
    def total(self, vectors: Mapping[str, bytes]) -> Words:
        """The total in units, modulo 2^64."""


class SiloSide(ABC):
    """A silo's machine."""

    def __init__(self, setting: Setting, index: int, counts: IntArray, secrets: Secrets) -> None:
        self._setting = setting
        self._index = index
        self._counts = counts
        self._secrets = secrets

    @property
    def _place(self) -> str:
        return f"silo {self._setting.silos[self._index]}"

    def answer(self, body: m.Body) -> m.Body:
        """The answer to a question of the setup. A refused question changes nothing."""
        raise MessageRefused(f"{type(body).__name__} has no place in this aggregation", place=self._place)

    def choose(self, round_: int, offer: bytes) -> bytes:
        """One point per user: which slot it stands for, the server does not learn."""
        raise MessageRefused("there is nothing to choose in this aggregation", place=self._place)

    def check_question(self, question: RoundQuestion) -> None:
        """Refuse what cannot be a round's question."""
        if question.weights:
            raise MessageRefused("encrypted weights came, and none are used", place=self._place)

    @abstractmethod
    def release(
        self, rows: Iterable[Contribution], weights: Vector | None, question: RoundQuestion, covered: Covered
    ) -> Released:
        """Weight, encode, add up, add noise, protect."""

    @abstractmethod
    def protect_metrics(self, words: Words, question: RoundQuestion) -> Words:
        """What leaves the silo instead of ``words``, which carry no noise. The server adds up words modulo 2^64."""

    def again(self, noised: bytes, question: RoundQuestion) -> bytes:
        """The same noised sum, protected for the silos that are present now. Nothing is computed anew."""
        raise MessageRefused("a round cannot be repeated in this aggregation", place=self._place)


@dataclass(frozen=True)
class Aggregation(ABC):
    """How the silos' vectors become one total."""

    name: ClassVar[str]
    summary: ClassVar[str]
    server_sees_each_silo: ClassVar[bool] = False
    hides_counts: ClassVar[bool] = False
    """Whether weighting by records works without anybody seeing anybody's record counts."""
    hides_sample: ClassVar[bool] = False
    """Whether silos do not learn which users were sampled."""
    dither: ClassVar[int] = 0
    """See :class:`uldp.methods.base.Facts`."""
    shuffles: ClassVar[bool] = False
    """Whether a shuffler stands between the silos and the server."""
    repeatable: ClassVar[bool] = False
    """Whether a round can be repeated without silos that do not answer."""

    def route(self, method: Method) -> Route:
        """The exchanges after the greeting."""
        return Route(SHOW_COUNTS if method.needs_counts else ())

    def check(self, method: Method, facts: Facts) -> None:
        """Refuse what does not go together."""
        if method.private_sampling:
            raise ConfigError(
                f"private sampling needs aggregation.name = 'paillier': {self.name} tells the silos the sample",
                place="method.sampling",
                value="private",
            )

    @property
    def secure(self) -> bool:
        """Whether a promise may rest on the keys: not so if they are small."""
        return True

    def item_bytes(self) -> int:
        """Bytes of one coordinate in a message."""
        return 8

    def user_bytes(self, method: Method) -> int:
        """Bytes of one user in a message."""
        return 8

    def caveats(self, method: Method, facts: Facts) -> tuple[str, ...]:
        """Sentences that a privacy statement must carry for this aggregation."""
        return ()

    def notes(self, method: Method, facts: Facts, counts: IntArray) -> tuple[str, ...]:
        """What whoever holds the data should know, given record counts: (silos, users), or (1, users) of one silo.

        Not noised: it goes nowhere else.
        """
        return ()

    def costs(self, method: Method, facts: Facts) -> Mapping[str, int]:
        """What a round takes, for ``uldp plan``."""
        sample = math.ceil(facts.users / 8) if method.sample_rate < 1 else 0
        return {"update_bytes": self.item_bytes() * facts.dimension, "question_bytes": 8 * facts.dimension + sample}

    def advice(self, method: Method, facts: Facts) -> str:
        """What would make a round cheaper, if anything would."""
        return ""

    @abstractmethod
    def server(self, setting: Setting, secrets: Secrets) -> ServerSide:
        """The server's machine."""

    @abstractmethod
    def silo(self, setting: Setting, index: int, counts: IntArray, secrets: Secrets, identity: SigningKey) -> SiloSide:
        """The machine of the silo with this index; ``counts`` are its record counts of all users."""


def largest_total(method: Method, facts: Facts) -> float:
    """The largest total in units: rows and noise."""
    noise = NOISE_DEVIATIONS * method.noise_scale(facts) * math.sqrt(facts.silos)
    return method.terms(facts) * method.encoding(facts).units + noise


def out_of_range() -> MessageRefused:
    return MessageRefused(
        "the silos' vectors do not add up to a total in range; one of them, or their keys, left the protocol",
        place="server",
    )


def checked_total(total: Sequence[int] | Integers, setting: Setting) -> Words:
    """``total`` as words. Masks that do not cancel leave something that is not in range: it is refused."""
    largest = largest_total(setting.method, setting.facts) + setting.facts.silos
    lowest, highest = (total.min(), total.max()) if isinstance(total, np.ndarray) else (min(total), max(total))
    if lowest < -largest or highest > largest:
        raise out_of_range()
    return to_words(np.asarray(total, dtype=np.int64))


class WordsServer(ServerSide):
    """Adds up vectors of words modulo 2^64."""

    def check_vector(self, silo: str, vector: bytes) -> None:
        m.unpack_words(vector, self._setting.facts.dimension, f"silo {silo}")

    def total(self, vectors: Mapping[str, bytes]) -> Words:
        dimension = self._setting.facts.dimension
        total = np.zeros(dimension, dtype=np.uint64)
        for silo, vector in vectors.items():
            total += m.unpack_words(vector, dimension, f"silo {silo}")
        return checked_total(from_words(total), self._setting)


class WordsSilo(SiloSide):
    """Adds up integers, adds noise, and sends words modulo 2^64."""

    def release(
        self, rows: Iterable[Contribution], weights: Vector | None, question: RoundQuestion, covered: Covered
    ) -> Released:
        method, facts = self._setting.method, self._setting.facts
        private = method.unit is not None
        summed = silo_sum(rows, weights, method.encoding(facts), facts.dimension, private=private)
        scale = method.noise_scale(facts)
        digest = hashlib.sha256(m.pack(summed.total)).hexdigest()
        total = add_noise(summed.total, scale, covered("noise", (repr(scale), digest)).stream())
        words = to_words(total)
        protected = m.pack(self.protect(words, question))
        return Released(protected, 0 if private else summed.saturated, summed.left_out, m.pack(words))

    def again(self, noised: bytes, question: RoundQuestion) -> bytes:
        return m.pack(self.protect(m.unpack_words(noised, self._setting.facts.dimension, self._place), question))

    def protect(self, words: Words, question: RoundQuestion) -> Words:
        """What leaves the silo instead of ``words``."""
        return words

    def protect_metrics(self, words: Words, question: RoundQuestion) -> Words:
        return words
