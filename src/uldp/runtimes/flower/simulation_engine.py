"""The process of Flower's simulation engine: ``python -m uldp.runtimes.flower.simulation_engine FILE``.

Its ServerApp is that of a deployment. Its ClientApp runs on Ray's workers and holds a silo's session itself.
"""

from __future__ import annotations

import json
import os
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from uldp.errors import UldpError
from uldp.experiment.build import PreparedExperiment, prepare
from uldp.experiment.config import Experiment
from uldp.rng import Secrets
from uldp.runtimes.flower import internals, server_app
from uldp.runtimes.flower.messages import client_app, from_record, to_record
from uldp.runtimes.flower.simulation import Engine, SiloRequest, SiloResponse
from uldp.runtimes.recording import torch_threads
from uldp.runtimes.simulation import silo_session, simulated_plan
from uldp.sessions.plan import Plan
from uldp.sessions.silo import SiloSession

SESSIONS: dict[tuple[str, str], tuple[bytes, SiloSession]] = {}
"""Of this worker: a silo's session and the state that it is in, so that it need not be restored for every request."""


@lru_cache(maxsize=1)
def _prepare(tree: str, base: str) -> tuple[PreparedExperiment, Plan, Secrets]:
    experiment = Experiment.from_tree(json.loads(tree), base)
    prepared, secrets = prepare(experiment), Secrets.simulated_from_seed(experiment.run.seed)
    return prepared, simulated_plan(prepared, secrets), secrets


def response_of(tree: str, base: str, index: int, request: SiloRequest) -> SiloResponse:
    """A silo's response, from the state that came with the request."""
    prepared, plan, secrets = _prepare(tree, base)
    name = plan.silos[index]
    state, session = SESSIONS.pop((plan.digest, name), (b"", None))
    if session is None or state != request.state or not state:
        session = silo_session(prepared, plan, secrets, name)
        if request.state:
            session.restore(request.state)
    before = session.left_out
    with torch_threads(prepared.experiment.run.threads):
        reply = session.reply(request.request)
    after = session.save()
    SESSIONS[plan.digest, name] = (after, session)
    return SiloResponse(reply, after, session.left_out - before)


def respond(content: Any, tree: str, base: str, index: int) -> Any:
    """The record to send back for a record that came. All is simulated here, so errors may say what they are."""
    words, body = from_record(content)
    silo = _prepare(tree, base)[1].silos[index]
    if words["kind"] == "who":
        return to_record("name", silo=silo)
    try:
        found = response_of(tree, base, index, msgspec.msgpack.decode(body, type=SiloRequest))
    except UldpError as error:
        return to_record("refused", str(error).encode(), silo=silo)
    return to_record("reply", msgspec.msgpack.encode(found), silo=silo)


def main() -> None:
    """Run until the transport says that this is all."""
    internals.check_program()
    from flwr.simulation import run_simulation

    engine = Engine(**json.loads(Path(sys.argv[1]).read_text()))
    # A cluster knows itself how many cores its machines have; here there may be fewer than threads.
    alone = "RAY_ADDRESS" not in os.environ
    cores = min(engine.threads, os.cpu_count() or 1) if alone else engine.threads
    init = {"_temp_dir": engine.folder} if alone else {}
    tree, base = json.dumps(engine.tree), engine.base
    run_simulation(
        server_app=server_app.make_app({"transport": engine.transport, "token": engine.token}),
        # Of all silos: which one it is says the number of its node.
        client_app=client_app(lambda content, node: respond(content, tree, base, int(node["partition-id"]))),
        num_supernodes=engine.silos,
        backend_config={"init_args": init, "client_resources": {"num_cpus": cores, "num_gpus": 0.0}},
    )


if __name__ == "__main__":
    # By its name: workers import what the apps refer to, and this process is no module to import from.
    from uldp.runtimes.flower import simulation_engine

    simulation_engine.main()
