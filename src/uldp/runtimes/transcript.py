"""What each party received, message by message: for whoever must decide whether to believe us.

A runtime hands every message to a recorder as it is delivered. The recorder of ``uldp run --transcript`` writes one
file per party, one line per message, with every field in it: what is not in a party's file, that party did not receive
while it was written (``uldp resume`` takes the option too).
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import msgspec

from uldp.runs.directory import RunDirectory

SERVER = "server"
SHUFFLER = "shuffler"
Record = Callable[[str, str, bytes], None]
"""(receiver, sender, message). Silos are called ``silo NAME``."""


def readable(sender: str, message: bytes) -> dict[str, Any]:
    """A message as a JSON object; byte fields are in base64."""
    envelope = msgspec.msgpack.decode(message)
    body = _plain(envelope["body"])
    about = {"from": sender, "type": body.pop("type"), "bytes": len(message)}
    return {**about, "experiment": envelope["experiment"], "body": body}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list) else value


class TranscriptFiles:
    """Writes ``private/transcript-server.jsonl`` and ``private/transcript-of-NAME.jsonl`` of a run directory."""

    def __init__(self, directory: RunDirectory, silos: tuple[str, ...]) -> None:
        self._directory = directory
        self._parties = {party: party for party in (SERVER, SHUFFLER)}
        self._parties |= {f"silo {name}": f"of-{quote(name, safe='')}" for name in silos}

    def __call__(self, receiver: str, sender: str, message: bytes) -> None:
        line = {"to": receiver, **readable(sender, message)}
        self._directory.append_private(f"transcript-{self._parties[receiver]}.jsonl", line)
