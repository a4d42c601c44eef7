"""Silos whose states travel with the requests, as on Flower's simulation engine. The slow ones start the engine."""

import contextlib
import ipaddress
import json
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tests.federation.federation_support import experiment

from uldp.cli.app import app
from uldp.errors import ConfigError, RunError
from uldp.experiment.config import Experiment
from uldp.runs.directory import RunDirectory
from uldp.runtimes.flower import simulation_engine as engine
from uldp.runtimes.flower.child import alive, descendants
from uldp.runtimes.flower.simulation import SiloRequest, SilosOnRay, check_simulation
from uldp.runtimes.recording import Silos
from uldp.runtimes.simulation import run

SMALL_KEY = {"name": "paillier", "key_bits": 512, "slots": 1, "max_records": 30}
FEW = {"name": "uldp-avg-w", "rounds": 3, "local_epochs": 1}
DATA = {"dataset": "synthetic", "users": 8, "silos": 3, "options": {"records": 90}}
CASES = {
    "masked": {},
    "paillier, private sampling": {
        "aggregation": SMALL_KEY,
        "method": {**FEW, "sample_rate": 0.5, "sampling": "private"},
    },
    "a method that reads all silos": {
        "method": {"name": "uldp-group-max", "rounds": 2, "record_rate": 0.1, "local_steps": 2, "batch_size": 8},
    },
    "shuffled": {
        "method": {"name": "ldp-fedavg", "rounds": 2},
        "aggregation": {"name": "shuffled"},
        "privacy": {"delta": 1e-5},
    },
}


class Workers(Silos):
    """What the engine does, without it: any worker answers, and ``forget`` says when one has forgotten its session."""

    def __init__(self, forget):
        self._forget, self._left_out = forget, 0

    def start(self, prepared, plan, secrets):
        self._tree = json.dumps(prepared.experiment.to_tree()), str(prepared.experiment.base)
        self._names = plan.silos
        self._states = dict.fromkeys(plan.silos, b"")

    def responses(self, requests):
        for name, request in requests.items():
            if self._forget(name):
                engine.SESSIONS.clear()
            found = engine.response_of(*self._tree, self._names.index(name), SiloRequest(request, self._states[name]))
            self._states[name] = found.state
            self._left_out += found.left_out
            yield name, found.reply

    def states(self, store):
        return dict(self._states)

    def restore(self, states, store):
        self._states = dict(states)

    @property
    def left_out(self):
        return self._left_out


@pytest.fixture(autouse=True)
def forgotten():
    engine.SESSIONS.clear()
    yield
    engine.SESSIONS.clear()


def built(case):
    base = {"data": DATA, "model": {"name": "logistic"}, "method": FEW, "privacy": {"noise_multiplier": 5.0}}
    return Experiment.from_tree({**base, "run": {"threads": 1}, **CASES[case]})


@pytest.mark.parametrize("forget", [lambda name: False, lambda name: True, lambda name: name == "silo-2"])
@pytest.mark.parametrize("case", CASES)
def test_whoever_answers_the_model_is_that_of_one_process(case, forget):
    found, expected = run(built(case), silos=Workers(forget)), run(built(case))
    assert found.model.tobytes() == expected.model.tobytes()
    assert (found.reports[-1].metrics, found.epsilon) == (expected.reports[-1].metrics, expected.epsilon)


def test_a_worker_with_a_later_session_goes_back_to_the_state_that_came_with_the_question():
    """A response that was lost is asked for again, with the state of before: the same bytes come back."""
    seen = []

    class Twice(Workers):
        def responses(self, requests):
            before = dict(self._states)
            first = dict(super().responses(requests))
            self._states = before
            for name, reply in super().responses(requests):
                seen.append(reply == first[name])
                yield name, reply

    expected = run(experiment())
    assert run(experiment(), silos=Twice(lambda name: False)).model.tobytes() == expected.model.tobytes()
    assert seen and all(seen)


def test_a_run_that_began_there_is_resumed_here(tmp_path, monkeypatch):
    expected = run(experiment())

    class Dies(Workers):
        def responses(self, requests):
            if len(self._done) == 6:
                raise KeyboardInterrupt
            self._done.append(1)
            yield from super().responses(requests)

    silos = Dies(lambda name: False)
    silos._done = []
    with pytest.raises(KeyboardInterrupt):
        run(experiment(), RunDirectory.create(tmp_path / "r", experiment()), silos=silos)
    directory = RunDirectory.open(tmp_path / "r")
    assert 0 < len(directory.log.ledger_entries()) < 3
    assert run(directory.experiment(), directory).model.tobytes() == expected.model.tobytes()


def test_a_run_that_was_stopped_before_anybody_answered_is_resumed_here(tmp_path):
    class Never(Workers):
        def responses(self, requests):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(experiment(), RunDirectory.create(tmp_path / "r", experiment()), silos=Never(lambda name: False))
    directory = RunDirectory.open(tmp_path / "r")
    assert run(directory.experiment(), directory).model.tobytes() == run(experiment()).model.tobytes()


def test_secrets_of_a_real_run_do_not_travel(monkeypatch):
    monkeypatch.setattr("uldp.runtimes.flower.simulation.check_installed", lambda: None)
    monkeypatch.setattr("uldp.runtimes.flower.simulation.find_spec", lambda name: object())
    with pytest.raises(ConfigError, match=r"run\.secrets: secrets of a real run"):
        check_simulation(experiment(run={"secrets": "os"}))


def test_without_ray_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("uldp.runtimes.flower.simulation.check_installed", lambda: None)
    monkeypatch.setattr("uldp.runtimes.flower.simulation.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install -c constraints.txt '\.\[flower-sim\]'"):
        check_simulation(experiment())


def test_an_unknown_runtime_is_named_with_the_known_ones(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(app, ["run", "--dataset", "synthetic", "--runtime", "spark"])
    assert found.exit_code == 2 and "--runtime: one of local, flower-sim, not 'spark'" in found.stderr
    assert not list(Path(tmp_path).iterdir())


def listening(pid):
    """The addresses at which a process and all below it listen; loopback of both kinds as 127.0.0.1."""
    inodes = set()
    for each in (pid, *descendants(pid)):
        with contextlib.suppress(OSError):
            links = [os.readlink(link) for link in Path(f"/proc/{each}/fd").iterdir()]
            inodes |= {link[8:-1] for link in links if link.startswith("socket:[")}
    found = set()
    for file, size in (("tcp", 4), ("tcp6", 16)):
        for line in Path(f"/proc/net/{file}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                data = bytes.fromhex(fields[1].partition(":")[0])
                host = ipaddress.ip_address(b"".join(data[at : at + 4][::-1] for at in range(0, size, 4)))
                mapped = getattr(host, "ipv4_mapped", None) or host
                found.add("127.0.0.1" if mapped.is_loopback else str(host))
    return found


def ray_here():
    pytest.importorskip("flwr", reason="Flower is not installed")
    pytest.importorskip("ray", reason="Ray is not installed: make test-sim")


@pytest.mark.slow
def test_flowers_engine_ends_with_the_model_of_one_process(tmp_path):
    ray_here()
    ports = set()
    with SilosOnRay(tmp_path / "engine.log") as silos:
        directory = RunDirectory.create(tmp_path / "r", experiment())
        found = run(experiment(), directory, lambda report: ports.update(listening(silos.engine.pid)), silos=silos)
    assert ports and all(host.startswith("127.") for host in ports), ports
    assert found.model.tobytes() == run(experiment()).model.tobytes()
    assert not descendants(os.getpid())


@pytest.mark.slow
def test_an_engine_that_is_killed_is_one_sentence_and_the_run_goes_on_elsewhere(tmp_path):
    ray_here()
    long = experiment(method={"rounds": 40})
    directory = RunDirectory.create(tmp_path / "r", long)

    def kill():
        while len(directory.log.ledger_entries()) < 2:
            time.sleep(0.2)
        os.kill(silos.engine.pid, signal.SIGKILL)

    with SilosOnRay(tmp_path / "engine.log") as silos:
        threading.Thread(target=kill, daemon=True).start()
        with pytest.raises(RunError, match="Flower's engine has ended"):
            run(long, directory, silos=silos)
        below = [pid for pid in descendants(os.getpid()) if alive(pid)]
    assert not [pid for pid in below if alive(pid)]
    found = run(long, RunDirectory.open(tmp_path / "r"))
    assert np.array_equal(found.model, run(long).model)
