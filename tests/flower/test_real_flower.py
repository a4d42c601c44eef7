"""Flower's own programs: TLS, authenticated silos, and what happens when programs are killed. Minutes, not seconds."""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.flower.flower_support import QUICK, Parties, asleep, below

from uldp.runtimes.flower import processes
from uldp.runtimes.flower.child import Child, alive, descendants
from uldp.runtimes.simulation import run

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'uldp[flower]'")
pytestmark = pytest.mark.slow


def test_a_silo_that_is_killed_within_a_round_comes_back_with_the_same_vector(tmp_path):
    with Parties(tmp_path, QUICK) as parties:
        parties.start_all()
        parties.until(lambda: parties.exchanges >= 1)
        with asleep(parties, "silo-1"):  # the round stays open
            parties.until(lambda: parties.released(1))
            parties.kill("silo-2")
            parties.start("silo-2")
            parties.until_said("silo-2", "listens at")
        assert parties.exit_code() == 0
        parties.check_simulated()
        parties.check_released_once(0, 1)


def test_killed_programs_of_flower_and_a_killed_silo_change_nothing(tmp_path):
    """The SuperLink is killed in round 1, a silo with its node in round 2: both come back, the model is the same."""
    with Parties(tmp_path) as parties:
        parties.start_all()
        parties.until(lambda: parties.exchanges >= 2)
        os.kill(below(parties.running["server"].pid, "flower-superlink")[0], signal.SIGKILL)
        parties.until_said("server", "round 1/3")
        assert "starting it again" in parties.said("server")
        parties.kill("silo-2")
        parties.start("silo-2")
        assert parties.exit_code(seconds=400) == 0
        parties.check_simulated()
        parties.check_released_once(0, 1)


def test_a_killed_server_resumes_where_it_was(tmp_path):
    with Parties(tmp_path) as parties:
        parties.start_all()
        parties.until_said("server", "round 1/3")
        assert len(descendants(parties.running["server"].pid)) >= 2
        parties.kill("server")  # and no orphan is left
        parties.resume()
        assert parties.exit_code(seconds=400) == 0
        parties.check_simulated()
        parties.check_released_once(0, 1)


def test_without_tls_nodes_are_asked_for_their_names_and_an_interrupt_leaves_nothing_behind(tmp_path):
    with Parties(tmp_path, QUICK, {"method": {"rounds": 1}}) as parties:
        for name, words in parties.commands.items():
            at = words.index("--certificates" if name == "server" else "--ca")
            parties.commands[name] = [*words[:at], *words[at + 2 :], "--insecure"]
        parties.start_all()
        parties.until(lambda: parties.exchanges >= 1)
        started = descendants(parties.running["silo-1"].pid)
        os.kill(parties.running["silo-1"].pid, signal.SIGTERM)
        parties.exit_code("silo-1", 40)
        assert len(started) >= 2 and not any(map(alive, started))
        parties.stop("silo-1")
        parties.start("silo-1")
        assert parties.exit_code() == 0
        assert np.array_equal(parties.directory.load_model(), run(parties.experiment).model)


def test_a_superlink_that_runs_already_is_used_and_left_running(tmp_path):
    """Somebody else's, which runs apps in Flower's own way; silos and model are the same."""
    with Parties(tmp_path, QUICK, {"method": {"rounds": 1}}) as parties:
        words = parties.commands["server"]
        address = processes.Address.parse(words[words.index("--address") + 1], "--address")
        home = processes.FlowerFolder(tmp_path / "theirs")
        plain = {**home.environment(), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        command = processes.superlink_command(home, address, processes.Security(tmp_path / "certificates"))
        at = command.index("--isolation")
        theirs = Child([*command[:at], *command[at + 4 :]], plain, tmp_path / "superlink.log", tmp_path)
        try:
            parties.until(lambda: processes.reachable(address))
            parties.start_all("--running")
            assert parties.exit_code() == 0
            assert theirs.exit_code is None
        finally:
            theirs.stop()
        parties.check_simulated()
