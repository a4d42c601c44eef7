"""A whole federation on one machine: a server and its silos as separate processes, TLS, authenticated silos.

It shows that the real thing runs here, and that it ends with the model of the simulation: with secrets from the seed
both compute the same, bit for bit.
"""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from uldp.data.draft import tree_toml
from uldp.errors import RunError
from uldp.experiment.config import Experiment
from uldp.experiment.parties import prepare_server
from uldp.privacy.sentences import finite_or_none
from uldp.runs.directory import RunDirectory
from uldp.runs.files import private_folder, read_lines, replace_file, report_disk_errors
from uldp.runtimes.flower import credentials
from uldp.runtimes.flower.child import Child, check_system
from uldp.runtimes.flower.internals import check_installed
from uldp.runtimes.flower.processes import Address, free_port
from uldp.runtimes.result import Result
from uldp.runtimes.simulation import InProcessSilos
from uldp.runtimes.simulation import run as run_local
from uldp.vectors import Vector

Say = Callable[[str], None]


@dataclass(frozen=True)
class ExchangeTimes:
    """Exchanges of one kind: how many, their seconds, the seconds of the slowest silo in each, bytes there and back."""

    exchanges: int
    seconds: float
    silo_seconds: float
    sent: int
    received: int

    @property
    def flower_share(self) -> float:
        """The part of the time in which Flower transported, and no silo computed; NaN where that is unknown."""
        return 1 - self.silo_seconds / self.seconds if self.seconds else math.nan

    def per_round(self, rounds: int) -> dict[str, Any]:
        return {
            "exchanges": self.exchanges / rounds,
            "seconds": round(self.seconds / rounds, 3),
            "flower_share": finite_or_none(round(self.flower_share, 3)),
            "slowest_silo_seconds": finite_or_none(round(self.silo_seconds / rounds, 3)),
            "bytes_to_silos": round(self.sent / rounds),
            "bytes_from_silos": round(self.received / rounds),
        }


@dataclass(frozen=True)
class RehearsalResult:
    """What came of it."""

    simulated: Result
    model: Vector
    run: str
    setup: ExchangeTimes
    rounds: ExchangeTimes
    seconds: float

    @property
    def identical(self) -> bool:
        return bool(np.array_equal(self.simulated.model, self.model))

    @property
    def simulated_round(self) -> float:
        """Seconds of a simulated round; the first one, which contains the setup, is left out if there are others."""
        seconds = [report.seconds for report in self.simulated.reports]
        return float(np.mean(seconds[1:] or seconds or [0.0]))

    def to_json(self) -> dict[str, Any]:
        rounds = len(self.simulated.reports)
        return {
            "identical": self.identical,
            "run": self.run,
            "rounds": rounds,
            "metrics": dict(self.simulated.metrics),
            "setup": self.setup.per_round(1),
            "round": self.rounds.per_round(max(rounds, 1)),
            "simulated_round_seconds": round(self.simulated_round, 4),
            "seconds": round(self.seconds, 1),
            "simulated_seconds": round(self.simulated.seconds, 3),
        }


def measure_exchanges(run: Path, silos: Sequence[Path]) -> tuple[ExchangeTimes, ExchangeTimes]:
    """The setup and the rounds of a federation in which nothing was asked twice, from its logs."""
    lines = list(read_lines(run / "private" / "traffic.jsonl"))
    logs = []
    for log in (silo / "flower" / "executor.log" for silo in silos):
        with report_disk_errors(log):
            seconds = re.findall(r"bytes asked, .* after ([0-9.]+) s$", log.read_text(), re.M)
        logs.append(list(map(float, seconds)))
    # Where a request was sent twice, or a message was lost, lines do not belong together.
    fit = all(len(log) == len(lines) for log in logs)
    slowest = [max(each) for each in zip(*logs, strict=True)] if fit else [math.nan] * len(lines)
    parts = []
    for stage in ("setup", "round"):
        chosen = [(line, slow) for line, slow in zip(lines, slowest, strict=True) if line["stage"] == stage]
        sums = (sum(line[key] for line, _ in chosen) for key in ("sent", "received"))
        parts.append(
            ExchangeTimes(
                len(chosen), sum(line["seconds"] for line, _ in chosen), sum(slow for _, slow in chosen), *sums
            )
        )
    return parts[0], parts[1]


def rehearse(experiment: Experiment, folder: Path, say: Say, timeout: float = 1800.0) -> RehearsalResult:
    """Run ``experiment`` once as a simulation and once as a federation in ``folder``.

    Both have the same settings, secrets and long-term keys, so that they send the same messages.
    """
    check_system()
    check_installed()
    if experiment.run.secrets != "simulated":
        experiment = replace(experiment, run=replace(experiment.run, secrets="simulated"))
    silos = prepare_server(experiment, rehearsal=True).plan.silos
    folder = folder.resolve()  # the parties' processes start there
    private_folder(folder)
    say(f"simulating, then {len(silos)} silos and a server in {folder}")
    file = write_experiment(experiment, silos, folder)
    keys = [credentials.identity_of(folder / "keys" / str(number)) for number in range(len(silos))]
    simulated = run_local(Experiment.from_file(file), silos=InProcessSilos(keys))
    states = [folder / "silos" / str(number) for number in range(len(silos))]
    if experiment.run.evaluate_silos:  # as owners of data would, who let their hold-out people be measured on
        private_folder(folder / "silos")
        for state in states:
            private_folder(state)
            replace_file(state / "policy.toml", b"allow_metrics = true\n")
    began = time.monotonic()
    directory = RunDirectory(folder / "run")
    parties: dict[str, Child] = {}
    try:
        for name, command in commands_of(file, silos, folder).items():
            parties[name] = start_party(name, command, folder)
        _wait(parties, say, timeout)
    finally:
        for party in reversed(parties.values()):
            party.stop()
    seconds = time.monotonic() - began
    parts = measure_exchanges(directory.path, states)
    return RehearsalResult(simulated, directory.load_model(), str(directory.path), *parts, seconds)


def write_experiment(experiment: Experiment, silos: tuple[str, ...], folder: Path) -> Path:
    """The experiment file with everybody's new keys in it; certificates beside."""
    credentials.make_certificates(folder / "certificates", ["127.0.0.1", "localhost"], days=2)
    public = [credentials.make_silo_keys(silo, folder / "keys" / str(n)) for n, silo in enumerate(silos)]
    tree = experiment.to_tree()
    tree["aggregation"]["identities"] = {one.silo: one.identity for one in public}
    tree["deployment"] = {"nodes": {one.silo: one.node for one in public}}
    # Files are named from the experiment file's folder, which is another one now.
    data, base = tree["data"], experiment.base
    for key in {"roster", "id_key", "test", "data_dir"} & data.keys():
        data[key] = str((base / data[key]).resolve())
    if "links" in data.get("ids", {}):
        data["ids"] = {**data["ids"], "links": str((base / data["ids"]["links"]).resolve())}
    if isinstance(data.get("silos"), list):
        data["silos"] = [str((base / name).resolve()) for name in data["silos"]]
    file = folder / f"{experiment.name or 'rehearsal'}.toml"
    replace_file(file, tree_toml(tree).encode(), mode=0o644)
    return file


def commands_of(file: Path, silos: tuple[str, ...], folder: Path) -> dict[str, list[str]]:
    """What people would type, on their machines: the server's command, and one for each silo."""
    address = Address("127.0.0.1", free_port())
    ca = folder / "certificates" / credentials.CA
    serve = ["serve", str(file), "--out", str(folder / "run"), "--certificates", str(folder / "certificates")]
    commands = {"server": [*serve, "--address", str(address), "--rehearse", "--json"]}
    for number, silo in enumerate(silos):
        own = ["join", str(file), "--silo", silo, "--superlink", str(address), "--ca", str(ca), "--rehearse"]
        keys, state = folder / "keys" / str(number), folder / "silos" / str(number)
        commands[silo] = [*own, "--keys", str(keys), "--state", str(state)]
    return commands


def start_party(name: str, command: list[str], folder: Path) -> Child:
    """A party's process, with its log in ``folder``."""
    log = folder / f"{name.replace('/', '-')}.log"
    return Child([sys.executable, "-P", "-m", "uldp", *command], os.environ, log, folder)


def _wait(parties: Mapping[str, Child], say: Say, timeout: float) -> None:
    """Until the server has ended; a silo that ends before is trouble."""
    server, end, shown = parties["server"], time.monotonic() + timeout, 0
    while server.exit_code is None:
        for name, party in parties.items():
            if party.exit_code not in (None, 0):
                raise RunError(f"{name} ended with code {party.exit_code}: {party.log_tail()}", location=str(party.log))
        if time.monotonic() > end:
            raise RunError(f"no end after {timeout:g} s", location=str(server.log))
        lines = [line for line in server.log.read_text(errors="replace").splitlines() if line.startswith("round ")]
        for line in lines[shown:]:
            say(line)
        shown = len(lines)
        time.sleep(0.5)
    if server.exit_code != 0:
        raise RunError(f"the server ended with code {server.exit_code}: {server.log_tail()}", location=str(server.log))
