"""Flower's SuperNode as a program that ends when its work does.

Where a TLS handshake fails, as in a network that comes and goes, Flower's main thread ends and another one keeps the
process: a node that looks alive and takes no message. Here the process ends, and ``join`` starts another.

Flower's node sleeps 3 seconds between two looks for a message, which is most of what an exchange costs; here it sleeps
less.
"""

from __future__ import annotations

import os
import sys
import time
from types import SimpleNamespace
from typing import Final

from uldp.errors import first_line

POLL: Final = 0.5
"""Seconds between two looks for a message."""


def look_more_often() -> None:
    """Shorten the pauses of the loop that takes messages from the server, and of no other."""
    from flwr.supernode import start_client_internal as loop

    def sleep(seconds: float) -> None:
        time.sleep(min(seconds, POLL))

    loop.time = SimpleNamespace(sleep=sleep)  # all that the module takes from it


def main() -> None:
    """Be ``flower-supernode`` until it ends, one way or the other."""
    from flwr.supernode.cli import flower_supernode

    look_more_often()
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
