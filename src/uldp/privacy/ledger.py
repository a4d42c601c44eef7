"""The ledger: what was released, in the order it was released. It is charged before the model changes.

An entry is keyed by its round and by the digest of what was released. A replay of the same bytes (a crash between
charge and checkpoint, a message sent twice) is not a second release and is not charged twice; other bytes for the same
round are a second release and are charged.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from uldp.errors import BudgetExhausted, RunError
from uldp.privacy.accountants import Epsilon, account, check_delta
from uldp.privacy.events import (
    Composition,
    Event,
    Gaussian,
    Group,
    Joint,
    LocalReports,
    NonPrivate,
    PoissonSampled,
    Repeated,
    Spread,
    event_from_json,
    event_to_json,
    parameters,
    sampled_gaussian,
)
from uldp.privacy.gaussian import unsampled_mu


@dataclass(frozen=True)
class Entry:
    """One release. ``content`` and ``asked`` are digests of the total and of the model in the round's request.

    Another response to the same request shares its samples. ``group`` is that of the users whose records were read,
    where they take turns; None for everybody. Groups are for Gaussians, of which one is always the largest.
    """

    round: int
    event: Event
    content: str
    asked: str = ""
    group: int | None = None

    def __post_init__(self) -> None:
        if self.group is not None and not isinstance(self.event, Gaussian | NonPrivate):
            raise RunError(f"{self.event} cannot be about a group of users", location="ledger")

    def to_json(self) -> dict[str, Any]:
        group = {} if self.group is None else {"group": self.group}
        about = {"round": self.round, "content": self.content, "asked": self.asked, **group}
        return {**about, **event_to_json(self.event)}

    @classmethod
    def from_json(cls, tree: dict[str, Any]) -> Entry:
        try:
            event = {key: value for key, value in tree.items() if key not in ("round", "content", "asked", "group")}
            group = None if tree.get("group") is None else int(tree["group"])
            about = (str(tree["content"]), str(tree.get("asked", "")), group)
            return cls(int(tree["round"]), event_from_json(event), *about)
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"cannot read the entry {tree!r}", location="ledger") from error


def merge(events: list[Event]) -> list[Event]:
    """What several releases of the same round amount to.

    Releases about users share the round's sample of users, so they are not independent sampled releases: with the
    sample they are Gaussians that add up to one, and that one is sampled. Local reports are fresh and simply add up; so
    do groups and repetitions here, for :func:`merge_same` was asked about those that share their samples.
    """
    if any(isinstance(event, NonPrivate) for event in events):
        return [NonPrivate()]
    if joint := [event for event in events if isinstance(event, Joint)]:
        others = [event for event in events if not isinstance(event, Joint)]
        return [*merge([event.always for event in joint]), *merge([*(event.sampled for event in joint), *others])]
    fresh: list[Event] = [event for event in events if isinstance(event, Group | Repeated | Spread | LocalReports)]
    shared = [parameters(event) for event in events if isinstance(event, Gaussian | PoissonSampled)]
    if not shared:
        return fresh
    precision = sum(one.noise_multiplier**-2 for one in shared)
    noise_multiplier = shared[0].noise_multiplier if len(shared) == 1 else precision**-0.5
    return [sampled_gaussian(noise_multiplier, max(one.sample_rate for one in shared)), *fresh]


def merge_same(events: list[Event]) -> list[Event]:
    """What several responses to the same request of a round amount to, where silos draw samples in every step.

    The samples follow from the request, the noise from what it goes onto. So a silo that computes a response again and
    rounds otherwise shows the same samples under other noise: each step is one release with less noise.
    """
    counts = Counter(events)
    return [
        merged
        for event, count in counts.items()
        for merged in (
            [_with_less_noise(event, count)] if isinstance(event, Group | Repeated | Spread) else [event] * count
        )
    ]


def _with_less_noise(event: Event, times: int) -> Event:
    """``times`` releases with the same samples and noise of their own, as one."""
    match event:
        case Repeated(steps, inner):
            return Repeated(steps, _with_less_noise(inner, times))
        case Spread(size, silos):
            return Spread(size, tuple((steps, _single_with_less_noise(inner, times)) for steps, inner in silos))
        case Group(size, Gaussian() | PoissonSampled() as inner, at_most):
            return Group(size, _single_with_less_noise(inner, times), at_most)
        case Gaussian() | PoissonSampled():
            return _single_with_less_noise(event, times)
    return event


def _single_with_less_noise(event: Gaussian | PoissonSampled, times: int) -> Gaussian | PoissonSampled:
    of = parameters(event)
    merged = sampled_gaussian(of.noise_multiplier / math.sqrt(times), of.sample_rate)
    assert not isinstance(merged, NonPrivate)
    return merged


def largest(compositions: Iterable[Composition]) -> Composition:
    """The only composition, or of several of Gaussians the one with the largest mu: with the largest epsilon, always.

    >>> largest([{Gaussian(5.0): 6}, {Gaussian(5.0): 5, Gaussian(1.0): 1}])
    {Gaussian(noise_multiplier=5.0): 5, Gaussian(noise_multiplier=1.0): 1}
    """

    def mu(composition: Composition) -> float:
        return math.inf if NonPrivate() in composition else unsampled_mu(composition)

    first, *others = compositions
    return max(first, *others, key=mu) if others else first


class Ledger:
    """Releases and the budget they are charged against."""

    def __init__(self, delta: float, budget: float | None = None, entries: tuple[Entry, ...] = ()) -> None:
        self.delta = check_delta(delta)
        self.budget = budget
        self._entries = {(entry.round, entry.content): entry for entry in entries}

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(self._entries.values())

    def composition(self) -> Composition:
        """What was released about whoever was in most of it, round by round.

        Where users take turns, a round of another group does not read a user's records: given what was released before,
        it tells nothing about them. What counts is the group about which most was released.
        """
        groups = {entry.group for entry in self._entries.values()} - {None}
        return largest(self._of_group(group) for group in groups) if groups else self._of_group(None)

    def _of_group(self, group: int | None) -> Composition:
        """What was released about the users of a group; None for those who were in every round."""
        asked: dict[tuple[int, str], list[Event]] = {}
        for entry in self._entries.values():
            if entry.group in (None, group):
                asked.setdefault((entry.round, entry.asked), []).append(entry.event)
        rounds: dict[int, list[Event]] = {}
        for (round_, _), events in asked.items():
            rounds.setdefault(round_, []).extend(merge_same(events))
        return Counter([event for events in rounds.values() for event in merge(events)])

    def epsilon(self) -> Epsilon:
        """What has been spent."""
        return account(self.composition(), self.delta)

    def affords(self, event: Event, round_: int, group: int | None = None) -> bool:
        """Whether ``event`` in round ``round_`` stays within the budget, with what that round released before."""
        if self.budget is None:
            return True
        with_it = Ledger(self.delta, None, (*self.entries, Entry(round_, event, "the next release", group=group)))
        return with_it.epsilon().value <= self.budget

    def charge(self, entry: Entry) -> bool:
        """Charge ``entry``; False if this very release was charged before. Refusing changes nothing."""
        if (entry.round, entry.content) in self._entries:
            return False
        # With the round's other releases, whose sample it may share: that can cost more than a round of its own.
        needed = 0.0 if self.budget is None else Ledger(self.delta, None, (*self.entries, entry)).epsilon().value
        if self.budget is not None and needed > self.budget:
            spent = self.epsilon().value
            raise BudgetExhausted(
                f"round {entry.round} would raise epsilon from {spent:.4g} to {needed:.4g}, "
                f"the budget is {self.budget:.4g}; it was not released",
                location="privacy.epsilon",
                value=self.budget,
            )
        self._entries[entry.round, entry.content] = entry
        return True
