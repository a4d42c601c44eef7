"""What answers a SuperNode's messages, in place of ``flower-superexec``: one process for all of them.

Flower's own program starts a new process for every message, which takes seconds however little that process imports.
This one stays, asks the SuperNode for the next message, and answers it with our app and no other. Messages are handed
out to who knows a secret that the silo made: another process of the same machine gets none.
"""

from __future__ import annotations

import argparse
import signal
import threading
import time
from pathlib import Path
from typing import Any, Final

from uldp.errors import first_line
from uldp.runtimes.flower.client_app import make_app

POLL: Final = 0.1
"""Seconds between two looks for a message. The SuperNode is on the same machine."""
MOST_AT_ONCE: Final = 16
"""Messages under way. A server asks one thing at a time; more are leftovers of runs that were given up, or the same
question sent again: after 1, 3, 7 minutes and so on, so that so many do not come within a month."""
STUCK_SECONDS: Final = 900.0
"""When nothing of that has ended for so long, this process does; another is started, and what was asked comes again."""
FAILED: Final = "the silo could not answer; its own log says why"
"""All that leaves the silo about an error in this process."""
_SIGNED: Final = ("/flwr.proto.Runtime/AcquireTask",)


def main() -> None:
    """Answer until the SuperNode ends."""
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.app_utils import start_parent_process_monitor
    from flwr.supercore.constant import TaskType

    arguments = _arguments()
    # Flower interrupts a process whose token is worth nothing any more; here that ends one message, not all.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if arguments.parent_pid is not None:
        start_parent_process_monitor(arguments.parent_pid)
    app, client, free = make_app(), _client(arguments, None), threading.BoundedSemaphore(MOST_AT_ONCE)
    while True:
        if not free.acquire(timeout=STUCK_SECONDS):
            raise SystemExit(f"none of {MOST_AT_ONCE} messages has ended for {STUCK_SECONDS:g} s; ending")
        try:
            found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
        except Exception as error:  # the SuperNode may be starting still; when it ends, this process does
            print(f"the SuperNode does not answer: {type(error).__name__}", flush=True)
            free.release()
            time.sleep(1.0)
            continue
        if found.HasField("task") and found.token:
            # In a thread: a message of a run that ended with its SuperLink may never come, and Flower waits for it.
            about = (_client(arguments, found.token), app, free)
            threading.Thread(target=_answer, args=about, daemon=True).start()
        else:
            free.release()
            time.sleep(POLL)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runtime-api-address", required=True)
    parser.add_argument("--superexec-auth-secret-file", type=Path, required=True)
    parser.add_argument("--insecure", action="store_true")
    parser.add_argument("--root-certificates")
    parser.add_argument("--parent-pid", type=int)
    return parser.parse_args()


def _client(arguments: argparse.Namespace, token: str | None) -> Any:
    """A connection to the SuperNode; with a token it is about one message."""
    from flwr.supercore.interceptors import (
        RuntimeTokenHttpInterceptor,
        RuntimeVersionHttpInterceptor,
        SuperExecAuthHttpInterceptor,
    )
    from flwr.supercore.retry import make_simple_http_retry_invoker
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supercore.runtime.tracing import RuntimeTracingInterceptor
    from flwr.supercore.tls import validate_and_resolve_root_certificates

    name = "SuperExec" if token is None else "flwr-clientapp"
    secret = arguments.superexec_auth_secret_file.read_bytes()
    known_by = (
        SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=_SIGNED)
        if token is None
        else RuntimeTokenHttpInterceptor(token)
    )
    return RuntimeHttpClient.from_server_address(
        server_address=arguments.runtime_api_address,
        insecure=arguments.insecure,
        root_certificates=validate_and_resolve_root_certificates(arguments.root_certificates, arguments.insecure),
        interceptors=[RuntimeTracingInterceptor(), RuntimeVersionHttpInterceptor(component_name=name), known_by],
        retry_invoker=make_simple_http_retry_invoker(),
    )


def _answer(client: Any, app: Any, free: threading.BoundedSemaphore) -> None:
    """One message, and then room for another."""
    try:
        _answered(client, app)
    except Exception as error:
        print(f"a message was not answered: {first_line(error)}", flush=True)
    finally:
        free.release()


def _answered(client: Any, app: Any) -> None:
    """What Flower's ``run_clientapp`` does, without installing and loading what came with the run."""
    from flwr.app import Error, Message
    from flwr.common.constant import ErrorCode, SubStatus
    from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
    from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

    heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
    heartbeat.start()
    context, status, details = None, SubStatus.COMPLETED, ""
    try:
        message, context, _, _ = pull_task_input(client)
        try:
            reply = app(message=message, context=context)
        except Exception as error:  # what it says may name files: that stays here
            print(f"the app failed: {first_line(error)}", flush=True)
            status, details = SubStatus.FAILED, FAILED
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, FAILED), reply_to=message)
        push_message(client, reply, context)
    except Exception as error:  # the SuperNode lost the message, or the run is over: the next one may be well
        status, details = SubStatus.FAILED, FAILED
        print(f"a message was not answered: {first_line(error)}", flush=True)
    finally:
        push_task_output(client, context, status, details)
        heartbeat.stop()
        client.close()


if __name__ == "__main__":
    main()
