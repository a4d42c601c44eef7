"""What responds to a SuperNode's messages, in place of ``flower-superexec``: one process for all of them.

Flower's own program starts a new process for every message, which takes seconds however little that process imports.
This one stays, asks the SuperNode for the next message, and responds to it with our app and no other. Messages are
handed out to who knows a secret that the silo made: another process of the same machine gets none.
"""

from __future__ import annotations

import argparse
import signal
import threading
import time
from pathlib import Path
from typing import Any, Final

from uldp.errors import first_line
from uldp.runtimes.flower import internals
from uldp.runtimes.flower.client_app import make_app

POLL_SECONDS: Final = 0.1
"""Between two looks for a message. The SuperNode is on the same machine."""
MAX_CONCURRENT: Final = 16
"""Messages under way. A server asks one thing at a time; more are leftovers of runs that were given up, or the same
request sent again: after 1, 3, 7 minutes and so on, so that so many do not come within a month."""
STUCK_SECONDS: Final = 900.0
"""When nothing of that has ended for so long, this process does; another is started, and what was asked comes again."""


def main() -> None:
    """Respond until the SuperNode ends."""
    arguments = _arguments()
    internals.check_program()
    # Flower interrupts a process whose token is worth nothing any more; here that ends one message, not all.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if arguments.parent_pid is not None:
        internals.end_with_parent(arguments.parent_pid)
    app, client, free = make_app(), internals.connect_runtime(arguments), threading.BoundedSemaphore(MAX_CONCURRENT)
    while True:
        if not free.acquire(timeout=STUCK_SECONDS):
            raise SystemExit(f"none of {MAX_CONCURRENT} messages has ended for {STUCK_SECONDS:g} s; ending")
        try:
            token = internals.acquire_task(client)
        except Exception as error:  # the SuperNode may be starting still; when it ends, this process does
            print(f"the SuperNode does not respond: {type(error).__name__}", flush=True)
            free.release()
            time.sleep(1.0)
            continue
        if token:
            # In a thread: a message of a run that ended with its SuperLink may never come, and Flower waits for it.
            task = (internals.connect_runtime(arguments, token), app, free)
            threading.Thread(target=respond, args=task, daemon=True).start()
        else:
            free.release()
            time.sleep(POLL_SECONDS)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runtime-api-address", required=True)
    parser.add_argument("--superexec-auth-secret-file", type=Path, required=True)
    parser.add_argument("--insecure", action="store_true")
    parser.add_argument("--root-certificates")
    parser.add_argument("--parent-pid", type=int)
    return parser.parse_args()


def respond(client: Any, app: Any, free: threading.BoundedSemaphore) -> None:
    """One message, and then room for another."""
    try:
        internals.respond_to_task(client, app)
    except Exception as error:
        print(f"a message got no response: {first_line(error)}", flush=True)
    finally:
        free.release()


if __name__ == "__main__":
    main()
