"""Ours against another library at its best: all of its variants are tried, the fastest is measured beside ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from uldp.bench.machine import Case, PeakMemory, Say, matrix_flops, timed
from uldp.errors import first_line


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
        tried, failed = ({}, {}) if self.missing else self._try(say)
        best = min(tried, key=lambda name: tried[name]) if tried else None
        ours, baseline, peak, rate = [], [], 0.0, 0.0
        for repeat in range(self.repeats):
            say(f"{self.name}: run {repeat + 1} of {self.repeats}")
            rate = max(rate, matrix_flops())
            with PeakMemory() as memory:
                ours.append(timed(self.ours))
            peak = max(peak, memory.peak_mb)
            baseline += [variant.seconds(1.0) for variant in self.variants if variant.name == best]
        return {
            "name": self.name,
            "kind": "comparison",
            "ours": min(ours),
            "baseline": min(baseline, default=None),
            "ratio": min(baseline) / min(ours) if baseline else None,
            "unit": "s",
            "peak_mb": peak,
            "flops": self.flops,
            "flops_share": self.flops / min(ours) / rate,
            "machine_flops": rate,
            "threads": self.threads,
            "baseline_variant": best,
            "variants": tried,
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


def variants_note(case: Case) -> str:
    """What the baseline is: the fastest variant, and the others' times; or why there is none."""
    if case["missing"]:
        return str(case["missing"])
    others = [
        f"{name} about {seconds:.3g} s"
        for name, seconds in sorted(case["variants"].items(), key=lambda item: item[1])
        if name != case["baseline_variant"]
    ]
    others += [f"{name} does not run ({reason})" for name, reason in case["failed_variants"].items()]
    best = case["baseline_variant"]
    return f"{f'the fastest variant is {best}' if best else 'no variant runs'} ({', '.join(others)})"
