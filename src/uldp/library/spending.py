"""What this Python process released about the same people: runs that share an id or a table are added up."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from uldp.data.federation import People
from uldp.experiment.build import Prepared
from uldp.privacy.accountants import Composition, account
from uldp.privacy.events import Event, NonPrivate


@dataclass(frozen=True)
class _Spent:
    people: People
    released: Counter[Event]


_RUNS: Final[dict[object, _Spent]] = {}


def charge(key: object, prepared: Prepared, released: Composition) -> float:
    """Write down what a run has released so far, instead of what it had; the total of its people, at its delta."""
    federation = prepared.federation
    people = federation.people or People(frozenset({f"the users of {federation.name}"}), frozenset())
    if released and (prepared.plan.release.privacy_unit != "user" or prepared.no_guarantee):
        released = {NonPrivate(): 1}  # it promises a person nothing
    _RUNS[key] = _Spent(people, Counter(dict(released)))
    together: Counter[Event] = sum((run.released for run in _related(people)), Counter())
    return account(together, prepared.experiment.privacy.delta).value if together else 0.0


def _related(people: People) -> list[_Spent]:
    """Runs about these people, or about people who are linked to them by other runs."""
    ids, tables = set(people.ids), set(people.tables)
    found: dict[object, _Spent] = {}
    while new := {
        key: run
        for key, run in _RUNS.items()
        if key not in found and (ids & run.people.ids or tables & run.people.tables)
    }:
        found |= new
        for run in new.values():
            ids |= run.people.ids
            tables |= run.people.tables
    return list(found.values())
