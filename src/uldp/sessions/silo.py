"""A silo's side of an experiment. It does no I/O: bytes in, bytes out, and a state that can be saved."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from uldp.aggregation.base import RoundQuestion, Sample
from uldp.crypto.keys import SigningKey
from uldp.data.federation import IntArray, SiloData
from uldp.encoding import encode
from uldp.errors import DataError, MessageRefused, RunError
from uldp.learners.base import Learner
from uldp.privacy.releases.weights import MAX_COUNT
from uldp.protocol import messages as m
from uldp.protocol.turns import Phase, turn
from uldp.rng import Secrets, Streams
from uldp.sessions.holdout import holdout_sums
from uldp.sessions.plan import Plan
from uldp.vectors import to_words


class _Answered(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A round's release before it was protected. ``asked`` stands for its question, but for who is present."""

    asked: str
    present: bytes
    noised: bytes
    saturated: int


class _Saved(msgspec.Struct, forbid_unknown_fields=True):
    """What a silo must remember between messages. ``data`` stands for the records that it answered about."""

    data: str
    phase: str
    round: int
    told: bytes | None
    question: str
    answer: bytes
    setup: list[bytes]
    offer: bytes
    answered: _Answered | None = None


def _decoded(state: bytes, whose: str) -> _Saved:
    try:
        return msgspec.msgpack.decode(state, type=_Saved)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RunError(f"the saved state of {whose} is unreadable: {error}", location="checkpoint") from error


def _peeked(state: bytes) -> dict[str, Any]:
    """The fields of a saved state, also of another version's: what was answered then was released then."""
    try:
        found = msgspec.msgpack.decode(state)
        return {**found, "phase": str(found["phase"]), "round": int(found["round"])}
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"the saved state of silo is unreadable: {error}", location="checkpoint") from error


def _joined(*digests: str) -> str:
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()


def checked_counts(data: SiloData, users: int) -> IntArray:
    """The silo's records of every user. Weights are exact up to ``MAX_COUNT``; more are refused, not capped."""
    counts = data.counts(users)
    if counts.max(initial=0) > MAX_COUNT:
        raise DataError(
            f"a user has more than {MAX_COUNT} records in this silo; merge or leave out some of them",
            location=f"silo {data.name}",
        )
    return counts


def signing_key(secrets: Secrets, index: int) -> SigningKey:
    """The long-term key of a silo whose experiment runs in one place: it is made here, like all other secrets."""
    return SigningKey(secrets.child("identity", index))


class ReleaseGuard:
    """Is told what a silo is about to release, and raises to refuse it. By itself it lets everything pass."""

    def begins(self, round_: int, question: str) -> None:
        """Before a round is computed; ``question`` stands for what is asked, whoever is present."""

    def computed(self, round_: int, question: str, content: str) -> None:
        """Before the answer leaves; ``content`` stands for the noised sum."""


class SiloSession:
    """Answers the server's questions, one at a time, in the order that the turn table allows."""

    def __init__(
        self,
        plan: Plan,
        data: SiloData,
        learner: Learner,
        streams: Streams,
        secrets: Secrets,
        *,
        identity: SigningKey | None = None,
        roster: str = "",
        watch: ReleaseGuard | None = None,
        holdout: SiloData | None = None,
        allow_metrics: bool = True,
    ) -> None:
        self._plan = plan
        self._data = data
        self._learner = learner
        self._index = plan.silos.index(data.name)
        self._streams = streams.child("silo", self._index)
        self._secrets = secrets.child("silo", self._index)
        self._holdout = holdout
        self._allow_metrics = allow_metrics
        self._data_digest = data.digest()
        # Noise and samples are bound to the records that they cover; keys, and what may go on, to all records.
        self._all_digest = self._data_digest if holdout is None else _joined(self._data_digest, holdout.digest())
        self._counts = checked_counts(data, plan.facts.users)
        self._roster = roster
        self._watch = watch or ReleaseGuard()
        self._side = plan.aggregation.silo(
            plan,
            self._index,
            self._counts,
            # Other records, other keys: masks that hid one silo's counts or sums never hide two.
            self._secrets.child("aggregation", plan.digest, self._all_digest),
            identity or signing_key(secrets, self._index),
        )
        self._setup: list[bytes] = []
        self._offer = b""
        self._told: IntArray | None = None
        self._kept: SiloData | None = None
        self._kept_digest = ""
        self._phase = Phase.NEW
        self._round = 0
        self._question = ""
        self._answer = b""
        self._answered: _Answered | None = None
        self.left_out = 0
        """Rows of users that were not finite and counted as zero. It stays in the silo: no message carries it."""

    @property
    def name(self) -> str:
        return self._data.name

    @property
    def round(self) -> int:
        """The last round that was answered."""
        return self._round

    @property
    def phase(self) -> str:
        return self._phase.value

    @property
    def closed(self) -> bool:
        """Whether the silo has said goodbye."""
        return self._phase is Phase.CLOSED

    @staticmethod
    def is_closed(state: bytes) -> bool:
        """Whether :meth:`save` gave ``state`` after the silo had said goodbye."""
        return bool(_peeked(state)["phase"] == Phase.CLOSED.value)

    @staticmethod
    def last_round(state: bytes) -> int:
        """The last round that a silo had answered when :meth:`save` gave ``state``."""
        return int(_peeked(state)["round"])

    @staticmethod
    def ended(state: bytes) -> bytes:
        """``state`` after a goodbye that nobody asked for."""
        return encode({**_peeked(state), "phase": Phase.CLOSED.value, "answered": None})

    def reply(self, request: bytes) -> bytes:
        """The answer to ``request``. A refused request changes nothing.

        The last request again, byte for byte, gets the same answer again: nothing is computed or released twice.
        """
        question = hashlib.sha256(request).hexdigest()
        if question == self._question:
            return self._answer
        plan = self._plan
        limit, hello = plan.message_limit, plan.hello
        body = m.decode(request, experiment=plan.digest, silo=self.name, limit=limit, greeting=hello)
        if isinstance(body, m.Hello) and self._phase is not Phase.NEW:
            raise MessageRefused(
                f"Hello is out of turn: this experiment was begun here, and round {self._round} was the last; resume "
                "its run, or start another one with another run.seed",
                location=self.name,
                value=self._phase.value,
            )
        _, after = turn(self._plan.turns, self._phase, body, self.name)
        answer, told, round_ = self._answer_to(body)
        self._answer = m.encode(self._plan.digest, self.name, answer)
        self._question, self._phase, self._told, self._round = question, after, told, round_
        return self._answer

    def _answer_to(self, body: m.Body) -> tuple[m.Body, IntArray | None, int]:
        """The answer, and what was told about users and the round that hold from then on."""
        match body:
            case m.Hello():  # checked when it was decoded
                return self._plan.welcome(self._roster), None, 0
            case m.AskCounts():
                return m.Counts(m.pack(self._counts)), None, 0
            case m.TellUsers(values):
                return m.Accepted(), self._checked(values), 0
            case m.AskChoices(round_, offer):
                self._check_round(round_)
                points = self._side.choose(round_, offer)
                self._offer = offer
                return m.Choices(round_, points), self._told, self._round
            case m.AskUpdate(round_):
                again = self._answered is not None and round_ == self._round
                return self._again(body) if again else self._update(body), self._told, round_
            case m.AskMetrics():
                return self._metrics(body), self._told, self._round
            case m.Finish():
                self._answered = None
                return m.Goodbye(), self._told, self._round
            case _:  # the turn table lets nothing else through than the aggregation's own setup
                answer = self._side.answer(body)
                self._setup.append(m.encode_body(body))
                return answer, self._told, 0

    def _checked(self, data: bytes) -> IntArray:
        facts, exchange = self._plan.facts, self._plan.release.exchange
        told = m.unpack_counts(data, facts.users, MAX_COUNT * facts.silos, self.name)
        assert exchange is not None
        exchange.check(self._counts, told)
        return told

    def _update(self, body: m.AskUpdate) -> m.Update:
        plan, release = self._plan, self._plan.release
        round_, model, sample = body.round, body.model, body.sample
        self._check_round(round_)
        if (sample == b"") == plan.asks_with_sample:
            raise MessageRefused("the sample does not fit method.sample_rate", location=self.name)
        asked = RoundQuestion(round_, self._common_digest(body), body.weights, self._offer, self._present(body))
        self._side.check_question(asked)
        x = m.unpack_floats(model, plan.facts.dimension, self.name)
        if self._kept is None:
            self._kept = release.select(self._data, self._told, self._streams.child("kept"))
        data = self._kept
        picked, users = self._sample(sample)
        takes_part = picked is None or bool(picked[self._index])
        if users is not None:
            data = data.take(users[data.users])
        if self._kept_digest == "":
            self._kept_digest = self._kept.digest()
        # Whoever is present: a silo that starts again from an older state then has one noised sum for a round, not one
        # for every set of silos it is asked about.
        question = self._asked_digest(body)
        inside = (question, self._data_digest, self._kept_digest, repr((plan.method, release)))
        secrets = self._round_secrets("inside", round_, inside)
        streams = self._streams.child("round", round_)
        self._watch.begins(round_, question)
        weights = None if plan.aggregation.hides_counts else release.weights(self._counts, self._told)
        accumulator = self._side.accumulator(weights, asked)
        if takes_part:  # who is not picked sends nothing but zeros: nobody's records are looked at
            for owners, rows in release.rows(plan.method, x, data, self._learner, streams, secrets):
                accumulator.add(owners, rows)
        setup = hashlib.sha256(b"".join([*self._setup, self._offer])).hexdigest()

        def covered(purpose: str, further: Sequence[str]) -> Secrets:
            return self._round_secrets(purpose, round_, (question, setup, self._data_digest, *further))

        released = accumulator.release(covered)
        self.left_out += released.left_out
        self._watch.computed(round_, question, hashlib.sha256(released.noised or released.vector).hexdigest())
        if plan.may_repeat:
            noised, saturated = released.noised, released.saturated
            self._answered = _Answered(question, body.present, noised, saturated)
        return m.Update(round_, released.vector, released.saturated, body.present)

    def _again(self, body: m.AskUpdate) -> m.Update:
        """The round's answer once more, for fewer silos: the same noised sum under other masks.

        Silos may only become fewer. So a server that takes turns in leaving silos out learns no more than one chain
        of ever smaller sets tells it.
        """
        before = self._answered
        assert before is not None
        if self._asked_digest(body) != before.asked:
            raise MessageRefused(
                f"round {body.round} was answered already, and for another model or sample", location=self.name
            )
        present, earlier = self._present(body), self._bits(before.present)
        now = np.ones(len(self._plan.silos), dtype=np.bool_) if present is None else present
        if earlier is not None and (now & ~earlier).any():
            raise MessageRefused("a silo that was left out of a round does not come back within it", location=self.name)
        asked = RoundQuestion(body.round, self._common_digest(body), body.weights, self._offer, present)
        vector = self._side.again(before.noised, asked)
        self._answered = msgspec.structs.replace(before, present=body.present)
        return m.Update(body.round, vector, before.saturated, body.present)

    def _metrics(self, body: m.AskMetrics) -> m.Metrics:
        """Sums over the people who are held out, protected and without noise. It happens once: no round comes after."""
        plan = self._plan
        if not self._allow_metrics:
            raise MessageRefused(
                "its owner does not allow metrics of hold-out people, which carry no noise (policy.allow_metrics)",
                location=self.name,
            )
        # Whoever was left out of the last rounds has not seen their numbers. Where nobody may be, there is one number.
        skipped = plan.may_repeat and body.round > self._round
        if self._round == 0 or not (body.round == self._round or skipped) or body.round > plan.rounds:
            raise MessageRefused(
                f"metrics after round {body.round} of {plan.rounds}, here {self._round} was the last",
                location=self.name,
                value=body.round,
            )
        x = m.unpack_floats(body.model, plan.facts.dimension, self.name)
        sums = holdout_sums(x, self._holdout, self._learner, plan.measures)
        asked = RoundQuestion(body.round, self._common_digest(body), b"")
        return m.Metrics(body.round, m.pack(self._side.protect_metrics(to_words(sums), asked)))

    def _present(self, body: m.AskUpdate) -> Sample | None:
        """Who takes part in the round; refused if that is not this silo and enough others."""
        present = self._bits(body.present)
        if present is None:
            return None
        if not present[self._index]:
            raise MessageRefused("is asked for a round that it is left out of", location=self.name)
        least = self._plan.least_silos
        if present.sum() < least or present.all():
            raise MessageRefused(
                f"a round without some silos needs {least} of them (aggregation.min_silos), not {int(present.sum())}",
                location=self.name,
                value=int(present.sum()),
            )
        return present

    def _bits(self, present: bytes) -> Sample | None:
        return m.unpack_bits(present, len(self._plan.silos), self.name) if present else None

    @staticmethod
    def _asked_digest(body: m.AskUpdate) -> str:
        """Stands for the round's question, whoever is present."""
        return hashlib.sha256(m.encode_body(msgspec.structs.replace(body, present=b""))).hexdigest()

    def _sample(self, sample: bytes) -> tuple[Sample | None, Sample | None]:
        """Which silos and which users take part; None for all."""
        silos, users = self._plan.sample_sizes
        split = -(-silos // 8)
        picked = m.unpack_bits(sample[:split], silos, self.name)
        sampled = m.unpack_bits(sample[split:], users, self.name)
        agreed = self._plan.release.silo_sampling.per_round(self._plan.facts.silos)
        if silos and int(picked.sum()) != agreed:
            raise MessageRefused(f"{int(picked.sum())} silos were picked, {agreed} were agreed on", location=self.name)
        return picked if silos else None, sampled if users else None

    def _common_digest(self, body: m.AskUpdate | m.AskMetrics) -> str:
        """Stands for the question and for all of the setup that every silo was told alike.

        Masks are bound to it. A server that starts again from other keys or weights meets other masks.
        """
        told = (m.decode_body(question) for question in self._setup)
        common = [m.encode_body(question) for question in told if not isinstance(question, m.TellSeed)]
        if self._told is not None and self._plan.release.user_weighting == "records":
            common.append(m.pack(self._told))  # other totals for each silo would give weights that sum to more than 1
        return hashlib.sha256(b"".join([*common, self._offer, m.encode_body(body)])).hexdigest()

    def _check_round(self, round_: int) -> None:
        rounds = self._plan.rounds
        if not 0 < round_ <= rounds:
            raise MessageRefused(
                f"round {round_} lies outside the agreed {rounds} rounds", location=self.name, value=round_
            )
        # Whoever was left out of rounds comes back in a later one; a round before that is never answered again.
        if round_ <= self._round or not (self._plan.may_repeat or round_ == self._round + 1):
            raise MessageRefused(
                f"round {round_} is not the next one ({self._round + 1})", location=self.name, value=round_
            )

    def _round_secrets(self, purpose: str, round_: int, covered: tuple[str, ...]) -> Secrets:
        """A round's secret randomness, addressed by all that the released vector depends on.

        Only a repetition of the very same release gets the same noise; decision 0005 has the attacks that this closes.
        Simulated noise protects nobody and is addressed by the round alone: another chunk size, machine or method then
        meets the same noise, and runs can be compared.
        """
        secrets = self._secrets.child(purpose, "round", round_)
        return secrets if secrets.simulated else secrets.child(*covered)

    def save(self) -> bytes:
        """The session's state. It holds what was sent last, and so noise: keep it as safe as the data.

        Whoever carries messages saves it after :meth:`reply` and *before* the answer leaves: then a silo that starts
        again repeats its answer instead of computing it again, which another machine might do a bit differently.
        """
        told = None if self._told is None else m.pack(self._told)
        data, phase, last = self._all_digest, self._phase.value, (self._question, self._answer)
        saved = _Saved(data, phase, self._round, told, *last, self._setup, self._offer, self._answered)
        return encode(saved)

    def restore(self, state: bytes) -> None:
        """Continue from what :meth:`save` gave."""
        saved = _decoded(state, f"silo {self.name}")
        try:
            phase = Phase(saved.phase)
            if saved.data != self._all_digest:
                raise RunError("its records are not those it began with; start a new run", location=f"silo {self.name}")
            if phase is not Phase.CLOSED:  # who has said goodbye is asked nothing more, and its secrets may be gone
                for question in saved.setup:
                    self._side.answer(m.decode_body(question))
            told = None if saved.told is None else self._checked(saved.told)
        except (ValueError, MessageRefused) as error:
            raise RunError(
                f"the saved state of silo {self.name} is unreadable: {error}", location="checkpoint"
            ) from error
        self._setup, self._told, self._offer = saved.setup, told, saved.offer
        self._phase, self._round, self._answered = phase, saved.round, saved.answered
        self._question, self._answer = saved.question, saved.answer
