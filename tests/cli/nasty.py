"""Runs nasty inputs through the command line, each in a process and a fresh folder of its own.

``python tests/cli/nasty.py`` runs all of them (``make nasty``), with a number n every n-th, and with words those whose
command line contains one of them. What must hold for each: exit code 2, one sentence on stderr (one line, no
traceback, no value of a record), nothing left behind in the folder, within the case's seconds and MEMORY bytes.

The processes are forks of one that has imported everything: a child starts in milliseconds, and is as much a process
of its own as one from the shell.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from nasty_cases import CASES, EXPERIMENT, FOREIGN, MARK, TABLE, Case

MEMORY = 4 << 30
"""Bytes of address space."""


@dataclass(frozen=True)
class Ended:
    """How a command line ended."""

    code: int
    out: str
    err: str
    seconds: float


def in_child(arguments: Sequence[str], folder: Path, seconds: float) -> Ended:
    """Run ``uldp ARGUMENTS`` in ``folder``."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if not child:
            _become_the_command(arguments, folder, out.fileno(), err.fileno())
        code = _wait(child, began + seconds)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return Ended(code, texts[0], texts[1], time.monotonic() - began)


def _become_the_command(arguments: Sequence[str], folder: Path, out: int, err: int) -> None:
    """The child's part: as a shell would start it. It never returns."""
    code = 70
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.chdir(folder)
        sys.argv = ["uldp", *arguments]
        code = _exit_code()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _exit_code() -> int:
    """What the interpreter would exit with."""
    from uldp.cli import main

    try:
        main()
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _wait(child: int, deadline: float) -> int:
    """The exit code, negative for a signal; a child that takes too long is killed with all that it started."""
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return -signal.SIGKILL
        time.sleep(0.005)


@contextlib.contextmanager
def template() -> Iterator[Path]:
    """A folder with an experiment, its tables, modules of somebody's own and a finished run."""
    with tempfile.TemporaryDirectory(prefix="uldp-nasty-") as made:
        folder = Path(made) / "template"
        folder.mkdir()
        (folder / "e.toml").write_text(EXPERIMENT)
        (folder / "foreign.py").write_text(FOREIGN)
        for name in ("a.csv", "b.csv", "t.csv"):
            (folder / name).write_text(TABLE)
        _warm_up()
        for command in ("run e.toml --out run", "keys silo a --out keys", "keys certificates --out keys --host h"):
            ended = in_child(command.split(), folder, 120.0)
            if ended.code:
                raise SystemExit(f"uldp {command} failed:\n{ended.err}")
        yield folder


def _warm_up() -> None:
    """Import what commands import, so that no child has to."""
    import matplotlib.pyplot
    import pandas
    import pyarrow.parquet
    import torch

    import uldp.bench.protocol
    import uldp.cli.app
    import uldp.experiment.parties
    import uldp.learners.torch
    import uldp.reports.figures
    import uldp.runtimes.flower.federation
    import uldp.runtimes.flower.rehearsal
    import uldp.runtimes.simulation  # noqa: F401

    assert matplotlib.pyplot and pandas and pyarrow.parquet and torch
    os.environ.pop("ULDP_DATA", None)


def contents(folder: Path) -> Mapping[str, tuple[int, int]]:
    """Every file and folder, with its mode and size."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if "__pycache__" not in path.parts:
            about = path.lstat()
            found[str(path.relative_to(folder))] = (about.st_mode, 0 if path.is_dir() else about.st_size)
    return found


def judge(case: Case, prepared: Path) -> str:
    """What is wrong with how the command line ended; empty if nothing is."""
    with tempfile.TemporaryDirectory(dir=prepared.parent) as made:
        folder = Path(made) / "work"
        shutil.copytree(prepared, folder)
        for name, content in case.files.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
        before = contents(folder)
        ended = in_child(case.arguments, folder, case.seconds)
        return "; ".join(_wrong(case, ended, before, contents(folder)))


def _wrong(
    case: Case, ended: Ended, before: Mapping[str, tuple[int, int]], after: Mapping[str, tuple[int, int]]
) -> Iterator[str]:
    if ended.code != 2:
        how = f"killed after {ended.seconds:.0f} s" if ended.code == -signal.SIGKILL else f"exit code {ended.code}"
        yield how
    lines = ended.err.strip().splitlines()
    if len(lines) != 1:
        yield f"{len(lines)} lines on stderr: {' | '.join(lines[-3:])[:300]}"
    elif len(lines[0]) > 1500:
        yield f"a sentence of {len(lines[0])} characters"
    if "Traceback" in ended.err + ended.out:
        yield "a traceback"
    if MARK in ended.err + ended.out:
        yield "a value of a record"
    for part in case.says:
        if part not in ended.err:
            yield f"does not say {part!r}: {ended.err.strip()[:300]}"
    if "--json" in case.arguments and ended.code == 2:
        try:
            json.loads(ended.out)["error"]["message"]
        except (ValueError, KeyError, TypeError):
            yield "no JSON document of the error"
    if changed := sorted(set(before.items()) ^ set(after.items())):
        yield f"left behind: {', '.join(sorted({name for name, _ in changed}))[:200]}"


def sample(step: int) -> Sequence[Case]:
    """Every ``step``-th of the cases that take no longer than usual."""
    return [case for case in CASES if case.seconds == Case.seconds][::step]


def main(words: Sequence[str]) -> int:
    """Run all cases, every n-th, or those with one of the words, and say what went wrong."""
    chosen: Sequence[Case] = [case for case in CASES if not words or any(word in str(case) for word in words)]
    if words and words[0].isdigit():
        chosen = sample(int(words[0]))
    began, slowest, failed = time.monotonic(), 0.0, 0
    with template() as prepared:
        for case in chosen:
            start = time.monotonic()
            wrong = judge(case, prepared)
            slowest = max(slowest, time.monotonic() - start)
            if wrong:
                failed += 1
                print(f"FAILED {case}\n       {wrong}", flush=True)
    commands = len({case.arguments[0] for case in chosen})
    print(
        f"{len(chosen)} nasty inputs to {commands} commands: {len(chosen) - failed} refused as they should, "
        f"{failed} failed; {time.monotonic() - began:.0f} s, the slowest {slowest:.1f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
