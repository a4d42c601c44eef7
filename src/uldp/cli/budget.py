"""Whether a plan fits a budget, where the budget ends, and what would fit."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from uldp.errors import ConfigError

if TYPE_CHECKING:
    from uldp.experiment.build import Prepared
    from uldp.methods.base import Method
    from uldp.privacy.releases import PublicFacts


def fitting_changes(prepared: Prepared, budget: float) -> dict[str, Any]:
    """The last round within ``budget`` and, where that is not the last one planned, single changes that would fit."""
    from uldp.privacy.calibrate import rounds_within

    plan, delta = prepared.plan, prepared.experiment.privacy.delta
    method, facts = plan.method, plan.facts
    event = plan.release.event(facts.silos)
    lasts = rounds_within(event, budget, delta, method.rounds)
    found: dict[str, Any] = {"budget": budget, "rounds_within_budget": lasts}
    if plan.aggregation.shuffles:
        found["budget_counts"] = "local"  # of the two numbers of a shuffled run
    if lasts >= method.rounds:
        return found
    changes: dict[str, float] = {"method.rounds": lasts} if lasts else {}
    if plan.release.local:
        weaker = _fitting_weight(method, facts, budget, delta)
        changes |= {} if weaker is None else {"method.epsilon_weight": weaker}
    else:
        changes |= _noise_changes(method, facts, budget, delta)
    return {**found, "changes": changes}


def _fitting_weight(method: Method, facts: PublicFacts, budget: float, delta: float) -> float | None:
    """The largest epsilon of one weight (to four digits) with which all rounds fit; None if none does."""
    from uldp.experiment.noise import planned_events
    from uldp.mechanisms.local_mechanism import MIN_EPSILON
    from uldp.privacy.accountants import account

    def fits(epsilon: float) -> bool:
        planned = planned_events(replace(method, epsilon_weight=epsilon), facts)  # type: ignore[call-arg]
        return account(planned, delta).value <= budget

    low, high = MIN_EPSILON, float(method.epsilon_weight)  # type: ignore[attr-defined]
    if not fits(low):
        return None
    while high > 1.0001 * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if fits(middle) else (low, middle)
    step = 10.0 ** (math.floor(math.log10(low)) - 3)
    rounded = float(f"{math.floor(low / step) * step:.12g}")
    return max(rounded, MIN_EPSILON)


def _noise_changes(method: Method, facts: PublicFacts, budget: float, delta: float) -> dict[str, float]:
    """More noise, or a smaller sample."""
    from uldp.experiment.noise import planned_events
    from uldp.privacy.accountants import account
    from uldp.privacy.calibrate import calibrate

    changes: dict[str, float] = {}

    def with_noise(noise: float) -> Any:
        return planned_events(replace(method, noise_multiplier=noise), facts)

    with suppress(ConfigError):  # perhaps no noise would do
        noise = calibrate(with_noise, budget, delta)
        replace(method, noise_multiplier=noise).release(facts).check()
        changes["privacy.noise_multiplier"] = noise
    if isinstance(highest := getattr(method, "sample_rate", None), float):

        def fits(rate: float) -> bool:
            sampled = replace(method, sample_rate=rate)  # type: ignore[call-arg]
            return account(planned_events(sampled, facts), delta).value <= budget

        low, high = 0.0, highest
        for _ in range(10):
            middle = round((low + high) / 2, 3)
            low, high = (middle, high) if middle > 0 and fits(middle) else (low, middle)
        if low > 0:
            changes["method.sample_rate"] = low
    return changes


def budget_sentence(found: dict[str, Any], rounds: int) -> str:
    """The same for people."""
    from uldp.privacy.sentences import show_epsilon

    budget, lasts = show_epsilon(found["budget"]), found["rounds_within_budget"]
    counted = " (it counts the local number, not the server's behind the shuffler)" if "budget_counts" in found else ""
    if lasts >= rounds:
        return f"A budget of epsilon {budget}{counted} lasts for all {rounds} rounds."
    until = f"ends after round {lasts} of {rounds}" if lasts else "is less than one round costs"
    ends = f"A budget of epsilon {budget}{counted} {until}."
    changes = found["changes"]
    if not changes:
        return f"{ends} No single change fits it; take a larger one, or fewer rounds and more noise."
    listed = ", or ".join(f"{key} = {value:g}" for key, value in changes.items())
    sampled = " (sampling helps towards those who do not know the sample)" if "method.sample_rate" in changes else ""
    return f"{ends} One change would fit: {listed}{sampled}."
