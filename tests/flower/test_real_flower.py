"""Flower's own programs: TLS, authenticated silos, and what happens when programs are killed. Minutes, not seconds."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from uldp.experiment.config import Experiment
from uldp.runs.directory import RunDirectory
from uldp.runtimes.flower import processes, rehearsal
from uldp.runtimes.local import run

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'uldp[flower]'")
pytestmark = pytest.mark.slow

TREE = {
    "data": {"dataset": "synthetic", "users": 20, "silos": 2, "options": {"records": 200}},
    "method": {"name": "uldp-avg-w", "rounds": 3, "local_epochs": 1},
    "privacy": {"noise_multiplier": 5.0},
    "aggregation": {"name": "masked"},
    "run": {"threads": 1},
}
SILOS = ("silo-1", "silo-2")


def test_a_federation_over_tls_ends_with_the_simulations_model(tmp_path):
    experiment = Experiment.from_tree({**TREE, "method": {**TREE["method"], "rounds": 1}}, tmp_path)
    said = []
    found = rehearsal.rehearse(experiment, tmp_path / "r", said.append, timeout=600)
    assert found.identical and found.setup.exchanges >= 4 and found.rounds.exchanges == 1
    assert 0 < found.rounds.flower_share < 1 and found.rounds.sent > 0 and found.rounds.received > 0
    assert any(line.startswith("round 1/1") for line in said)
    assert oct((tmp_path / "r" / "run" / "private" / "flower").stat().st_mode)[-3:] == "700"


def children(child, program):
    """The processes below ``child`` that run ``program``."""
    found = []
    for pid in processes.descendants(child.pid):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.endswith(program.encode()) for word in words[:3]):
            found.append(pid)
    return found


def until(condition, seconds, parties):
    end = time.monotonic() + seconds
    while not (found := condition()):
        logs = {name: party.log.read_text()[-1500:] for name, party in parties.items()}
        assert time.monotonic() < end, logs
        time.sleep(0.3)
    return found


def test_killed_programs_of_flower_and_a_killed_silo_change_nothing(tmp_path):
    """The SuperLink is killed in round 1, a silo with its node in round 2: both come back, the model is the same."""
    experiment = Experiment.from_tree(TREE, tmp_path)
    simulated = run(experiment)
    file = rehearsal.write_experiment(experiment, SILOS, tmp_path)
    commands = rehearsal.commands_of(file, SILOS, tmp_path)
    parties = {}
    try:
        for name, command in commands.items():
            parties[name] = rehearsal.started(name, command, tmp_path)
        server = parties["server"]
        traffic = tmp_path / "run" / "traffic.jsonl"

        def exchanges():
            return len(traffic.read_text().splitlines()) if traffic.exists() else 0

        until(lambda: exchanges() >= 2, 180, parties)
        os.kill(children(server, "flower-superlink")[0], signal.SIGKILL)
        until(lambda: "round 1/3" in server.log.read_text(), 240, parties)
        assert "starting it again" in server.log.read_text()
        os.kill(parties["silo-2"].pid, signal.SIGKILL)
        time.sleep(2)
        parties["silo-2"].stop()  # what it started is gone with it, or goes now
        parties["silo-2"] = rehearsal.started("silo-2", commands["silo-2"], tmp_path)
        assert until(lambda: server.ended is not None, 400, parties) and server.ended == 0
    finally:
        for party in parties.values():
            party.stop()
    directory = RunDirectory.open(tmp_path / "run")
    assert np.array_equal(directory.load_model(), simulated.model)
    assert [entry.round for entry in directory.ledger_entries()] == [1, 2, 3]


def test_a_killed_server_resumes_where_it_was(tmp_path):
    experiment = Experiment.from_tree(TREE, tmp_path)
    simulated = run(experiment)
    file = rehearsal.write_experiment(experiment, SILOS, tmp_path)
    commands = rehearsal.commands_of(file, SILOS, tmp_path)
    again = ["serve", "--resume", str(tmp_path / "run"), *commands["server"][4:]]
    parties = {}
    try:
        for name, command in commands.items():
            parties[name] = rehearsal.started(name, command, tmp_path)
        until(lambda: "round 1/3" in parties["server"].log.read_text(), 240, parties)
        below = processes.descendants(parties["server"].pid)
        os.kill(parties["server"].pid, signal.SIGKILL)
        assert len(below) >= 2
        until(lambda: not any(map(processes._alive, below)), 30, parties)  # no orphan is left
        parties["server"] = rehearsal.started("server-again", again, tmp_path)
        assert until(lambda: parties["server"].ended is not None, 400, parties) and parties["server"].ended == 0
    finally:
        for party in parties.values():
            party.stop()
    directory = RunDirectory.open(tmp_path / "run")
    assert np.array_equal(directory.load_model(), simulated.model)
    assert [entry.round for entry in directory.ledger_entries()] == [1, 2, 3]


def test_without_tls_nodes_are_asked_for_their_names_and_an_interrupt_leaves_nothing_behind(tmp_path):
    tree = {**TREE, "method": {**TREE["method"], "rounds": 1}, "aggregation": {"name": "plain"}}
    experiment = Experiment.from_tree(tree, tmp_path)
    simulated = run(experiment)
    file = rehearsal.write_experiment(experiment, SILOS, tmp_path)
    address = f"127.0.0.1:{processes.free_port()}"
    parties = {}
    try:
        serve = ["serve", str(file), "--out", str(tmp_path / "run"), "--address", address, "--insecure", "--rehearse"]
        parties["server"] = rehearsal.started("server", serve, tmp_path)
        for silo in SILOS:
            join = ["join", str(file), "--silo", silo, "--superlink", address, "--insecure", "--rehearse"]
            keys = ["--keys", str(tmp_path / "keys" / str(SILOS.index(silo))), "--state", str(tmp_path / silo)]
            parties[silo] = rehearsal.started(silo, [*join, *keys], tmp_path)
        assert until(lambda: parties["server"].ended is not None, 300, parties) and parties["server"].ended == 0
        below = processes.descendants(parties["silo-1"].pid)
        os.kill(parties["silo-1"].pid, signal.SIGTERM)
        until(lambda: parties["silo-1"].ended is not None, 40, parties)
        assert len(below) >= 2 and not any(map(processes._alive, below))
    finally:
        for party in parties.values():
            party.stop()
    assert np.array_equal(RunDirectory.open(tmp_path / "run").load_model(), simulated.model)
