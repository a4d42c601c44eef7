"""A silo's side of an experiment. It does no I/O: bytes in, bytes out, and a state that can be saved."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from uldp.aggregation.base import RoundRequest, Sample
from uldp.crypto.keys import SigningKey
from uldp.data.federation import IntArray, SiloData
from uldp.encoding import encode
from uldp.errors import DataError, MessageRefused, RunError, foreign_exceptions
from uldp.learners.base import Learner
from uldp.privacy.releases.weights import MAX_COUNT
from uldp.protocol import messages as m
from uldp.protocol.turns import Phase, turn
from uldp.rng import Secrets, Streams
from uldp.sessions.holdout import holdout_sums
from uldp.sessions.plan import Plan
from uldp.vectors import to_residues


class _Released(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A round's release before it was protected. ``request`` is a digest of its request, whoever is present."""

    request: str
    present: bytes
    noised: bytes
    saturated: int


class _Saved(msgspec.Struct, forbid_unknown_fields=True):
    """What a silo must remember between messages. ``data`` is a digest of the records that its responses are about."""

    data: str
    phase: str
    round: int
    user_totals: bytes | None
    request: str
    response: bytes
    setup: list[bytes]
    prepared: list[bytes]
    prepared_round: int
    released: _Released | None = None


def _decoded(state: bytes, whose: str) -> _Saved:
    try:
        return msgspec.msgpack.decode(state, type=_Saved)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RunError(f"the saved state of {whose} is unreadable: {error}", location="checkpoint") from error


def _peeked(state: bytes) -> dict[str, Any]:
    """The fields of a saved state, also of another version's: a response of then was released then."""
    try:
        found = msgspec.msgpack.decode(state)
        return {**found, "phase": str(found["phase"]), "round": int(found["round"])}
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"the saved state of silo is unreadable: {error}", location="checkpoint") from error


def _joined(*digests: str) -> str:
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()


def _digest_of(begun: hashlib._Hash, parts: Sequence[bytes]) -> str:
    """The digest of what went into ``begun`` and of these parts."""
    whole = begun.copy()
    for part in parts:
        whole.update(part)
    return whole.hexdigest()


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
    """Learns what a silo is about to release, and raises to refuse it. By itself it lets everything pass."""

    def begins(self, round_: int, request: str) -> None:
        """Before a round is computed; ``request`` is a digest of the request, whoever is present."""

    def computed(self, round_: int, request: str, content: str) -> None:
        """Before the response leaves; ``content`` is a digest of the noised sum."""


@dataclass(frozen=True)
class Owner:
    """What the owner of a silo's data brings to a session.

    ``identity`` is the silo's long-term key; without one it is made from the session's secrets. ``roster`` is a digest
    of how ids become users.
    """

    identity: SigningKey | None = None
    roster: str = ""
    guard: ReleaseGuard = field(default_factory=ReleaseGuard)
    allow_metrics: bool = True


class SiloSession:
    """Responds to the server's requests, one at a time, in the order that the turn table allows."""

    def __init__(
        self,
        plan: Plan,
        data: SiloData,
        learner: Learner,
        streams: Streams,
        secrets: Secrets,
        *,
        holdout: SiloData | None = None,
        owner: Owner | None = None,
    ) -> None:
        owner = owner or Owner()
        self.plan = plan
        self._data = data
        self._learner = learner
        self._index = plan.silos.index(data.name)
        self._streams = streams.child("silo", self._index)
        self._secrets = secrets.child("silo", self._index)
        self._holdout = holdout
        self._data_digest = data.digest()
        # Noise and samples are bound to the records that they cover; keys, and what may go on, to all records.
        self._all_digest = self._data_digest if holdout is None else _joined(self._data_digest, holdout.digest())
        self._counts = checked_counts(data, plan.facts.users)
        self._owner = owner
        self.side = plan.aggregation.silo(
            plan,
            self._index,
            self._counts,
            # Other records, other keys: masks that hid one silo's counts or sums never hide two.
            self._secrets.child("aggregation", plan.digest, self._all_digest),
            owner.identity or signing_key(secrets, self._index),
        )
        """The aggregation's state machine, with this silo's keys and secrets."""
        self._setup: list[bytes] = []
        self._setup_hash, self._common_hash = hashlib.sha256(), hashlib.sha256()
        self._prepared: list[bytes] = []
        self._prepared_round = 0
        self._user_totals: IntArray | None = None
        self._selected: SiloData | None = None
        self._selected_digest = ""
        self._phase: str = Phase.NEW
        self._round = 0
        self._request = ""
        self._response = b""
        self._released: _Released | None = None
        self.left_out = 0
        """Rows of users that were not finite and counted as zero. It stays in the silo: no message carries it."""

    @property
    def name(self) -> str:
        return self._data.name

    @property
    def round(self) -> int:
        """The last round that the silo has responded to."""
        return self._round

    @property
    def phase(self) -> str:
        return str(self._phase)

    @property
    def closed(self) -> bool:
        """Whether the session is over."""
        return self._phase == Phase.CLOSED

    @staticmethod
    def is_closed(state: bytes) -> bool:
        """Whether :meth:`save` gave ``state`` after the session was over."""
        return bool(_peeked(state)["phase"] == Phase.CLOSED)

    @staticmethod
    def last_round(state: bytes) -> int:
        """The last round that a silo had responded to when :meth:`save` gave ``state``."""
        return int(_peeked(state)["round"])

    @staticmethod
    def ended(state: bytes) -> bytes:
        """``state`` as if the server had closed the session."""
        return encode({**_peeked(state), "phase": Phase.CLOSED, "released": None})

    def reply(self, request: bytes) -> bytes:
        """The response to ``request``. A refused request changes nothing.

        The last request again, byte for byte, gets the same response again: nothing is computed or released twice.
        """
        digest = hashlib.sha256(request).hexdigest()
        if digest == self._request:
            return self._response
        plan = self.plan
        limit, hello, kinds = plan.message_limit, plan.hello, plan.kinds
        body = m.decode(request, experiment=plan.digest, silo=self.name, limit=limit, handshake=hello, kinds=kinds)
        if isinstance(body, m.Hello) and self._phase != Phase.NEW:
            raise MessageRefused(
                f"Hello is out of turn: this experiment was begun here, and round {self._round} was the last; resume "
                "its run, or start another one with another run.seed",
                location=self.name,
                value=self._phase,
            )
        exchange = turn(plan.turns, self._phase, body, self.name)
        response, totals, round_ = self._respond_to(body)
        self._response = m.encode(plan.digest, self.name, response)
        self._request, self._phase, self._user_totals, self._round = digest, exchange.phase, totals, round_
        return self._response

    def _respond_to(self, body: m.Message) -> tuple[m.Message, IntArray | None, int]:
        """The response, and the users' totals and the round that hold from then on."""
        match body:
            case m.Hello():  # checked when it was decoded
                return self.plan.welcome(self._owner.roster), None, 0
            case m.CountsRequest():
                return m.Counts(m.pack(self._counts)), None, 0
            case m.UserTotals(values):
                return m.Accepted(), self._checked(values), 0
            case m.RoundMessage(round_):
                self._check_round(round_)
                response = self.side.respond(body)
                earlier = self._prepared if round_ == self._prepared_round else []
                self._prepared, self._prepared_round = [*earlier, *self._kept(body)], round_
                return response, self._user_totals, self._round
            case m.UpdateRequest(round_):
                repeated = self._released is not None and round_ == self._round
                return self._repeated_update(body) if repeated else self._update(body), self._user_totals, round_
            case m.MetricsRequest():
                return self._metrics(body), self._user_totals, self._round
            case m.Close():
                self._released = None
                return m.Closed(), self._user_totals, self._round
            case _:  # the turn table lets nothing else through than the aggregation's own setup
                response = self.side.respond(body)
                self._remember_setup(self._kept(body))
                return response, self._user_totals, 0

    def _kept(self, body: m.Message) -> list[bytes]:
        """What is kept of a request of the aggregation's own, to be replayed when the session is restored."""
        forgotten = any(one.forgotten for one in self.plan.turns.values() if one.request is type(body))
        return [] if forgotten else [m.encode_body(body)]

    def _remember_setup(self, requests: Sequence[bytes]) -> None:
        """Keep requests of the setup. Noise is bound to all of them, masks to those that all silos get alike."""
        for request in requests:
            self._setup.append(request)
            self._setup_hash.update(request)
            if not isinstance(m.decode_body(request, self.plan.kinds), self._individual):
                self._common_hash.update(request)

    @property
    def _individual(self) -> tuple[type[m.Message], ...]:
        """The requests that differ from silo to silo."""
        return tuple(found.request for found in self.plan.turns.values() if found.individual)

    def _common_preparation(self) -> list[bytes]:
        """What all silos were sent alike in this round, before its updates."""
        return [one for one in self._prepared if not isinstance(m.decode_body(one, self.plan.kinds), self._individual)]

    def _checked(self, data: bytes) -> IntArray:
        facts, exchange = self.plan.facts, self.plan.release.exchange
        totals = m.unpack_counts(data, facts.users, MAX_COUNT * facts.silos, self.name)
        assert exchange is not None
        exchange.check(self._counts, totals)
        return totals

    def _update(self, body: m.UpdateRequest) -> m.Update:
        plan, release = self.plan, self.plan.release
        round_, model, sample = body.round, body.model, body.sample
        self._check_round(round_)
        if (sample == b"") == any(plan.sample_sizes):
            raise MessageRefused("the sample does not fit method.sample_rate", location=self.name)
        if len(plan.round_requests) > 1 and self._prepared_round != round_:
            raise MessageRefused(f"round {round_} was not prepared", location=self.name, value=round_)
        asked = RoundRequest(round_, self._common_digest(body), body.weights, self._present(body))
        self.side.check_request(asked)
        x = m.unpack_floats(model, plan.facts.dimension, self.name)
        if self._selected is None:
            self._selected = release.select(self._data, self._user_totals, self._streams.child("kept"))
        data = self._selected
        picked, users = self._sample(sample)
        takes_part = picked is None or bool(picked[self._index])
        if users is not None:
            data = data.take(users[data.users])
        turn_of = release.participation.members(plan.facts.users, round_)
        if turn_of is not None:  # reckoned here: no message can put a user into a second group
            data = data.take(turn_of[data.users])
        if self._selected_digest == "":
            self._selected_digest = self._selected.digest()
        # Whoever is present: a silo that starts again from an older state then has one noised sum for a round, not one
        # for every set of silos it is asked about.
        request = self._asked_digest(body)
        inside = (request, self._data_digest, self._selected_digest, repr((plan.method, release)))
        secrets = self._round_secrets("inside", round_, inside)
        streams = self._streams.child("round", round_)
        self._owner.guard.begins(round_, request)
        weights = None if plan.aggregation.hides_counts else release.weights(self._counts, self._user_totals)
        accumulator = self.side.accumulator(weights, asked)
        if takes_part:  # who is not picked sends nothing but zeros: nobody's records are looked at
            with foreign_exceptions(plan.method, release, location="method.silo"):
                for owners, rows in release.rows(plan.method, x, data, self._learner, streams, secrets):
                    accumulator.add(owners, rows)
        setup = _digest_of(self._setup_hash, self._prepared)

        def bound_secrets(purpose: str, further: Sequence[str]) -> Secrets:
            return self._round_secrets(purpose, round_, (request, setup, self._data_digest, *further))

        released = accumulator.release(bound_secrets)
        self.left_out += released.left_out
        self._owner.guard.computed(round_, request, hashlib.sha256(released.noised or released.vector).hexdigest())
        if plan.may_repeat:
            noised, saturated = released.noised, released.saturated
            self._released = _Released(request, body.present, noised, saturated)
        return m.Update(round_, released.vector, released.saturated, body.present)

    def _repeated_update(self, body: m.UpdateRequest) -> m.Update:
        """The round's response once more, for fewer silos: the same noised sum under other masks.

        Silos may only become fewer. So a server that takes turns in leaving silos out learns no more than one chain
        of ever smaller sets shows it.
        """
        before = self._released
        assert before is not None
        if self._asked_digest(body) != before.request:
            raise MessageRefused(
                f"round {body.round} was answered already, and for another model or sample", location=self.name
            )
        present, earlier = self._present(body), self._bits(before.present)
        now = np.ones(len(self.plan.silos), dtype=np.bool_) if present is None else present
        if earlier is not None and (now & ~earlier).any():
            raise MessageRefused("a silo that was left out of a round does not come back within it", location=self.name)
        asked = RoundRequest(body.round, self._common_digest(body), body.weights, present)
        vector = self.side.repeat_update(before.noised, asked)
        self._released = msgspec.structs.replace(before, present=body.present)
        return m.Update(body.round, vector, before.saturated, body.present)

    def _metrics(self, body: m.MetricsRequest) -> m.Metrics:
        """Sums over the people who are held out, protected and without noise. It happens once: no round comes after."""
        plan = self.plan
        if not self._owner.allow_metrics:
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
        asked = RoundRequest(body.round, self._common_digest(body), b"")
        return m.Metrics(body.round, m.pack(self.side.protect_metrics(to_residues(sums), asked)))

    def _present(self, body: m.UpdateRequest) -> Sample | None:
        """Who takes part in the round; refused if that is not this silo and enough others."""
        present = self._bits(body.present)
        if present is None:
            return None
        if not present[self._index]:
            raise MessageRefused("is asked for a round that it is left out of", location=self.name)
        least = self.plan.least_silos
        if present.sum() < least or present.all():
            raise MessageRefused(
                f"a round without some silos needs {least} of them (aggregation.min_silos), not {int(present.sum())}",
                location=self.name,
                value=int(present.sum()),
            )
        return present

    def _bits(self, present: bytes) -> Sample | None:
        return m.unpack_bits(present, len(self.plan.silos), self.name) if present else None

    @staticmethod
    def _asked_digest(body: m.UpdateRequest) -> str:
        """A digest of the round's request, whoever is present."""
        return hashlib.sha256(m.encode_body(msgspec.structs.replace(body, present=b""))).hexdigest()

    def _sample(self, sample: bytes) -> tuple[Sample | None, Sample | None]:
        """Which silos and which users take part; None for all."""
        silos, users = self.plan.sample_sizes
        split = -(-silos // 8)
        picked = m.unpack_bits(sample[:split], silos, self.name)
        sampled = m.unpack_bits(sample[split:], users, self.name)
        agreed = self.plan.release.silo_sampling.per_round(self.plan.facts.silos)
        if silos and int(picked.sum()) != agreed:
            raise MessageRefused(f"{int(picked.sum())} silos were picked, {agreed} were agreed on", location=self.name)
        return picked if silos else None, sampled if users else None

    def _common_digest(self, body: m.UpdateRequest | m.MetricsRequest) -> str:
        """A digest of the request and of all of the setup that is the same for every silo.

        Masks are bound to it. A server that starts again from other keys or weights meets other masks.
        """
        common = []
        if self._user_totals is not None and self.plan.release.user_weighting == "records":
            common.append(
                m.pack(self._user_totals)
            )  # other totals for each silo would give weights that sum to more than 1
        return _digest_of(self._common_hash, [*common, *self._common_preparation(), m.encode_body(body)])

    def _check_round(self, round_: int) -> None:
        rounds = self.plan.rounds
        if not 0 < round_ <= rounds:
            raise MessageRefused(
                f"round {round_} lies outside the agreed {rounds} rounds", location=self.name, value=round_
            )
        # Whoever was left out of rounds comes back in a later one; a round before that gets no response any more.
        if round_ <= self._round or not (self.plan.may_repeat or round_ == self._round + 1):
            raise MessageRefused(
                f"round {round_} is not the next one ({self._round + 1})", location=self.name, value=round_
            )

    def _round_secrets(self, purpose: str, round_: int, bound_to: tuple[str, ...]) -> Secrets:
        """A round's secret randomness, addressed by all that the released vector depends on.

        Only a repetition of the very same release gets the same noise; decision 0005 has the attacks that this closes.
        Simulated noise protects nobody and is addressed by the round alone: another chunk size, machine or method then
        meets the same noise, and runs can be compared.
        """
        secrets = self._secrets.child(purpose, "round", round_)
        return secrets if secrets.simulated else secrets.child(*bound_to)

    def save(self) -> bytes:
        """The session's state. It holds what was sent last, and so noise: keep it as safe as the data.

        Whoever carries messages saves it after :meth:`reply` and *before* the response leaves: then a silo that starts
        again repeats its response instead of computing it again, which another machine might do a bit differently.
        """
        totals = None if self._user_totals is None else m.pack(self._user_totals)
        last = (self._request, self._response, self._setup, self._prepared, self._prepared_round, self._released)
        saved = _Saved(self._all_digest, self._phase, self._round, totals, *last)
        return encode(saved)

    def restore(self, state: bytes) -> None:
        """Continue from what :meth:`save` gave."""
        saved = _decoded(state, f"silo {self.name}")
        try:
            phase = self.plan.phase(saved.phase)
            if saved.data != self._all_digest:
                raise RunError("its records are not those it began with; start a new run", location=f"silo {self.name}")
            if phase != Phase.CLOSED:  # a closed session gets no request any more, and its secrets may be gone
                for request in (*saved.setup, *saved.prepared):
                    self.side.respond(m.decode_body(request, self.plan.kinds))
            totals = None if saved.user_totals is None else self._checked(saved.user_totals)
        except (ValueError, MessageRefused) as error:
            raise RunError(
                f"the saved state of silo {self.name} is unreadable: {error}", location="checkpoint"
            ) from error
        self._setup, self._setup_hash, self._common_hash = [], hashlib.sha256(), hashlib.sha256()
        self._remember_setup(saved.setup)
        self._user_totals, self._prepared, self._prepared_round = totals, saved.prepared, saved.prepared_round
        self._phase, self._round, self._released = phase, saved.round, saved.released
        self._request, self._response = saved.request, saved.response
