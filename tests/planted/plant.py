"""Plants errors in a copy of the package and shows what catches each of them, with how many seeds.

``--control`` plants nothing, and counts how often what is right is refuted in the same settings and by the same tests.
A stopped run goes on from its ``--state``, where every seed is a line; other sources of the package begin anew.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.planted.errors import ERRORS, Planted

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "uldp"
AT_A_TIME = 50
"""Audits of one process; then it is the next error's turn."""
TESTS_AT_A_TIME = 10
"""The same of tests, which take longer."""


def planted_copy(error: Planted, folder: Path, *, control: bool) -> Path:
    """The package with the error in it."""
    copy = folder / "uldp"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    file = copy / error.file
    text = file.read_text()
    if text.count(error.old) != 1:
        raise SystemExit(f"{error.name}: {error.old!r} stands {text.count(error.old)} times in {error.file}")
    if not control:
        file.write_text(text.replace(error.old, error.new))
    return folder


def caught_by(error: Planted, seeds: Sequence[int] = (0,), *, control: bool = False) -> Iterator[tuple[int, list[str]]]:
    """For each seed what speaks against the error; nothing where it is not caught."""
    with tempfile.TemporaryDirectory(prefix="uldp-planted-") as folder:
        path = os.pathsep.join([str(planted_copy(error, Path(folder), control=control)), str(ROOT)])
        command = [sys.executable, "-m", "tests.planted.seeds", error.name, *map(str, seeds)]
        environment = {**os.environ, "PYTHONPATH": path}
        with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                found = json.loads(line)
                yield found["seed"], found["against"]


class State:
    """What is known already: a file of JSON lines."""

    def __init__(self, path: Path, control: bool) -> None:
        self._path, self._about = path, {"sources": _digest(), "control": control}
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        self._lines = [line for line in lines if self._about.items() <= line.items()]

    def of(self, error: Planted) -> list[dict[str, Any]]:
        return [line for line in self._lines if line["patch"] == _patch(error)]

    def missing(self, error: Planted, seeds: int) -> list[int]:
        return sorted(set(range(seeds)) - {line["seed"] for line in self.of(error)})

    def add(self, error: Planted, seed: int, against: list[str]) -> None:
        line = {**self._about, "error": error.name, "patch": _patch(error), "seed": seed, "against": against}
        self._lines.append(line)
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _digest() -> str:
    together = hashlib.sha256()
    for file in sorted(PACKAGE.rglob("*.py")):
        together.update(hashlib.sha256(file.read_bytes()).digest())
    return together.hexdigest()


def _patch(error: Planted) -> str:
    return hashlib.sha256(repr(error).encode()).hexdigest()


def row_of(error: Planted, known: Sequence[dict[str, Any]]) -> str:
    """A row of the table: the error, in how many seeds it was caught, and by what."""
    names = Counter(name for line in known for name in line["against"])
    caught = sum(bool(line["against"]) for line in known)
    by = "; ".join(f"{name} ({times})" if times < len(known) else name for name, times in names.most_common())
    return f"{error.name} | {caught} of {len(known)} | {by}"


def run(errors: Sequence[Planted], seeds: int, state: State, deadline: float, *, control: bool) -> None:
    """All errors in turn, some seeds each, until none is left or time is up."""
    while time.monotonic() < deadline:
        left = [(error, state.missing(error, seeds)) for error in errors]
        if not any(missing for _, missing in left):
            return
        for error, missing in left:
            if time.monotonic() > deadline:
                return
            if not missing:
                continue
            done = 0
            turn = missing[: TESTS_AT_A_TIME if error.test else AT_A_TIME]
            for seed, against in caught_by(error, turn, control=control):
                state.add(error, seed, against)
                done += 1
            if done == 0:
                raise SystemExit(f"{error.name}: its process ended before its first seed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1, help="of each error")
    parser.add_argument("--only", default="", help="errors whose name holds this")
    parser.add_argument("--control", action="store_true", help="plant nothing: how often is what is right refuted?")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop then; the same command goes on")
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "planted.jsonl")
    arguments = parser.parse_args()
    control = arguments.control
    errors = [error for error in ERRORS if arguments.only in error.name]
    if control:  # one of every setting and test
        errors = list({(error.method, repr(error.options), error.test): error for error in errors}.values())
    state = State(arguments.state, control)
    run(errors, arguments.seeds, state, time.monotonic() + 60 * arguments.minutes, control=control)
    wrong = 0
    for error in errors:
        known = state.of(error)
        caught = sum(bool(line["against"]) for line in known)
        wrong += caught if control else len(known) - caught
        named = error.test or f"{error.method} {dict(error.options)}"
        print(f"{named}: " * control + row_of(error, known), flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
