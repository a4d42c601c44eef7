"""All that depends on the inside of Flower: nothing else in this folder does.

The other modules use what Flower documents (``flwr.app``, ``flwr.clientapp``, ``flwr.serverapp``, ``flwr.simulation``,
its configuration and its command line). What is not documented, and may change with any release, is here: private
modules, functions that are replaced, the Runtime API between a SuperNode and what responds to its messages, the form of
objects on the way, environment variables, and texts that are read. ``NEEDED`` names all of it, and
:func:`check_installed` compares it with the Flower that is installed before anything is started.

Flower is imported inside functions, so that this module loads without it, and in a moment.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from uldp.errors import ConfigError, RunError, first_line
from uldp.runtimes.flower.messages import ADDRESS_VARIABLE, MAX_BYTES
from uldp.runtimes.flower.proxies import without_loopback

# --- The version that works -------------------------------------------------------------------------------------------

VERSION: Final = "1.41"
INSTALL: Final = "in uldp's checkout: pip install -c constraints.txt '.[flower]'"
COMMAND_SECONDS: Final = 60.0
"""How long a program of Flower may take that only prints something."""

NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "flwr.app": ("Array", "ArrayRecord", "ConfigRecord", "Context", "Error", "Message", "RecordDict"),
    "flwr.cli.flower_config": ("read_superlink_connection",),
    "flwr.cli.utils": ("init_http_client_from_connection",),
    "flwr.clientapp": ("ClientApp",),
    "flwr.common.constant": ("ErrorCode.CLIENT_APP_RAISED_EXCEPTION", "SubStatus.COMPLETED", "SubStatus.FAILED"),
    "flwr.proto.control_pb2": ("ListNodesRequest",),
    "flwr.proto.runtime_pb2": ("AcquireTaskRequest",),
    "flwr.serverapp": ("Grid", "ServerApp"),
    "flwr.simulation": ("run_simulation",),
    "flwr.supercore.app_utils": ("start_parent_process_monitor",),
    "flwr.supercore.constant": ("TaskType.CLIENT_APP",),
    "flwr.supercore.heartbeat": ("HeartbeatSender", "make_task_heartbeat_fn_http"),
    "flwr.supercore.interceptors": (
        "RuntimeTokenHttpInterceptor",
        "RuntimeVersionHttpInterceptor",
        "SuperExecAuthHttpInterceptor",
    ),
    "flwr.supercore.retry": ("make_simple_http_retry_invoker",),
    "flwr.supercore.runtime": ("RuntimeHttpClient.from_server_address",),
    "flwr.supercore.runtime.tracing": ("RuntimeTracingInterceptor",),
    "flwr.supercore.tls": ("validate_and_resolve_root_certificates",),
    "flwr.superlink.cli": ("flwr_serverapp",),
    "flwr.superlink.grid.http_grid": ("inflate_object_from_contents", "pull_objects"),
    "flwr.superlink.runtime.run_serverapp": (
        "get_fab_metadata",
        "get_fused_config_from_dir",
        "get_project_config",
        "install_from_fab",
        "run_",
    ),
    "flwr.supernode.cli": ("flower_supernode", "flwr_clientapp"),
    "flwr.supernode.runtime.run_clientapp": (
        "get_load_client_app_fn",
        "install_from_fab",
        "pull_task_input",
        "push_message",
        "push_task_output",
    ),
    "flwr.supernode.start_client_internal": ("push_object_contents_from_iterable", "time.sleep"),
    "httpx": ("HTTPError",),
}
"""Modules, and what is used or replaced in them. A test compares this with the imports in this folder."""
PROGRAMS: Final = ("flower-superexec", "flower-superlink", "flwr")


@cache
def check_installed() -> None:
    """Refuse to start without Flower, with another version than the one that was tried, or with parts missing.

    The names are looked up in a process of their own: Flower takes 100 MB and a second to load.
    """
    try:
        flower = distribution("flwr")
    except PackageNotFoundError:
        raise ConfigError(f"Flower is not installed; {INSTALL}", location="flwr") from None
    if not flower.version.startswith(f"{VERSION}."):
        raise ConfigError(
            f"version {flower.version}, {VERSION} is needed; {INSTALL}", location="flwr", value=flower.version
        )
    programs = {entry.name for entry in flower.entry_points}
    missing = [name for name in PROGRAMS if name not in programs]
    command = [sys.executable, "-P", "-m", __name__, "check"]
    try:
        missing += run_for_json(command, "flwr", environment())["missing"]
    except RunError as error:
        if error.value is None:  # it was too slow, which another installation would not mend
            raise
        raise ConfigError(f"cannot be loaded ({error.message}); {INSTALL}", location="flwr", value=VERSION) from error
    if missing:
        raise _incomplete(missing)


def check_program() -> None:
    """The same inside a program of Flower, where all of it is loaded anyway: one sentence in its log, and the end."""
    if missing := missing_names():
        raise SystemExit(f"ERROR: {_incomplete(missing)}")


def missing_names() -> list[str]:
    """What ``NEEDED`` names and the installed Flower does not have."""
    missing = []
    for module, names in NEEDED.items():
        try:
            found = importlib.import_module(module)
        except ImportError:
            missing.append(module)
            continue
        for name in names:
            try:
                attrgetter(name)(found)
            except AttributeError:
                missing.append(f"{module}.{name}")
    return missing


def _incomplete(missing: list[str]) -> ConfigError:
    found = distribution("flwr").version
    return ConfigError(
        f"version {found} has no {', '.join(missing)}; uldp works with {VERSION}.0; {INSTALL}",
        location="flwr",
        value=found,
    )


# --- Environment, commands, texts -------------------------------------------------------------------------------------

ENVIRONMENT: Final = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3",  # seconds until a message is taken; Flower's own choice is 1
}
REPLACED_PROGRAMS: Final = {
    "flwr-clientapp": "uldp.runtimes.flower.client_app",
    "flwr-serverapp": "uldp.runtimes.flower.server_app",
}
"""What Flower starts to run an app, and which of our modules is started instead."""
REFUSED_PROGRAMS: Final = ("flower-superexec", "flwr-agentapp", "flwr-connector", "flwr-model", "flwr-simulation", "uv")
"""Other commands that Flower starts for a run; here they do nothing."""
NOT_ADMITTED: Final = "Exit Code: 305"
"""What Flower's log says about a node key that is not registered, and about one that is in use."""

COLOURS: Final = ("FORCE_COLOR", "CLICOLOR", "TTY_COMPATIBLE")
"""Variables, set by notebooks among others, with which Flower colours its JSON."""


def environment() -> dict[str, str]:
    """The environment of Flower's programs: no telemetry, no look for updates, nothing installed at run time."""
    dropped = ("FLWR_", ADDRESS_VARIABLE, *COLOURS)
    keep = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return without_loopback({**keep, **ENVIRONMENT, "PYTHONUNBUFFERED": "1"})


def secret_options(secret: Path) -> list[str]:
    """Who takes tasks from a SuperLink or SuperNode must know ``secret``. In the other isolation it is ignored."""
    return ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]


def runtime_options(address: object, secret: Path) -> list[str]:
    """How ``flower-superexec``, or our executor, takes tasks from whoever is at ``address``."""
    return ["--runtime-api-address", str(address), "--superexec-auth-secret-file", str(secret)]


def run_for_json(
    command: list[str], location: str, env: Mapping[str, str], folder: Path | None = None
) -> dict[str, Any]:
    """Run a command that prints JSON as ``flwr --format json`` does; that it failed is a ``RunError``."""
    try:
        done = subprocess.run(
            command, env=env, cwd=folder, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        reason = f"no response after {COMMAND_SECONDS:g} s; is this machine very busy? Try again"
        raise RunError(reason, location=location) from None
    start = done.stdout.find("{")
    try:
        tree = json.loads(done.stdout[start:]) if start >= 0 else {}
    except ValueError:
        tree = {}
    if done.returncode != 0 or not tree.get("success"):
        said = tree.get("error-message") or (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        raise RunError(f"Flower says: {' '.join(str(said).split())}", location=location, value=done.returncode)
    return dict(tree)


def registered_nodes(connection: str, env: Mapping[str, str], folder: Path) -> dict[str, int]:
    """Every node key that a SuperLink knows, as PEM, and its node id: ``flwr supernode list`` prints no keys."""
    command = [sys.executable, "-P", "-m", __name__, "nodes", connection]
    found = run_for_json(command, "flwr supernode list", env, folder)["nodes"]
    return {pem: int(node) for pem, node in found.items()}


def _list_nodes(connection: str) -> dict[str, str]:
    from flwr.cli.flower_config import read_superlink_connection
    from flwr.cli.utils import init_http_client_from_connection
    from flwr.proto.control_pb2 import ListNodesRequest

    client = init_http_client_from_connection(read_superlink_connection(connection))
    try:
        nodes = client.ListNodes(ListNodesRequest()).nodes_info
    finally:
        client.close()
    return {node.public_key.decode(): str(node.node_id) for node in nodes if node.status != "unregistered"}


# --- Programs of Flower with functions of ours in them ----------------------------------------------------------------


def _replace(module: str, functions: Mapping[str, Any]) -> None:
    found = importlib.import_module(module)
    for name, function in functions.items():
        setattr(found, name, function)


def run_clientapp(make_app: Callable[[], Any]) -> None:
    """Be ``flwr-clientapp``, but with our app: what came with the run is neither installed nor loaded."""
    check_program()
    from flwr.supernode.cli import flwr_clientapp

    functions = {
        "install_from_fab": lambda *_, **__: None,
        "get_load_client_app_fn": lambda *_, **__: lambda *_: make_app(),
    }
    _replace("flwr.supernode.runtime.run_clientapp", functions)
    flwr_clientapp()


def run_serverapp(make_app: Callable[[], Any]) -> None:
    """Be ``flwr-serverapp``, but with our app: of what came with a run only its settings are read."""
    check_program()
    from flwr.superlink.cli import flwr_serverapp

    def run_ours(grid: Any, context: Any, **_: Any) -> Any:
        make_app()(grid=grid, context=context)
        return context

    functions = {
        "install_from_fab": lambda *_, **__: None,
        "get_fab_metadata": lambda *_: ("uldp/uldp-transport", "1.0.0"),
        "get_project_config": lambda *_: {"tool": {"flwr": {"app": {"components": {"serverapp": "ours"}}}}},
        "get_fused_config_from_dir": lambda _, given: dict(given),
        "run_": run_ours,
    }
    _replace("flwr.superlink.runtime.run_serverapp", functions)
    limit_pulled_messages()
    flwr_serverapp()


SUPERNODE_POLL_SECONDS: Final = 0.5
"""Between two looks of a SuperNode for a message. Flower's 3 seconds are most of what an exchange costs."""


def run_supernode(deliveries: Path) -> None:
    """Be ``flower-supernode``, but look for messages more often, and note in ``deliveries`` what the server took."""
    check_program()
    from flwr.supernode.cli import flower_supernode

    poll_more_often()
    note_deliveries(deliveries)
    flower_supernode()


def poll_more_often() -> None:
    """Shorten the pauses of the loop that takes messages from the server, and of no other."""

    def sleep(seconds: float) -> None:
        time.sleep(min(seconds, SUPERNODE_POLL_SECONDS))

    # All that the module takes from ``time``.
    _replace("flwr.supernode.start_client_internal", {"time": SimpleNamespace(sleep=sleep)})


def note_deliveries(file: Path) -> None:
    """Let ``file`` grow by a byte with every response that the server has taken."""
    loop = importlib.import_module("flwr.supernode.start_client_internal")
    push = loop.push_object_contents_from_iterable  # the last step of sending a response

    def push_and_note(*arguments: Any, **options: Any) -> None:
        push(*arguments, **options)
        with suppress(OSError), file.open("ab") as out:  # a disk that is full: the response is there all the same
            out.write(b".")

    _replace(loop.__name__, {"push_object_contents_from_iterable": push_and_note})


# --- The Runtime API of a SuperNode -----------------------------------------------------------------------------------

TASK_FAILED: Final = "the silo could not respond; its own log says why"
"""All that leaves the silo about an error in the process that responds."""
_SIGNED_METHODS: Final = ("/flwr.proto.Runtime/AcquireTask",)


def end_with_parent(pid: int) -> None:
    """End this process when its parent has ended."""
    from flwr.supercore.app_utils import start_parent_process_monitor

    start_parent_process_monitor(pid)


def connect_runtime(arguments: Namespace, token: str | None = None) -> Any:
    """A connection to the SuperNode that ``runtime_options`` name; with a token it is about one message."""
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
    authentication = (
        SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=_SIGNED_METHODS)
        if token is None
        else RuntimeTokenHttpInterceptor(token)
    )
    return RuntimeHttpClient.from_server_address(
        server_address=arguments.runtime_api_address,
        insecure=arguments.insecure,
        root_certificates=validate_and_resolve_root_certificates(arguments.root_certificates, arguments.insecure),
        interceptors=[RuntimeTracingInterceptor(), RuntimeVersionHttpInterceptor(component_name=name), authentication],
        retry_invoker=make_simple_http_retry_invoker(),
    )


def acquire_task(client: Any) -> str:
    """The token of the next message; empty if there is none."""
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType

    found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
    return str(found.token) if found.HasField("task") else ""


def respond_to_task(client: Any, app: Any) -> None:
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
            status, details = SubStatus.FAILED, TASK_FAILED
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, TASK_FAILED), reply_to=message)
        push_message(client, reply, context)
    except Exception as error:  # the SuperNode lost the message, or the run is over: the next one may be well
        status, details = SubStatus.FAILED, TASK_FAILED
        print(f"a message got no response: {first_line(error)}", flush=True)
    finally:
        push_task_output(client, context, status, details)
        heartbeat.stop()
        client.close()


# --- Sizes of silos' messages, checked before Flower decodes anything of them -----------------------------------------
#
# Flower takes a message as many objects of any size and puts an array together from chunks, each as often as the sender
# says. So a long message takes memory several times over before anybody could refuse it, and a short one may become
# arbitrarily long. What ``messages.to_record`` makes is one array, four small objects around it and the array's chunks:
# everything else is refused, with a ``ValueError``.

SMALL_BYTES: Final = 1 << 20
"""Room for the objects around an array's chunks. What the array says of 10,000 chunks takes 700 kB."""
_AROUND: Final = ("Message", "RecordDict", "ArrayRecord", "Array", "ConfigRecord")
_CHUNK: Final = "ArrayChunk"
_pull_limit = MAX_BYTES
"""Of this process: it pulls one message at a time."""


def superlink_errors() -> type[Exception]:
    """What a grid raises when the SuperLink, and not the sender of a message, is the trouble."""
    from httpx import HTTPError

    return HTTPError  # type: ignore[no-any-return]


@contextmanager
def pull_limit(limit: int) -> Iterator[None]:
    """Messages that are pulled inside have an array of at most ``limit`` bytes."""
    global _pull_limit
    before, _pull_limit = _pull_limit, limit
    try:
        yield
    finally:
        _pull_limit = before


def limit_pulled_messages() -> None:
    """Let this process pull nothing that is longer than ``pull_limit``, and nothing of another form than ours."""
    grid = importlib.import_module("flwr.superlink.grid.http_grid")
    pull_objects, inflate = grid.pull_objects, grid.inflate_object_from_contents

    def bounded_pull(object_ids: list[str], pull_object_fn: Callable[[str], bytes], **options: Any) -> dict[str, bytes]:
        limit, lock = _pull_limit, threading.Lock()
        room = limit + SMALL_BYTES

        def pull_and_count(object_id: str) -> bytes:
            nonlocal room
            content = pull_object_fn(object_id)
            with lock:
                room -= len(content)
                if room < 0:
                    raise ValueError(f"a message of more than {limit} bytes")
            return content

        return pull_objects(object_ids, pull_and_count, **options)  # type: ignore[no-any-return]

    def bounded_inflate(object_id: str, object_contents: dict[str, bytes], **options: Any) -> Any:
        check_objects(object_contents, _pull_limit)
        return inflate(object_id, object_contents, **options)

    _replace(grid.__name__, {"pull_objects": bounded_pull, "inflate_object_from_contents": bounded_inflate})


def check_objects(contents: Mapping[str, bytes], limit: int) -> None:
    """Refuse objects that are no message of ours, or whose array would have more than ``limit`` bytes."""
    kinds = {identifier: content[:32].partition(b" ")[0].decode("ascii") for identifier, content in contents.items()}
    found = Counter(kinds.values())
    chunks = found.pop(_CHUNK, 0)
    if found != Counter(_AROUND) and (chunks or found != Counter(("Message",))):  # alone: an error of the silo's node
        raise ValueError("not the objects of a message of this federation")
    if sum(len(content) for key, content in contents.items() if kinds[key] != _CHUNK) > SMALL_BYTES:
        raise ValueError(f"more than {SMALL_BYTES} bytes around the array")
    if chunks:
        array = next(content for key, content in contents.items() if kinds[key] == "Array")
        pieces = len(json.loads(array.partition(b"\0")[2])["arraychunk_ids"])
        largest = max(len(content) for key, content in contents.items() if kinds[key] == _CHUNK)
        if (pieces - 1) * largest > limit:  # all but the last one are full
            raise ValueError(f"an array of more than {limit} bytes")


def main() -> None:
    """As a program: ``check`` prints what is missing, ``nodes CONNECTION`` the nodes that a SuperLink knows."""
    match sys.argv[1:]:
        case ["check"]:
            found: dict[str, Any] = {"missing": missing_names()}
        case ["nodes", connection]:
            found = {"nodes": _list_nodes(connection)}
        case other:
            raise SystemExit(f"check, or nodes CONNECTION, not {' '.join(other)!r}")
    print(json.dumps({"success": True, **found}))


if __name__ == "__main__":
    main()
