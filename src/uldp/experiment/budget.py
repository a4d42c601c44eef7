"""Whether a plan fits a privacy budget, in which round the budget ends, and which single changes would fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from uldp.errors import ConfigError
from uldp.experiment.build import PreparedExperiment
from uldp.experiment.noise import planned_events
from uldp.mechanisms.local_mechanism import MIN_EPSILON
from uldp.methods.base import Method
from uldp.privacy.accountants import account
from uldp.privacy.bisection import bisect
from uldp.privacy.calibrate import calibrate, rounds_within


def fitting_changes(prepared: PreparedExperiment, budget: float) -> dict[str, Any]:
    """The last round within ``budget`` and, where that is not the last one planned, single changes that would fit."""
    plan, delta = prepared.plan, prepared.experiment.privacy.delta
    method, facts = plan.method, plan.facts
    turns = plan.release.participation
    of_a_user = rounds_within(plan.release.event(facts.silos), budget, delta, turns.rounds_of_a_user(method.rounds))
    rounds = min(turns.groups * of_a_user, method.rounds)
    found: dict[str, Any] = {"budget": budget, "rounds_within_budget": rounds}
    if plan.aggregation.shuffles:
        found["budget_counts"] = "local"  # of the two numbers of a shuffled run
    if rounds >= method.rounds:
        return found
    changes: dict[str, float] = {"method.rounds": rounds} if rounds else {}

    def fits(**changed: Any) -> bool:
        return account(planned_events(replace(method, **changed), facts), delta).value <= budget

    if plan.release.local:
        changes |= _weaker_weights(method, fits)
    else:
        with suppress(ConfigError):  # perhaps no noise would do
            noise = calibrate(lambda sigma: planned_events(_with_noise(method, sigma), facts), budget, delta)
            _with_noise(method, noise).release(facts).check()
            changes["privacy.noise_multiplier"] = noise
        changes |= _smaller_sample(method, fits)
    return {**found, "changes": changes}


def _with_noise(method: Method, noise_multiplier: float) -> Method:
    return replace(method, noise_multiplier=noise_multiplier)


def _weaker_weights(method: Method, fits: Callable[..., bool]) -> dict[str, float]:
    """The largest epsilon of one weight (to four digits) with which all rounds fit."""
    low, high = MIN_EPSILON, float(method.epsilon_weight)  # type: ignore[attr-defined]
    if not fits(epsilon_weight=low):
        return {}
    low, _ = bisect(
        lambda weight: fits(epsilon_weight=weight),
        low,
        high,
        close=lambda low, high: high <= 1.0001 * low,
        geometric=True,
    )
    step = 10.0 ** (math.floor(math.log10(low)) - 3)
    return {"method.epsilon_weight": max(float(f"{math.floor(low / step) * step:.12g}"), MIN_EPSILON)}


def _smaller_sample(method: Method, fits: Callable[..., bool]) -> dict[str, float]:
    """The largest sample rate (to three decimals) with which all rounds fit."""
    low, high = 0.0, getattr(method, "sample_rate", None)
    if not isinstance(high, float):
        return {}
    # By hand: only rates of three decimals are tried, and the result is one that was found to fit, not a root between.
    for _ in range(10):
        middle = round((low + high) / 2, 3)
        low, high = (middle, high) if middle > 0 and fits(sample_rate=middle) else (low, middle)
    return {"method.sample_rate": low} if low > 0 else {}
