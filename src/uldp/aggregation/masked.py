"""``masked``: pairwise masks hide every silo's sum; the server sees the total only.

For every pair of silos one adds a mask to its sum and the other takes the same mask away, so that all masks cancel in
the total, modulo 2^64 and exactly: the model is that of ``plain``, bit for bit. A mask is a keystream under a key that
the two silos agreed on, bound to the experiment, the pair, the round and the question. A silo that is asked
another question in the same round would use other masks, so two answers cannot be subtracted.

A round may be repeated without silos that do not answer, with masks between the others only. What a server could make
of both attempts, and what limits it, is in ``docs/decisions/0012``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from uldp.aggregation.base import Aggregation, AggregationContext, RoundQuestion, WordsServer, WordsSilo
from uldp.aggregation.pairing import Pairing, check_key, relay
from uldp.caveats import Caveat, Severity
from uldp.crypto.keys import SharedKey, SigningKey
from uldp.data.federation import IntArray
from uldp.errors import MessageRefused
from uldp.privacy.releases import Release
from uldp.protocol import messages as m
from uldp.protocol.turns import AGREE_KEYS, Question, Route
from uldp.rng import Secrets
from uldp.vectors import Words

ONE_SILO: Final = Caveat(
    "one-silo", "There is one silo only, so the total that the server sees is that silo's.", Severity.LIMITS
)


@dataclass(frozen=True)
class Masked(Aggregation):
    """The server sees the noised total and nothing of single silos."""

    name: ClassVar[str] = "masked"
    summary: ClassVar[str] = "the server sees the noised total only"
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


class MaskedServer(WordsServer):
    """Relays the keys."""

    _keys: m.TellKeys

    def ask(self, question: Question, silo: str) -> m.Body:
        return m.AskKey(b"") if question is m.AskKey else self._keys

    def check(self, silo: str, body: m.Body) -> None:
        if isinstance(body, m.Key):
            check_key(self._context, silo, body, b"")
        elif isinstance(body, m.Paired) and body.sealed:
            raise MessageRefused("sent sealed messages, and none are used", location=f"silo {silo}")

    def collect(self, question: Question, answers: Mapping[str, m.Body]) -> None:
        if question is m.AskKey:
            self._keys = relay(self._context, answers)


class MaskedSilo(WordsSilo):
    """Adds the masks."""

    def __init__(
        self, context: AggregationContext, index: int, counts: IntArray, secrets: Secrets, identity: SigningKey
    ) -> None:
        super().__init__(context, index, counts, secrets)
        self._pairing = Pairing(context, index, secrets, identity)
        self._shared: dict[int, SharedKey] = {}

    def answer(self, body: m.Body) -> m.Body:
        match body:
            case m.AskKey(modulus):
                if modulus:
                    raise MessageRefused("a modulus came, and none is used", location=self._place)
                return self._pairing.introduce(b"")
            case m.TellKeys():
                self._shared = self._pairing.pair(body, b"")
                return m.Paired([])
            case _:
                return super().answer(body)

    def protect(self, words: Words, question: RoundQuestion) -> Words:
        present = question.present
        # The digest covers who is present: another set of silos meets other masks.
        others = {i: key for i, key in self._shared.items() if present is None or present[i]}
        return self._pairing.masked(words, others, "mask", question.round, question.digest)

    def protect_metrics(self, words: Words, question: RoundQuestion) -> Words:
        return self._pairing.masked(words, self._shared, "metrics", question.round, question.digest)
