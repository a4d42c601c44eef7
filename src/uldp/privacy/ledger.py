"""The ledger: what was released, in the order it was released. It is charged before the model changes.

An entry is keyed by its round and by the digest of what was released. A replay of the same bytes (a crash between
charge and checkpoint, a message sent twice) is not a second release and is not charged twice; other bytes for the same
round are a second release and are charged.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from uldp.errors import BudgetExhausted, RunError
from uldp.privacy.accountants import Composition, Epsilon, account, check_delta
from uldp.privacy.events import (
    Event,
    Gaussian,
    NonPrivate,
    PoissonSampled,
    event_from_json,
    event_to_json,
    sampled_gaussian,
)


@dataclass(frozen=True)
class Entry:
    """One release."""

    round: int
    event: Event
    content: str

    def to_json(self) -> dict[str, Any]:
        return {"round": self.round, "content": self.content, **event_to_json(self.event)}

    @classmethod
    def from_json(cls, tree: dict[str, Any]) -> Entry:
        try:
            return cls(int(tree["round"]), event_from_json(tree), str(tree["content"]))
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"cannot read the entry {tree!r}", place="ledger") from error


def merge(events: list[Event]) -> Event:
    """One event for several releases of the same round.

    They share the round's sample, so they are not independent sampled releases: with the sample they are Gaussians that
    add up to one, and that one is sampled.
    """
    if len(events) == 1:
        return events[0]
    precision = 0.0
    rates = set()
    for event in events:
        match event:
            case Gaussian(noise_multiplier):
                rates.add(1.0)
            case PoissonSampled(sample_rate, Gaussian(noise_multiplier)):
                rates.add(sample_rate)
            case _:
                return NonPrivate()
        precision += noise_multiplier**-2
    return sampled_gaussian(precision**-0.5, max(rates))


class Ledger:
    """Releases and the budget they are charged against."""

    def __init__(self, delta: float, budget: float | None = None, entries: tuple[Entry, ...] = ()) -> None:
        self.delta = check_delta(delta)
        self.budget = budget
        self._entries = {(entry.round, entry.content): entry for entry in entries}

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(self._entries.values())

    def composition(self, *further: Event) -> Composition:
        """What was released, round by round, and ``further`` rounds if given."""
        rounds: dict[int, list[Event]] = {}
        for entry in self._entries.values():
            rounds.setdefault(entry.round, []).append(entry.event)
        return Counter([merge(events) for events in rounds.values()] + list(further))

    def epsilon(self, *further: Event) -> Epsilon:
        """What has been spent, with ``further`` events if given."""
        return account(self.composition(*further), self.delta)

    def affords(self, event: Event) -> bool:
        """Whether one more ``event`` stays within the budget."""
        return self.budget is None or self.epsilon(event).value <= self.budget

    def charge(self, entry: Entry) -> bool:
        """Charge ``entry``; False if this very release was charged before. Refusing changes nothing."""
        if (entry.round, entry.content) in self._entries:
            return False
        if not self.affords(entry.event):
            spent, needed = self.epsilon().value, self.epsilon(entry.event).value
            raise BudgetExhausted(
                f"round {entry.round} would raise epsilon from {spent:.4g} to {needed:.4g}, "
                f"the budget is {self.budget:.4g}; it was not released",
                place="privacy.epsilon",
                value=self.budget,
            )
        self._entries[entry.round, entry.content] = entry
        return True
