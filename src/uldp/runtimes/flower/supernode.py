"""Flower's SuperNode as a program that ends when its work does.

Where a TLS handshake fails, as in a network that comes and goes, Flower's main thread ends and another one keeps the
process; where the server answers a heartbeat with an error, the thread of heartbeats ends, and the server takes the
node for gone. Either is a node that looks alive and gets no message. Here the process ends, and ``join`` starts
another.

Flower's node sleeps 3 seconds between two looks for a message, which is most of what an exchange costs; here it sleeps
less. And it notes every answer that the server has taken, so that ``join`` knows when the last one is there.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from uldp.errors import first_line

DELIVERED: Final = "delivered"
"""The file in Flower's folder that says how many answers the server has taken."""
POLL: Final = 0.5
"""Seconds between two looks for a message."""


def look_more_often() -> None:
    """Shorten the pauses of the loop that takes messages from the server, and of no other."""
    from flwr.supernode import start_client_internal as loop

    def sleep(seconds: float) -> None:
        time.sleep(min(seconds, POLL))

    loop.time = SimpleNamespace(sleep=sleep)  # all that the module takes from it


def note_deliveries(file: Path) -> None:
    """Let ``file`` grow by a byte with every answer that the server has taken."""
    from flwr.supernode import start_client_internal as loop

    push = loop.push_object_contents_from_iterable  # the last step of sending an answer

    def noted(*arguments: Any, **options: Any) -> None:
        push(*arguments, **options)
        with suppress(OSError), file.open("ab") as out:  # a disk that is full: the answer is there all the same
            out.write(b".")

    loop.push_object_contents_from_iterable = noted


def end_with_any_thread() -> None:
    """Let an error that ends a thread end the process."""

    def hook(failed: threading.ExceptHookArgs) -> None:
        name = failed.thread.name if failed.thread is not None else "a thread"
        why = first_line(failed.exc_value) if failed.exc_value is not None else failed.exc_type.__name__
        print(f"ERROR: {name} of the node has ended: {why}", flush=True)
        os._exit(1)

    threading.excepthook = hook


def main() -> None:
    """Be ``flower-supernode`` until it ends, one way or the other."""
    from flwr.supernode.cli import flower_supernode

    look_more_often()
    note_deliveries(Path(os.environ["FLWR_HOME"]) / DELIVERED)
    end_with_any_thread()
    code = 1
    try:
        flower_supernode()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception as error:
        print(f"ERROR: the node has ended: {first_line(error)}", flush=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
