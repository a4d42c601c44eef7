"""Ours against another library at its best: all of its variants are tried, the fastest two are measured beside ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from uldp.bench.machine import Case, PeakMemory, Say, matrix_flops, time_call
from uldp.errors import first_line

FINALISTS: Final = 2
"""So many of the variants that were fastest in a short trial do the whole work: a trial alone may mislead."""


@dataclass(frozen=True)
class Variant:
    """One way to use the library: ``seconds(part)`` runs a part of the work, from 0 to 1, and says how long it took."""

    name: str
    seconds: Callable[[float], float]


@dataclass(frozen=True)
class Versus:
    """What is compared. ``flops`` are those of our side; ``missing`` says why the library cannot be used."""

    name: str
    ours: Callable[[], object]
    flops: float
    threads: int
    variants: Sequence[Variant]
    missing: str = ""
    trial: float = 0.25
    repeats: int = 2

    def run(self, say: Say) -> Case:
        """The best times of both sides, and what each variant would take for the whole work."""
        say(f"{self.name}: preparing")
        self.ours()  # compiles, or loads what was compiled
        with PeakMemory() as memory:  # before the library leaves memory behind
            ours = [time_call(self.ours)]
        tried, failed = ({}, {}) if self.missing else self._try(say)
        finalists = sorted(tried, key=lambda name: tried[name])[:FINALISTS]
        whole = {name: float("inf") for name in finalists}
        rate = 0.0
        for repeat in range(self.repeats):
            say(f"{self.name}: run {repeat + 1} of {self.repeats}")
            rate = max(rate, matrix_flops())
            ours.append(time_call(self.ours))
            for variant in self.variants:
                if variant.name in whole:
                    whole[variant.name] = min(whole[variant.name], variant.seconds(1.0))
        best = min(whole, key=lambda name: whole[name]) if whole else None
        return {
            **comparison(self.name, min(ours), whole[best] if best else None, memory.peak_mb, self.flops, rate),
            "threads": self.threads,
            "baseline_variant": best,
            "variants": tried | whole,
            "trials": [name for name in tried if name not in whole],
            "failed_variants": failed,
            "missing": self.missing,
        }

    def _try(self, say: Say) -> tuple[dict[str, float], dict[str, str]]:
        """Seconds for the whole work by variant, scaled from a part of it; and why others do not run."""
        tried: dict[str, float] = {}
        failed: dict[str, str] = {}
        for variant in self.variants:
            say(f"{self.name}: trying {variant.name}")
            try:
                tried[variant.name] = variant.seconds(self.trial) / self.trial
            except Exception as error:  # a mode that does not support a layer says so in its own way
                failed[variant.name] = first_line(error)
        return tried, failed


def comparison(name: str, ours: float, baseline: float | None, peak_mb: float, flops: float, rate: float) -> Case:
    """The fields of a case: ``flops`` and ``peak_mb`` are those of our side, ``rate`` is what the machine can do."""
    return {
        "name": name,
        "kind": "comparison",
        "ours": ours,
        "baseline": baseline,
        "ratio": None if baseline is None else baseline / ours,
        "unit": "s",
        "peak_mb": peak_mb,
        "flops": flops,
        "flops_share": flops / ours / rate,
        "machine_flops": rate,
    }


def variants_note(case: Case) -> str:
    """What the baseline is: the fastest variant, and the others' times; or why there is none."""
    if case["missing"]:
        return str(case["missing"])
    others = [
        f"{name} {'about ' if name in case['trials'] else ''}{seconds:.3g} s"
        for name, seconds in sorted(case["variants"].items(), key=lambda item: item[1])
        if name != case["baseline_variant"]
    ]
    others += [f"{name} does not run ({reason})" for name, reason in case["failed_variants"].items()]
    best = case["baseline_variant"]
    return f"{f'the fastest variant is {best}' if best else 'no variant runs'} ({', '.join(others)})"
