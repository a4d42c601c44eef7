"""The server's session. It does no I/O and holds no records: it sends requests, sums, charges the ledger and steps.

::

    while requests := server.requests():
        for name, request in requests.items():
            server.receive(name, silos[name].reply(request))
        server.collect()             # all responses arrived: save all sessions here, so that nothing is requested twice
        entry = server.charge()      # write it down before ...
        server.advance()             # ... the model changes
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np

from uldp.aggregation.base import Sample
from uldp.data.federation import IntArray
from uldp.encoding import encode
from uldp.errors import BudgetExhausted, MessageRefused, ModelError, RunError, foreign_exceptions
from uldp.methods.base import State
from uldp.privacy.ledger import Entry, Ledger
from uldp.privacy.releases.weights import MAX_COUNT
from uldp.protocol import messages as m
from uldp.protocol.turns import Exchange, Phase, turn
from uldp.rng import Secrets
from uldp.sessions.holdout import holdout_means
from uldp.sessions.plan import Plan
from uldp.sessions.sampling import RoundSampler
from uldp.sessions.stored import StoredServer, decode_state
from uldp.vectors import Residues, Vector, from_residues


def is_closed(state: bytes) -> bool:
    """Whether ``state``, from :meth:`ServerSession.save`, is that of a session that is over."""
    return decode_state(state, StoredServer, "the server's saved state").phase == Phase.CLOSED


class Stage(Enum):
    """What the server is doing."""

    SETUP = "setup"
    PREPARATION = "preparation"
    """The aggregation prepares a round: silos choose slots, or transfer blinds."""
    ROUND = "round"
    """Updates of a round are awaited."""
    COLLECTED = "collected"
    """A round's total waits to be charged and used."""
    METRICS = "metrics"
    """Silos' sums over their hold-out people are awaited."""
    CLOSING = "closing"
    """The server closes the session; nothing else is left."""
    CLOSED = "closed"


_STAGES: Final = {
    m.UpdateRequest: Stage.ROUND,
    m.MetricsRequest: Stage.METRICS,
    m.Close: Stage.CLOSING,
}


@dataclass(frozen=True)
class _OpenExchange:
    """An exchange with all silos that is not finished."""

    request: m.Message
    exchange: Exchange


class ServerSession:
    """Sends the requests of the turn table and uses the responses."""

    def __init__(self, plan: Plan, x: Vector, ledger: Ledger, secrets: Secrets) -> None:
        self.plan = plan
        self._state = State(np.array(x, dtype=np.float64))
        self.ledger = ledger
        own = secrets.child("server")
        self.sampler = RoundSampler(plan.release, own)
        self.side = plan.aggregation.server(plan, own.child("aggregation", plan.digest))
        """The aggregation's state machine. What it learns is what the server may learn."""
        self._setup: list[dict[str, m.Message]] = []
        self._prepared: list[dict[str, bytes]] = []
        self._started_round = 0
        self._phase: str = Phase.NEW
        self._round = 0
        self._user_totals: IntArray | None = None
        self._turn: _OpenExchange | None = None
        self._responses: dict[str, m.Message] = {}
        self._missing_silos: set[str] = set()
        self._heard: list[int] = []
        self._sum: Residues | None = None
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
    def silos_heard(self) -> tuple[int, ...]:
        """How many silos took part in each round, including one that is collected and not yet used."""
        return tuple(self._heard)

    @property
    def missing_silos(self) -> tuple[str, ...]:
        """The silos that are left out of the current round."""
        return tuple(name for name in self.plan.silos if name in self._missing_silos)

    def requests(self) -> dict[str, bytes]:
        """The requests to send now, by silo; empty when the run is over, or a collected round is not yet used."""
        if not self._has_request():
            return {}
        waiting = [name for name in self._audience if name not in self._responses]
        return {name: m.encode(self.plan.digest, name, self._request_for(name)) for name in waiting}

    def _has_request(self) -> bool:
        """Whether there is a request to send now; it is made once."""
        if self._turn is None and self._sum is None and (request := self._next_request()) is not None:
            self._turn = _OpenExchange(request, turn(self.plan.turns, self._phase, request, "server"))
            self._responses = {}
        return self._turn is not None

    @property
    def finished(self) -> bool:
        """Whether all that is left is to close the session."""
        return self._sum is None and (not self._has_request() or self.stage is Stage.CLOSING)

    @property
    def _audience(self) -> list[str]:
        return [name for name in self.plan.silos if name not in self._missing_silos]

    @property
    def stage(self) -> Stage:
        """What the session is doing now."""
        if self._sum is not None:
            return Stage.COLLECTED
        if self._turn is None:
            return Stage.CLOSED if self._phase == Phase.CLOSED else Stage.SETUP
        other = Stage.PREPARATION if isinstance(self._turn.request, m.RoundMessage) else Stage.SETUP
        return _STAGES.get(type(self._turn.request), other)

    @property
    def metrics(self) -> dict[str, float]:
        """Means over the people whom silos hold out, at the last model; empty where one of them did not report."""
        return dict(self._metrics)

    def exclude(self, names: Collection[str]) -> None:
        """Repeat the round without these silos; they may return in the next one. A refusal changes nothing.

        The others are asked again, because their masks must cancel without the missing ones. Save the session before
        that: silos do not let one return within a round. A missing response to Close is ignored. Metrics of held-out
        people are of all silos or of none: the others are not asked a second time, so that there are no two totals
        whose difference is one silo's.
        """
        if self.stage is Stage.CLOSING:
            self._missing_silos.update(names)
            return
        if self.stage is Stage.METRICS:
            self._phase, self._turn, self._responses = Phase.MEASURED, None, {}
            return
        missing = ", ".join(sorted({*names, *self._missing_silos}))
        remaining, required = [name for name in self._audience if name not in names], self.plan.required_silos
        in_round = self.stage is Stage.ROUND
        if not in_round or not self.plan.aggregation.repeatable:
            when = f"under {self.plan.aggregation.name}" if in_round else "before the first round"
            raise RunError(
                f"no response from {missing}, and {when} the run cannot go on without a silo", location="server"
            )
        if len(remaining) < required:
            raise RunError(
                f"no response from {missing}; {len(remaining)} silos are left, and a round needs {required} "
                "(aggregation.min_silos)",
                location="server",
                value=len(remaining),
            )
        if not self._affords(len(remaining)):
            raise BudgetExhausted(
                f"round {self._round + 1} without {missing} and their noise would exceed the budget; it was not made",
                location="privacy.epsilon",
                value=self.ledger.budget,
            )
        self._missing_silos.update(names)
        self._turn, self._responses = None, {}

    def receive(self, name: str, reply: bytes) -> None:
        """Accept one silo's response. A refused one changes nothing."""
        if name not in self.plan.silos:
            raise MessageRefused(f"there is no silo {name!r} in this experiment", location="server", value=name)
        if self._turn is None or name in self._responses or name in self._missing_silos:
            raise MessageRefused("sent a response without a request", location=f"silo {name}")
        plan = self.plan
        limit, hello, kinds = plan.message_limit, plan.hello, plan.kinds
        body = m.decode(reply, experiment=plan.digest, silo=name, limit=limit, handshake=hello, kinds=kinds)
        expected = self._turn.exchange.response
        if not isinstance(body, expected):
            raise MessageRefused(
                f"answered {type(body).__name__}, {expected.__name__} is expected",
                location=f"silo {name}",
            )
        self._check_response(name, body)
        self._responses[name] = body

    def collect(self) -> None:
        """Use the responses of an exchange. A round's responses become its total; the model does not change yet.

        Responses that do not fit together are refused, all of them: the silos can be asked again.
        """
        self._check_complete()
        assert self._turn is not None
        try:
            self._use_responses(self._turn)
        except MessageRefused:
            self._responses = {}
            raise
        self._phase, self._turn, self._responses = self._turn.exchange.phase, None, {}

    def _use_responses(self, asked: _OpenExchange) -> None:
        facts, responses, request = self.plan.facts, self._responses, type(asked.request)
        if request is m.CountsRequest:
            counts = [
                m.unpack_counts(body.counts, facts.users, MAX_COUNT, name)
                for name in self.plan.silos
                if isinstance(body := responses[name], m.Counts)
            ]
            assert self.plan.release.exchange is not None
            self._user_totals = self.plan.release.exchange.totals(np.stack(counts))
        elif request is m.UpdateRequest:
            updates = {name: body for name, body in responses.items() if isinstance(body, m.Update)}
            self._sum = self.side.total({name: body.vector for name, body in updates.items()})
            self.saturated += sum(body.saturated for body in updates.values())
            self._heard.append(len(updates))
        elif request is m.MetricsRequest:
            self._metrics = self._means(responses)
        elif issubclass(request, m.RoundMessage):
            self.side.collect(request, responses)
            self._prepared.append({name: m.encode_body(body) for name, body in responses.items()})
        elif request in self.plan.setup and request is not m.UserTotals:
            self.side.collect(request, responses)
            if self._setup:  # earlier responses are needed only as far as prune_response says
                self._setup[-1] = {name: self.side.prune_response(body) for name, body in self._setup[-1].items()}
            self._setup.append(dict(responses))

    def _means(self, responses: Mapping[str, m.Message]) -> dict[str, float]:
        """The means over held-out people; none if the total is out of range."""
        length = len(self.plan.mean_metrics) + 1
        total = np.zeros(length, dtype=np.uint64)
        for name, body in responses.items():
            if isinstance(body, m.Metrics):
                total += m.unpack_residues(body.sums, length, f"silo {name}")
        return holdout_means(from_residues(total), self.plan.mean_metrics) or {}

    def charge(self) -> Entry | None:
        """Charge the ledger for what :meth:`advance` is about to release; None if nothing is, or it was charged."""
        if self._sum is None:
            return None
        # The noise of a silo that was not heard is missing.
        event = self.plan.release.event(self._heard[-1])
        content, model = (hashlib.sha256(m.pack(vector)).hexdigest() for vector in (self._sum, self._state.x))
        entry = Entry(self._round + 1, event, content, model, self.plan.release.participation.group(self._round + 1))
        new = self.ledger.charge(entry)
        self._charged = True
        return entry if new else None

    def advance(self) -> None:
        """Let the collected total change the model, after :meth:`charge` and never before."""
        if self._sum is None:
            return
        if not self._charged:
            raise RunError("a round was not charged before the model changed", location="ledger")
        total = self.plan.release.encoding.decode(from_residues(self._sum))
        with foreign_exceptions(self.plan.method, location="method.server"):
            facts = self.plan.facts.in_round(self._round + 1, self._heard[-1])
            state = self.plan.method.server(self._state, total, facts)
        if not isinstance(state, State):
            raise ModelError(f"must return a uldp.State, not a {type(state).__name__}", location="method.server")
        if not np.isfinite(state.x).all():
            raise ModelError(
                f"the model is no longer finite after round {self._round + 1}; lower the server's step",
                location="method",
            )
        self._state, self._round, self._sum, self._charged = state, self._round + 1, None, False
        self._prepared = []
        self._missing_silos.clear()

    def _next_request(self) -> m.Message | None:
        if self._phase == Phase.NEW:
            return self.plan.hello
        if self._phase == Phase.CLOSED:
            return None
        if self._phase == Phase.MEASURED:
            return m.Close()
        if self._phase in self.plan.round_requests:
            if self._affords_next() and self._round < self.plan.rounds:
                return self._round_request(self.plan.round_requests[self._phase])
            if self._phase != Phase.READY:
                return None
        else:
            # The setup is a path: the table has one request for each of its phases.
            request = next(request for phase, request in self.plan.turns if phase == self._phase)
            return self._setup_request(request, self.plan.silos[0])
        if self.plan.mean_metrics and self._round:
            return m.MetricsRequest(self._round, m.pack(self._state.x))
        return m.Close()

    def _setup_request(self, request: type[m.Message], name: str) -> m.Message:
        if request is m.CountsRequest:
            return m.CountsRequest()
        if request is m.UserTotals:
            assert self._user_totals is not None
            return m.UserTotals(m.pack(self._user_totals[self.plan.silos.index(name)]))
        return self.side.ask(request, name)

    def _request_for(self, name: str) -> m.Message:
        """The request for this silo: in the setup some differ from silo to silo."""
        assert self._turn is not None
        request = type(self._turn.request)
        own = request in self.plan.setup or issubclass(request, m.RoundMessage)
        return self._setup_request(request, name) if own else self._turn.request

    def _round_request(self, request: type[m.Message]) -> m.Message:
        """A round's request of this type: one of the aggregation's, or for updates."""
        round_ = self._round + 1
        self._begin_round(round_)
        if request is not m.UpdateRequest:
            return self.side.ask(request, self.plan.silos[0])
        silos, known = self.sampler.silos(round_), self._users(round_) if self.plan.silos_know_sample else None
        sample = b"".join(m.pack_bits(bits) for bits in (silos, known) if bits is not None)
        with foreign_exceptions(self.plan.method, location="method.broadcast"):
            x = self.plan.method.broadcast(self._state, self.plan.facts.in_round(round_, self.plan.facts.silos))
        return m.UpdateRequest(round_, m.pack(x), sample, self.side.weights(), self._presence_bits())

    def _users(self, round_: int) -> Sample | None:
        """The sample that the server draws; None if all users take part, or the sample is private."""
        return None if self.plan.release.user_sampling.private else self.sampler.users(round_)

    def _begin_round(self, round_: int) -> None:
        if self._started_round != round_:
            self.side.begin_round(round_, None if self.plan.silos_know_sample else self._users(round_))
            self._started_round = round_

    def _presence_bits(self) -> bytes:
        """One bit per silo where some are left out of the round."""
        here = np.array([name not in self._missing_silos for name in self.plan.silos], dtype=np.bool_)
        return b"" if here.all() else m.pack_bits(here)

    def _affords_next(self) -> bool:
        """The budget is a hard stop: a round that would exceed it is not requested."""
        return self._affords(len(self._audience))

    def _affords(self, silos: int) -> bool:
        """Whether the budget allows the next round with so many silos."""
        release, round_ = self.plan.release, self._round + 1
        return self.ledger.affords(release.event(silos), round_, release.participation.group(round_))

    @property
    def _max_saturated(self) -> int:
        """An upper bound on a silo's number of cut-off coordinates; 0 under a guarantee, where none is reported."""
        release = self.plan.release
        return 0 if release.privacy_unit is not None else release.max_rows * release.facts.dimension

    def _check_response(self, name: str, body: m.Message) -> None:
        facts = self.plan.facts
        match body:
            case m.Welcome(roster=roster):  # the rest was checked when it was decoded
                for other, said in self._responses.items():
                    if isinstance(said, m.Welcome) and said.roster != roster:
                        raise MessageRefused(
                            f"has another roster (or key for hashing ids) than silo {other}; the same person would be "
                            "two users. Compare the files",
                            location=f"silo {name}",
                        )
            case m.Counts(counts):
                m.unpack_counts(counts, facts.users, MAX_COUNT, f"silo {name}")
            case m.RoundMessage(round_):
                self._check_answered_round(name, round_)
                self.side.check(name, body)
            case m.Update(round_, vector, saturated):
                self._check_answered_round(name, round_)
                if body.present != self._presence_bits():
                    raise MessageRefused("answered for an attempt with other silos", location=f"silo {name}")
                self.side.check_vector(name, vector)
                if not 0 <= saturated <= self._max_saturated:
                    raise MessageRefused(
                        f"saturated lies between 0 and {self._max_saturated}, not {saturated}",
                        location=f"silo {name}",
                        value=saturated,
                    )
            case m.Metrics(round_, sums):
                if round_ != self._round:
                    raise MessageRefused(f"measured after round {round_}, not {self._round}", location=f"silo {name}")
                m.unpack_residues(sums, len(self.plan.mean_metrics) + 1, f"silo {name}")
            case m.Accepted() | m.Closed():
                pass
            case _:
                self.side.check(name, body)

    def _check_answered_round(self, name: str, round_: int) -> None:
        if round_ != self._round + 1:
            raise MessageRefused(f"answered for round {round_}, not {self._round + 1}", location=f"silo {name}")

    def _check_complete(self) -> None:
        missing = [name for name in self._audience if name not in self._responses]
        if self._turn is None or missing:
            raise RunError(f"no response yet from {', '.join(missing) or 'anybody'}", location="server")

    def save(self) -> bytes:
        """The session's state between two exchanges, or with a collected total that was not used yet.

        While the session is being closed, the state is that of before: the silos are asked to close again.
        """
        if self._turn is not None and self.stage is not Stage.CLOSING:
            raise RunError("a session is saved between exchanges, not within one", location="server")
        memory = {name: m.pack(vector) for name, vector in self._state.memory.items()}
        totals = None if self._user_totals is None else m.pack(self._user_totals)
        collected = None if self._sum is None else m.pack(self._sum)
        saved = StoredServer(
            self._phase,
            self._round,
            m.pack(self._state.x),
            memory,
            totals,
            self.saturated,
            collected,
            [{name: m.encode_body(body) for name, body in each.items()} for each in self._setup],
            self._prepared,
            sorted(self._missing_silos),
            self._heard,
            self._metrics,
        )
        return encode(saved)

    def restore(self, state: bytes) -> None:
        """Continue from what :meth:`save` returned."""
        facts = self.plan.facts
        try:
            saved = decode_state(state, StoredServer, "the server's saved state")
            phase = self.plan.phase(saved.phase)
            x = m.unpack_floats(saved.x, facts.dimension, "checkpoint")
            memory = {name: np.frombuffer(data, dtype="<f8").astype(np.float64) for name, data in saved.memory.items()}
            if phase != Phase.CLOSED:
                self._restore_setup(saved.setup)
                self._restore_round(saved)
        except (ValueError, MessageRefused) as error:
            raise RunError(f"the server's saved state is unreadable: {error}", location="checkpoint") from error
        self._state = State(x, memory)
        if saved.user_totals is not None:
            flat = m.unpack_counts(saved.user_totals, facts.silos * facts.users, MAX_COUNT * facts.silos, "checkpoint")
            self._user_totals = flat.reshape(facts.silos, facts.users)
        if saved.collected is not None:
            self._sum = m.unpack_residues(saved.collected, facts.dimension, "checkpoint")
        self._phase, self._round, self.saturated = phase, saved.round, saved.saturated
        self._missing_silos, self._heard = set(saved.absent), saved.heard
        self._metrics = saved.metrics

    def _restore_setup(self, responses: list[dict[str, bytes]]) -> None:
        """Replay the setup to the aggregation's state machine."""
        requests = [request for request in self.plan.setup if request not in (m.CountsRequest, m.UserTotals)]
        self._setup = [self._replay(request, each) for request, each in zip(requests, responses, strict=False)]

    def _restore_round(self, saved: StoredServer) -> None:
        """Replay the exchanges of a round before its updates."""
        if saved.prepared:
            self._begin_round(saved.round + 1)
            for request, each in zip(self.plan.round_requests.values(), saved.prepared, strict=False):
                self._replay(request, each)
        self._prepared = saved.prepared

    def _replay(self, request: type[m.Message], responses: dict[str, bytes]) -> dict[str, m.Message]:
        decoded = {name: m.decode_body(body, self.plan.kinds) for name, body in responses.items()}
        self.side.collect(request, decoded)
        return decoded
