"""The server's side of an experiment. It does no I/O and holds no data: it asks, adds up, charges and steps.

::

    while requests := server.requests():
        for name, request in requests.items():
            server.receive(name, silos[name].reply(request))
        server.collect()             # the answers are in: save all sessions here, so that nothing is asked for twice
        entry = server.charge()      # write it down before ...
        server.advance()             # ... the model changes
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

import msgspec
import numpy as np

from uldp.aggregation.base import Sample
from uldp.data.federation import IntArray
from uldp.encoding import encode
from uldp.errors import BudgetExhausted, MessageRefused, ModelError, RunError
from uldp.methods.base import State
from uldp.privacy.ledger import Entry, Ledger
from uldp.privacy.releases.weights import MAX_COUNT
from uldp.protocol import messages as m
from uldp.protocol.turns import SHOW_COUNTS, Phase, turn
from uldp.rng import Secrets
from uldp.sessions.holdout import holdout_means
from uldp.sessions.plan import Plan
from uldp.vectors import Vector, Words, from_words


class _Saved(msgspec.Struct, forbid_unknown_fields=True):
    """What the server must remember between rounds."""

    phase: str
    round: int
    x: bytes
    memory: dict[str, bytes]
    told: bytes | None
    saturated: int
    collected: bytes | None
    setup: list[dict[str, bytes]]
    chosen: bytes
    absent: list[str]
    heard: list[int]
    metrics: dict[str, float] = {}


def _decoded(state: bytes) -> _Saved:
    try:
        return msgspec.msgpack.decode(state, type=_Saved)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RunError(f"the server's saved state is unreadable: {error}", location="checkpoint") from error


def is_closed(state: bytes) -> bool:
    """Whether :meth:`ServerSession.save` gave ``state`` after all goodbyes that there will be."""
    return _decoded(state).phase == Phase.CLOSED.value


class Stage(Enum):
    """What a server's session is doing."""

    SETUP = "setup"
    CHOICES = "choices"
    """Silos choose slots, where users are sampled in private."""
    ROUND = "round"
    """Updates of a round are awaited."""
    COLLECTED = "collected"
    """A round's total waits to be charged and used."""
    METRICS = "metrics"
    """Silos' sums over their hold-out people are awaited."""
    CLOSING = "closing"
    """Nothing but goodbyes is awaited."""
    CLOSED = "closed"


_STAGES: Final = {
    m.AskChoices: Stage.CHOICES,
    m.AskUpdate: Stage.ROUND,
    m.AskMetrics: Stage.METRICS,
    m.Finish: Stage.CLOSING,
}


@dataclass(frozen=True)
class _Turn:
    """One exchange with all silos: the question, the answer's type, and the phase after it."""

    question: m.Body
    answer: type[m.Message]
    after: Phase


class ServerSession:
    """Drives the silos through the turn table."""

    def __init__(self, plan: Plan, x: Vector, ledger: Ledger, secrets: Secrets) -> None:
        self._plan = plan
        self._state = State(np.array(x, dtype=np.float64))
        self.ledger = ledger
        self._secrets = secrets.child("server")
        self._side = plan.aggregation.server(plan, self._secrets.child("aggregation", plan.digest))
        self._setup: list[dict[str, bytes]] = []
        self._chosen = b""
        self._phase = Phase.NEW
        self._round = 0
        self._told: IntArray | None = None
        self._turn: _Turn | None = None
        self._answers: dict[str, m.Body] = {}
        self._absent: set[str] = set()
        self._heard: list[int] = []
        self._sum: Words | None = None
        self._charged = False
        self._metrics: dict[str, float] = {}
        self.saturated = 0

    @property
    def model(self) -> Vector:
        """x_t."""
        return self._state.x

    @property
    def round(self) -> int:
        """How many rounds have changed the model."""
        return self._round

    @property
    def heard(self) -> tuple[int, ...]:
        """How many silos took part in each round, also in one that is collected and not used yet."""
        return tuple(self._heard)

    @property
    def absent(self) -> tuple[str, ...]:
        """The silos that the present round goes on without."""
        return tuple(name for name in self._plan.silos if name in self._absent)

    def requests(self) -> dict[str, bytes]:
        """What to send to whom now; empty when the experiment is over, or when collected answers wait to be used."""
        if not self._asks():
            return {}
        waiting = [name for name in self._audience if name not in self._answers]
        return {name: m.encode(self._plan.digest, name, self._question_for(name)) for name in waiting}

    def _asks(self) -> bool:
        """Whether there is something to ask now. The question is made once."""
        if self._turn is None and self._sum is None and (question := self._next_question()) is not None:
            answer, after = turn(self._plan.turns, self._phase, question, "server")
            self._turn = _Turn(question, answer, after)
            self._answers = {}
        return self._turn is not None

    @property
    def over(self) -> bool:
        """Whether nothing is left to be done but goodbyes."""
        return self._sum is None and (not self._asks() or self.stage is Stage.CLOSING)

    @property
    def _audience(self) -> list[str]:
        return [name for name in self._plan.silos if name not in self._absent]

    @property
    def stage(self) -> Stage:
        """What the session is doing now."""
        if self._sum is not None:
            return Stage.COLLECTED
        if self._turn is None:
            return Stage.CLOSED if self._phase is Phase.CLOSED else Stage.SETUP
        return _STAGES.get(type(self._turn.question), Stage.SETUP)

    @property
    def metrics(self) -> dict[str, float]:
        """Means over the people whom silos hold out, at the last model; empty where they did not all tell."""
        return dict(self._metrics)

    def exclude(self, names: Collection[str]) -> None:
        """Repeat the round without these silos; they may come back in the next one. A refusal changes nothing.

        The others are asked again, for their masks must cancel without the missing ones. Save the session before that:
        silos do not let one come back within a round. Goodbyes may be missing without further ado. Metrics of hold-out
        people are all silos' or nobody's: the others are not asked a second time, so that there are no two totals
        whose difference is one silo's.
        """
        if self.stage is Stage.CLOSING:
            self._absent.update(names)
            return
        if self.stage is Stage.METRICS:
            self._phase, self._turn, self._answers = Phase.MEASURED, None, {}
            return
        missing = ", ".join(sorted({*names, *self._absent}))
        left, least = [name for name in self._audience if name not in names], self._plan.least_silos
        in_round = self.stage is Stage.ROUND
        if not in_round or not self._plan.aggregation.repeatable:
            when = f"under {self._plan.aggregation.name}" if in_round else "before the first round"
            raise RunError(
                f"no answer from {missing}, and {when} the run cannot go on without a silo", location="server"
            )
        if len(left) < least:
            raise RunError(
                f"no answer from {missing}; {len(left)} silos are left, and a round needs {least} "
                "(aggregation.min_silos)",
                location="server",
                value=len(left),
            )
        if not self.ledger.affords(self._plan.release.event(len(left)), self._round + 1):
            raise BudgetExhausted(
                f"round {self._round + 1} without {missing} and their noise would pass the budget; it was not made",
                location="privacy.epsilon",
                value=self.ledger.budget,
            )
        self._absent.update(names)
        self._turn, self._answers = None, {}

    def receive(self, name: str, reply: bytes) -> None:
        """Take one silo's answer. A refused answer changes nothing."""
        if name not in self._plan.silos:
            raise MessageRefused(f"there is no silo {name!r} in this experiment", location="server", value=name)
        if self._turn is None or name in self._answers or name in self._absent:
            raise MessageRefused("answered without being asked", location=f"silo {name}")
        plan = self._plan
        limit, hello = plan.message_limit, plan.hello
        body = m.decode(reply, experiment=plan.digest, silo=name, limit=limit, greeting=hello)
        if not isinstance(body, self._turn.answer):
            raise MessageRefused(
                f"answered {type(body).__name__}, {self._turn.answer.__name__} is expected",
                location=f"silo {name}",
            )
        self._check_answer(name, body)
        self._answers[name] = body

    def collect(self) -> None:
        """Use the answers of an exchange. A round's answers become its total; the model does not change yet.

        Answers that do not fit together are refused, all of them: the silos can be asked again.
        """
        self._all_answered()
        assert self._turn is not None
        try:
            self._use_answers(self._turn)
        except MessageRefused:
            self._answers = {}
            raise
        self._phase, self._turn, self._answers = self._turn.after, None, {}

    def _use_answers(self, asked: _Turn) -> None:
        facts, answers, question = self._plan.facts, self._answers, type(asked.question)
        if question is m.AskCounts:
            counts = [
                m.unpack_counts(body.counts, facts.users, MAX_COUNT, name)
                for name in self._plan.silos
                if isinstance(body := answers[name], m.Counts)
            ]
            assert self._plan.release.exchange is not None
            self._told = self._plan.release.exchange.tell(np.stack(counts))
        elif question is m.AskUpdate:
            updates = {name: body for name, body in answers.items() if isinstance(body, m.Update)}
            self._sum = self._side.total({name: body.vector for name, body in updates.items()})
            self.saturated += sum(body.saturated for body in updates.values())
            self._heard.append(len(updates))
        elif question is m.AskMetrics:
            self._metrics = self._means(answers)
        elif question is m.AskChoices:
            self._chosen = next(body.points for body in answers.values() if isinstance(body, m.Choices))
        elif question in self._plan.setup:
            self._side.collect(question, answers)
            self._setup.append({name: m.encode_body(body) for name, body in answers.items()})

    def _means(self, answers: Mapping[str, m.Body]) -> dict[str, float]:
        """What the silos' sums over hold-out people come to. A total that cannot be one is no metric."""
        length = len(self._plan.measures) + 1
        total = np.zeros(length, dtype=np.uint64)
        for name, body in answers.items():
            if isinstance(body, m.Metrics):
                total += m.unpack_words(body.sums, length, f"silo {name}")
        return holdout_means(from_words(total), self._plan.measures) or {}

    def charge(self) -> Entry | None:
        """Charge the ledger for what :meth:`advance` is about to release; None if nothing is, or it was before."""
        if self._sum is None:
            return None
        # A silo that was not heard has taken its noise with it.
        event = self._plan.release.event(self._heard[-1])
        content, asked = (hashlib.sha256(m.pack(vector)).hexdigest() for vector in (self._sum, self._state.x))
        entry = Entry(self._round + 1, event, content, asked)
        new = self.ledger.charge(entry)
        self._charged = True
        return entry if new else None

    def advance(self) -> None:
        """Let the collected total change the model, after :meth:`charge` and never before."""
        if self._sum is None:
            return
        if not self._charged:
            raise RunError("a round was not charged before the model changed", location="ledger")
        total = self._plan.release.encoding.decode(from_words(self._sum))
        state = self._plan.method.server(self._state, total, self._plan.facts)
        if not isinstance(state, State):
            raise ModelError(f"must return a uldp.State, not a {type(state).__name__}", location="method.server")
        if not np.isfinite(state.x).all():
            raise ModelError(
                f"the model is no longer finite after round {self._round + 1}; lower method.global_lr",
                location="method.global_lr",
            )
        self._state, self._round, self._sum, self._charged = state, self._round + 1, None, False
        self._absent.clear()

    def _next_question(self) -> m.Body | None:
        if self._phase is Phase.NEW:
            return self._plan.hello
        if self._phase is Phase.CLOSED:
            return None
        if self._phase is Phase.MEASURED:
            return m.Finish()
        if self._phase is Phase.CHOSEN:
            return self._round_question(self._round + 1) if self._affords_next() else None
        if self._phase is not Phase.READY:
            # The setup is a path: the table has one question for each of its phases.
            question = next(question for phase, question in self._plan.turns if phase is self._phase)
            return self._setup_question(question, self._plan.silos[0])
        if self._round < self._plan.rounds and self._affords_next():
            if self._plan.release.user_sampling.private:
                return m.AskChoices(self._round + 1, self._side.offer(self._round + 1))
            return self._round_question(self._round + 1)
        if self._plan.measures and self._round:
            return m.AskMetrics(self._round, m.pack(self._state.x))
        return m.Finish()

    def _setup_question(self, question: type[m.Message], name: str) -> m.Body:
        if question is m.AskCounts:
            return m.AskCounts()
        if question is m.TellUsers:
            assert self._told is not None
            return m.TellUsers(m.pack(self._told[self._plan.silos.index(name)]))
        return self._side.ask(question, name)

    def _question_for(self, name: str) -> m.Body:
        """The question as this silo gets it: in the setup some differ from silo to silo."""
        assert self._turn is not None
        question = type(self._turn.question)
        return self._setup_question(question, name) if question in self._plan.setup else self._turn.question

    def _round_question(self, round_: int) -> m.AskUpdate:
        if self._plan.release.user_sampling.private:
            return m.AskUpdate(round_, m.pack(self._state.x), b"", self._side.weights_for(round_, self._chosen))
        sample = self._sample(round_)
        told = b"" if self._plan.release.silo_sampling.all_silos else m.pack_bits(self._picked_silos(round_))
        if sample is not None and self._plan.tells_sample:
            told += m.pack_bits(sample)
        weights = self._side.weights(round_, None if self._plan.tells_sample else sample)
        return m.AskUpdate(round_, m.pack(self._state.x), told, weights, self._present())

    def _present(self) -> bytes:
        """One bit per silo where some are left out of the round."""
        here = np.array([name not in self._absent for name in self._plan.silos], dtype=np.bool_)
        return b"" if here.all() else m.pack_bits(here)

    def _affords_next(self) -> bool:
        """The budget is a hard stop: a round that does not fit is not even asked for."""
        event = self._plan.release.event(len(self._audience))
        return self.ledger.affords(event, self._round + 1)

    def _sample(self, round_: int) -> Sample | None:
        """The round's Poisson sample of users (Algorithm 4); None for everybody."""
        if self._plan.release.user_sampling.everybody:
            return None
        limit = self._plan.release.user_sampling.max_participations
        sample = self._drawn(round_)
        if limit:
            # Who took part before follows from the earlier rounds' draws: nothing to remember, nothing to lose.
            taken = np.zeros(self._plan.facts.users, dtype=np.int64)
            for earlier in range(1, round_):
                taken += self._drawn(earlier) & (taken < limit)
            sample &= taken < limit
        return sample

    def _picked_silos(self, round_: int) -> Sample:
        """The silos that take part in a round: so many, every subset alike."""
        facts = self._plan.facts
        words = self._secrets.child("silos", "round", round_).stream().words(facts.silos)
        picked = np.zeros(facts.silos, dtype=np.bool_)
        # 64-bit words of a few thousand silos do not coincide; if two do, the first one is picked.
        picked[np.argsort(words, kind="stable")[: self._plan.release.silo_sampling.per_round(facts.silos)]] = True
        return picked

    def _drawn(self, round_: int) -> Sample:
        words = self._secrets.child("sample", "round", round_).stream().words(self._plan.facts.users)
        # P(word < floor(q 2^64)) is q up to 2^-64, and never above it.
        return words < np.uint64(min(math.floor(self._plan.release.user_sampling.rate * 2.0**64), 2**64 - 1))

    @property
    def _max_saturated(self) -> int:
        """How many coordinates a silo can have cut off: all of its rows'. A method with a guarantee never says."""
        release = self._plan.release
        return 0 if release.unit is not None else release.max_rows * release.facts.dimension

    def _check_answer(self, name: str, body: m.Body) -> None:
        facts = self._plan.facts
        match body:
            case m.Welcome(roster=roster):  # the rest was checked when it was decoded
                for other, answer in self._answers.items():
                    if isinstance(answer, m.Welcome) and answer.roster != roster:
                        raise MessageRefused(
                            f"has another roster (or key for hashing ids) than silo {other}; the same person would be "
                            "two users. Compare the files",
                            location=f"silo {name}",
                        )
            case m.Counts(counts):
                m.unpack_counts(counts, facts.users, MAX_COUNT, f"silo {name}")
            case m.Choices(round_, points):
                if round_ != self._round + 1:
                    raise MessageRefused(f"chose for round {round_}, not {self._round + 1}", location=f"silo {name}")
                for other, answer in self._answers.items():
                    if isinstance(answer, m.Choices) and answer.points != points:
                        raise MessageRefused(f"chose other slots than silo {other}", location=f"silo {name}")
                if not self._answers:
                    self._side.check_choices(name, points)
            case m.Update(round_, vector, saturated):
                if round_ != self._round + 1:
                    raise MessageRefused(f"answered for round {round_}, not {self._round + 1}", location=f"silo {name}")
                if body.present != self._present():
                    raise MessageRefused("answered for an attempt with other silos", location=f"silo {name}")
                self._side.check_vector(name, vector)
                if not 0 <= saturated <= self._max_saturated:
                    raise MessageRefused(
                        f"saturated lies between 0 and {self._max_saturated}, not {saturated}",
                        location=f"silo {name}",
                        value=saturated,
                    )
            case m.Metrics(round_, sums):
                if round_ != self._round:
                    raise MessageRefused(f"measured after round {round_}, not {self._round}", location=f"silo {name}")
                m.unpack_words(sums, len(self._plan.measures) + 1, f"silo {name}")
            case _:
                self._side.check(name, body)

    def _all_answered(self) -> None:
        missing = [name for name in self._audience if name not in self._answers]
        if self._turn is None or missing:
            raise RunError(f"no answer yet from {', '.join(missing) or 'anybody'}", location="server")

    def save(self) -> bytes:
        """The session's state between two exchanges, or with a collected total that was not used yet.

        With goodbyes under way it is that of before: they are asked for again.
        """
        if self._turn is not None and self.stage is not Stage.CLOSING:
            raise RunError("a session is saved between exchanges, not within one", location="server")
        memory = {name: m.pack(vector) for name, vector in self._state.memory.items()}
        told = None if self._told is None else m.pack(self._told)
        collected = None if self._sum is None else m.pack(self._sum)
        saved = _Saved(
            self._phase.value,
            self._round,
            m.pack(self._state.x),
            memory,
            told,
            self.saturated,
            collected,
            self._setup,
            self._chosen,
            sorted(self._absent),
            self._heard,
            self._metrics,
        )
        return encode(saved)

    def restore(self, state: bytes) -> None:
        """Continue from what :meth:`save` gave."""
        facts = self._plan.facts
        try:
            saved = _decoded(state)
            phase = Phase(saved.phase)
            x = m.unpack_floats(saved.x, facts.dimension, "checkpoint")
            memory = {name: np.frombuffer(data, dtype="<f8").astype(np.float64) for name, data in saved.memory.items()}
            if phase is not Phase.CLOSED:
                self._restore_setup(saved.setup)
        except (ValueError, MessageRefused) as error:
            raise RunError(f"the server's saved state is unreadable: {error}", location="checkpoint") from error
        self._state = State(x, memory)
        if saved.told is not None:
            flat = m.unpack_counts(saved.told, facts.silos * facts.users, MAX_COUNT * facts.silos, "checkpoint")
            self._told = flat.reshape(facts.silos, facts.users)
        if saved.collected is not None:
            self._sum = m.unpack_words(saved.collected, facts.dimension, "checkpoint")
        self._phase, self._round, self.saturated = phase, saved.round, saved.saturated
        self._chosen, self._absent, self._heard = saved.chosen, set(saved.absent), saved.heard
        self._metrics = saved.metrics

    def _restore_setup(self, answers: list[dict[str, bytes]]) -> None:
        """Tell the aggregation's machine again what it was told."""
        questions = [question for question in self._plan.setup if question not in SHOW_COUNTS]
        for question, each in zip(questions, answers, strict=False):
            self._side.collect(question, {name: m.decode_body(body) for name, body in each.items()})
        self._setup = answers
