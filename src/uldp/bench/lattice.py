"""The cases of ``uldp bench protocol`` about ``lattice``: a silo's round, the server's, setup, bytes, memory.

Two silos; every user has records in both. The rows are a few made-up ones, clipped, over and over: nothing of the
protocol depends on their values. Beside it stand ``masked``, which shows record counts (measured), and those that hide
them: ``paillier`` and simple code for it. Their rounds of this size would take hours, so they are extrapolated from a
small one in the same run: a silo's time is proportional to users times parameters, the server's to parameters.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from uldp.aggregation.base import Aggregation
from uldp.aggregation.lattice import LatticeWeighting
from uldp.aggregation.masked import Masked
from uldp.bench.machine import Case, PeakMemory, Say, compare_sides, plural
from uldp.bench.parties import Parties, SetupExchange, plan_of
from uldp.bench.protocol_run import CLIP, ProtocolPhase, Run, Shape, Target
from uldp.bench.published import PublishedProtocol, sampled_run
from uldp.data.federation import IntArray
from uldp.rng import Secrets, Streams
from uldp.vectors import Rows, clip_rows

SILOS: Final = 2
#: What the trainer gives at a time: rows of at most so many bytes, of at most so many users.
_PORTION_BYTES: Final = 4 * 2**20
_PORTION_USERS: Final = 32
_SAMPLES: Final = 4


@dataclass(frozen=True)
class LatticeShape:
    """A federation, and how long one silo may take in a round."""

    dimension: int
    users: int
    target: Target | None = None

    @property
    def name(self) -> str:
        return f"lattice d={self.dimension} U={self.users}"


def _within(seconds: float, text: str) -> Target:
    return Target("silo", seconds, text, at_least=False)


SHAPES: Final = (
    LatticeShape(16, 10, Target("ratio", 1.0, "no slower")),
    LatticeShape(107, 100, _within(0.020, "a silo within 20 ms")),
    LatticeShape(107, 1000, _within(0.060, "a silo within 60 ms")),
    LatticeShape(107, 10000),
    LatticeShape(4000, 100, Target("ratio", 1000.0, "1000x")),
    LatticeShape(5012, 100),
    LatticeShape(5012, 1000, _within(0.150, "a silo within 150 ms")),
    LatticeShape(5012, 10000),
    LatticeShape(21840, 100),
    LatticeShape(21840, 1000),
    LatticeShape(21840, 10000),
    LatticeShape(100000, 100),
    LatticeShape(100000, 1000),
    LatticeShape(100000, 10000),
    LatticeShape(1000000, 100),
    LatticeShape(1000000, 1000, _within(10.0, "a silo within 10 s")),
    LatticeShape(1000000, 10000),
)


@dataclass(frozen=True)
class Reference:
    """What others take, from one small round: seconds of a silo per user and parameter, of the server per parameter."""

    silo: float
    server: float

    def round(self, shape: LatticeShape) -> float:
        """One silo and the server."""
        return self.silo * shape.users * shape.dimension + self.server * shape.dimension


@functools.cache
def references(shape: Shape) -> tuple[Reference, Reference]:
    """``paillier``, and simple code for it; measured once in a process."""
    run = Run(shape)
    run.setup()
    simple = PublishedProtocol(shape.key_bits, run.counts, shape.max_records)
    found = (run.round(1), sampled_run(simple, run.integers, run.naive_noise, _SAMPLES))
    powers = shape.silos * shape.users * shape.dimension
    paillier, naive = (
        Reference(times[ProtocolPhase.WEIGHTING] / powers, times[ProtocolPhase.DECRYPTION] / shape.dimension)
        for times in found
    )
    return paillier, naive


@dataclass(frozen=True)
class RoundCost:
    """One round: seconds of wall time in one silo and at the server, processor time and memory of the silo.

    ``products`` is a silo's time until the last row is added; after it come encryptions of zero, noise and masks.
    """

    silo: float
    products: float
    server: float
    processor: float
    growth_mb: float
    server_growth_mb: float
    update_bytes: int


class Measurement:
    """The parties of a shape under an aggregation."""

    def __init__(self, shape: LatticeShape, aggregation: Aggregation, weighting: str) -> None:
        # Simulated: the keys protect nobody here, and all cases shall have the same.
        secrets = Secrets.simulated_from_seed(0)
        settings: dict[str, Any] = {"clip": CLIP, "rounds": 50, "noise_multiplier": 5.0, "weighting": weighting}
        plan = plan_of(aggregation, shape.users, SILOS, shape.dimension, secrets, **settings)
        generator = Streams.from_seed(0).child("bench", shape.name).generator()
        counts = generator.integers(1, 11, (SILOS, shape.users))
        self.users, self._size = shape.users, max(1, min(_PORTION_USERS, _PORTION_BYTES // (4 * shape.dimension)))
        self._rows = clip_rows(generator.standard_normal((self._size, shape.dimension)), CLIP).astype(np.float32)
        self._parties: Parties[Any, Any] = Parties(plan, counts, secrets)
        self._added = 0.0

    def setup(self) -> list[SetupExchange]:
        return [self._parties.exchange(kind) for kind in self._parties.plan.setup]

    def _portions(self) -> Iterator[tuple[IntArray, Rows]]:
        for start in range(0, self.users, self._size):
            owners = np.arange(start, min(start + self._size, self.users))
            yield owners, self._rows[: len(owners)]
        self._added = time.perf_counter()

    def round(self, number: int) -> RoundCost:
        parties = self._parties
        request, names = parties.update_request(number), list(parties.silos)
        vectors, walls, products, processors = {}, [], [], []
        with PeakMemory() as silo:
            for index, name in enumerate(names):
                start, spent = time.perf_counter(), time.process_time()
                vectors[name] = parties.release(index, request, self._portions()).vector
                walls.append(time.perf_counter() - start)
                products.append(self._added - start)
                processors.append(time.process_time() - spent)
        with PeakMemory() as server:
            start = time.perf_counter()
            for name, vector in vectors.items():
                parties.server.check_vector(name, vector)
            parties.server.total(vectors)
            seconds = time.perf_counter() - start
        largest = max(len(vector) for vector in vectors.values())
        return RoundCost(min(walls), min(products), seconds, min(processors), silo.growth_mb, server.growth_mb, largest)


def lattice_case(shape: LatticeShape, small: Shape, workers: int, say: Say) -> Case:
    """One case. ``small`` is the round that others are extrapolated from."""
    if small.dimension * small.users > shape.dimension * shape.users:
        small = replace(small, dimension=shape.dimension, users=shape.users)
    say(f"{shape.name}: paillier and simple code, d={small.dimension} U={small.users}")
    paillier, naive = (reference.round(shape) for reference in references(small))
    say(f"{shape.name}: setup")
    ours = Measurement(shape, LatticeWeighting(workers=workers), "records")
    with PeakMemory() as kept:
        exchanges = ours.setup()
    say(f"{shape.name}: rounds")
    work = shape.users * shape.dimension
    rounds = [ours.round(number) for number in ((1,) if work > 10**8 else (1, 2, 3))]
    best = min(rounds, key=lambda one: one.silo)
    masked = Measurement(shape, Masked(), "uniform")
    masked.setup()
    beside = min((masked.round(number) for number in ((1,) if work > 10**9 else (1, 2))), key=lambda one: one.silo)
    case = compare_sides(shape.name, best.silo + best.server, paillier) | {
        "kind": "lattice",
        "slots": None,
        "extrapolated": ["paillier", "simple code"],
        "silo": best.silo,
        "silo_products": best.products,
        "silo_processor": best.processor,
        "server": best.server,
        "masked": beside.silo + beside.server,
        "simple": naive,
        "setup_silo": sum(exchange.silo for exchange in exchanges),
        "setup_server": sum(exchange.server for exchange in exchanges),
        "setup_to_silo": sum(exchange.to_silo for exchange in exchanges),
        "setup_from_silo": sum(exchange.from_silo for exchange in exchanges),
        "exchanges": [vars(exchange) for exchange in exchanges],
        "update_bytes": best.update_bytes,
        "memory_mb": max(one.growth_mb for one in rounds),
        "setup_memory_mb": kept.growth_mb,
        "server_memory_mb": max(one.server_growth_mb for one in rounds),
    }
    met = shape.target and shape.target.is_met(case)
    return case | {"target": shape.target and shape.target.text, "met": met, "note": _note(case, small, workers)}


def _note(case: Case, small: Shape, workers: int) -> str:
    return (
        f"one silo of {SILOS} and the server, {plural(workers, 'thread')}; the silo takes "
        f"{case['silo_processor']:.3g} s of processor time; memory grows by {case['setup_memory_mb']:.0f} MB in the "
        f"setup of all parties, by "
        f"{case['memory_mb']:.0f} MB in a silo's round and {case['server_memory_mb']:.0f} MB in the server's; the "
        f"baseline is paillier, extrapolated from d={small.dimension} U={small.users} with {small.key_bits} bits"
    )
