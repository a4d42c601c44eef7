"""A share of the nasty inputs; ``make nasty`` runs all of them."""

import subprocess
import sys
from pathlib import Path

from nasty import sample
from nasty_cases import CASES

EVERY = 20
COMMANDS = {
    *("new", "plan", "run", "resume", "compare", "predict", "export", "epsilon", "sigma", "local", "total", "data"),
    *("published", "status", "trail", "backup", "restore", "link"),
    *("attack", "bench", "keys", "doctor", "serve", "join", "leave", "rehearse", "methods", "datasets", "demo"),
}


def test_some_nasty_inputs_are_refused_in_one_sentence_and_leave_nothing_behind():
    # A process of its own: it forks, and this one may have threads.
    command = [sys.executable, str(Path(__file__).with_name("nasty.py")), str(EVERY)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(sample(EVERY))} refused as they should, 0 failed" in done.stdout


def test_there_are_nasty_inputs_for_every_command():
    assert len(CASES) >= 200
    assert {case.arguments[0] for case in CASES} >= COMMANDS
    assert len({(case.arguments, tuple(case.files.items())) for case in CASES}) == len(CASES)
