"""What Flower starts in a silo, in a new process for every message: it hands the bytes to the silo's own process.

It imports no PyTorch and none of our sessions, so it starts in a moment. As a program it stands in for Flower's
``flwr-clientapp``: whatever code a server sends with its run is neither installed nor run in a silo.
"""

from __future__ import annotations

import os
import time
from typing import Any, Final

from uldp.errors import UldpError
from uldp.runtimes import socket_frames as frames
from uldp.runtimes.flower import internals
from uldp.runtimes.flower.messages import ADDRESS_VARIABLE, MAX_BYTES, client_app, from_record, to_record

CONNECT_SECONDS: Final = 20.0
"""Seconds in which a silo's process may come (back) to its socket."""
NO_RESPONSE: Final = b"the silo's process did not respond; the silo's own log says why"
UNKNOWN_RESPONSE: Final = b"the silo's process responded with something unknown; the silo's own log says what"
NOT_OURS: Final = b"not a message of this federation"
"""What leaves the silo when something is wrong here. Errors may name files: they go into the local log only."""


def forward(address: str, request: bytes, patience: float = CONNECT_SECONDS) -> tuple[str, bytes]:
    """The silo's response to ``request``: ("reply", bytes), ("refused", a sentence) or ("failed", a fixed sentence)."""
    try:
        # No timeout from here on: training takes as long as it takes, and a silo that dies closes the connection.
        with frames.connect(address, patience=patience) as sock:
            header, body = frames.ask(sock, {"kind": "request"}, request, MAX_BYTES)
    except UldpError as error:
        print(f"no response: {error}", flush=True)
        return "failed", NO_RESPONSE
    kind = header.get("kind")
    if kind in ("reply", "refused"):
        return kind, body
    print(f"an unknown response: {kind!r}", flush=True)
    return "failed", UNKNOWN_RESPONSE


def respond(content: Any, silo: str, address: str) -> Any:
    """The record to send back for a record that came."""
    try:
        words, body = from_record(content)
    except ValueError as error:
        print(f"refused: {error}", flush=True)
        return to_record("refused", NOT_OURS, silo=silo)
    if words["kind"] == "who":
        return to_record("name", silo=silo)
    began = time.monotonic()
    kind, reply = forward(address, body)
    print(f"{len(body)} bytes asked, {kind} of {len(reply)} bytes after {time.monotonic() - began:.3f} s", flush=True)
    return to_record(kind, reply, silo=silo)


def make_app() -> Any:
    """Flower's ``ClientApp``. The silo's name and socket are in the node's configuration, which the silo wrote."""
    return client_app(lambda content, node: respond(content, str(node["silo"]), str(node["socket"])))


def main() -> None:
    """In place of ``flwr-clientapp``: the same program, but the app is this one and not what came with the run."""
    internals.run_clientapp(make_app)


if __name__ == "__main__":
    os.environ.pop(ADDRESS_VARIABLE, None)
    main()
