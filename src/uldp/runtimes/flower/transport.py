"""The server's end of Flower: requests go in by silo name, responses come out.

The process that Flower starts for a run (``server_app``) connects here. It may die, and another run's may come in its
place: requests without a response are then sent again with identical bytes. The token says which run is the current
one.

Nothing is sent under the lock: every run has a thread that writes to it, and one that reads from it. A run that takes
nothing for a while is dropped.
"""

from __future__ import annotations

import hmac
import queue
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from typing import Final

from uldp.errors import UldpError, printable
from uldp.runtimes import socket_frames as frames
from uldp.runtimes.flower.messages import MAX_BYTES
from uldp.runtimes.gauges import Sample, now_in_minutes
from uldp.runtimes.serving import FailedResponse
from uldp.runtimes.temporary import TemporaryFolder

HANDSHAKE_SECONDS: Final = 10.0
SEND_SECONDS: Final = 60
"""A run that takes not a byte for so long is dropped."""
CLOSE_SECONDS: Final = 5.0
"""How long a run gets to read that this is all."""
RESEND_SECONDS: Final = 60.0
"""When a request got no response for so long it is sent again, then after twice as long, and so on. Flower hands a
message out once: where the network fails at that moment, it is lost, and nobody says so."""


Frame = tuple[dict[str, object], bytes]


@dataclass(frozen=True)
class ExchangeRecord:
    """What one exchange took: bytes there and back over all silos, and seconds."""

    silos: int
    failed: int
    sent: int
    received: int
    seconds: float


@dataclass(frozen=True)
class _PendingRequest:
    """A request that waits for its response, with a number for each time it was sent: any of them may get one."""

    numbers: tuple[int, ...]
    body: bytes
    since: float

    def due_time(self, resend: float) -> float:
        """When it is sent again: after ``resend`` seconds, then after twice as long, and so on."""
        return self.since + resend * ((1 << len(self.numbers)) - 1)


class _Connection:
    """The connection to one run. What is to be sent waits in a queue: a silo and a number, or None for the end."""

    def __init__(self, connection: socket.socket, frame_of: Callable[[str, int], Frame | None]) -> None:
        self._connection = connection
        self._frame_of = frame_of
        self.queue: queue.SimpleQueue[tuple[str, int] | None] = queue.SimpleQueue()
        connection.settimeout(None)
        # Of the system, not of Python: it is for sending only, and the same socket is read for as long as it takes.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_SECONDS, 0))
        self.writer = threading.Thread(target=self._write, name="transport-writer", daemon=True)

    def _write(self) -> None:
        """Send what is queued until the end; the last thing is a shutdown, so that its reader notices too."""
        try:
            while (item := self.queue.get()) is not None:
                if (frame := self._frame_of(*item)) is not None:
                    frames.send(self._connection, *frame)
            frames.send(self._connection, {"kind": "end"}, b"")
        except UldpError:
            pass  # the next run gets everything again
        self.shut_down()

    def shut_down(self) -> None:
        with suppress(OSError):  # it may be gone already
            self._connection.shutdown(socket.SHUT_RDWR)


class FlowerTransport(AbstractContextManager["FlowerTransport"]):
    """Transports messages for :class:`~uldp.runtimes.serving.ServedRun`: a run of Flower takes its requests from here.

    ``nodes`` says which node of Flower is which silo, 0 or missing where the nodes are to be asked. ``limit`` is the
    largest response in bytes; a request without a response is sent again after ``resend`` seconds.
    """

    def __init__(
        self,
        nodes: Mapping[str, int] | None = None,
        limit: int = MAX_BYTES,
        on_exchange: Callable[[ExchangeRecord], None] = lambda exchange: None,
        resend: float = RESEND_SECONDS,
    ) -> None:
        self._nodes = dict(nodes or {})
        self._limit = limit
        self._on_exchange = on_exchange
        self._resend_seconds = resend
        # Paths of sockets must be short, and run directories need not be.
        self._folder = TemporaryFolder("transport")
        self.address = f"unix:{self._folder.path / 'socket'}"
        self._listening = frames.listen(self.address)
        self._listening.settimeout(0.2)
        self._changed = threading.Condition()
        self._run: _Connection | None = None
        self._token = ""
        self._pending: dict[str, _PendingRequest] = {}
        self._responses: dict[str, tuple[bytes, bytes | FailedResponse]] = {}
        self._absent: set[str] = set()
        self._heard: dict[str, float] = {}
        self._number = 0
        self._closed = False
        self._trouble: UldpError | None = None
        self._since = time.monotonic()
        self._thread = threading.Thread(target=self._accept, name="transport", daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def set_nodes(self, nodes: Mapping[str, int]) -> None:
        """Say which node is which silo."""
        with self._changed:
            self._nodes = dict(nodes)

    def fail(self, error: UldpError) -> None:
        """Nothing can be transported any more: whoever exchanges gets this error."""
        with self._changed:
            self._trouble = error
            self._changed.notify_all()

    def new_token(self) -> str:
        """The token of the next run; those of earlier runs are worth nothing from now on."""
        with self._changed:
            self._token = secrets.token_hex(16)
            self._drop()
            return self._token

    @property
    def is_connected(self) -> bool:
        """Whether a run of Flower is connected."""
        with self._changed:
            return self._run is not None

    def wait_for_run(self, seconds: float) -> bool:
        """Wait until a run is there; whether it is. The patience with silos should not be spent on Flower's start."""
        with self._changed:
            return self._changed.wait_for(lambda: self._run is not None or self._trouble is not None, seconds)

    @property
    def seconds_without_run(self) -> float:
        """For how long no run has been there."""
        with self._changed:
            return 0.0 if self._run is not None else time.monotonic() - self._since

    def pending(self, seconds: float = 0.0) -> tuple[str, ...]:
        """The silos that were asked so many seconds ago, and have not responded."""
        with self._changed:
            return tuple(silo for silo, one in self._pending.items() if time.monotonic() - one.since >= seconds)

    @property
    def absent(self) -> frozenset[str]:
        """The silos that have a request, and no node to take it."""
        with self._changed:
            return frozenset(self._absent)

    def measures(self) -> list[Sample]:
        """When each silo was heard last, and who is not there."""
        with self._changed:
            heard = [("uldp_last_contact_timestamp_seconds", silo, when) for silo, when in self._heard.items()]
            silos = self._nodes.keys() | self._pending.keys() | self._heard.keys()
            return [*heard, *(("uldp_silo_absent", silo, float(silo in self._absent)) for silo in sorted(silos))]

    def exchange(self, requests: Mapping[str, bytes], timeout: float) -> dict[str, bytes | FailedResponse]:
        """Every silo's response, or why there is none after ``timeout`` seconds.

        A silo that is asked the same again is not sent the request twice while its response is under way, unless that
        takes so long that it may be lost; a response that came late is there at once.
        """
        began = time.monotonic()
        found = self._collect(requests, began + timeout)
        responses = [response for response in found.values() if isinstance(response, bytes)]
        sent, received = sum(map(len, requests.values())), sum(map(len, responses))
        seconds = round(time.monotonic() - began, 3)
        self._on_exchange(ExchangeRecord(len(requests), len(requests) - len(responses), sent, received, seconds))
        return found

    def _collect(self, requests: Mapping[str, bytes], end: float) -> dict[str, bytes | FailedResponse]:
        with self._changed:
            # Who is not asked any more is not asked again either, also not by a run that comes later.
            self._pending = {silo: one for silo, one in self._pending.items() if silo in requests}
            for silo, body in requests.items():
                pending, (request, response) = self._pending.get(silo), self._responses.get(silo, (None, b""))
                under_way = pending is not None and pending.body == body
                if not under_way and (request != body or isinstance(response, FailedResponse)):
                    self._pending[silo] = _PendingRequest((), body, time.monotonic())
                    self._responses.pop(silo, None)
                    self._send(silo)
            missing = set(requests)
            while (missing := missing - self._responses.keys()) and (left := end - time.monotonic()) > 0:
                if self._trouble is not None:
                    raise self._trouble
                for silo in missing & self._pending.keys():
                    if time.monotonic() >= self._pending[silo].due_time(self._resend_seconds):
                        self._send(silo)
                self._changed.wait(min(left, 1.0))
            return {silo: self._responses.pop(silo, (b"", self._late(silo)))[1] for silo in requests}

    def _late(self, silo: str) -> FailedResponse:
        """Why there is no response yet: nobody is there, or somebody is and takes long."""
        why = "has not responded in time"
        if self._run is None:
            why = "cannot be reached: no run of Flower is there"
        elif silo in self._absent:
            why = "is not there: no node with its key is connected; is its `uldp join` running?"
        return FailedResponse(why, late=True)

    def close(self) -> None:
        """Let the run know that this is all, and take no more."""
        with self._changed:
            self._closed = True
            run = self._run
            if run is not None:
                run.queue.put(None)
        if run is not None:
            run.writer.join(timeout=CLOSE_SECONDS)
        with self._changed:
            self._drop()
        self._listening.close()
        self._thread.join(timeout=2.0)
        self._folder.close()

    def _send(self, silo: str) -> None:
        self._number += 1
        pending = self._pending[silo]
        self._pending[silo] = replace(pending, numbers=(*pending.numbers, self._number))
        if self._run is not None:
            self._run.queue.put((silo, self._number))

    def _frame(self, silo: str, number: int) -> Frame | None:
        """What is to be sent about a silo; None if something else was asked in the meantime."""
        with self._changed:
            pending = self._pending.get(silo)
            if pending is None or number not in pending.numbers:
                return None
            header = {"kind": "request", "number": number, "silo": silo, "node": self._nodes.get(silo, 0)}
            return {**header, "limit": self._limit}, pending.body

    def _drop(self) -> None:
        if self._run is not None:
            run, self._run, self._since = self._run, None, time.monotonic()
            self._absent.clear()  # the next run says anew who is there
            run.shut_down()
            run.queue.put(None)  # its writer may be waiting for more
            self._changed.notify_all()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listening.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), name="transport-run", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """Read one run's responses until it ends."""
        with connection:
            run = None
            try:
                connection.settimeout(HANDSHAKE_SECONDS)
                header, _ = frames.receive(connection, 0)
                run = self._handshake(connection, str(header.get("token", "")))
                while run is not None:
                    self._receive(*frames.receive(connection, self._limit))
            except UldpError:
                pass  # it died, or talks nonsense: the run is over, another may come
            if run is not None:
                with self._changed:
                    if self._run is run:
                        self._drop()
                run.writer.join()  # it was shut down: the socket is closed after it, not below it

    def _handshake(self, connection: socket.socket, token: str) -> _Connection | None:
        """Take the run that has the present token, and send it every request without a response."""
        with self._changed:
            if self._closed or not self._token or not hmac.compare_digest(token.encode(), self._token.encode()):
                return None
            self._drop()
            self._run = run = _Connection(connection, self._frame)
            for silo, pending in self._pending.items():
                run.queue.put((silo, pending.numbers[-1]))
            run.writer.start()
            self._changed.notify_all()
            return run

    def _receive(self, header: dict[str, object], body: bytes) -> None:
        silo, kind = str(header.get("silo", "")), header.get("kind")
        with self._changed:
            if kind in ("absent", "present"):
                (self._absent.add if kind == "absent" else self._absent.discard)(silo)
                return
            pending = self._pending.get(silo)
            if pending is None or header.get("number") not in pending.numbers:
                return  # a response to an earlier request
            del self._pending[silo]
            self._heard[silo] = now_in_minutes()
            sentence = printable(body[:2000].decode(errors="replace"))
            response = body if kind == "reply" else FailedResponse(sentence, refused=kind == "refused")
            self._responses[silo] = (pending.body, response)
            self._changed.notify_all()
