"""A silo of a real federation: one long-lived process that responds to its transport over a local socket.

What travels between machines is the transport's business. It hands over a request of the server and gets what it shall
carry back: ``({"kind": "request"}, bytes)`` gets the response ``({"kind": "reply"}, bytes)``, or
``({"kind": "refused"}, a sentence)``. ``({"kind": "status"}, b"")`` asks where the silo stands. One frame a connection.

The session is on disk before a response leaves. So a request that comes again, after a broken connection, a timeout or
a killed process, gets the identical bytes, and what was computed while nobody listened is not lost.
"""

from __future__ import annotations

import hashlib
import logging
import socket
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Final

from uldp.crypto.keys import SigningKey
from uldp.errors import BudgetExhausted, MessageRefused, RunError, UldpError
from uldp.experiment.build import PreparedExperiment
from uldp.protocol.messages import kind_of
from uldp.runs.trail import TrailEntry
from uldp.runtimes import socket_frames
from uldp.runtimes.gauges import Sample, now_in_minutes
from uldp.runtimes.policy import Charge, LedgerGuard, OwnLedger, Policy, describe_spending
from uldp.runtimes.recording import torch_threads
from uldp.runtimes.silo_state import SiloState, TrailSigner, experiments_in, ledger_name, open_trail
from uldp.sessions.silo import Owner, SiloSession

REFUSED_BY_OWNER: Final = "refused by its owner, whose policy does not allow"
ENOUGH_REFUSALS: Final = 2
MAX_BYTES: Final = 1 << 30
"""The longest request to a silo that reads none."""
SENT: Final = "sent"
"""The kind of the trail's entries about messages that left."""
LOG: Final = logging.getLogger("uldp.silo")
PATIENCE: Final = 60.0
"""Seconds for a transport to say what it wants, and to take its response."""
POLL_SECONDS: Final = 0.2
"""Between two looks at whether to stop."""
Frame = tuple[dict[str, Any], bytes]


class FrameServer(ABC):
    """Responds to one frame after the other at a local socket, until it is stopped."""

    name: str
    """The silo's."""

    def __init__(self, address: str, limit: int) -> None:
        self._address, self._limit = address, limit
        self._stopped = False
        self._refused = 0

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether nothing more is to be said."""

    @abstractmethod
    def respond(self, header: dict[str, Any], body: bytes) -> Frame:
        """The frame that responds to a frame."""

    def stop(self) -> None:
        """Make :meth:`serve` return after the request at hand; for signal handlers."""
        self._stopped = True

    def serve(self) -> None:
        """Respond until :meth:`stop`."""
        with socket_frames.listen(self._address) as sock:
            sock.settimeout(POLL_SECONDS)
            LOG.info("silo %s listens at %s", self.name, self._address)
            while not self._stopped:
                try:
                    connection, _ = sock.accept()
                except TimeoutError:
                    continue
                with connection:
                    connection.settimeout(PATIENCE)
                    try:
                        socket_frames.send(connection, *self._serve_one(connection))
                    except RunError as error:
                        # The response, if there was one, is saved: whoever asks again gets it.
                        LOG.warning("silo %s: %s", self.name, error)

    def _serve_one(self, connection: socket.socket) -> Frame:
        try:
            header, body = socket_frames.receive(connection, self._limit)
        except MessageRefused as error:
            return self._refusal(str(error))
        return self.respond(header, body)

    def _refusal(self, why: str, *, named: bool = False) -> Frame:
        sentence = why if named else f"silo {self.name}: {why}"
        LOG.warning("refused: %s", sentence, extra={"event": "refused"})
        self._refused += 1
        return {"kind": "refused"}, sentence.encode()


class RefusingSilo(FrameServer):
    """Says to whoever asks that the silo's owner refuses the experiment, and nothing else: no number, and no rule.

    The server counts a refusal when it was said twice; then there is nothing more to say.
    """

    def __init__(self, name: str, address: str) -> None:
        super().__init__(address, MAX_BYTES)
        self.name = name
        self._asked = 0

    @property
    def closed(self) -> bool:
        return self._asked >= ENOUGH_REFUSALS

    def respond(self, header: dict[str, Any], body: bytes) -> Frame:
        self._asked += header.get("kind") == "request"
        return self._refusal(f"{REFUSED_BY_OWNER} this experiment; nothing was sent")


class SiloProcess(FrameServer, AbstractContextManager["SiloProcess"]):
    """Holds a silo's session and responds to one request after the other.

    ``charging`` is the owner's ledger, as the rounds of this experiment are charged to it. ``signer`` signs the audit
    trail of what is charged and of every message that leaves.
    """

    def __init__(
        self,
        prepared: PreparedExperiment,
        state_dir: Path | str,
        address: str,
        *,
        identity: SigningKey | None = None,
        policy: Policy | None = None,
        signer: TrailSigner | None = None,
    ) -> None:
        super().__init__(address, prepared.plan.message_limit)
        self._prepared = prepared
        self._policy = policy or Policy()
        self._policy.check(prepared.experiment, prepared.plan, prepared.no_guarantee)
        self._state = SiloState(state_dir, prepared.plan.digest)
        self._heard = 0.0
        self.name = prepared.silo
        with ExitStack() as until:
            until.enter_context(self._state.lock())
            self._session = self._restore_session(identity)
            rehearsal = prepared.experiment.run.secrets == "simulated"
            # Last, for the checks before it know more: what exactly is missing.
            self._trail = open_trail(self._state.folder, rehearsal=rehearsal, signer=signer, on_append=self._log_trail)
            self._sent = {entry.about.get("sha256") for entry in self._trail.entries if entry.kind == SENT}
            self._until = until.pop_all()

    def _restore_session(self, identity: SigningKey | None) -> SiloSession:
        prepared, saved = self._prepared, self._state.load()
        plan = prepared.plan
        closed = saved is not None and SiloSession.is_closed(saved)
        secrets = self._state.secrets(prepared.experiment, closed=closed)
        if closed:
            self._state.forget_secrets()  # a process that was killed while it closed had no time to
        ledgers = {
            rehearsal: OwnLedger(self._state.folder / ledger_name(rehearsal=rehearsal), self._policy, self._note_charge)
            for rehearsal in (True, False)
        }
        ledger = ledgers[secrets.simulated]
        self._check_whole((*ledgers[True].charges, *ledgers[False].charges))
        self._policy.remember(self._state.folder)
        LOG.info("silo %s: %s; %s", self.name, self._policy, describe_spending(ledger))
        session_id = hashlib.sha256(secrets.child("session").key).hexdigest()[:16]
        self.charging = LedgerGuard.of(ledger, plan, session_id, prepared.no_guarantee)
        owner = Owner(identity, prepared.federation.roster, self.charging, self._policy.allow_metrics)
        data, holdout = prepared.data(self.name), prepared.holdout(self.name)
        session = SiloSession(plan, data, prepared.learner, prepared.streams, secrets, holdout=holdout, owner=owner)
        if saved is not None:
            session.restore(saved, self._state.parts)
        if not closed:
            self.charging.check(session.round if saved is not None else None, plan.rounds)
        return session

    def _check_whole(self, charges: Sequence[Charge]) -> None:
        """Refuse a ledger that lacks, or may lack, rounds which were released from this folder."""
        known = {(charge.experiment, charge.round) for charge in charges}
        file = str(self._state.folder / ledger_name(rehearsal=False))
        for begun in experiments_in(self._state.folder):
            digest = begun.digest[:12]
            if begun.round and (begun.digest, begun.round) not in known:
                raise RunError(
                    f"round {begun.round} of experiment {digest} was released from here, and the silo's ledger does "
                    "not hold it; restore the ledger: without it nobody knows what was spent",
                    location=file,
                )
            if begun.round is not None:
                continue
            # A round is charged before it is computed: with a charge, what was released is in the ledger.
            if begun.digest not in {experiment for experiment, _ in known}:
                raise RunError(
                    f"the session of experiment {digest} cannot be read, and the silo's ledger has no charge for it: "
                    "nobody knows what was spent; restore the ledger or the session, or delete "
                    f"{self._state.folder / 'experiments' / begun.digest} if no round of it was released from here",
                    location=file,
                )
            LOG.warning("the session of experiment %s cannot be read; is the ledger whole?", digest)

    def _note_charge(self, charge: Charge) -> None:
        """A line of the ledger is an entry of the trail, too."""
        self._trail.append("charged" if not charge.response else "computed", charge.to_json())

    def _note_sent(self, reply: bytes) -> None:
        """The trail has every message before it leaves; the same bytes, asked for again, are no further release."""
        digest = hashlib.sha256(reply).hexdigest()
        if digest not in self._sent:
            about = {"experiment": self._prepared.plan.digest, "round": self._session.round}
            message = {"message": kind_of(reply), "bytes": len(reply), "sha256": digest}
            self._trail.append(SENT, {**about, **message})
            self._sent.add(digest)

    def _log_trail(self, entry: TrailEntry) -> None:
        """Where logs are collected elsewhere, heads in them show that a trail was cut."""
        what = {SENT: "message", "charged": "round", "computed": "round"}.get(entry.kind, "")
        facts = {"event": "released", "round": entry.about.get("round"), "head": str(entry.head)}
        LOG.info("trail: %s %s; head %s", entry.kind, entry.about.get(what, ""), entry.head, extra=facts)

    def measures(self) -> list[Sample]:
        """What may be watched of the silo: nothing of it is about a person."""
        cap = self._policy.max_epsilon
        return [
            ("uldp_round", "", float(self._session.round)),
            ("uldp_rounds", "", float(self._prepared.plan.rounds)),
            ("uldp_epsilon", "", self.charging.ledger.epsilon()),
            ("uldp_refusals_total", "", float(self._refused)),
            *([] if cap is None else [("uldp_epsilon_limit", "", cap)]),
            *([] if not self._heard else [("uldp_last_contact_timestamp_seconds", "", self._heard)]),
        ]

    @property
    def closed(self) -> bool:
        """Whether the experiment is over for this silo."""
        return self._session.closed

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let another process have the folder."""
        self._until.close()

    def respond(self, header: dict[str, Any], body: bytes) -> Frame:
        """The frame that responds to a frame."""
        self._heard = now_in_minutes()
        match header.get("kind"):
            case "request":
                return self._reply(body)
            case "status":
                stands = {"round": self._session.round, "phase": self._session.phase}
                return {"kind": "status", "silo": self.name, "experiment": self._prepared.plan.digest, **stands}, b""
            case kind:
                return self._refusal(f"unknown kind of frame {kind!r}")

    def _reply(self, request: bytes) -> Frame:
        try:
            with torch_threads(self._prepared.experiment.run.threads):
                reply = self._session.reply(request)
            self._state.save(self._session.save(self._state.parts))
            if self._session.closed:
                self._state.forget_secrets()
            self._note_sent(reply)
        except MessageRefused as error:
            return self._refusal(str(error), named=self.name in error.location)
        except BudgetExhausted as error:
            # What its owner allows, and spent elsewhere, is nobody else's business.
            LOG.warning("silo %s: %s", self.name, error)
            return self._refusal(f"{REFUSED_BY_OWNER} this round; nothing was sent")
        except UldpError as error:
            # It may name files or records: that stays here.
            LOG.error("silo %s: %s", self.name, error, extra={"owner_only": True})
            if isinstance(error, RunError):
                return self._refusal("trouble with its files, so nothing was sent; its own log says which")
            return self._refusal("cannot respond; its own log says why")
        except Exception:
            LOG.exception("silo %s", self.name, extra={"owner_only": True})
            return self._refusal("failed; its own log says why")
        return {"kind": "reply"}, reply
