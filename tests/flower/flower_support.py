"""A federation of real processes for tests: the commands that people type, their logs, what must hold at the end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from uldp.experiment.config import Experiment
from uldp.runs.directory import RunDirectory
from uldp.runs.files import read_lines
from uldp.runtimes.flower import rehearsal
from uldp.runtimes.flower.child import alive, descendants
from uldp.runtimes.simulation import run

TREE = {
    "data": {"dataset": "synthetic", "users": 20, "silos": 2, "options": {"records": 200}},
    "method": {"name": "uldp-avg-w", "rounds": 3, "local_epochs": 1},
    "privacy": {"noise_multiplier": 5.0},
    "aggregation": {"name": "masked"},
    "run": {"threads": 1},
}
QUICK = {"method": {"name": "uldp-avg", "rounds": 2}, "aggregation": {"name": "plain"}}
"""No setup but the handshake: an exchange over Flower takes seconds."""
LONG = 300.0
"""Seconds that nothing here needs, however busy the machine is."""


def tree_of(*sections):
    """``TREE`` with sections merged into it."""
    tree = {name: dict(section) for name, section in TREE.items()}
    for further in sections:
        for name, section in further.items():
            tree[name] = {**tree.get(name, {}), **section}
    return tree


def below(pid, program):
    """The processes below ``pid`` that run ``program``."""
    found = []
    for child in descendants(pid):
        try:
            words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.endswith(program.encode()) for word in words[:3]):
            found.append(child)
    return found


def about(folder):
    """All processes that work in ``folder``: it stands among their words, or is Flower's home."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words, home = ((entry / name).read_bytes().split(b"\0") for name in ("cmdline", "environ"))
        except OSError:
            continue
        home = [word for word in home if word.startswith(b"FLWR_HOME=")]
        if int(entry.name) != os.getpid() and any(f"{folder}/".encode() in word for word in [*words, *home]):
            found[int(entry.name)] = b" ".join(words).decode(errors="replace")
    return {pid: words for pid, words in found.items() if alive(pid)}


@contextmanager
def asleep(parties, name):
    """A party's own process stands still; its node does not."""
    pid = parties.running[name].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class Parties:
    """The commands ``uldp serve`` and ``uldp join`` of one experiment as processes.

    When the block ends all are stopped; then no log may hold a traceback, and no process may be left.
    """

    def __init__(self, folder, *sections, experiment=None):
        self.folder = folder
        self.experiment = experiment or Experiment.from_tree(tree_of(*sections), folder)
        given = self.experiment.data.silos
        self.silos = tuple(f"silo-{n}" for n in range(1, given + 1)) if isinstance(given, int) else ("a", "b")
        self.file = rehearsal.write_experiment(self.experiment, self.silos, folder)
        self.commands = rehearsal.commands_of(self.file, self.silos, folder)
        self.running = {}
        self.logs = set()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        for name in list(self.running):
            self.stop(name)
        if kind is None:
            said = {log.name: log.read_text(errors="replace") for log in self.logs}
            assert {name: text for name, text in said.items() if "Traceback" in text} == {}
            assert about(self.folder) == {}

    @property
    def directory(self):
        words = self.commands["server"]
        return RunDirectory.open(words[words.index("--out") + 1])

    @property
    def exchanges(self):
        words = self.commands["server"]
        traffic = Path(words[words.index("--out") + 1]) / "private" / "traffic.jsonl"
        return len(traffic.read_text().splitlines()) if traffic.exists() else 0

    def start(self, name, *options, command=None):
        """Start a party: its own command, or another, with further options."""
        log = f"{name}-{len(self.logs)}"
        self.running[name] = rehearsal.start_party(log, [*(command or self.commands[name]), *options], self.folder)
        self.logs.add(self.running[name].log)

    def start_all(self, *options):
        """Start everybody; the options are the server's."""
        for name in self.commands:
            self.start(name, *(options if name == "server" else ()))

    def resume(self, *options):
        """Start the server again, with the options of before and these."""
        words = list(self.commands["server"])
        at = words.index("--out")
        run_directory = words[at + 1]
        del words[at : at + 2], words[1]
        self.start("server", *options, command=["serve", "--resume", run_directory, *words[1:]])

    def stop(self, name):
        """End a party politely, and if need be otherwise; its exit code."""
        party = self.running.pop(name)
        party.stop()
        return party.exit_code

    def kill(self, name):
        """End a party as a power cut does; what it started goes with it."""
        party = self.running.pop(name)
        started = descendants(party.pid)
        os.kill(party.pid, signal.SIGKILL)
        self.until(lambda: not any(map(alive, started)), 30)
        party.stop()

    def said(self, name):
        return self.running[name].log.read_text(errors="replace")

    def until(self, condition, seconds=LONG):
        """Wait until ``condition()`` holds; its value."""
        end = time.monotonic() + seconds
        while not (found := condition()):
            logs = {name: self.said(name)[-1500:] for name in self.running}
            assert time.monotonic() < end, logs
            time.sleep(0.1)
        return found

    def until_said(self, name, text, seconds=LONG):
        self.until(lambda: text in self.said(name), seconds)

    def exit_code(self, name="server", seconds=LONG):
        """Wait for a party's end; its exit code."""
        self.until(lambda: self.running[name].exit_code is not None, seconds)
        return self.running[name].exit_code

    def last_line(self, name="server"):
        return self.said(name).strip().splitlines()[-1]

    def ends_without(self, silo, seconds):
        """Resume the run such that it does without ``silo`` alone; on a slow machine others seem to be away too, and
        the run stops and is resumed with more patience."""
        for _ in range(4):
            self.resume("--on-missing", "exclude", "--patience", str(seconds))
            if self.exit_code() == 0:
                return
            assert f"{silo}: " in self.last_line() and "are left, and a round needs" in self.last_line()
            self.stop("server")
            seconds *= 2
        raise AssertionError(self.last_line())

    def released(self, number):
        """(round, answer) of all that left a silo: its own ledger is written before."""
        lines = read_lines(self.folder / "silos" / str(number) / "rehearsal-ledger.jsonl")
        return [(line["round"], line["answer"]) for line in lines if line["answer"]]

    def check_released_once(self, *numbers):
        """Every round one vector at most."""
        for number in numbers:
            rounds = [round_ for round_, _ in self.released(number)]
            assert rounds == sorted(set(rounds))

    def check_whole(self):
        """Every round once, and nothing half written."""
        directory, rounds = self.directory, list(range(1, self.experiment.method.rounds + 1))
        assert [entry.round for entry in directory.log.ledger_entries()] == rounds
        assert [line["round"] for line in directory.log.metrics()] == rounds
        assert json.loads((directory.path / "result.json").read_text())["rounds"] == len(rounds)
        assert not list(directory.path.rglob("*.partial")) and not list(directory.path.glob(".*"))

    def check_simulated(self):
        """The run is whole, and its model is the simulation's."""
        self.check_whole()
        assert np.array_equal(self.directory.load_model(), run(self.experiment).model)


def with_option(command, option, value):
    """The command with another value for an option that it has."""
    at = command.index(option) + 1
    return [*command[:at], str(value), *command[at + 1 :]]


def copied_keys(command, folder):
    """The command with a copy of its keys: they answer from one folder of state only, and the copy knows of none."""
    shutil.copytree(command[command.index("--keys") + 1], folder)
    return with_option(command, "--keys", folder)
