"""What Flower starts at the server, once per run: it takes requests from the transport and brings back responses.

Silos are found by node id. With authenticated nodes the transport knows whose key belongs to which node and says so; in
an insecure rehearsal the nodes are asked for their names.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from uldp.errors import RunError, UldpError, first_line, printable
from uldp.runtimes import socket_frames as frames
from uldp.runtimes.flower import internals
from uldp.runtimes.flower.messages import ADDRESS_VARIABLE, MAX_BYTES, MESSAGE_TYPE, from_record, to_record

POLL_SECONDS: Final = 0.3
"""Between two looks for responses."""
GONE_SECONDS: Final = 5.0
"""How long this process may take to end when its server is gone."""
MAX_NAME_BYTES: Final = 1 << 16
"""The longest response of a node that is asked for its name."""


@dataclass(frozen=True)
class RelayedRequest:
    """One request of the transport: ``node`` is the silo's node id, 0 where it is not known."""

    number: int
    silo: str
    node: int
    body: bytes
    limit: int = MAX_BYTES
    """The longest response. A longer one would end the connection to the transport, and with it everybody's."""


@dataclass
class Relay:
    """What is under way in one run, between the transport's socket and Flower's grid."""

    grid: Any
    sock: socket.socket
    on_gone: Callable[[], None] = lambda: None
    inbox: queue.SimpleQueue[RelayedRequest | UldpError | None] = field(default_factory=queue.SimpleQueue)
    to_send: list[RelayedRequest] = field(default_factory=list)
    in_flight: dict[str, RelayedRequest] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    name_queries: dict[str, int] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    """The silos of which was said that they are not there."""

    def run(self) -> None:
        """Relay until the transport says that this is all."""
        # In a thread of its own: a transport that sends while it is sent to must be read, or both wait for ever.
        threading.Thread(target=self._listen, name="transport", daemon=True).start()
        while self._take():
            if self.to_send:
                self._push()
            if self.in_flight or self.name_queries:
                self._pull()

    def _listen(self) -> None:
        """Read the transport's requests until it ends, or goes."""
        try:
            while True:
                header, body = frames.receive(self.sock, MAX_BYTES)
                if header.get("kind") == "end":
                    break
                words = int(header["number"]), str(header["silo"]), int(header["node"])
                self.inbox.put(RelayedRequest(*words, body, int(header.get("limit", MAX_BYTES))))
            self.inbox.put(None)
        except UldpError as error:
            self.on_gone()
            self.inbox.put(error)
        except (KeyError, TypeError, ValueError) as error:
            why = f"a request of the transport cannot be read ({first_line(error)})"
            self.inbox.put(RunError(why, location="transport"))

    def _take(self) -> bool:
        """Take the transport's next requests, if there are any; False at the end."""
        patience = POLL_SECONDS if self.to_send or self.in_flight or self.name_queries else 5.0
        while True:
            try:
                new = self.inbox.get(timeout=patience)
            except queue.Empty:
                return True
            if new is None:
                return False
            if isinstance(new, UldpError):
                raise new  # the server is gone: this run ends as failed, and another one comes
            # A silo is asked one thing at a time: a new request takes the place of one that waits.
            self.to_send = [*(request for request in self.to_send if request.silo != new.silo), new]
            patience = 0.0

    def _push(self) -> None:
        """Send what waits to the nodes that are there."""
        online = set(self.grid.get_node_ids())
        if any(not request.node for request in self.to_send):
            self._ask_names(online)
        still: list[RelayedRequest] = []
        for request in self.to_send:
            named = [node for node, name in self.names.items() if name == request.silo]
            # Of two with the same name neither is believed.
            node = request.node or (named[0] if len(named) == 1 else 0)
            self._note_presence(request, node in online)
            if node not in online:
                still.append(request)
                continue
            identifier = self._push_one(node, to_record("request", request.body, silo=request.silo))
            if identifier is None:
                self._report(request, "failed", b"Flower did not take the message")
            else:
                self.in_flight[identifier] = request
        self.to_send = still

    def _note_presence(self, request: RelayedRequest, there: bool) -> None:
        """Say when a silo turns out not to be there, and when it is again."""
        if there == (request.silo in self.absent):
            (self.absent.discard if there else self.absent.add)(request.silo)
            self._report(request, "present" if there else "absent", b"")

    def _push_one(self, node: int, record: Any) -> str | None:
        from flwr.app import Message

        message = Message(record, dst_node_id=node, message_type=MESSAGE_TYPE)
        return next(iter(self.grid.push_messages([message])), None) or None

    def _ask_names(self, online: set[int]) -> None:
        """Ask nodes that nobody vouches for what they call themselves."""
        self.names = {node: name for node, name in self.names.items() if node in online}
        for node in online - self.names.keys() - set(self.name_queries.values()):
            if (identifier := self._push_one(node, to_record("who"))) is not None:
                self.name_queries[identifier] = node

    def _pull(self) -> None:
        """Bring the responses to the transport.

        One message at a time. Whatever is wrong with one is its sender's garbage; of several at once Flower would lose
        the others. And a message says itself what it replies to, while the SuperLink has checked whose it is: what was
        asked for counts.
        """
        for identifier, node in list(self.name_queries.items()):
            for words, _ in self.pull(identifier, MAX_NAME_BYTES):
                del self.name_queries[identifier]
                if words["kind"] != "failed":  # then it is asked again
                    self.names[node] = words.get("silo", "")
        for identifier, request in list(self.in_flight.items()):
            for words, body in self.pull(identifier, request.limit):
                del self.in_flight[identifier]
                kind = words["kind"] if words["kind"] in ("reply", "refused") else "failed"
                self._report(request, kind, body)

    def pull(self, identifier: str, limit: int) -> list[tuple[dict[str, str], bytes]]:
        """The response to one message, as its words and body; nothing if there is none yet."""
        try:
            with internals.pull_limit(limit):
                for message in list(self.grid.pull_messages([identifier])):
                    if message.has_error():
                        why = printable(f"Flower says: {message.error.reason or message.error.code}")
                        return [({"kind": "failed"}, why.encode())]
                    words, body = from_record(message.content)
                    if len(body) > limit:
                        raise ValueError(f"{len(body)} bytes, at most {limit} are taken")
                    return [(words, body)]
            return []
        except internals.superlink_errors():
            raise  # the SuperLink, not a silo
        except Exception as error:  # whatever Flower makes of bytes that anybody may have sent
            return [({"kind": "refused"}, printable(f"sent garbage: {first_line(error)}").encode())]

    def _report(self, request: RelayedRequest, kind: str, body: bytes) -> None:
        frames.send(self.sock, {"kind": kind, "number": request.number, "silo": request.silo}, body)


def _end_soon() -> None:
    """Without its server this process is of no use; Flower would go on asking a SuperLink that is gone too."""
    timer = threading.Timer(GONE_SECONDS, os._exit, (1,))
    timer.daemon = True
    timer.start()


def relay(grid: Any, address: str, token: str, on_gone: Callable[[], None] = lambda: None) -> None:
    """Connect to the transport at ``address`` and relay its messages over ``grid``."""
    ours = os.environ.get(ADDRESS_VARIABLE)
    if ours is not None and address not in ("", ours):
        raise RunError("this run belongs to another server than this SuperLink's", location="transport", value=address)
    with frames.connect(ours or address, patience=10.0) as sock:
        frames.send(sock, {"kind": "transport", "token": token}, b"")
        Relay(grid, sock, on_gone).run()


def make_app(settings: Mapping[str, Any] | None = None, on_gone: Callable[[], None] = lambda: None) -> Any:
    """Flower's ``ServerApp``. The transport's address and token are in ``settings`` or in the run's configuration."""
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp

    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def main_of_run(grid: Grid, context: Context) -> None:
        given = context.run_config if settings is None else settings
        relay(grid, str(given.get("transport", "")), str(given.get("token", "")), on_gone)

    return app


def main() -> None:
    """In place of ``flwr-serverapp``: the same program, but the app is this one and not what came with a run."""
    internals.run_serverapp(lambda: make_app(on_gone=_end_soon))


if __name__ == "__main__":
    main()
