"""The accountant of local DP: many reports of one client, each of them pure epsilon-DP."""

from __future__ import annotations

import math

from uldp.privacy.events import Composition, Event, LocalReports, flattened


def composed(epsilon: float, count: int, delta: float) -> float:
    """An epsilon for ``count`` reports of ``epsilon`` each: the smaller of two bounds.

    They add up. And, with probability delta left out, they add up to their mean and a deviation: Kairouz, Oh,
    Viswanath, "The composition theorem for differential privacy", ICML 2015, Theorem 3.4.

    >>> composed(5.0, 10, 1e-5), round(composed(0.1, 1000, 1e-5), 2)
    (50.0, 20.17)
    """
    mean = count * epsilon * math.tanh(epsilon / 2)
    return min(count * epsilon, mean + epsilon * math.sqrt(2 * count * math.log(1 / delta)))


class LocalAccountant:
    """Reads local reports only."""

    name = "local"

    def accepts(self, event: Event) -> bool:
        return isinstance(event, LocalReports)

    def epsilon(self, composition: Composition, delta: float) -> float:
        """Reports of equal epsilon are composed; those of different epsilons share delta and add up."""
        counts: dict[float, int] = {}
        for event, times in flattened(composition).items():
            assert isinstance(event, LocalReports)
            counts[event.epsilon] = counts.get(event.epsilon, 0) + times * event.count
        share = delta / max(1, len(counts))
        return sum(composed(epsilon, count, share) for epsilon, count in counts.items())
