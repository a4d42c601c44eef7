"""``uldp bench srr``: perturbing all weights of a model, ours and a loop over weights, same run, one core.

The model is the largest of SRR-FL, 5,611,878 weights, with the published range, step and groups. The loop is careful
plain Python with the same law: nearest value, an exact draw from the system's secure source, bisection over the
groups, the value of that rank. The second loop lays out all outputs' probabilities for each weight and lets numpy
draw, as simple code does. Both are timed on a sample of the weights and scaled; the cases say so.
"""

from __future__ import annotations

import secrets
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np

from uldp.bench.machine import Case, Say, check_names, compare_sides, silent, time_call
from uldp.mechanisms.grid import rank_of
from uldp.mechanisms.local_registry import LOCAL_MECHANISMS, local_mechanism
from uldp.mechanisms.staircase import StaircaseResponse
from uldp.rng import Secrets, SecretStream, Streams
from uldp.vectors import Vector

WEIGHTS: Final = 5_611_878
EPSILON: Final = 3.0

LOOP: Final = "srr, loop over weights"
ROWS: Final = "srr, loop over rows of probabilities"
BYTES: Final = "srr, random bytes"


@dataclass(frozen=True)
class SrrSize:
    """How many weights are perturbed by us, by the two loops, and how often."""

    weights: int = WEIGHTS
    loop: int = 50_000
    rows: int = 1_000
    repeats: int = 7


@dataclass(frozen=True)
class _SrrBench:
    size: SrrSize
    weights: Vector
    stream: SecretStream

    def times(self, name: str, baseline: Callable[[], object]) -> tuple[float, float]:
        """The best times of the mechanism and of the baseline, which run in turn: other work slows both alike."""
        mechanism = local_mechanism(name, epsilon=EPSILON)
        runs = [
            (time_call(lambda: mechanism.perturb(self.weights, self.stream)), time_call(baseline))
            for _ in range(self.size.repeats)
        ]
        return min(ours for ours, _ in runs), min(theirs for _, theirs in runs)


def case_names() -> list[str]:
    return [LOOP, ROWS, BYTES, *(name for name in LOCAL_MECHANISMS if name != StaircaseResponse.name)]


def run_cases(names: Sequence[str] | None = None, say: Say = silent, size: SrrSize | None = None) -> list[Case]:
    """Measure the named cases (all by default)."""
    check_names(names, case_names())
    size = size or SrrSize()
    generator = Streams.from_seed(0).child("bench", "srr").generator()
    weights = generator.uniform(-0.08, 0.08, size.weights)  # a few beyond the range, which are clipped
    bench = _SrrBench(size, weights, Secrets.from_os().child("bench").stream())
    cases = []
    for name in case_names():
        if names is None or name in names:
            say(f"{name}: measuring")
            cases.append(_compare_with_loop(bench, name) if name in (LOOP, ROWS) else _compare_with_bytes(bench, name))
    return cases


def _compare_with_loop(bench: _SrrBench, name: str) -> Case:
    loop, count = (run_loop, bench.size.loop) if name == LOOP else (run_rows, bench.size.rows)
    mechanism, sample = StaircaseResponse(epsilon=EPSILON), bench.weights[:count].tolist()
    ours, part = bench.times(mechanism.name, lambda: loop(mechanism, sample))
    baseline = part * len(bench.weights) / len(sample)
    note = f"the loop was timed on {len(sample):,} weights and scaled by their number"
    met = baseline / ours >= 100 and ours <= 0.3
    return _case(bench, name, ours, baseline, note, "100x, within 0.3 s", met) | {"extrapolated": ["baseline"]}


def _compare_with_bytes(bench: _SrrBench, name: str) -> Case:
    mechanism = StaircaseResponse.name if name == BYTES else name
    ours, baseline = bench.times(mechanism, lambda: bench.stream.words(len(bench.weights)))
    note = "the ratio is our time over that of drawing 8 random bytes for each weight"
    ratio = ours / baseline
    target, met = ("at most 30x", ratio <= 30) if name == BYTES else ("", None)
    return _case(bench, name, ours, baseline, note, target, met) | {"ratio": ratio}


def _case(bench: _SrrBench, name: str, ours: float, baseline: float, note: str, target: str, met: bool | None) -> Case:
    count = len(bench.weights)
    return compare_sides(name, ours, baseline) | {
        "target": target,
        "met": met,
        "extrapolated": [],
        "weights": count,
        "ns_per_weight": 1e9 * ours / count,
        "baseline_ns_per_weight": 1e9 * baseline / count,
        "note": f"{count:,} weights, epsilon {EPSILON:g}, one core, best of {bench.size.repeats} runs in turn; {note}",
    }


def run_loop(mechanism: StaircaseResponse, weights: Sequence[float]) -> list[float]:
    """One weight after another in plain Python, with the same integer masses."""
    grid, law = mechanism.grid, mechanism.law
    last = grid.size - 1
    ends = list(accumulate(size * mass for size, mass in zip(law.sizes, law.masses, strict=True)))
    first_ranks = [0, *accumulate(law.sizes)]
    outputs = []
    for weight in weights:
        index = min(max(round(weight * grid.scale) - grid.first, 0), last)
        draw = secrets.randbelow(law.total)
        group = bisect_right(ends, draw)
        rank = first_ranks[group] + (draw - (ends[group - 1] if group else 0)) // law.masses[group]
        if rank <= 2 * min(index, last - index):
            location = index - (rank + 1) // 2 if rank % 2 else index + rank // 2
        else:
            location = rank if 2 * index <= last else last - rank
        outputs.append((grid.first + location) / grid.scale)
    return outputs


def run_rows(mechanism: StaircaseResponse, weights: Sequence[float]) -> list[float]:
    """For each weight the probabilities of all outputs, and one draw of numpy's from them."""
    grid = mechanism.grid
    values, every = grid.values(), np.arange(grid.size, dtype=np.int32)
    by_rank = mechanism.masses() / mechanism.total
    generator = np.random.default_rng()
    outputs = []
    for weight in weights:
        index = np.full(1, min(max(round(weight * grid.scale) - grid.first, 0), grid.size - 1), dtype=np.int32)
        outputs.append(float(generator.choice(values, p=by_rank[rank_of(index, every, grid.size)])))
    return outputs
