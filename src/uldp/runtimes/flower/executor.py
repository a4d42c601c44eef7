"""What a SuperNode starts to have its messages answered, in place of ``flower-superexec``: one process for all of them.

Flower's own program starts a new process for every message, which takes seconds however little that process imports.
This one stays, asks the SuperNode for the next message, and answers it with our app and no other.
"""

from __future__ import annotations

import argparse
import threading
import time
from typing import Any, Final

from uldp.runtimes.flower.client_app import make_app

POLL: Final = 0.1
"""Seconds between two looks for a message. The SuperNode is on the same machine."""


def main() -> None:
    """Answer until the SuperNode ends."""
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.app_utils import start_parent_process_monitor
    from flwr.supercore.constant import TaskType

    arguments = _arguments()
    if arguments.parent_pid is not None:
        start_parent_process_monitor(arguments.parent_pid)
    app, client = make_app(), _client(arguments, None)
    while True:
        try:
            found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
        except Exception as error:  # the SuperNode may be starting still; when it ends, this process does
            print(f"the SuperNode does not answer: {type(error).__name__}", flush=True)
            time.sleep(1.0)
            continue
        if found.HasField("task") and found.token:
            # In a thread: a message of a run that ended with its SuperLink may never come, and Flower waits for it.
            about = (_client(arguments, found.token), app)
            threading.Thread(target=_answer, args=about, daemon=True).start()
        else:
            time.sleep(POLL)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runtime-api-address", required=True)
    parser.add_argument("--insecure", action="store_true")
    parser.add_argument("--root-certificates")
    parser.add_argument("--parent-pid", type=int)
    return parser.parse_args()


def _client(arguments: argparse.Namespace, token: str | None) -> Any:
    """A connection to the SuperNode; with a token it is about one message."""
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
    from flwr.supercore.retry import make_simple_http_retry_invoker
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supercore.runtime.tracing import RuntimeTracingInterceptor
    from flwr.supercore.tls import validate_and_resolve_root_certificates

    name = "SuperExec" if token is None else "flwr-clientapp"
    interceptors = [RuntimeTracingInterceptor(), RuntimeVersionHttpInterceptor(component_name=name)]
    return RuntimeHttpClient.from_server_address(
        server_address=arguments.runtime_api_address,
        insecure=arguments.insecure,
        root_certificates=validate_and_resolve_root_certificates(arguments.root_certificates, arguments.insecure),
        interceptors=[*interceptors, *([] if token is None else [RuntimeTokenHttpInterceptor(token)])],
        retry_invoker=make_simple_http_retry_invoker(),
    )


def _answer(client: Any, app: Any) -> None:
    """One message: what Flower's ``run_clientapp`` does, without installing and loading what came with the run."""
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
        except Exception as error:
            status, details = SubStatus.FAILED, f"{type(error).__name__}: {error}"
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, details), reply_to=message)
        push_message(client, reply, context)
    except Exception as error:  # the SuperNode lost the message, or the run is over: the next one may be well
        status, details = SubStatus.FAILED, f"{type(error).__name__}: {error}"
        print(f"a message was not answered: {details}", flush=True)
    finally:
        push_task_output(client, context, status, details)
        heartbeat.stop()
        client.close()


if __name__ == "__main__":
    main()
