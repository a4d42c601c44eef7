"""A silo of a real federation: one long-lived process that answers its carrier over a local socket.

What travels between machines is the carrier's business. It hands over a request of the server and gets what it shall
carry back: ``({"kind": "request"}, bytes)`` is answered by ``({"kind": "reply"}, bytes)``, or by
``({"kind": "refused"}, a sentence)``. ``({"kind": "status"}, b"")`` asks where the silo stands. One frame a connection.

The session is on disk before an answer leaves. So a request that comes again, after a broken connection, a timeout or a
killed process, gets the identical bytes, and what was computed while nobody listened is not lost.
"""

from __future__ import annotations

import hashlib
import logging
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

from uldp.crypto.keys import SigningKey
from uldp.errors import BudgetExhausted, MessageRefused, RunError, UldpError
from uldp.experiment.build import Prepared
from uldp.rng import Secrets
from uldp.runs.files import kept_key
from uldp.runtimes import socket_frames
from uldp.runtimes.policy import Charging, OwnLedger, Policy, shown_by_a_round, spent
from uldp.runtimes.recording import torch_threads
from uldp.runtimes.silo_state import SiloState, experiments_in
from uldp.sessions.silo import SiloSession

LOG: Final = logging.getLogger("uldp.silo")
PATIENCE: Final = 60.0
"""Seconds for a carrier to say what it wants, and to take its answer."""
_LOOK_UP: Final = 0.2
"""Seconds between two looks at whether to stop."""


def signing_key_from(file: Path | str) -> SigningKey:
    """A silo's long-term key, kept in ``file`` for its owner only and made there once.

    Its public half (``.public.hex()``) is what stands in ``aggregation.identities``.
    """
    return SigningKey(Secrets.from_key(kept_key(Path(file))))


class SiloProcess:
    """Holds a silo's session and answers one request after the other."""

    def __init__(
        self,
        prepared: Prepared,
        state_dir: Path | str,
        address: str,
        *,
        identity: SigningKey | None = None,
        policy: Policy | None = None,
    ) -> None:
        self._prepared = prepared
        self._policy = policy or Policy()
        self._policy.check(prepared.experiment, prepared.plan, prepared.no_guarantee)
        self._address = address
        self._stopped = False
        self._state = SiloState(state_dir, prepared.plan.digest)
        with ExitStack() as until:
            until.enter_context(self._state.locked())
            self._session = self._restored(identity)
            self._until = until.pop_all()

    def _restored(self, identity: SigningKey | None) -> SiloSession:
        prepared, saved = self._prepared, self._state.load()
        closed = saved is not None and SiloSession.is_closed(saved)
        secrets = self._state.secrets(prepared.experiment, closed=closed)
        if closed:
            self._state.forget_secrets()  # a process that was killed at its goodbye had no time to
        ledger = OwnLedger(self._state.ledger_file(rehearsal=secrets.simulated), self._policy)
        self._check_whole(ledger, rehearsal=secrets.simulated)
        self._policy.remember(self._state.folder)
        LOG.info("silo %s: %s; %s", prepared.silo, self._policy, spent(ledger))
        session_id = hashlib.sha256(secrets.child("session").key).hexdigest()[:16]
        shown = shown_by_a_round(prepared.plan, prepared.no_guarantee)
        charging = Charging(ledger, prepared.plan.digest, session_id, shown)

        session = SiloSession(
            prepared.plan,
            prepared.data(prepared.silo),
            prepared.learner,
            prepared.streams,
            secrets,
            identity=identity,
            roster=prepared.federation.roster,
            watch=charging,
            holdout=prepared.holdout(prepared.silo),
            allow_metrics=self._policy.allow_metrics,
        )
        if saved is not None:
            session.restore(saved)
        if not closed:
            charging.check(session.round if saved is not None else None, prepared.plan.rounds)
        return session

    def _check_whole(self, ledger: OwnLedger, *, rehearsal: bool) -> None:
        """Refuse a ledger that lacks experiments which were answered from this folder."""
        other = OwnLedger(self._state.ledger_file(rehearsal=not rehearsal), self._policy)
        known = {(charge.experiment, charge.round) for charge in (*ledger.charges, *other.charges)}
        for begun in experiments_in(self._state.folder):
            if begun.round is None:
                LOG.warning("the session of experiment %s cannot be read; is the ledger whole?", begun.digest[:12])
            elif begun.round and (begun.digest, begun.round) not in known:
                raise RunError(
                    f"round {begun.round} of experiment {begun.digest[:12]} was answered from here, and the silo's "
                    "ledger does not hold it; restore the ledger: without it nobody knows what was spent",
                    location=str(self._state.ledger_file(rehearsal=False)),
                )

    @property
    def name(self) -> str:
        return self._session.name

    @property
    def closed(self) -> bool:
        """Whether the experiment is over for this silo."""
        return self._session.closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let another process have the folder."""
        self._until.close()

    def stop(self) -> None:
        """Make :meth:`serve` return after the request at hand; for signal handlers."""
        self._stopped = True

    def serve(self) -> None:
        """Answer until :meth:`stop`."""
        with socket_frames.listen(self._address) as sock:
            sock.settimeout(_LOOK_UP)
            LOG.info("silo %s listens at %s", self.name, self._address)
            while not self._stopped:
                try:
                    connection, _ = sock.accept()
                except TimeoutError:
                    continue
                with connection:
                    connection.settimeout(PATIENCE)
                    try:
                        socket_frames.send(connection, *self._heard(connection))
                    except RunError as error:
                        # The answer, if there was one, is saved: whoever asks again gets it.
                        LOG.warning("silo %s: %s", self.name, error)

    def _heard(self, connection: socket.socket) -> tuple[dict[str, Any], bytes]:
        try:
            header, body = socket_frames.receive(connection, self._prepared.plan.message_limit)
        except MessageRefused as error:
            return self._refused(f"silo {self.name}: {error}")
        return self.answer(header, body)

    def answer(self, header: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        """The frame that answers a frame."""
        match header.get("kind"):
            case "request":
                return self._reply(body)
            case "status":
                return self._status(), b""
            case kind:
                return self._refused(f"silo {self.name}: unknown kind of frame {kind!r}")

    def _status(self) -> dict[str, Any]:
        stands = {"experiment": self._prepared.plan.digest, "round": self._session.round, "phase": self._session.phase}
        return {"kind": "status", "silo": self.name, **stands}

    def _reply(self, request: bytes) -> tuple[dict[str, Any], bytes]:
        try:
            with torch_threads(self._prepared.experiment.run.threads):
                reply = self._session.reply(request)
            self._state.save(self._session.save())
            if self._session.closed:
                self._state.forget_secrets()
        except MessageRefused as error:
            return self._refused(self._named(error))
        except BudgetExhausted as error:
            # What its owner allows, and spent elsewhere, is nobody else's business.
            LOG.warning("silo %s: %s", self.name, error)
            return self._refused(f"silo {self.name}: its owner's policy does not allow this round; nothing was sent")
        except RunError as error:
            return self._unwritten(error)
        except UldpError as error:
            # It may name files or records: that stays here.
            LOG.error("silo %s: %s", self.name, error)
            return self._refused(f"silo {self.name}: cannot answer; its own log says why")
        except Exception:
            LOG.exception("silo %s", self.name)
            return self._refused(f"silo {self.name}: failed; its own log says why")
        return {"kind": "reply"}, reply

    def _unwritten(self, error: RunError) -> tuple[dict[str, Any], bytes]:
        LOG.error("silo %s: %s", self.name, error)
        return self._refused(f"silo {self.name}: trouble with its files, so nothing was sent; its own log says which")

    def _named(self, error: UldpError) -> str:
        return str(error) if self.name in error.location else f"silo {self.name}: {error}"

    def _refused(self, sentence: str) -> tuple[dict[str, Any], bytes]:
        LOG.warning("refused: %s", sentence)
        return {"kind": "refused"}, sentence.encode()
