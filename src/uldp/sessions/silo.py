"""A silo's session in an experiment. It does no I/O: bytes in, bytes out, and a state that can be saved."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

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
from uldp.sessions.stored import RoundRelease, StoredSilo, decode_state, read_fields
from uldp.vectors import to_residues


class PartStore(Protocol):
    """Stores large requests of the setup, each once: the state, which is saved in every round, then stays small."""

    def put(self, data: bytes) -> str:
        """Store ``data`` and return its name."""

    def get(self, name: str) -> bytes:
        """Return what was stored under ``name``."""


PART_BYTES: Final = 1 << 12
"""Requests of the setup that are longer go into a :class:`PartStore`, where there is one."""


def _join_digests(*digests: str) -> str:
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()


def _digest_of(prefix: hashlib._Hash, parts: Sequence[bytes]) -> str:
    """The digest of what went into ``prefix`` and of these parts."""
    whole = prefix.copy()
    for part in parts:
        whole.update(part)
    return whole.hexdigest()


def count_records(data: SiloData, users: int) -> IntArray:
    """How many records of every user the silo has. Weights are exact up to ``MAX_COUNT``; more are refused."""
    counts = data.counts(users)
    if counts.max(initial=0) > MAX_COUNT:
        raise DataError(
            f"a user has more than {MAX_COUNT} records in this silo; merge or leave out some of them",
            location=f"silo {data.name}",
        )
    return counts


def signing_key(secrets: Secrets, index: int) -> SigningKey:
    """The long-term key of a simulated silo, derived from the secrets of the run."""
    return SigningKey(secrets.child("identity", index))


class ReleaseGuard:
    """Called before a silo releases anything; raises to refuse the release. This default refuses nothing."""

    def before_round(self, round_: int, request: str) -> None:
        """Called before a round is computed; ``request`` is a digest of it, without the list of present silos."""

    def before_response(self, round_: int, request: str, content: str) -> None:
        """Called before the response is sent; ``content`` is a digest of the noised sum."""


@dataclass(frozen=True)
class Owner:
    """What the owner of a silo's data provides for a session.

    Args:
        identity: The silo's long-term key; without one it is derived from the session's secrets.
        roster: A digest of how ids are mapped to user indices.
        guard: May refuse a release.
        allow_metrics: Whether metrics of held-out people, which carry no noise, may be sent.
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
        # Noise and batches depend on the digest of the training records; keys and saved states on that of all records.
        self._all_digest = self._data_digest if holdout is None else _join_digests(self._data_digest, holdout.digest())
        self._counts = count_records(data, plan.facts.users)
        self._owner = owner
        self.side = plan.aggregation.silo(
            plan,
            self._index,
            self._counts,
            # Other records get other keys: a mask must never hide two different counts or sums.
            self._secrets.child("aggregation", plan.digest, self._all_digest),
            owner.identity or signing_key(secrets, self._index),
        )
        """The aggregation's state machine, with this silo's keys and secrets."""
        # The requests of the setup and of the next round's preparation (which some aggregations make before a round's
        # UpdateRequest) are stored as they came: secrets are derived from them, and restore() replays them. The common
        # hash covers those that are the same for all silos.
        self._setup: list[bytes] = []
        self._setup_hash, self._common_hash = hashlib.sha256(), hashlib.sha256()
        self._parts: dict[int, str] = {}
        self._prepared: list[bytes] = []
        self._prepared_round = 0
        self._user_totals: IntArray | None = None
        self._selected: SiloData | None = None
        self._selected_digest = ""
        self._phase: str = Phase.NEW
        self._round = 0
        self._request = ""
        self._response = b""
        self._released: RoundRelease | None = None
        self.left_out = 0
        """How many rows were not finite and counted as zero. The number stays in the silo: no message carries it."""

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
        """Whether ``state``, from :meth:`save`, is that of a session that is over."""
        return bool(read_fields(state)["phase"] == Phase.CLOSED)

    @staticmethod
    def last_round(state: bytes) -> int:
        """The last round that the silo responded to, from what :meth:`save` returned."""
        return int(read_fields(state)["round"])

    @staticmethod
    def close_state(state: bytes) -> bytes:
        """``state`` as if the server had closed the session."""
        return encode({**read_fields(state), "phase": Phase.CLOSED, "released": None})

    def reply(self, request: bytes) -> bytes:
        """The response to ``request``. A refused request changes nothing.

        A repetition of the last request, byte for byte, gets the same response: nothing is computed or released twice.
        """
        digest = hashlib.sha256(request).hexdigest()
        if digest == self._request:
            return self._response
        plan = self.plan
        limit, hello, kinds = plan.message_limit, plan.hello, plan.kinds
        body = m.decode(request, experiment=plan.digest, silo=self.name, limit=limit, handshake=hello, kinds=kinds)
        if isinstance(body, m.Hello) and self._phase != Phase.NEW:
            raise MessageRefused(
                f"Hello is out of turn: this experiment was started here, and round {self._round} was the last; resume "
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
        """The response; and the users' record totals and the last round, for :meth:`reply` to store."""
        match body:
            case m.Hello():  # checked when it was decoded
                return self.plan.welcome(self._owner.roster), None, 0
            case m.CountsRequest():
                return m.Counts(m.pack(self._counts)), None, 0
            case m.UserTotals(values):
                return m.Accepted(), self._check_totals(values), 0
            case m.RoundMessage(round_):
                self._check_preparation(body)
                response = self.side.respond(body)
                earlier = self._prepared if round_ == self._prepared_round else []
                self._prepared, self._prepared_round = [*earlier, *self._to_replay(body)], round_
                return response, self._user_totals, self._round
            case m.UpdateRequest(round_):
                repeated = self._released is not None and round_ == self._round
                return self._repeated_update(body) if repeated else self._update(body), self._user_totals, round_
            case m.MetricsRequest():
                return self._metrics(body), self._user_totals, self._round
            case m.Close():
                self._released = None
                return m.Closed(), self._user_totals, self._round
            case _:  # all that the turn table still admits is the aggregation's own setup
                response = self.side.respond(body)
                self._remember_setup(self._to_replay(body))
                return response, self._user_totals, 0

    def _to_replay(self, body: m.Message) -> list[bytes]:
        """One of the aggregation's requests, to be replayed when the session is restored; empty if it need not be."""
        replayed = all(one.replayed for one in self.plan.turns.values() if one.request is type(body))
        return [m.encode_body(body)] if replayed else []

    def _remember_setup(self, requests: Sequence[bytes]) -> None:
        """Store requests of the setup. Noise depends on all of them, masks on those that are the same for all silos."""
        for request in requests:
            self._setup.append(request)
            self._setup_hash.update(request)
            if not isinstance(m.decode_body(request, self.plan.kinds), self._individual):
                self._common_hash.update(request)

    @property
    def _individual(self) -> tuple[type[m.Message], ...]:
        """The types of requests whose content differs from silo to silo."""
        return tuple(found.request for found in self.plan.turns.values() if found.individual)

    def _common_preparation(self) -> list[bytes]:
        """The requests of this round's preparation that are the same for all silos."""
        return [one for one in self._prepared if not isinstance(m.decode_body(one, self.plan.kinds), self._individual)]

    def _check_totals(self, data: bytes) -> IntArray:
        facts, exchange = self.plan.facts, self.plan.release.exchange
        totals = m.unpack_counts(data, facts.users, MAX_COUNT * facts.silos, self.name)
        assert exchange is not None
        exchange.check(self._counts, totals)
        return totals

    def _update(self, body: m.UpdateRequest) -> m.Update:
        plan, release, round_ = self.plan, self.plan.release, body.round
        self._check_round(round_)
        if (body.sample == b"") == any(plan.sample_sizes):
            raise MessageRefused("the sample does not fit method.sample_rate", location=self.name)
        if len(plan.round_requests) > 1 and self._prepared_round != round_:
            raise MessageRefused(f"round {round_} was not prepared", location=self.name, value=round_)
        request = RoundRequest(round_, self._common_digest(body), body.weights, self._read_presence(body))
        self.side.check_request(request)
        x = m.unpack_floats(body.model, plan.broadcast_size, self.name)
        silos, users = self._sample(body.sample)
        data, selection_digest = self._select(users, round_)
        # The digest does not cover the list of present silos. So even a silo that was restarted from an older state has
        # one noised sum for a round, whatever set of silos it is asked about.
        digest = self._request_digest(body)
        bound_to = (digest, self._data_digest, selection_digest, repr((plan.method, release)))
        secrets = self._round_secrets("inside", round_, bound_to)  # for DP-SGD: its noise and its batches
        self._owner.guard.before_round(round_, digest)
        weights = None if plan.aggregation.hides_counts else release.weights(self._counts, self._user_totals)
        accumulator = self.side.accumulator(weights, request)
        if silos is None or silos[self._index]:  # a silo outside the sample sends zeros and reads no records
            streams = self._streams.child("round", round_)
            with foreign_exceptions(plan.method, release, location="method.silo"):
                for owners, rows in release.rows(plan.method, x, data, self._learner, streams, secrets):
                    accumulator.add(owners, rows)
        setup = _digest_of(self._setup_hash, self._prepared)

        def bound_secrets(purpose: str, further: Sequence[str]) -> Secrets:
            return self._round_secrets(purpose, round_, (digest, setup, self._data_digest, *further))

        update = accumulator.release(bound_secrets)
        self.left_out += update.left_out
        self._owner.guard.before_response(
            round_, digest, hashlib.sha256(update.noised_sum or update.vector).hexdigest()
        )
        if plan.may_repeat:
            self._released = RoundRelease(digest, body.present, update.noised_sum, update.saturated)
        return m.Update(round_, update.vector, update.saturated, body.present)

    def _select(self, users: Sample | None, round_: int) -> tuple[SiloData, str]:
        """The records that take part in a round, and a digest of the records (of all users) selected for the run."""
        if self._selected is None:
            streams = self._streams.child("kept")  # part of the seed: do not rename
            self._selected = self.plan.release.select(self._data, self._user_totals, streams)
            self._selected_digest = self._selected.digest()
        data = self._selected
        # The silo itself computes which group's turn it is: no message can put a user into a second group.
        group = self.plan.release.participation.members(self.plan.facts.users, round_)
        for sample in (users, group):
            data = data if sample is None else data.take(sample[data.users])
        return data, self._selected_digest

    def _repeated_update(self, body: m.UpdateRequest) -> m.Update:
        """The response to a round that is repeated with fewer silos: the same noised sum under other masks.

        A silo that was left out stays out. A server that leaves out one silo after another thus sees totals of nested
        sets of silos only, each a subset of the one before.
        """
        before = self._released
        assert before is not None
        if self._request_digest(body) != before.request:
            raise MessageRefused(
                f"round {body.round} was answered already, for another model or sample", location=self.name
            )
        present, earlier = self._read_presence(body), self._bits(before.present)
        takes_part = np.ones(len(self.plan.silos), dtype=np.bool_) if present is None else present
        if earlier is not None and (takes_part & ~earlier).any():
            raise MessageRefused("a silo that was left out of a round does not come back within it", location=self.name)
        request = RoundRequest(body.round, self._common_digest(body), body.weights, present)
        vector = self.side.repeat_update(before.noised_sum, request)
        self._released = msgspec.structs.replace(before, present=body.present)
        return m.Update(body.round, vector, before.saturated, body.present)

    def _metrics(self, body: m.MetricsRequest) -> m.Metrics:
        """Metrics summed over held-out people: masked, but without noise. Requested once, after the last round."""
        plan = self.plan
        if not self._owner.allow_metrics:
            raise MessageRefused(
                "its owner does not allow metrics of hold-out people, which carry no noise (policy.allow_metrics)",
                location=self.name,
            )
        # A silo that was left out of the last rounds is behind; where rounds are not repeated, none is left out.
        skipped = plan.may_repeat and body.round > self._round
        if self._round == 0 or not (body.round == self._round or skipped) or body.round > plan.rounds:
            raise MessageRefused(
                f"metrics are asked for after round {body.round} of {plan.rounds}; the last one here was {self._round}",
                location=self.name,
                value=body.round,
            )
        x = m.unpack_floats(body.model, plan.facts.dimension, self.name)
        sums = holdout_sums(x, self._holdout, self._learner, plan.mean_metrics)
        request = RoundRequest(body.round, self._common_digest(body), b"")
        return m.Metrics(body.round, m.pack(self.side.protect_metrics(to_residues(sums), request)))

    def _read_presence(self, body: m.UpdateRequest) -> Sample | None:
        """Which silos take part in the round; refused if this one is not among them, or they are too few."""
        present = self._bits(body.present)
        if present is None:
            return None
        if not present[self._index]:
            raise MessageRefused("got a request for a round that it is left out of", location=self.name)
        required = self.plan.required_silos
        if present.sum() < required or present.all():
            raise MessageRefused(
                f"a round that is repeated without some silos needs {required} of them (aggregation.min_silos), "
                f"and leaves out at least one; this one has {int(present.sum())} of {len(present)}",
                location=self.name,
                value=int(present.sum()),
            )
        return present

    def _bits(self, present: bytes) -> Sample | None:
        return m.unpack_bits(present, len(self.plan.silos), self.name) if present else None

    @staticmethod
    def _request_digest(body: m.UpdateRequest) -> str:
        """A digest of the round's request, without the list of present silos."""
        return hashlib.sha256(m.encode_body(msgspec.structs.replace(body, present=b""))).hexdigest()

    def _sample(self, sample: bytes) -> tuple[Sample | None, Sample | None]:
        """Which silos and which users take part; None for all."""
        silos, users = self.plan.sample_sizes
        split = -(-silos // 8)
        sampled_silos = m.unpack_bits(sample[:split], silos, self.name)
        sampled = m.unpack_bits(sample[split:], users, self.name)
        agreed = self.plan.release.silo_sampling.per_round(self.plan.facts.silos)
        if silos and int(sampled_silos.sum()) != agreed:
            raise MessageRefused(
                f"{int(sampled_silos.sum())} silos were sampled, {agreed} were agreed on", location=self.name
            )
        return sampled_silos if silos else None, sampled if users else None

    def _common_digest(self, body: m.UpdateRequest | m.MetricsRequest) -> str:
        """A digest of the request and of all of the setup that is the same for every silo.

        Masks are derived from it: a server that restarts with other keys or weights gets other masks.
        """
        common = []
        if self._user_totals is not None and self.plan.release.user_weighting == "records":
            # Silos with different totals for one user would use weights that sum to more than 1.
            common.append(m.pack(self._user_totals))
        return _digest_of(self._common_hash, [*common, *self._common_preparation(), m.encode_body(body)])

    def _check_round(self, round_: int) -> None:
        rounds = self.plan.rounds
        if not 0 < round_ <= rounds:
            raise MessageRefused(
                f"round {round_} lies outside the agreed {rounds} rounds", location=self.name, value=round_
            )
        # A silo that was left out of rounds may return in a later one; it no longer responds to earlier rounds.
        if round_ <= self._round or not (self.plan.may_repeat or round_ == self._round + 1):
            raise MessageRefused(
                f"round {round_} is not the next one ({self._round + 1})", location=self.name, value=round_
            )

    def _check_preparation(self, body: m.RoundMessage) -> None:
        """Refuse a preparatory request for a round that is not the next one, or that was prepared before.

        A preparation opens one entry in each of its tables: a server that had two opened would learn what blinds them.
        """
        self._check_round(body.round)
        is_first = type(body) is next(iter(self.plan.round_requests.values()))
        if body.round <= self._prepared_round if is_first else body.round != self._prepared_round:
            raise MessageRefused(
                f"round {body.round} is prepared once, before its updates; {self._prepared_round} was prepared last",
                location=self.name,
                value=body.round,
            )

    def _round_secrets(self, purpose: str, round_: int, bound_to: tuple[str, ...]) -> Secrets:
        """A round's secret randomness, derived from everything that the released vector depends on.

        Only a repetition of the very same release gets the same noise; decision 0005 lists the attacks this prevents.
        Simulated noise protects nobody and is derived from the round alone: another chunk size, machine or method then
        gets the same noise, and runs can be compared.
        """
        secrets = self._secrets.child(purpose, "round", round_)
        return secrets if secrets.simulated else secrets.child(*bound_to)

    def save(self, store: PartStore | None = None) -> bytes:
        """The session's state. It holds the last response and thus noise: protect it like the data.

        A runtime saves it after :meth:`reply` and *before* the response is sent: a silo that is restarted then repeats
        its response instead of computing it again, which another machine might do with other rounding. With a
        ``store``, large requests of the setup go there, once.
        """
        totals = None if self._user_totals is None else m.pack(self._user_totals)
        setup = [] if self._phase == Phase.CLOSED else list(self._setup)  # nothing comes after Close
        parts = {} if store is None else self._store_large_requests(setup, store)
        last = (self._request, self._response, setup, self._prepared, self._prepared_round, self._released)
        return encode(StoredSilo(self._all_digest, self._phase, self._round, totals, *last, parts=parts))

    def _store_large_requests(self, setup: list[bytes], store: PartStore) -> dict[int, str]:
        """Move large requests of ``setup`` to the store; each goes there once."""
        large = [index for index, request in enumerate(setup) if len(request) > PART_BYTES]
        for index in large:
            if index not in self._parts:
                self._parts[index] = store.put(setup[index])
            setup[index] = b""
        return {index: self._parts[index] for index in large}

    def restore(self, state: bytes, store: PartStore | None = None) -> None:
        """Continue from what :meth:`save` returned, with the same ``store``."""
        saved = decode_state(state, StoredSilo, f"the saved state of silo {self.name}")
        try:
            for index, name in saved.parts.items():
                if store is None:
                    raise ValueError("large requests of it are in a store, which was not given")
                saved.setup[index] = store.get(name)
            phase = self.plan.phase(saved.phase)
            if saved.data != self._all_digest:
                raise RunError("its records are not those it began with; start a new run", location=f"silo {self.name}")
            if phase != Phase.CLOSED:  # a closed session gets no more requests, and its secrets may be gone
                for request in (*saved.setup, *saved.prepared):
                    self.side.respond(m.decode_body(request, self.plan.kinds))
            totals = None if saved.user_totals is None else self._check_totals(saved.user_totals)
        except (ValueError, MessageRefused) as error:
            raise RunError(
                f"the saved state of silo {self.name} is unreadable: {error}", location="checkpoint"
            ) from error
        self._setup, self._setup_hash, self._common_hash = [], hashlib.sha256(), hashlib.sha256()
        self._remember_setup(saved.setup)
        self._parts = dict(saved.parts)
        self._user_totals, self._prepared, self._prepared_round = totals, saved.prepared, saved.prepared_round
        self._phase, self._round, self._released = phase, saved.round, saved.released
        self._request, self._response = saved.request, saved.response
