"""A program that was started here: watched, and stopped with everything that it started.

``python -m uldp.runtimes.flower.child PID PROGRAM ...`` starts a program that ends when process PID, its parent, does.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from uldp.errors import ConfigError
from uldp.runs.files import report_disk_errors

STOP_SECONDS: Final = 8.0
IS_LINUX: Final = sys.platform == "linux"
_PR_SET_PDEATHSIG: Final = 1


def check_system() -> None:
    """Refuse another system than Linux: nothing there ends a program with its parent, nor finds its children."""
    if not IS_LINUX:
        raise ConfigError(
            f"federations run on Linux only, and this is {sys.platform}: elsewhere Flower's programs could outlive the "
            "server or silo that started them; `uldp run` simulates here",
            location="system",
            value=sys.platform,
        )


def wait_until(condition: Callable[[], bool], seconds: float, pause: float) -> bool:
    """Look every ``pause`` seconds until ``condition()`` holds; whether it does after at most ``seconds``."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(pause)
    return True


class Child:
    """A program that was started here, with everything that it starts."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path, folder: Path) -> None:
        self.log = log
        with report_disk_errors(log):
            handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        starter = [sys.executable, "-P", "-m", "uldp.runtimes.flower.child", str(os.getpid())]
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
        self.pid = self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code, None while it runs."""
        return self._process.poll()

    def stop(self) -> None:
        """Ask it to end, then make it; what it started goes too, also what left the process group."""
        everybody = {pid: _start_time(pid) for pid in (self.pid, *descendants(self.pid))}
        if self.exit_code is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
        # Numbers are used again: who began at another time is somebody else.
        left = [pid for pid, started in everybody.items() if _start_time(pid) == started]
        left += [pid for pid in group(self.pid) if pid not in left]
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in filter(alive, left):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
            wait_until(lambda: not any(map(alive, left)), STOP_SECONDS / 2, 0.05)

    def log_tail(self, lines: int = 3) -> str:
        """The end of its log that says something."""
        with report_disk_errors(self.log):
            text = self.log.read_text(errors="replace")
        said = [line.strip() for line in text.splitlines() if "ERROR" in line or "Error" in line or "error" in line]
        return " / ".join(said[-lines:]) or "its log says nothing"


_STATE, _PARENT, _SESSION, _STARTED = 0, 1, 3, 19
"""Where that is in /proc/PID/stat after the program's name; ``_STARTED`` is in the kernel's ticks."""


def _stat(pid: int) -> list[str]:
    """The fields of a process; none where there is no such process, or no /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _processes() -> Iterator[tuple[int, list[str]]]:
    for entry in Path("/proc").glob("[0-9]*"):
        if fields := _stat(int(entry.name)):
            yield int(entry.name), fields


def descendants(pid: int) -> list[int]:
    """All processes below ``pid``."""
    parents = {child: int(fields[_PARENT]) for child, fields in _processes()}
    found = [pid]
    for parent in found:  # which grows meanwhile
        found += [child for child in parents if parents[child] == parent]
    return found[1:]


def group(session: int) -> list[int]:
    """All processes of the session that ``session`` began."""
    return [pid for pid, fields in _processes() if int(fields[_SESSION]) == session]


def alive(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    fields = _stat(pid)
    return bool(fields) and fields[_STATE] != "Z"


def _start_time(pid: int) -> str:
    """When a process was started; empty if there is none."""
    return next(iter(_stat(pid)[_STARTED:]), "")


def main() -> None:
    """Ask Linux for a signal when the parent dies, then become the program. Elsewhere it is only started."""
    if IS_LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(sys.argv[1]):
            raise SystemExit("uldp: who started this has gone")
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
