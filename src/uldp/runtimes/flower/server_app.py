"""What Flower starts at the server, once per run: it takes requests from the hub and brings back answers.

Silos are found by node id. With authenticated nodes the hub knows whose key belongs to which node and says so; in an
insecure rehearsal the nodes are asked for their names.
"""

from __future__ import annotations

import importlib
import os
import queue
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from uldp.errors import RunError, UldpError, first_line, printable
from uldp.runtimes import socket_frames as frames
from uldp.runtimes.flower.envelopes import MESSAGE_TYPE, packed, unpacked
from uldp.runtimes.flower.sizes import MOST_BYTES, SIZES

POLL: Final = 0.3
"""Seconds between two looks for answers."""
GONE_SECONDS: Final = 5.0
"""How long this process may take to end when its server is gone."""
MOST_NAME_BYTES: Final = 1 << 16
"""The longest answer of a node that is asked for its name."""
HUB: Final = "ULDP_HUB"
"""Where a SuperLink that we started finds its hub. A run that names another hub is not ours."""


@dataclass(frozen=True)
class Request:
    """One request of the hub: ``node`` is the silo's node id, 0 where it is not known."""

    number: int
    silo: str
    node: int
    body: bytes
    limit: int = MOST_BYTES
    """The longest answer. A longer one would end the connection to the hub, and with it everybody's answers."""


@dataclass
class Carrying:
    """What is under way in one run."""

    grid: Any
    sock: socket.socket
    on_gone: Callable[[], None] = lambda: None
    heard: queue.SimpleQueue[Request | UldpError | None] = field(default_factory=queue.SimpleQueue)
    waiting: list[Request] = field(default_factory=list)
    sent: dict[str, Request] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)

    def go(self) -> None:
        """Carry until the hub says that this is all."""
        # In a thread of its own: a hub that sends while answers are sent to it must be read, or both wait for ever.
        threading.Thread(target=self._listen, name="hub", daemon=True).start()
        while self._take():
            if self.waiting:
                self._push()
            if self.sent or self.asked:
                self._pull()

    def _listen(self) -> None:
        """Read what the hub asks until it ends, or goes."""
        try:
            while True:
                header, body = frames.receive(self.sock, MOST_BYTES)
                if header.get("kind") == "end":
                    break
                words = int(header["number"]), str(header["silo"]), int(header["node"])
                self.heard.put(Request(*words, body, int(header.get("limit", MOST_BYTES))))
            self.heard.put(None)
        except UldpError as error:
            self.on_gone()
            self.heard.put(error)
        except (KeyError, TypeError, ValueError) as error:
            self.heard.put(RunError(f"the hub asks something unknown ({first_line(error)})", place="hub"))

    def _take(self) -> bool:
        """Take the hub's next requests, if there are any; False at the end."""
        patience = POLL if self.waiting or self.sent or self.asked else 5.0
        while True:
            try:
                new = self.heard.get(timeout=patience)
            except queue.Empty:
                return True
            if new is None:
                return False
            if isinstance(new, UldpError):
                raise new  # the server is gone: this run ends as failed, and another one comes
            # A silo is asked one thing at a time: what the hub asks now takes the place of what waits.
            self.waiting = [*(request for request in self.waiting if request.silo != new.silo), new]
            patience = 0.0

    def _push(self) -> None:
        """Send what waits to the nodes that are there."""
        from flwr.app import Message

        online = set(self.grid.get_node_ids())
        if any(not request.node for request in self.waiting):
            self._ask_names(online)
        still: list[Request] = []
        for request in self.waiting:
            node = request.node or self._node_of(request)
            if node is None or node not in online:
                still.append(request)
                continue
            record = packed("request", request.body, silo=request.silo)
            identifier = self._pushed(Message(record, dst_node_id=node, message_type=MESSAGE_TYPE))
            if identifier is None:
                self._failed(request, "Flower did not take the message")
            else:
                self.sent[identifier] = request
        self.waiting = still

    def _pushed(self, message: Any) -> str | None:
        return next(iter(self.grid.push_messages([message])), None) or None

    def _ask_names(self, online: set[int]) -> None:
        """Ask nodes that nobody vouches for what they call themselves."""
        from flwr.app import Message

        self.names = {node: name for node, name in self.names.items() if node in online}
        for node in online - self.names.keys() - set(self.asked.values()):
            identifier = self._pushed(Message(packed("who"), dst_node_id=node, message_type=MESSAGE_TYPE))
            if identifier is not None:
                self.asked[identifier] = node

    def _node_of(self, request: Request) -> int | None:
        nodes = [node for node, name in self.names.items() if name == request.silo]
        return nodes[0] if len(nodes) == 1 else None  # of two with the same name neither is believed

    def _pull(self) -> None:
        """Bring what was answered to the hub.

        One message at a time. Whatever is wrong with one is its sender's garbage; of several at once Flower would lose
        the others. And a message says itself what it replies to, while the SuperLink has checked whose it is: what was
        asked for counts.
        """
        for identifier, node in list(self.asked.items()):
            for words, _ in self._pulled(identifier, MOST_NAME_BYTES):
                del self.asked[identifier]
                if words["kind"] != "failed":  # then it is asked again
                    self.names[node] = words.get("silo", "")
        for identifier, request in list(self.sent.items()):
            for words, body in self._pulled(identifier, request.limit):
                del self.sent[identifier]
                kind = words["kind"] if words["kind"] in ("reply", "refused") else "failed"
                self._tell(request, kind, body)

    def _pulled(self, identifier: str, limit: int) -> list[tuple[dict[str, str], bytes]]:
        """The answer to one message, as its words and body; nothing if there is none yet."""
        from httpx import HTTPError

        try:
            with SIZES.at_most(limit):
                messages = list(self.grid.pull_messages([identifier]))
            return [self._unpacked(message, limit) for message in messages[:1]]
        except HTTPError:
            raise  # the SuperLink, not a silo
        except Exception as error:  # whatever Flower makes of bytes that anybody may have sent
            return [({"kind": "refused"}, printable(f"sent garbage: {first_line(error)}").encode())]

    @staticmethod
    def _unpacked(message: Any, limit: int) -> tuple[dict[str, str], bytes]:
        if message.has_error():
            why = printable(f"Flower says: {message.error.reason or message.error.code}")
            return {"kind": "failed"}, why.encode()
        words, body = unpacked(message.content)
        if len(body) > limit:
            raise ValueError(f"{len(body)} bytes, at most {limit} are taken")
        return words, body

    def _failed(self, request: Request, reason: str) -> None:
        self._tell(request, "failed", reason.encode())

    def _tell(self, request: Request, kind: str, body: bytes) -> None:
        frames.send(self.sock, {"kind": kind, "number": request.number, "silo": request.silo}, body)


def _end_soon() -> None:
    """Without its server this process is of no use; Flower would go on asking a SuperLink that is gone too."""
    timer = threading.Timer(GONE_SECONDS, os._exit, (1,))
    timer.daemon = True
    timer.start()


def carry(grid: Any, address: str, token: str, on_gone: Callable[[], None] = lambda: None) -> None:
    """Connect to the hub at ``address`` and carry its messages over ``grid``."""
    ours = os.environ.get(HUB)
    if ours is not None and address not in ("", ours):
        raise RunError("this run belongs to another hub than this SuperLink's", place="hub", value=address)
    with frames.connect_within(ours or address, 10.0) as sock:
        frames.send(sock, {"kind": "carrier", "token": token}, b"")
        Carrying(grid, sock, on_gone).go()


def make_app(on_gone: Callable[[], None] = lambda: None) -> Any:
    """Flower's ``ServerApp``. Hub and token stand in the run's configuration."""
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp

    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def main_of_run(grid: Grid, context: Context) -> None:
        carry(grid, str(context.run_config.get("hub", "")), str(context.run_config.get("token", "")), on_gone)

    return app


def main() -> None:
    """In place of ``flwr-serverapp``: the same program, but the app is this one and not what came with a run."""
    from flwr.superlink.cli import flwr_serverapp

    _replace("flwr.superlink.runtime.run_serverapp", _instead())
    keep_within_limits()
    flwr_serverapp()


def keep_within_limits() -> None:
    """Let this process pull nothing that is longer than what was asked for."""
    grid: Any = importlib.import_module("flwr.superlink.grid.http_grid")
    kept: dict[str, Any] = {"pull_objects": SIZES.pulling, "inflate_object_from_contents": SIZES.inflating}
    _replace(grid.__name__, {name: within(getattr(grid, name, None)) for name, within in kept.items()})


def _replace(module: str, ours: dict[str, Any]) -> None:
    """Put our functions in the place of Flower's."""
    found: Any = importlib.import_module(module)
    for name in ours:  # another Flower than the pinned one would install and run what came with a run
        if not hasattr(found, name):
            raise SystemExit(f"uldp: this version of Flower has no {name}; install uldp[flower]")
    for name, function in ours.items():
        setattr(found, name, function)


def _instead() -> dict[str, Any]:
    """What Flower's program calls: nothing that came with a run is unpacked, read or loaded but its settings."""

    def run_ours(grid: Any, context: Any, **_: Any) -> Any:
        make_app(_end_soon)(grid=grid, context=context)
        return context

    return {
        "install_from_fab": lambda *_, **__: None,
        "get_fab_metadata": lambda *_: ("uldp/uldp-carrier", "1.0.0"),
        "get_project_config": lambda *_: {"tool": {"flwr": {"app": {"components": {"serverapp": "ours"}}}}},
        "get_fused_config_from_dir": lambda _, given: dict(given),
        "run_": run_ours,
    }


if __name__ == "__main__":
    main()
