"""The server of a real federation: drives its session over a transport, and leaves the run directory of a simulation.

A transport takes requests to silos and brings back their responses; how is its own business. Whatever happens on the
way, the server repeats a request with the identical bytes, and a silo responds with identical bytes. So a lost message,
a restarted silo and a restarted server look alike and release nothing twice.

After every exchange the session is saved: silos remember theirs too, and a server that came back with an older state
would send requests that they refuse.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from uldp.errors import BudgetExhausted, MessageRefused, RunError, describe_unexpected, require, stopping_clearly
from uldp.experiment.build import PreparedExperiment
from uldp.privacy.ledger import Ledger
from uldp.runs.directory import RunDirectory
from uldp.runtimes.recording import RecordedRun
from uldp.runtimes.result import OnRound, Result
from uldp.sessions.server import ServerSession, Stage
from uldp.vectors import Vector

ON_MISSING: Final = ("wait", "exclude", "stop")
CLOSE_SECONDS: Final = 30.0
"""How long silos are waited for at most when they are asked to close. The result is written before."""


@dataclass(frozen=True)
class FailedResponse:
    """Why a silo's response did not come. ``refused``: it did come, and it is no; said twice, asking on will not help.

    ``late``: it may come still.
    """

    reason: str
    refused: bool = False
    late: bool = False


class Transport(Protocol):
    """Takes messages to silos and back."""

    def exchange(self, requests: Mapping[str, bytes], timeout: float) -> Mapping[str, bytes | FailedResponse]:
        """Each silo's response to its request, after ``timeout`` seconds at most; who is not in it did not respond."""
        ...


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long the server waits for a silo, and what it does then.

    ``attempt`` seconds for one exchange by the transport; silos that did not respond are asked again until ``seconds``
    have passed. Then ``on_missing``: "wait" goes on asking, "exclude" repeats the round without them (where the
    experiment allows it), "stop" ends here and can be resumed. ``pause`` seconds lie between two attempts.

    A silo that was left out of the last round is asked in the next one, but not waited for as long again: when all
    others have responded it gets as long as they took, half as long again as a round with everybody has ever taken, and
    at least ``retry_wait`` seconds.
    """

    seconds: float = 600.0
    attempt: float = 300.0
    pause: float = 2.0
    on_missing: str = "stop"

    @property
    def retry_wait(self) -> float:
        return self.seconds / 20

    def __post_init__(self) -> None:
        require(self.on_missing in ON_MISSING, "on_missing", self.on_missing, f"one of {', '.join(ON_MISSING)}")
        for key in ("seconds", "attempt", "pause"):
            require(getattr(self, key) >= 0, key, getattr(self, key), "0 or more seconds")


@dataclass(frozen=True)
class Clock:
    """Time, which tests make up."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


OnTrouble = Callable[[Mapping[str, FailedResponse]], None]
"""Called after every attempt with the silos that did not respond, and why."""


class ServedRun(RecordedRun):
    """One run over a transport, begun or resumed."""

    def __init__(
        self,
        prepared: PreparedExperiment,
        directory: RunDirectory,
        transport: Transport,
        *,
        patience: Patience | None = None,
        on_round: OnRound | None = None,
        on_trouble: OnTrouble | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(prepared, directory, on_round)
        self._transport = transport
        self._patience = patience or Patience()
        self._on_trouble = on_trouble or (lambda trouble: None)
        self._clock = clock or Clock()
        self._away: set[str] = set()
        """Silos that were left out and have not responded since."""
        self._longest = 0.0
        """Seconds of the longest round in which everybody responded."""

    @property
    def stage(self) -> tuple[str, int]:
        """What the present exchange is for, and how many rounds are done."""
        stage = self._server.stage
        return (Stage.ROUND if stage is Stage.PREPARATION else stage).value, self._server.round

    def run(self) -> Result:
        with stopping_clearly("server"):  # collecting, saving, advancing: the last checkpoint stays
            return super().run()

    def _make_parties(self, x: Vector, ledger: Ledger) -> None:
        self._server = ServerSession(self._prepared.plan, x, ledger, self._secrets)

    def _exchange(self) -> bool:
        if not self._server.requests():
            return False
        self._ask_all()
        try:
            self._server.collect()
        except MessageRefused as error:
            self._collect_again(error)
        self._checkpoint()
        return True

    def _ask_all(self) -> None:
        """Ask until all silos have responded that are not excluded."""
        began = self._clock.now()
        alone: float | None = None
        before: Mapping[str, FailedResponse] = {}
        while requests := self._server.requests():
            trouble = self._attempt(requests)
            if not trouble:
                if self._server.stage is Stage.ROUND and not self._server.missing_silos:
                    self._longest = max(self._longest, self._clock.now() - began)
                break
            self._on_trouble(trouble)
            now = self._clock.now()
            # Since when nobody is missing but who stayed away before.
            alone = None if trouble.keys() - self._away else now if alone is None else alone
            late = now - began >= self._timeout
            if alone is not None and self._server.stage is Stage.ROUND:
                least = max(self._patience.retry_wait, alone - began)
                late |= now - alone >= least and now - began >= 1.5 * self._longest
            # A no counts when it was said twice: the first may be somebody else's, who got between.
            refused = all(failed.refused and before.get(name) == failed for name, failed in trouble.items())
            if late or refused:
                self._continue_without(trouble)
                began, alone = self._clock.now(), None
            before = trouble
            self._clock.sleep(self._patience.pause)

    @property
    def _timeout(self) -> float:
        """The patience with silos in the present exchange."""
        longest = CLOSE_SECONDS if self._server.stage is Stage.CLOSING else math.inf
        return min(self._patience.seconds, longest)

    def _collect_again(self, error: MessageRefused) -> None:
        """The responses do not fit together: ask everybody once more. A sum does not show whose part is wrong."""
        self._on_trouble({name: FailedResponse(f"asked again: {error}") for name in self._server.requests()})
        self._clock.sleep(self._patience.pause)
        self._ask_all()
        try:
            self._server.collect()
        except MessageRefused as again:
            raise RunError(
                f"the silos' responses do not fit together, twice ({again}); their sum does not show whose is wrong; "
                "compare the silos' logs and versions, then resume the run",
                location="server",
            ) from again

    def _attempt(self, requests: Mapping[str, bytes]) -> dict[str, FailedResponse]:
        """Carry the requests, take what comes back; who did not respond, and why."""
        timeout = min(self._patience.attempt, self._patience.retry_wait if self._away else self._timeout)
        responses = self._transport.exchange(requests, timeout)
        trouble: dict[str, FailedResponse] = {}
        for name in requests:
            response = responses.get(name, FailedResponse("no response"))
            if isinstance(response, bytes):
                try:
                    self._server.receive(name, response)
                    self._away.discard(name)
                    continue
                except MessageRefused as error:
                    response = FailedResponse(str(error), refused=True)
                except Exception as error:  # taking a response changes nothing unless it succeeds: it is this silo's
                    response = FailedResponse(
                        f"its response cannot be taken ({describe_unexpected(error)})", refused=True
                    )
            trouble[name] = response
        return trouble

    def _continue_without(self, trouble: Mapping[str, FailedResponse]) -> None:
        """What happens when patience ends."""
        why = "; ".join(f"{name}: {failed.reason.removeprefix(f'silo {name}: ')}" for name, failed in trouble.items())
        if self._server.stage is Stage.CLOSING:
            # All is written: a Closed that is missing changes nothing.
            self._server.exclude(trouble)
        elif self._server.stage is Stage.METRICS:
            # Nor do metrics: they come from all silos, or there are none.
            self._server.exclude(trouble)
            self._checkpoint()
        elif self._patience.on_missing == "exclude":
            try:
                self._server.exclude(trouble)
            except (RunError, BudgetExhausted) as error:
                raise type(error)(f"{error.message} ({why})", location=error.location, value=error.value) from error
            self._away.update(trouble)
            # Before anybody is asked again: silos let nobody come back within a round.
            self._checkpoint()
        elif self._patience.on_missing == "stop":
            words = f"stopped without {', '.join(trouble)} ({why}); nothing is lost, the run can be resumed"
            raise RunError(words, location="server")
