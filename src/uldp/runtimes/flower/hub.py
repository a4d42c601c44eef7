"""The server's end of Flower: requests go in by silo name, answers come out.

The process that Flower starts for a run (``server_app``) connects here. It may die, and another run's may come in its
place: what was not answered is then asked again with identical bytes. The token says which run is the present one.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from uldp.errors import UldpError
from uldp.runtimes import socket_frames as frames
from uldp.runtimes.serving import Failed

HELLO_SECONDS: Final = 10.0


@dataclass(frozen=True)
class Exchange:
    """What one exchange took: bytes there and back over all silos, and seconds."""

    silos: int
    failed: int
    sent: int
    received: int
    seconds: float


@dataclass(frozen=True)
class _Asked:
    """A request that waits for its answer."""

    number: int
    body: bytes
    since: float


class Hub:
    """A carrier for :class:`~uldp.runtimes.serving.Serving` that a run of Flower takes its requests from.

    ``nodes`` says which node of Flower is which silo, 0 or missing where the nodes are to be asked. ``limit`` is the
    largest answer.
    """

    def __init__(
        self,
        nodes: Mapping[str, int] | None = None,
        limit: int = 1 << 40,
        on_exchange: Callable[[Exchange], None] = lambda exchange: None,
    ) -> None:
        self._nodes = dict(nodes or {})
        self._limit = limit
        self._on_exchange = on_exchange
        # Paths of sockets must be short, and run directories need not be.
        self._folder = tempfile.TemporaryDirectory(prefix="uldp-hub-")
        self.address = f"unix:{Path(self._folder.name) / 'hub'}"
        self._listening = frames.listen(self.address)
        self._changed = threading.Condition()
        self._carrier: socket.socket | None = None
        self._token = ""
        self._asked: dict[str, _Asked] = {}
        self._answers: dict[str, tuple[bytes, bytes | Failed]] = {}
        self._number = 0
        self._closed = False
        self._since = time.monotonic()
        self._thread = threading.Thread(target=self._accept, name="hub", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def know(self, nodes: Mapping[str, int]) -> None:
        """Which node is which silo."""
        with self._changed:
            self._nodes = dict(nodes)

    def new_token(self) -> str:
        """The token of the next run; those of earlier runs are worth nothing from now on."""
        with self._changed:
            self._token = secrets.token_hex(16)
            self._drop()
            return self._token

    @property
    def connected(self) -> bool:
        """Whether a run of Flower is there to carry."""
        with self._changed:
            return self._carrier is not None

    @property
    def seconds_alone(self) -> float:
        """For how long no run has been there."""
        with self._changed:
            return 0.0 if self._carrier is not None else time.monotonic() - self._since

    @property
    def late(self) -> tuple[str, ...]:
        """The silos whose answers are awaited."""
        with self._changed:
            return tuple(self._asked)

    def late_by(self, seconds: float) -> tuple[str, ...]:
        """The silos that were asked so long ago, and have not answered."""
        with self._changed:
            return tuple(silo for silo, asked in self._asked.items() if time.monotonic() - asked.since > seconds)

    def exchange(self, requests: Mapping[str, bytes], timeout: float) -> dict[str, bytes | Failed]:
        """Every silo's answer, or why there is none after ``timeout`` seconds.

        A silo that is asked the same again is not sent the request twice while its answer is under way; an answer that
        came late is there at once.
        """
        began = time.monotonic()
        found = self._exchanged(requests, began + timeout)
        answers = [answer for answer in found.values() if isinstance(answer, bytes)]
        sent, received = sum(map(len, requests.values())), sum(map(len, answers))
        seconds = round(time.monotonic() - began, 3)
        self._on_exchange(Exchange(len(requests), len(requests) - len(answers), sent, received, seconds))
        return found

    def _exchanged(self, requests: Mapping[str, bytes], end: float) -> dict[str, bytes | Failed]:
        with self._changed:
            for silo, body in requests.items():
                if not self._known(silo, body):
                    self._ask(silo, body)
            missing = set(requests)
            while (missing := missing - self._answers.keys()) and (left := end - time.monotonic()) > 0:
                self._changed.wait(min(left, 1.0))
            why = (
                "has not answered in time"
                if self._carrier is not None
                else "cannot be reached: no run of Flower is there"
            )
            late = Failed(why)
            return {silo: self._answers.pop(silo, (b"", late))[1] for silo in requests}

    def close(self) -> None:
        """Tell the run that this is all, and take no more."""
        with self._changed:
            self._closed = True
            if self._carrier is not None:
                self._send(self._carrier, {"kind": "end"}, b"")
            self._drop()
        self._listening.close()
        self._thread.join(timeout=2.0)
        self._folder.cleanup()

    def _known(self, silo: str, body: bytes) -> bool:
        """Whether this very request is under way, or was answered."""
        asked, (question, answer) = self._asked.get(silo), self._answers.get(silo, (None, b""))
        return (asked is not None and asked.body == body) or (question == body and not isinstance(answer, Failed))

    def _ask(self, silo: str, body: bytes) -> None:
        self._number += 1
        self._asked[silo] = _Asked(self._number, body, time.monotonic())
        self._answers.pop(silo, None)
        if self._carrier is not None:
            self._forward(self._carrier, silo)

    def _forward(self, carrier: socket.socket, silo: str) -> None:
        asked = self._asked[silo]
        header = {"kind": "request", "number": asked.number, "silo": silo, "node": self._nodes.get(silo, 0)}
        self._send(carrier, header, asked.body)

    def _send(self, carrier: socket.socket, header: dict[str, object], body: bytes) -> None:
        try:
            frames.send(carrier, header, body)
        except UldpError:
            self._drop()  # its reader notices too; the next run is told everything again

    def _drop(self) -> None:
        if self._carrier is not None:
            carrier, self._carrier, self._since = self._carrier, None, time.monotonic()
            with suppress(OSError):  # it may be gone already
                carrier.shutdown(socket.SHUT_RDWR)
            self._changed.notify_all()

    def _accept(self) -> None:
        self._listening.settimeout(0.2)
        while not self._closed:
            try:
                connection, _ = self._listening.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), name="hub-run", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """Read one run's answers until it ends."""
        with connection:
            try:
                connection.settimeout(HELLO_SECONDS)
                header, _ = frames.receive(connection, 0)
                if not self._welcomed(connection, header):
                    return
                connection.settimeout(None)
                while True:
                    self._take(*frames.receive(connection, self._limit))
            except UldpError:
                pass  # it died, or talks nonsense: the run is over, another may come
            with self._changed:
                if self._carrier is connection:
                    self._drop()

    def _welcomed(self, connection: socket.socket, header: dict[str, object]) -> bool:
        """Take the run that has the present token, and tell it everything that is not answered yet."""
        with self._changed:
            token = str(header.get("token", ""))
            if self._closed or not self._token or not hmac.compare_digest(token, self._token):
                return False
            self._drop()
            self._carrier = connection
            for silo in list(self._asked):
                self._forward(connection, silo)
            self._changed.notify_all()
            return True

    def _take(self, header: dict[str, object], body: bytes) -> None:
        silo = str(header.get("silo", ""))
        with self._changed:
            asked = self._asked.get(silo)
            if asked is None or asked.number != header.get("number"):
                return  # an answer to what was asked before
            del self._asked[silo]
            kind, sentence = header.get("kind"), body[:2000].decode(errors="replace")
            answer = body if kind == "reply" else Failed(sentence, refused=kind == "refused")
            self._answers[silo] = (asked.body, answer)
            self._changed.notify_all()
