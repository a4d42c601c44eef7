"""Whether a plan fits a budget, where the budget ends, and what would fit."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from uldp.errors import ConfigError

if TYPE_CHECKING:
    from uldp.experiment.build import Prepared


def fitting_changes(prepared: Prepared, budget: float) -> dict[str, Any]:
    """The last round within ``budget`` and, where that is not the last one planned, single changes that would fit."""
    from uldp.experiment.build import planned_events
    from uldp.methods.user_sum import UserSum
    from uldp.privacy.accountants import account
    from uldp.privacy.calibrate import calibrate, rounds_within

    plan, delta = prepared.plan, prepared.experiment.privacy.delta
    method, facts = plan.method, plan.facts
    event = method.event(facts, facts.silos)
    lasts = rounds_within(event, budget, delta, method.rounds)
    found: dict[str, Any] = {"budget": budget, "rounds_within_budget": lasts}
    if lasts >= method.rounds:
        return found
    changes: dict[str, float] = {}
    if lasts:
        changes["method.rounds"] = lasts

    def with_noise(noise: float) -> Any:
        return planned_events(replace(method, noise_multiplier=noise), facts)

    with suppress(ConfigError):  # perhaps no noise would do
        noise = calibrate(with_noise, budget, delta)
        replace(method, noise_multiplier=noise).check(facts)
        changes["privacy.noise_multiplier"] = noise
    if isinstance(method, UserSum):

        def fits(rate: float) -> bool:
            sampled = replace(method, sample_rate=rate)
            return account(planned_events(sampled, facts), delta).value <= budget

        low, high = 0.0, method.sample_rate
        for _ in range(10):
            middle = round((low + high) / 2, 3)
            low, high = (middle, high) if middle > 0 and fits(middle) else (low, middle)
        if low > 0:
            changes["method.sample_rate"] = low
    return {**found, "changes": changes}


def budget_sentence(found: dict[str, Any], rounds: int) -> str:
    """The same for people."""
    from uldp.privacy.statement import show_epsilon

    budget, lasts = show_epsilon(found["budget"]), found["rounds_within_budget"]
    if lasts >= rounds:
        return f"A budget of epsilon {budget} lasts for all {rounds} rounds."
    ends = f"A budget of epsilon {budget} ends after round {lasts} of {rounds}."
    changes = found["changes"]
    if not changes:
        return f"{ends} No single change fits it; take fewer rounds and more noise."
    listed = ", or ".join(f"{key} = {value:g}" for key, value in changes.items())
    sampled = " (sampling helps towards those who do not know the sample)" if "method.sample_rate" in changes else ""
    return f"{ends} One change would fit: {listed}{sampled}."
