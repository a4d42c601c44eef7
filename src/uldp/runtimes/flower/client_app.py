"""What Flower starts in a silo, in a new process for every message: it hands the bytes to the silo's own process.

It imports no PyTorch and none of our sessions, so it starts in a moment. As a program it stands in for Flower's
``flwr-clientapp``: whatever code a server sends with its run is neither installed nor run in a silo.
"""

from __future__ import annotations

import importlib
import os
import time
from typing import Any, Final

from uldp.errors import UldpError
from uldp.runtimes import socket_frames as frames
from uldp.runtimes.flower.envelopes import packed, unpacked

PATIENCE: Final = 20.0
"""Seconds in which a silo's process may come (back) to its socket."""
MOST_BYTES: Final = 1 << 40
"""The sessions know how large a message may be; this process only carries."""
NO_ANSWER: Final = b"the silo's process did not answer; the silo's own log says why"
UNKNOWN_ANSWER: Final = b"the silo's process answered with something unknown; the silo's own log says what"
NOT_OURS: Final = b"not a message of this federation"
"""What leaves the silo when something is wrong here. Errors may name files: they go into the local log only."""


def carried(address: str, request: bytes, patience: float = PATIENCE) -> tuple[str, bytes]:
    """The silo's answer to ``request``: ("reply", bytes), ("refused", a sentence), or ("failed", a fixed sentence)."""
    try:
        # No timeout from here on: training takes as long as it takes, and a silo that dies closes the connection.
        with frames.connect_within(address, patience) as sock:
            header, body = frames.asked(sock, {"kind": "request"}, request, MOST_BYTES)
    except UldpError as error:
        print(f"no answer: {error}", flush=True)
        return "failed", NO_ANSWER
    kind = header.get("kind")
    if kind in ("reply", "refused"):
        return kind, body
    print(f"an unknown answer: {kind!r}", flush=True)
    return "failed", UNKNOWN_ANSWER


def answer(content: Any, silo: str, address: str) -> Any:
    """The record to send back for a record that came."""
    try:
        words, body = unpacked(content)
    except ValueError as error:
        print(f"refused: {error}", flush=True)
        return packed("refused", NOT_OURS, silo=silo)
    if words["kind"] == "who":
        return packed("name", silo=silo)
    began = time.monotonic()
    kind, reply = carried(address, body)
    print(f"{len(body)} bytes asked, {kind} of {len(reply)} bytes after {time.monotonic() - began:.3f} s", flush=True)
    return packed(kind, reply, silo=silo)


def make_app() -> Any:
    """Flower's ``ClientApp``. The silo's name and socket stand in the node's configuration, which the silo wrote."""
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.query("carry")  # type: ignore[untyped-decorator]
    def carry(message: Message, context: Context) -> Message:
        silo, address = str(context.node_config["silo"]), str(context.node_config["socket"])
        return Message(answer(message.content, silo, address), reply_to=message)

    return app


def main() -> None:
    """In place of ``flwr-clientapp``: the same program, but the app is this one and not what came with the run."""
    from flwr.supernode.cli import flwr_clientapp

    runtime: Any = importlib.import_module("flwr.supernode.runtime.run_clientapp")
    for name in ("install_from_fab", "get_load_client_app_fn"):
        if not hasattr(runtime, name):  # another Flower than the pinned one would run the server's code
            raise SystemExit(f"uldp: this version of Flower has no {name}; install uldp[flower]")
    runtime.install_from_fab = lambda *_, **__: None
    runtime.get_load_client_app_fn = lambda *_, **__: lambda *_: make_app()
    flwr_clientapp()


if __name__ == "__main__":
    os.environ.pop("ULDP_HUB", None)
    main()
