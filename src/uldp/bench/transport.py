"""``uldp bench transport``: what one exchange over Flower costs, and what our way of responding in a silo saves.

Real programs of Flower on loopback, with TLS and authenticated nodes. The silos compute nothing, so all of the time is
the transport's. Three ways to respond in a silo, in mirrored order, so that a load that grows or shrinks meets all of
them alike:

stays    one process for all messages (what ``uldp join`` does)
shim     a new process for every message, as Flower does it, with our app, which imports no PyTorch
pytorch  the same, with an app that imports PyTorch, as an app does that trains by itself
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from uldp.bench.machine import Case, Say, compare_sides, silent
from uldp.errors import RunError, UldpError
from uldp.limits import MAX_EXCHANGES, check_whole
from uldp.runs.files import replace_file
from uldp.runtimes import socket_frames as frames
from uldp.runtimes.flower import credentials
from uldp.runtimes.flower import processes as p
from uldp.runtimes.flower.transport import FlowerTransport

WAYS: Final = ("stays", "shim", "pytorch")
SILOS: Final = 3
RESPONSE: Final = b"x" * 1000
PATIENCE: Final = 180.0


def run_cases(exchanges: int = 6, ways: tuple[str, ...] = WAYS, say: Say = silent) -> list[Case]:
    """Every way twice; ours is the one that stays."""
    p.check_installed()
    check_whole(exchanges, 1, MAX_EXCHANGES, "--exchanges")
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    loads: dict[str, list[float]] = {way: [] for way in ways}
    for way in (*ways, *reversed(ways)):
        loads[way].append(os.getloadavg()[0])
        with tempfile.TemporaryDirectory(prefix="uldp-bench-") as folder:
            found = series(Path(folder), way, exchanges)
        seconds[way] += found
        say(f"{way}: {', '.join(f'{each:.2f}' for each in found)} s")
    return [_case(way, seconds, loads[way]) for way in ways]


def _case(way: str, seconds: dict[str, list[float]], loads: list[float]) -> Case:
    ours, theirs = statistics.median(seconds["stays"]), statistics.median(seconds[way])
    span = f"{min(seconds[way]):.2f} to {max(seconds[way]):.2f} s"
    note = f"median of {len(seconds[way])} exchanges with {SILOS} silos, {span}; load at the start of each series "
    return compare_sides(way, ours, theirs) | {"note": note + ", ".join(f"{load:.1f}" for load in loads)}


def series(folder: Path, way: str, exchanges: int) -> list[float]:
    """A federation of its own, one exchange to get going, then the measured ones."""
    names = [f"silo-{number}" for number in range(SILOS)]
    with _federation(folder, way, names) as transport:
        took = []
        for number in range(exchanges + 1):
            began = time.perf_counter()
            found = transport.exchange(dict.fromkeys(names, f"request {number}".encode()), PATIENCE)
            took.append(time.perf_counter() - began)
            if any(response != RESPONSE for response in found.values()):
                raise RunError(f"not all silos responded: {found}", location=way)
    return took[1:]


@contextmanager
def _federation(folder: Path, way: str, names: list[str]) -> Iterator[FlowerTransport]:
    credentials.make_certificates(folder / "c", ["127.0.0.1"], 2)
    security, address = p.Security(folder / "c"), p.Address("127.0.0.1", p.free_port())
    public = {name: credentials.make_silo_keys(name, folder / "keys" / name).node for name in names}
    with ExitStack() as until:
        transport = until.enter_context(FlowerTransport())
        server = until.enter_context(
            p.SuperLink(p.FlowerFolder(folder / "server"), address, security, transport.address)
        )
        server.start()
        transport.set_nodes(server.register(public))
        for name in names:
            socket = f"unix:{folder / name}"
            until.enter_context(_silo(socket))
            side = p.NodeSide(
                address, security.ca, folder / "keys" / name / credentials.NODE_KEY, {"silo": name, "socket": socket}
            )
            until.callback(_node(folder / "nodes" / name, side, way).stop)
        server.submit(transport.new_token())
        yield transport


def _node(folder: Path, side: p.NodeSide, way: str) -> p.SuperNode:
    home = p.FlowerFolder(folder)
    if way == "stays":
        return p.SuperNode(home, side)
    imports = "import torch; " if way == "pytorch" else ""
    code = f"{imports}from uldp.runtimes.flower.client_app import main; main()"
    line = f'exec "{sys.executable}" -P -c "{code}" "$@" >>"$FLWR_HOME/clientapp.log" 2>&1'
    replace_file(home.file("bin") / "flwr-clientapp", f"#!/bin/sh\n{line}\n".encode(), mode=0o700)
    return p.SuperNode(home, side, executor=p.superexec_of_node)


@contextmanager
def _silo(address: str) -> Iterator[None]:
    """Responds to every request at once with the same bytes."""
    over = threading.Event()
    with frames.listen(address) as listening:
        listening.settimeout(0.2)

        def respond() -> None:
            while not over.is_set():
                try:
                    connection, _ = listening.accept()
                except TimeoutError:
                    continue
                except OSError:
                    return
                with connection:
                    try:
                        frames.receive(connection, 1 << 20)
                        frames.send(connection, {"kind": "reply"}, RESPONSE)
                    except UldpError:
                        continue

        thread = threading.Thread(target=respond, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(timeout=5.0)
