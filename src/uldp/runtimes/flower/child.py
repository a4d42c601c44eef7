"""A program that was started here: watched, and stopped with everything that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from uldp.runs.files import reported

STOP_SECONDS: Final = 8.0


class Child:
    """A program that was started here, with everything that it starts."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path, folder: Path) -> None:
        self.log = log
        self.name = Path(command[0]).name
        with reported(log):
            handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        starter = [sys.executable, "-P", "-m", "uldp.runtimes.flower.launch", str(os.getpid())]
        with os.fdopen(handle, "ab") as out:
            self._process = subprocess.Popen(
                [*starter, *command],
                env=dict(environment),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> int | None:
        """The exit code, None while it runs."""
        return self._process.poll()

    def stop(self) -> None:
        """Ask it to end, then make it; what it started goes too, also what left the process group."""
        everybody = {pid: _began(pid) for pid in (self.pid, *descendants(self.pid))}
        if self.ended is None:
            _signal([self.pid], signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
        # Numbers are used again: who began at another time is somebody else.
        left = [pid for pid, began in everybody.items() if _began(pid) == began]
        left += [pid for pid in group(self.pid) if pid not in left]
        for number in (signal.SIGTERM, signal.SIGKILL):
            _signal([pid for pid in left if alive(pid)], number)
            end = time.monotonic() + STOP_SECONDS / 2
            while time.monotonic() < end and any(map(alive, left)):
                self._process.poll()
                time.sleep(0.05)

    def last_words(self, lines: int = 3) -> str:
        """The end of its log that says something."""
        with reported(self.log):
            text = self.log.read_text(errors="replace")
        said = [line.strip() for line in text.splitlines() if "ERROR" in line or "Error" in line or "error" in line]
        return " / ".join(said[-lines:]) or "its log says nothing"


def _stat(pid: int) -> tuple[str, int, int] | None:
    """(state, parent, session) of a process; None where there is no such process, or no /proc."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[1]), int(fields[3])


def _processes() -> Iterator[tuple[int, str, int, int]]:
    for entry in Path("/proc").glob("[0-9]*"):
        found = _stat(int(entry.name))
        if found is not None:
            yield int(entry.name), *found


def descendants(pid: int) -> list[int]:
    """All processes below ``pid``."""
    children: dict[int, list[int]] = {}
    for child, _, parent, _ in _processes():
        children.setdefault(parent, []).append(child)
    found, parents = [], [pid]
    while parents:
        below = children.get(parents.pop(), [])
        found += below
        parents += below
    return found


def group(session: int) -> list[int]:
    """All processes of the session that ``session`` began."""
    return [pid for pid, _, _, of in _processes() if of == session]


def alive(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    found = _stat(pid)
    return found is not None and found[0] != "Z"


def _began(pid: int) -> str:
    """When a process began, in the kernel's ticks; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
