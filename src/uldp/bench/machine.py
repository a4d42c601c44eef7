"""What the machine can do, and what a piece of work takes of it."""

from __future__ import annotations

import gc
import resource
import time
from pathlib import Path
from types import TracebackType

import torch


def matrix_flops(size: int = 1024, seconds: float = 0.3) -> float:
    """Floating-point operations per second of a large float32 matrix product, at torch's number of threads."""
    a = torch.linspace(-1.0, 1.0, size * size).view(size, size)
    out = torch.empty(size, size)
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        torch.mm(a, a, out=out)
        best = min(best, time.perf_counter() - start)
    return 2.0 * size**3 / best


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
