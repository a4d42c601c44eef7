"""Simulated silos on Flower's simulation engine: Ray spreads them over the cores of a machine, or over a cluster.

::

    uldp run --runtime flower-sim
      run, server session -- FlowerTransport <-- ServerApp ~~ Ray's workers: ClientApp with a silo's session
                                (socket)   (engine process)

The parties, their messages and the run directory are those of the simulation in one process. A worker stores nothing
that matters: a silo's state travels with every request and comes back with the response, so it does not matter which
worker responds, and a run that was begun here can be resumed there.
"""

from __future__ import annotations

import json
import math
import os
import secrets as random_bytes
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec

from uldp.errors import ConfigError, RunError
from uldp.experiment.build import PreparedExperiment
from uldp.experiment.config import Experiment
from uldp.rng import Secrets
from uldp.runtimes.flower.child import Child, wait_until
from uldp.runtimes.flower.internals import check_installed
from uldp.runtimes.flower.processes import FlowerFolder
from uldp.runtimes.flower.transport import FlowerTransport
from uldp.runtimes.recording import Silos
from uldp.runtimes.temporary import TemporaryFolder
from uldp.sessions.plan import Plan
from uldp.sessions.silo import PartStore

ENGINE: Final = "uldp.runtimes.flower.simulation_engine"
POLL_SECONDS: Final = 2.0
"""Between two looks whether the engine is still there."""
START_SECONDS: Final = 180.0
"""How long the engine may take until its ServerApp is there."""
STOP_SECONDS: Final = 20.0
MAX_ATTEMPTS: Final = 3
"""How often a silo is asked whose worker died."""


class SiloRequest(msgspec.Struct, frozen=True, array_like=True):
    """What a worker is sent: a request, and the silo's state before it."""

    request: bytes
    state: bytes


class SiloResponse(msgspec.Struct, frozen=True, array_like=True):
    """What it sends back: the reply, the state after it, and how many rows were left out on the way."""

    reply: bytes
    state: bytes
    left_out: int


@dataclass(frozen=True)
class Engine:
    """The settings of the engine's process."""

    transport: str
    token: str
    tree: Mapping[str, Any]
    base: str
    silos: int
    threads: int
    folder: str
    """For Ray's files; a short name, for there are sockets among them."""


def check_simulation(experiment: Experiment) -> None:
    """Refuse what the engine cannot, or must not, run."""
    check_installed()
    if find_spec("ray") is None:
        why = "flower-sim needs Ray; in uldp's checkout: pip install -c constraints.txt '.[flower-sim]'"
        raise ConfigError(why, location="--runtime", value="flower-sim")
    if experiment.run.secrets != "simulated":
        why = "secrets of a real run do not travel to Ray's workers; leave --runtime out, or deploy with `uldp serve`"
        raise ConfigError(why, location="run.secrets", value=experiment.run.secrets)


def _private_cluster_options() -> dict[str, str]:
    """Lets nobody else use our Ray, which runs what it is sent; a cluster that is there already has its own ways."""
    if "RAY_ADDRESS" in os.environ:
        return {}
    # The last one is what keeps Ray's ports on loopback; its name is older than what it does.
    token = random_bytes.token_hex(32)
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


class SilosOnRay(Silos, AbstractContextManager["SilosOnRay"]):
    """The silos of a simulation on Ray's workers. Use it as a context: at its end the engine is stopped."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._states: dict[str, bytes] = {}
        self._left_out = 0
        self._until = ExitStack()
        self.engine: Child | None = None
        """The engine's process; started with the first request: a finished run has none."""

    def __exit__(self, *_: object) -> None:
        self._until.close()

    def start(self, prepared: PreparedExperiment, plan: Plan, secrets: Secrets) -> None:
        experiment = prepared.experiment
        check_simulation(experiment)
        self._states = dict.fromkeys(plan.silos, b"")
        self._settings = (experiment.to_tree(), str(experiment.base.resolve()), len(plan.silos), experiment.run.threads)
        # Never again: a worker that dies is reported; what waits for one would be computed twice.
        self._transport = FlowerTransport(resend=math.inf)
        self._until.callback(self._transport.close)

    def _start_engine(self) -> Child:
        if self.engine is not None:
            return self.engine
        folder = self._until.enter_context(TemporaryFolder("sim")).path
        file = folder / "engine.json"
        token = self._transport.new_token()
        settings = Engine(self._transport.address, token, *self._settings, str(folder / "ray"))
        file.write_text(json.dumps(vars(settings)))
        # A model of one's own may lie in the current folder; workers find modules where the engine does.
        path = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH", "")]))
        environment = FlowerFolder(folder).environment(
            {"PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0", **_private_cluster_options()}
        )
        engine = Child([sys.executable, "-m", ENGINE, str(file)], environment, self._log, Path.cwd())
        self._until.callback(engine.stop)
        # Callbacks run the other way round: the engine hears that this is all, and gets a while to end its workers.
        self._until.callback(wait_until, lambda: engine.exit_code is not None, STOP_SECONDS, 0.1)
        self._until.callback(self._transport.close)
        self.engine = engine
        return engine

    def responses(self, requests: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
        asked = {name: msgspec.msgpack.encode(SiloRequest(body, self._states[name])) for name, body in requests.items()}
        tries = dict.fromkeys(asked, MAX_ATTEMPTS)
        began = time.monotonic()
        while asked:
            engine = self._start_engine()
            found = self._transport.exchange(asked, POLL_SECONDS)
            for name, body in found.items():
                if isinstance(body, bytes):
                    response = msgspec.msgpack.decode(body, type=SiloResponse)
                    self._states[name] = response.state
                    self._left_out += response.left_out
                    yield name, response.reply
                    del asked[name]
                elif not body.late:
                    tries[name] -= 1
                    if body.refused or not tries[name]:
                        why = f"{body.reason}; nothing is lost, the run can be resumed"
                        raise RunError(why, location=f"silo {name}")
            if asked and engine.exit_code is not None:
                raise RunError(f"Flower's engine has ended: {engine.log_tail()}", location=str(self._log))
            if asked and not self._transport.is_connected and time.monotonic() - began > START_SECONDS:
                raise RunError(f"Flower's engine is not there after {START_SECONDS:g} s", location=str(self._log))

    def states(self, store: PartStore) -> dict[str, bytes]:
        return dict(self._states)

    def restore(self, states: Mapping[str, bytes], store: PartStore) -> None:
        self._states = dict(states)

    @property
    def left_out(self) -> int:
        return self._left_out
