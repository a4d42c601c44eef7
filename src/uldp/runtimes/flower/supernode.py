"""Flower's SuperNode as a program that ends when its work does.

Where a TLS handshake fails, as in a network that comes and goes, Flower's main thread ends and another one keeps the
process; where the server responds to a heartbeat with an error, the thread of heartbeats ends, and the server takes the
node for gone. Either is a node that looks alive and gets no message. Here the process ends, and ``join`` starts
another. It also notes every response that the server has taken, so that ``join`` knows when the last one is there.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Final

from uldp.errors import first_line
from uldp.runtimes.flower import internals

DELIVERED: Final = "delivered"
"""The file in Flower's folder that says how many responses the server has taken."""


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
    end_with_any_thread()
    code = 1
    try:
        internals.run_supernode(Path(os.environ["FLWR_HOME"]) / DELIVERED)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, flush=True)
    except Exception as error:
        print(f"ERROR: the node has ended: {first_line(error)}", flush=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
