"""What the machine can do, what a piece of work takes of it, and what all benchmarks share."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from uldp.data.federation import SiloData, Task
from uldp.errors import ConfigError, RunError
from uldp.rng import Streams
from uldp.vectors import Vector

if TYPE_CHECKING:
    from uldp.learners.torch import TorchLearner

Case = dict[str, Any]
Say = Callable[[str], None]
Work = TypeVar("Work")


def silent(text: str) -> None:
    """Say nothing about the progress."""


def check_names(names: Sequence[str] | None, known: Collection[str]) -> None:
    """Refuse cases that do not exist."""
    for name in names or ():
        if name not in known:
            raise ConfigError(f"unknown case {name!r}. Known cases: {'; '.join(known)}", location="--case", value=name)


def compare_sides(name: str, ours: float, baseline: float, unit: str = "s") -> Case:
    """The fields that every case of two sides has."""
    return {"name": name, "ours": ours, "baseline": baseline, "ratio": baseline / ours, "unit": unit}


def matrix_flops(sizes: Sequence[int] = (512, 1024, 2048), seconds: float = 0.1) -> float:
    """Floating-point operations per second of a float32 matrix product at torch's number of threads.

    The best of several square products, each for at least ``seconds``: where one size suits the BLAS library or the
    cache badly, another one counts.
    """
    return max(2.0 * size**3 / _fastest_product(size, seconds) for size in sizes)


def _fastest_product(size: int, seconds: float) -> float:
    import torch

    a, out = torch.linspace(-1.0, 1.0, size * size).view(size, size), torch.empty(size, size)
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        times.append(time_call(lambda: torch.mm(a, a, out=out)))
    return min(times)


def time_call(work: Callable[[], object]) -> float:
    """Seconds of wall time."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


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
    import torch

    return sorted({1, torch.get_num_threads()})


def plural(number: int, what: str) -> str:
    """For people.

    >>> plural(1, "thread"), plural(2, "thread")
    ('1 thread', '2 threads')
    """
    return f"{number} {what}{'s' if number > 1 else ''}"


@dataclass(frozen=True)
class TrainingJob(Generic[Work]):
    """Work to be done by both sides: one silo of random records, in the order of users, and a model of the zoo."""

    work: Work
    data: SiloData
    learner: TorchLearner
    x: Vector
    streams: Streams

    @classmethod
    def random(
        cls,
        name: str,
        work: Work,
        size: tuple[int, int],
        shape: tuple[int, ...],
        task: Task,
        model: str,
        options: Mapping[str, Any],
        threads: int | None = None,
    ) -> TrainingJob[Work]:
        """``size`` says how many users there are, and how many records each of them has."""
        from uldp.learners.models import build_model
        from uldp.learners.torch import TorchLearner

        streams = Streams.from_seed(0).child("bench", name)
        generator = streams.child("data").generator()
        owners = np.repeat(np.arange(size[0]), size[1])
        features = generator.standard_normal((len(owners), *shape), dtype=np.float32)
        data = SiloData("0", features, generator.integers(task.classes, size=len(owners)), owners)
        learner = TorchLearner(build_model(model, shape, task, dict(options)), task, threads=threads)
        return cls(work, data, learner, learner.initial(streams), streams)


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

    def __exit__(self, *_: object) -> None:
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
