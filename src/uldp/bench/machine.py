"""What the machine can do, and what a piece of work takes of it."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

from uldp.data.federation import SiloData
from uldp.errors import RunError
from uldp.rng import Streams

Case = dict[str, Any]
Say = Callable[[str], None]


def matrix_flops(sizes: Sequence[int] = (512, 1024, 2048), seconds: float = 0.1) -> float:
    """Floating-point operations per second of a float32 matrix product at torch's number of threads.

    The best of several square products, each for at least ``seconds``: where one size suits the BLAS library or the
    cache badly, another one counts.
    """
    return max(2.0 * size**3 / _fastest_product(size, seconds) for size in sizes)


def _fastest_product(size: int, seconds: float) -> float:
    a = torch.linspace(-1.0, 1.0, size * size).view(size, size)
    out = torch.empty(size, size)
    times = [timed(lambda: torch.mm(a, a, out=out)) for _ in range(3)]
    while sum(times) < seconds:
        times.append(timed(lambda: torch.mm(a, a, out=out)))
    return min(times)


def timed(work: Callable[[], object]) -> float:
    """Seconds of wall time."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Set torch's number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run_process(
    command: Sequence[str], location: str, environment: Mapping[str, str] | None = None, remedy: str = ""
) -> str:
    """What a new process prints; if it fails, one sentence with the last line of its error."""
    done = subprocess.run(command, env={**os.environ, **(environment or {})}, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise RunError(f"a process failed ({reason}){remedy}", location=location)
    return done.stdout


def thread_options() -> list[int]:
    """Numbers of threads that a baseline is tried with: one, and all that torch takes."""
    return sorted({1, torch.get_num_threads()})


def counted_threads(threads: int) -> str:
    """For people."""
    return f"{threads} thread{'s' if threads > 1 else ''}"


def random_silo(streams: Streams, users: int, records: int, shape: tuple[int, ...], classes: int) -> SiloData:
    """A silo of random records, the same number for every user, in the order of users."""
    generator = streams.child("data").generator()
    owners = np.repeat(np.arange(users), records)
    features = generator.standard_normal((len(owners), *shape), dtype=np.float32)
    return SiloData("0", features, generator.integers(classes, size=len(owners)), owners)


class PeakMemory:
    """The resident memory's peak during a ``with`` block.

    Linux can forget the process's former peak; elsewhere the peak since the start of the process is reported, and
    the growth is how far the block raised it.
    """

    peak_mb = 0.0
    growth_mb = 0.0

    @staticmethod
    def present_mb() -> float:
        """The peak up to now."""
        return _peak_mb(True)

    def __enter__(self) -> PeakMemory:
        gc.collect()
        self._resettable = _reset_peak()
        self._before = _peak_mb(self._resettable)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.peak_mb = _peak_mb(self._resettable)
        self.growth_mb = max(0.0, self.peak_mb - self._before)


def _reset_peak() -> bool:
    """Set the peak to the present use; False where the system does not offer that."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _peak_mb(resettable: bool) -> float:
    if resettable:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024.0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
