"""Silos that die, sleep or lose their network, as real processes over Flower and TLS."""

import socket
import threading
import time
from contextlib import suppress

import numpy as np
import pytest
from tests.federation.federation_support import World, away
from tests.federation.federation_support import parties as prepared
from tests.flower.flower_support import QUICK, Parties, asleep

from uldp.runtimes.flower.processes import free_port

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'uldp[flower]'")
pytestmark = pytest.mark.slow

THREE = {"data": {"silos": 3}, "privacy": {"dropout_tolerance": 1}}
"""One of three silos may be missing."""


def check_without(parties, silo):
    """Rounds were charged for who was heard, and the model is that of the same rounds among three honest parties."""
    parties.check_whole()
    parties.check_released_once(0, 1, 2)
    directory, plan = parties.directory, prepared(parties.experiment)[0].plan
    missing = [line.get("missing", []) for line in directory.log.metrics()]
    assert all(names in ([], [silo]) for names in missing)
    heard = [plan.release.event(3 - len(names)) for names in missing]
    assert [entry.event for entry in directory.log.ledger_entries()] == heard
    rounds = [number for number, names in enumerate(missing, start=1) if names]
    world = World(parties.folder / "world", parties.experiment, away(silo, rounds, plan))
    world.folder.mkdir()
    try:
        assert np.array_equal(directory.load_model(), world.serving("exclude").run().model)
    finally:
        world.close()
    return rounds


def test_a_silo_that_never_comes_back_stops_the_run_or_is_done_without(tmp_path):
    with Parties(tmp_path, QUICK, THREE, {"aggregation": {"name": "masked"}}) as parties:
        parties.start_all("--on-missing", "wait")
        parties.until(lambda: parties.exchanges >= 3)  # the setup is over
        with asleep(parties, "silo-1"):  # so that no round ends meanwhile
            parties.until(lambda: parties.released(2))
            parties.kill("silo-3")
        assert len(parties.released(2)) == 1
        assert parties.stop("server") == 130
        parties.resume("--on-missing", "stop", "--patience", "10")
        assert parties.exit_code() == 2
        last = parties.last_line()
        assert last.startswith("error: server: stopped without ") and "silo-3 (" in last
        assert last.endswith("; nothing is lost, the run can be resumed")
        assert not parties.directory.finished
        parties.ends_without("silo-3", 20)
        assert 2 in check_without(parties, "silo-3")


def test_a_slow_silo_is_left_out_and_comes_back(tmp_path):
    with Parties(tmp_path, QUICK, THREE, {"method": {"rounds": 5}}) as parties:
        parties.start_all("--on-missing", "wait")
        parties.until(lambda: parties.released(1))
        with asleep(parties, "silo-2"):
            parties.stop("server")
            slept = len(parties.released(1))
            parties.resume("--on-missing", "exclude", "--patience", "30")
            parties.until(lambda: any("missing" in line for line in parties.directory.log.metrics()))
            assert len(parties.released(1)) == slept
        assert parties.exit_code() == 0
        rounds = check_without(parties, "silo-2")
        assert rounds and rounds[-1] < 5


class Wire:
    """Carries bytes between a silo's node and the server, until it is told otherwise."""

    def __init__(self, server):
        self.port, self._server = free_port(), server
        self._deaf, self._open = False, []
        self._listening = self._listen()

    def _listen(self):
        listening = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(listening,), daemon=True).start()
        return listening

    def _accept(self, listening):
        with suppress(OSError):
            while True:
                near, _ = listening.accept()
                try:
                    far = socket.create_connection(self._server)
                except OSError:
                    near.close()
                    continue
                self._open += [near, far]
                for one, other, back in ((near, far, False), (far, near, True)):
                    threading.Thread(target=self._pump, args=(one, other, back), daemon=True).start()

    def _pump(self, one, other, back):
        with suppress(OSError):
            while data := one.recv(1 << 16):
                if not (back and self._deaf):
                    other.sendall(data)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _hang_up(self):
        while self._open:
            self._open.pop().close()

    def lose_answers(self, seconds):
        """What the node says arrives, what it is told does not: a request that it takes is lost."""
        self._deaf, end = True, time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(1.0)
            for one in list(self._open):
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
        self._deaf = False

    def cut(self, seconds):
        """Nothing gets through, and nobody is there."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._hang_up()
        time.sleep(seconds)
        self._listening = self._listen()

    def close(self):
        self._listening.close()
        self._hang_up()


def test_a_network_that_fails_for_a_while_changes_nothing(tmp_path):
    with Parties(tmp_path, QUICK, {"method": {"rounds": 5}}) as parties:
        words = parties.commands["silo-2"]
        at = words.index("--superlink") + 1
        host, _, port = words[at].rpartition(":")
        wire = Wire((host, int(port)))
        words[at] = f"127.0.0.1:{wire.port}"
        try:
            parties.start_all()
            parties.until_said("server", "round 1/5")
            wire.lose_answers(12)
            wire.cut(15)
            assert parties.exit_code() == 0
        finally:
            wire.close()
        parties.check_simulated()
        parties.check_released_once(0, 1)


def test_a_silo_that_its_owner_keeps_out_is_told_apart_from_one_that_is_not_there(tmp_path):
    with Parties(tmp_path, QUICK, THREE) as parties:
        state = tmp_path / "silos" / "1"
        state.mkdir(parents=True, mode=0o700)
        (state / "policy.toml").write_text('allowed_methods = ["fedavg"]\n')
        parties.start("server", "--on-missing", "stop", "--patience", "40")
        parties.until_said("server", "they join")
        parties.until(lambda: "silo" in parties.said("server") and parties.directory.is_served)
        parties.start("silo-1")
        parties.until(lambda: _listens(parties))
        parties.start("silo-2")
        assert parties.exit_code("silo-2") == 2
        assert "policy.allowed_methods: this silo's owner allows fedavg" in parties.last_line("silo-2")
        assert parties.exit_code() == 2
        last = parties.last_line()
        assert "silo-2: refused by its owner, whose policy does not allow this experiment" in last
        assert "silo-3: is not there" in last and "fedavg" not in parties.said("server")


def _listens(parties):
    words = parties.commands["server"]
    host, _, port = words[words.index("--address") + 1].rpartition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
        return True
    return False
