"""``uldp bench protocol``: private weighting (ULDP-FL, Protocol 1) in ours and in simple code, same run, wall time.

Both machines of the aggregation are driven directly, with made-up clipped rows and without training, so the time is the
protocol's alone. Three silos; every user has records in every silo. All parties share one core unless ``workers`` says
otherwise, and times of silos are added up. Simple code is :mod:`uldp.bench.published`. Where its round would take
minutes it is extrapolated from the mean times of its operations, and the case says so.

A round is what all silos do to their rows plus what the server does to the responses. Without sub-sampling we encrypt
and raise weights once, at setup; simple code multiplies by the coefficients in every round.

The cases of ``lattice`` are in :mod:`uldp.bench.lattice`.

Two kinds of cases have no simple code to compare with. Those about packed ciphertexts compare ours with ours, one
parameter in a ciphertext. Those about oblivious transfer compare with an encryption, which is paid anyway.

``slots`` of a case says how many parameters share a ciphertext, None where no update is sent.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np

from uldp.aggregation.paillier import SECURE_BITS
from uldp.aggregation.paillier_silo import _residue_table
from uldp.bench.lattice import SHAPES as LATTICE_SHAPES
from uldp.bench.lattice import lattice_case
from uldp.bench.machine import Case, PeakMemory, Say, check_names, compare_sides, plural, run_process, silent
from uldp.bench.protocol_run import ROUND, SETUP, ProtocolPhase, Run, Shape, Target, Times
from uldp.bench.published import PublishedProtocol, full_run, load_phe, sampled_run
from uldp.crypto.masks import add_masks
from uldp.limits import MAX_THREADS, check_whole
from uldp.rng import Secrets

WHOLE_RUN: Final = 1000
"""Up to so many powers (silos x users x parameters), a round of the baseline is run and not extrapolated."""
SAMPLES: Final = 8


SHAPES: Final = (
    Shape(16, 10),
    Shape(16, 20, target=Target("ours", 2.0, "a round within 2 s", at_least=False)),
    Shape(16, 30),
    Shape(16, 40),
    Shape(32, 20),
    Shape(64, 20),
    Shape(107, 20),
    Shape(107, 40, target=Target("ratio", 45.0, "45x")),
    Shape(107, 40, rounds=1),
    Shape(1000, 100, repeats=1),
    Shape(4000, 100, target=Target("ratio", 150.0, "150x"), repeats=1, check_memory=True),
)
TWO_CORES: Final = Shape(1000, 100)
SMALL: Final = Shape(107, 40)
"""From its round those of larger shapes are extrapolated, beside ``lattice``."""
PACKED: Final = Shape(1000, 100, max_records=100, pseudo_count=1, repeats=2)
TRANSFERS: Final = (
    Shape(16, 100, rounds=1, choices=10, repeats=8, target=Target("ours", 1.0, "under 1 ms", at_least=False)),
    Shape(16, 100, rounds=1, choices=100, repeats=8),
)
MASKS: Final = Target("ours", 200.0, "200 Mwords/s")


@dataclass(frozen=True)
class Packing:
    """Rounds with ``slots`` parameters in a ciphertext: the best seconds of either side, the bytes of an update.

    Silos work at the same time and do the same, so one of them counts.
    """

    slots: int
    dimension: int
    one_silo: float
    server: float
    update_bytes: int


@dataclass(frozen=True)
class PackingComparison:
    """What one of the cases about packed ciphertexts compares."""

    unit: str
    amount: Callable[[Packing], float]
    what: str
    target: Target | None = None


COMPARISONS: Final[Mapping[str, PackingComparison]] = {
    "packed decryption": PackingComparison(
        "ms per parameter",
        lambda packing: 1000 * packing.server / packing.dimension,
        "what the server takes to check, add up and decrypt, for each parameter",
        Target("ratio", 8.0, "8x cheaper"),
    ),
    "packed bytes": PackingComparison(
        "bytes", lambda packing: packing.update_bytes, "one silo's update", Target("ratio", 10.0, "10x fewer")
    ),
    "packed round": PackingComparison(
        "s", lambda packing: packing.one_silo + packing.server, "a round: one silo's weighting, and the server"
    ),
}


@dataclass
class Bench:
    """What cases share: the options, how long the table took, and what several cases report of.

    One key serves all cases, so the table is made once, by the first case that needs it.
    """

    quick: bool = False
    workers: int = 1
    say: Say = silent
    table: float = 0.0
    packings: dict[Shape, tuple[Packing, Packing]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _residue_table.cache_clear()  # one that is left over would hide what it takes

    def cases(self) -> dict[str, Callable[[], Case]]:
        cases: dict[str, Callable[[], Case]] = {shape.name: partial(self.round_case, shape) for shape in SHAPES}
        cases[f"two cores, {TWO_CORES.name}"] = partial(self.two_cores, TWO_CORES)
        for kind in COMPARISONS:
            cases[_packed_name(kind, PACKED)] = partial(self.compare_packing, PACKED, kind)
        for shape in TRANSFERS:
            cases[_transfer_name(shape)] = partial(self.transfer, shape)
        for lattice in LATTICE_SHAPES:
            cases[lattice.name] = partial(lattice_case, lattice, self.fit(SMALL), self.workers, self.say)
        cases["masks"] = partial(masks_case, words=1 << 16 if self.quick else 1 << 20)
        return cases

    def fit(self, shape: Shape) -> Shape:
        shape = replace(shape, workers=self.workers)
        return shape.with_small_key() if self.quick else shape

    def round_case(self, shape: Shape) -> Case:
        """One case: setup once, then rounds of both sides in turn, the best of each."""
        shape = self.fit(shape)
        self.say(f"{shape.name}: setup")
        run = Run(shape)
        setup = run.setup()
        self.table = max(self.table, setup[ProtocolPhase.TABLE])
        setup[ProtocolPhase.TABLE] = shape.silos * self.table if run.uses_table else 0.0
        start = time.perf_counter()
        naive = PublishedProtocol(shape.key_bits, run.counts, shape.max_records)
        naive_setup = {ProtocolPhase.KEYS: time.perf_counter() - start}
        whole = run.rows.size <= WHOLE_RUN
        ours, baseline = [], []
        for repeat in range(shape.repeats):
            self.say(f"{shape.name}: run {repeat + 1} of {shape.repeats}")
            if whole and not repeat:
                baseline.append(full_run(naive, run.integers, run.naive_noise))
            elif not whole:
                baseline.append(sampled_run(naive, run.integers, run.naive_noise, SAMPLES))
            ours.append(run.round(repeat + 1))
        if not whole:
            baseline.append(sampled_run(naive, run.integers, run.naive_noise, SAMPLES))
        best, naive_best = min(ours, key=_round_seconds), min(baseline, key=_round_seconds)
        case = _round_record(run, setup | best, naive_setup | naive_best, whole)
        if shape.check_memory:
            self.say(f"{shape.name}: memory of one silo")
            case |= _memory_in_fresh_process(shape.dimension, shape.users)
        return case | {"note": _note(shape, case)}

    def two_cores(self, shape: Shape) -> Case:
        """A round of ours with one worker and with two; processor time too, for a busy machine spoils the wall time."""
        shape, wall, busy = self.fit(shape), {}, {}
        for workers in (1, 2):
            self.say(f"two cores, {shape.name}: {plural(workers, 'worker')}")
            run = Run(replace(shape, workers=workers))
            run.setup()
            before = os.times()
            wall[workers] = _round_seconds(run.round(1))
            after = os.times()
            parent = after.user + after.system - before.user - before.system
            child = after.children_user + after.children_system - before.children_user - before.children_system
            busy[workers] = max(parent, child)
        return compare_sides(f"two cores, {shape.name}", wall[2], wall[1]) | {
            "target": None,
            "met": None,
            "slots": run.slots,
            "ours_processor": busy[2],
            "baseline_processor": busy[1],
            "note": (
                "a round of ours with 2 workers, and as the baseline with 1; processor time of the busiest process "
                f"{busy[2]:.3g} s against {busy[1]:.3g} s, about what two idle cores would take"
            ),
        }

    def compare_packing(self, shape: Shape, kind: str) -> Case:
        """As many parameters in a ciphertext as fit, against one. One measurement serves all cases of the shape."""
        fitted = replace(self.fit(shape), max_records=shape.max_records)
        if fitted not in self.packings:
            self.packings[fitted] = self._measured_packings(fitted)
        ours, single = self.packings[fitted]
        comparison = COMPARISONS[kind]
        amount, name = comparison.amount, _packed_name(kind, shape)
        case = compare_sides(name, amount(ours), amount(single), comparison.unit)
        return case | {
            **_verdict(None if self.quick else comparison.target, case),
            "slots": ours.slots,
            "baseline_slots": single.slots,
            "ours_parts": {"one silo": ours.one_silo, "server": ours.server},
            "baseline_parts": {"one silo": single.one_silo, "server": single.server},
            "note": (
                f"{comparison.what}; {ours.slots} parameters in a ciphertext, and as the baseline ours with 1; "
                f"one silo takes {ours.one_silo:.3g} s against {single.one_silo:.3g} s, the server "
                f"{ours.server:.3g} s against {single.server:.3g} s; {_settings(fitted)}, best of {fitted.repeats}"
            ),
        }

    def _measured_packings(self, shape: Shape) -> tuple[Packing, Packing]:
        """With as many slots as fit and with one, rounds in turn."""
        runs = [Run(replace(shape, slots=slots)) for slots in (None, 1)]
        times: list[list[Times]] = [[], []]
        for run in runs:
            self.say(f"packed, {_with_limit(shape)}: setup, slots = {run.slots}")
            run.setup()
        for repeat in range(shape.repeats):
            self.say(f"packed, {_with_limit(shape)}: run {repeat + 1} of {shape.repeats}")
            for run, rounds in zip(runs, times, strict=True):
                rounds.append(run.round(repeat + 1))
        ours, single = (_packing(run, rounds) for run, rounds in zip(runs, times, strict=True))
        return ours, single

    def transfer(self, shape: Shape) -> Case:
        """What a user's oblivious transfer takes, at the server and in one silo, beyond the encryptions."""
        name, shape = _transfer_name(shape), self.fit(shape)
        self.say(f"{name}: setup")
        run = Run(shape)
        run.setup()
        self.say(f"{name}: {plural(shape.repeats, 'round')}")
        rounds = [run.transfer(repeat + 1) for repeat in range(shape.repeats)]
        server, silo, checks, encryption = (
            1000 * min(times[part] for times in rounds) / shape.users
            for part in (ProtocolPhase.AT_SERVER, ProtocolPhase.AT_SILO, ProtocolPhase.CHECKS, ProtocolPhase.ENCRYPTION)
        )
        case = compare_sides(
            name, server + silo, encryption / 2, "ms per user"
        )  # a real weight and a zero are encrypted
        return case | {
            **_verdict(shape.target, case),
            "slots": None,
            "ours_parts": {"one silo": silo, "server": server},
            "ours_checks": checks,
            "note": (
                f"1 of {shape.choices} chosen for each of {shape.users} users, server ({server:.3g} ms) and one silo "
                f"({silo:.3g} ms) together, without the encryptions and without the server's checks of {shape.silos} "
                f"silos' choices ({checks:.3g} ms); the baseline is one encryption by CRT, which a user takes in every "
                f"sampled round anyway, and two in a private one; {_settings(shape)}, best of {shape.repeats}"
            ),
        }


def run_cases(
    names: Sequence[str] | None = None, *, quick: bool = False, workers: int = 1, say: Say = silent
) -> list[Case]:
    """Measure the named cases (all by default). ``quick``: a small key, and by default the smallest case."""
    load_phe()
    check_whole(workers, 1, MAX_THREADS, "--workers")
    cases = Bench(quick, workers, say).cases()
    check_names(names, cases)
    chosen = names or ([SHAPES[0].name, "masks"] if quick else list(cases))
    return [measure() for name, measure in cases.items() if name in chosen]


def masks_case(words: int) -> Case:
    """Masks of ``add_masks`` against numpy's own random numbers, which protect nothing."""
    target = np.zeros(words, dtype=np.uint64)
    generator = np.random.default_rng(0)
    ours, numpys = [], []
    for repeat in range(20):
        stream = Secrets.simulated_from_seed(repeat).stream()
        start = time.perf_counter()
        add_masks(target, stream)
        middle = time.perf_counter()
        target += generator.integers(0, 1 << 64, words, dtype=np.uint64)
        ours.append(middle - start)
        numpys.append(time.perf_counter() - middle)
    rate, plain = words / min(ours) / 1e6, words / min(numpys) / 1e6
    case = compare_sides("masks", rate, plain, "Mwords/s") | {"ratio": rate / plain}
    note = f"{words} words of 64 bits; more is better; the baseline adds numpy's random integers, which are no secret"
    return case | _verdict(MASKS, case) | {"slots": None, "note": note}


def memory_growth(dimension: int, users: int) -> dict[str, float]:
    """Megabytes by which memory rises in a silo's release, and in the setup before, where the table is made."""
    run = Run(Shape(dimension, users))
    with PeakMemory() as setup:
        run.setup()
    request = run.update_request(1)
    with PeakMemory() as release:
        vector = run.update(0, request)
    growth = {"growth_mb": release.growth_mb, "setup_growth_mb": setup.growth_mb}
    return {**growth, "update_mb": len(vector) / 2**20}


def _memory_in_fresh_process(dimension: int, users: int) -> dict[str, float]:
    """:func:`memory_growth` where no memory is left over from earlier work, which would hide the growth."""
    code = f"import json, uldp.bench.protocol as p; print(json.dumps(p.memory_growth({dimension}, {users})))"
    found: dict[str, float] = json.loads(run_process([sys.executable, "-c", code], "bench protocol"))
    return found


def _packed_name(kind: str, shape: Shape) -> str:
    return f"{kind}, {_with_limit(shape)}"


def _with_limit(shape: Shape) -> str:
    return f"N_max={shape.max_records} {shape.name}"


def _transfer_name(shape: Shape) -> str:
    return f"oblivious transfer, P={shape.choices} U={shape.users}"


def _packing(run: Run, rounds: Sequence[Times]) -> Packing:
    return Packing(
        slots=run.slots,
        dimension=run.shape.dimension,
        one_silo=min(times[ProtocolPhase.WEIGHTING] for times in rounds) / run.shape.silos,
        server=min(times[ProtocolPhase.DECRYPTION] for times in rounds),
        update_bytes=run.bytes_per_silo(ProtocolPhase.WEIGHTING)["from_silo"],
    )


def _round_seconds(times: Times) -> float:
    return sum(times[phase] for phase in ROUND)


def _verdict(target: Target | None, case: Case) -> Case:
    return {"target": target and target.text, "met": target and target.is_met(case)}


def _round_record(run: Run, ours: Times, baseline: Times, whole: bool) -> Case:
    """The case as the command prints it."""
    shape = run.shape
    phases = [
        {
            "name": phase,
            "when": "setup" if phase in SETUP else "round",
            "ours": ours[phase],
            "baseline": baseline.get(phase),
            **run.bytes_per_silo(phase),
        }
        for phase in (*SETUP, *ROUND)
    ]
    case = compare_sides(shape.name, _round_seconds(ours), _round_seconds(baseline))
    return case | {
        **_verdict(shape.target, case),
        "setup": sum(ours[phase] for phase in SETUP),
        "baseline_setup": sum(baseline.get(phase, 0.0) for phase in SETUP),
        "phases": phases,
        "extrapolated": [] if whole else [phase for phase in (ProtocolPhase.ENCRYPTING, *ROUND) if phase in baseline],
        "randomisers": "table" if run.uses_table else "direct",
        **{key: getattr(shape, key) for key in ("rounds", "key_bits", "workers", "silos")},
        "slots": run.slots,
    }


def _settings(shape: Shape) -> str:
    """Silos, key and workers."""
    insecure = " (insecure)" if shape.key_bits < SECURE_BITS else ""
    return f"{shape.silos} silos, {shape.key_bits}-bit key{insecure}, {plural(shape.workers, 'worker')}"


def _note(shape: Shape, case: Case) -> str:
    """What was measured, in a sentence or two."""
    text = f"{_settings(shape)}, slots = {case['slots']}; best of {shape.repeats} of ours"
    rounds = f"method.rounds = {shape.rounds}"
    if case["randomisers"] == "table":
        text += f"; randomisers from a table, which pays with {rounds} and is counted for each silo"
    else:
        text += f"; randomisers one by one, for a table does not pay with {rounds}"
    extrapolated = f"; the baseline's times are extrapolated from {SAMPLES} operations of each kind in a run"
    text += extrapolated if case["extrapolated"] else "; the baseline ran once, in full"
    if "growth_mb" in case:
        text += (
            f"; one silo's release raises memory by {case['growth_mb']:.0f} MB (its update has "
            f"{case['update_mb']:.1f} MB), the setup with its table by {case['setup_growth_mb']:.0f} MB"
        )
    return text
