"""The accountant of local DP: many reports of one client, each of them pure epsilon-DP."""

from __future__ import annotations

import functools

from uldp.privacy.composition import MAX_RELEASES, MIN_GAIN, advanced_composition
from uldp.privacy.events import Composition, Event, LocalReports, flatten


@functools.lru_cache(maxsize=1024)
def compose_reports(epsilon: float, count: int, delta: float) -> float:
    """The epsilon of ``count`` reports of ``epsilon`` each: their sum, or less where delta allows.

    >>> compose_reports(5.0, 10, 1e-5), round(compose_reports(0.1, 1000, 1e-5), 2)
    (50.0, 17.79)
    """
    total = count * epsilon
    if count > MAX_RELEASES:
        return total
    less = advanced_composition(epsilon, count, delta)
    # A delta always buys a little, of a single report too. What is less than a thousandth is not worth a failure.
    return less if less < (1 - MIN_GAIN) * total else total


class LocalAccountant:
    """Reads local reports only."""

    name = "local"

    def accepts(self, event: Event) -> bool:
        return isinstance(event, LocalReports)

    def epsilon(self, composition: Composition, delta: float) -> float:
        """Reports of equal epsilon are composed; those of different epsilons share delta and add up."""
        counts: dict[float, int] = {}
        for event, times in flatten(composition).items():
            assert isinstance(event, LocalReports)
            counts[event.epsilon] = counts.get(event.epsilon, 0) + times * event.count
        share = delta / max(1, len(counts))
        return sum(compose_reports(epsilon, count, share) for epsilon, count in counts.items())
