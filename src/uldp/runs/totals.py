"""What several runs on the same people cost together: trials, comparisons and tuning count too.

``unit`` says whom a run protects. A person's total is infinite where a run promises a person nothing; what runs that
protect clients released about one of them is added up apart.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from uldp.errors import RunError, error_context
from uldp.experiment.config import Experiment, is_published_variant
from uldp.experiment.foreign import third_party_names
from uldp.privacy.accountants import account
from uldp.privacy.events import Event, NonPrivate
from uldp.privacy.ledger import Entry, Ledger
from uldp.privacy.sentences import finite_or_none, guarantee, noise_kind
from uldp.runs.directory import RunDirectory
from uldp.runs.people import Population, Relation, relate, under_one_key


@dataclass(frozen=True)
class SpentRun:
    """One run: on whose data, and what it released.

    ``spent`` is about a person: without bound where a run promises a person nothing. ``of_client`` is what a run that
    protects clients released about one of them.
    """

    people: Population
    rounds: int
    spent: Counter[Event]
    of_client: Counter[Event]
    no_guarantee: bool
    privacy_unit: str | None
    asserted_by: tuple[str, ...] = ()
    first: str = ""
    """The digest of the first release: a directory that was emptied and used again holds another run."""

    @classmethod
    def read(cls, path: Path, load: Callable[[RunDirectory], Experiment] = RunDirectory.experiment) -> SpentRun:
        """The run at ``path``. One that keeps no promise to a person has spent without bound."""
        directory = RunDirectory.open(path)
        with error_context(str(path)):
            experiment = load(directory)
        entries = directory.log.ledger_entries()
        rounds = len({entry.round for entry in entries})
        _check_whole(directory, rounds)
        # The statement knows the release. While there is none yet, method and schema say whom the run protects.
        stated = directory.read_json("statement.json") if directory.has("statement.json") else None
        if stated is None:
            standardised = experiment.data.schema.get("standardise") == "silo"
            no_guarantee = standardised or is_published_variant(directory.read_json("experiment.json"))
            unit, named = experiment.method.privacy_unit, None
        else:
            no_guarantee, unit, named = stated.get("epsilon") is None, stated.get("unit"), stated.get("asserted_by")
        unit = unit if isinstance(unit, str) else None
        by = dict.fromkeys([*map(str, named if isinstance(named, list) else []), *third_party_names([experiment])])
        return cls.of(Population.of(directory, experiment), entries, unit, tuple(by), no_guarantee=no_guarantee)

    @classmethod
    def of(
        cls,
        people: Population,
        entries: tuple[Entry, ...],
        unit: str | None,
        asserted_by: tuple[str, ...] = (),
        *,
        no_guarantee: bool = False,
    ) -> SpentRun:
        """A run of these people whose ledger holds ``entries``."""
        unbounded: Counter[Event] = Counter({NonPrivate(): len(entries)} if entries else {})
        ledger = Ledger(people.experiment.privacy.delta, None, entries)
        released = unbounded if no_guarantee else Counter(dict(ledger.composition()))
        spent = released if unit == "user" else unbounded
        of_client: Counter[Event] = released if unit == "client" else Counter()
        rounds = len({entry.round for entry in entries})
        first = entries[0].content if entries else ""
        return cls(people, rounds, spent, of_client, no_guarantee, unit, asserted_by, first)

    @property
    def experiment(self) -> Experiment:
        return self.people.experiment

    @property
    def identity(self) -> tuple[str, str]:
        """Secret noise is never the same twice; simulated noise is, so there the name of the run counts too."""
        return self.people.run if self.simulated else "", self.first

    @property
    def releases(self) -> int:
        """How many there were."""
        return max(self.spent.total(), self.of_client.total())

    @property
    def simulated(self) -> bool:
        return self.experiment.run.secrets == "simulated"

    @property
    def has_hashed_ids(self) -> bool:
        """Whether two people may share a bucket."""
        return self.experiment.data.dataset is None and self.experiment.data.roster is None

    def to_json(self) -> dict[str, Any]:
        unit, released = self.privacy_unit, self.of_client or self.spent
        why_not = "a person faces a loss without bound in this run" if self.no_guarantee or unit == "record" else ""
        about = {"run": self.people.run, "method": self.experiment.method_name, "unit": unit, "rounds": self.rounds}
        return about | _privacy([self], released, self.experiment.privacy.delta, unit, why_not, self.asserted_by)


@dataclass
class RunGroup:
    """Runs whose people are the same, or may be; and what leaves that in doubt."""

    runs: list[SpentRun]
    doubts: set[str] = field(default_factory=set)

    def to_json(self, delta: float = 0.0) -> dict[str, Any]:
        """The totals at ``delta``; 0 takes the smallest of the runs."""
        clients = [run for run in self.runs if run.of_client]
        whom = " for a person whose records were in all of these runs, against whoever sees the models"
        for_clients = " for a client that was in all client-level runs, towards everybody"
        of_clients = {"runs": [run.people.run for run in clients]}
        if clients:
            of_clients |= _sum_releases(clients, [run.of_client for run in clients], delta, "client", for_clients)
        return {
            "data": "; ".join(sorted({run.people.name for run in self.runs})),
            "runs": [run.to_json() for run in self.runs],
            **_sum_releases(self.runs, self._released_events(), delta, "user", whom),
            "clients": of_clients if clients else None,
            "doubts": sorted(self.doubts),
            "hashed": any(run.has_hashed_ids for run in self.runs),
        }

    def epsilon(self, delta: float = 0.0) -> float:
        """Of a person whose records were in all of these runs, at ``delta``; 0 takes the smallest of the runs.

        Beside secret noise, noise that the seed gives away is none. Where no run's is secret, it is what secret noise
        would have cost.
        """
        together: Counter[Event] = sum(self._released_events(), Counter())
        at = delta or min(run.experiment.privacy.delta for run in self.runs)
        return account(together, at).value if together else 0.0

    def _released_events(self) -> list[Counter[Event]]:
        some_secret = any(not run.simulated for run in self.runs)
        given_away: Counter[Event] = Counter({NonPrivate(): 1})
        return [given_away if run.simulated and some_secret and run.spent else run.spent for run in self.runs]

    def joins(self, run: SpentRun) -> Relation | None:
        """Why a run belongs here: by what is certain, if anything is; None if its people are in none of these runs."""
        doubt: Relation | None = None
        for other in self.runs:
            why = relate(other.people, run.people)
            if why is not None and not why.doubt:
                return why
            doubt = doubt or why
        return doubt


def group_runs(runs: Sequence[SpentRun]) -> list[RunGroup]:
    """Runs whose people may be the same, or a chain of such runs, belong together. What is in doubt is added up."""
    groups: list[RunGroup] = []
    comparable = under_one_key([run.people for run in runs])
    for run in (replace(run, people=people) for run, people in zip(runs, comparable, strict=True)):
        new, others = RunGroup([run]), []
        for group in groups:
            why = group.joins(run)
            if why is None:
                others.append(group)
            else:
                new = RunGroup(
                    [*group.runs, *new.runs], group.doubts | new.doubts | ({why.why} if why.doubt else set())
                )
        groups = [*others, new]
    for group in groups:
        group.runs.sort(key=lambda run: run.people.run)
    return sorted(groups, key=lambda group: group.runs[0].people.run)


def runs_below(folder: Path) -> list[Path]:
    """All run directories in ``folder``: through links too, inside of one another too. None is left out silently."""
    if not folder.is_dir():
        raise no_runs(str(folder))
    found, seen = [], set()
    for path, below, files in os.walk(folder, followlinks=True, onerror=_refuse_unreadable):
        real = os.path.realpath(path)
        if real in seen:  # a link that leads back
            below.clear()
            continue
        seen.add(real)
        if "experiment.json" in files:
            found.append(Path(path))
        elif "ledger.jsonl" in files:
            raise RunError(
                "lies beside no experiment.json; restore that, or move it away", location=f"{path}/ledger.jsonl"
            )
    return found


def no_runs(where: str) -> RunError:
    return RunError("holds no run directory (a folder with experiment.json)", location=where, value=where)


def _refuse_unreadable(error: OSError) -> None:
    raise RunError(f"cannot be read: {error.strerror}", location=str(error.filename)) from error


def _check_whole(directory: RunDirectory, rounds: int) -> None:
    """Refuse a ledger that holds less than was trained."""
    trained = len(directory.log.metrics())
    if directory.finished:
        rounds_said = directory.read_json("result.json").get("rounds", 0)
        if not isinstance(rounds_said, int):
            raise RunError("is damaged: rounds is no whole number", location=str(directory.path / "result.json"))
        trained = max(trained, rounds_said)
    if rounds < trained:
        raise RunError(
            f"holds {rounds} of {trained} rounds; restore it: without it nobody knows what was spent",
            location=str(directory.path / "ledger.jsonl"),
        )


def _sum_releases(
    runs: Sequence[SpentRun], released: Sequence[Counter[Event]], delta: float, unit: str, whom: str
) -> dict[str, Any]:
    """What these releases cost together."""
    at = delta or min(run.experiment.privacy.delta for run in runs)
    together: Counter[Event] = sum(released, Counter())
    why_not = "" if math.isfinite(account(together, at).value) else "one of these runs bounds nobody's loss"
    by = () if why_not else tuple(dict.fromkeys(name for run in runs for name in run.asserted_by))
    return {**_privacy(runs, together, at, unit, why_not, by, whom), "asserted_by": list(by)}


def _privacy(
    runs: Sequence[SpentRun],
    released: Counter[Event],
    delta: float,
    unit: str | None,
    why_not: str,
    by: tuple[str, ...],
    whom: str = "",
) -> dict[str, Any]:
    """An epsilon with what must stand beside it."""
    epsilon, simulated = account(released, delta).value, any(run.simulated for run in runs)
    words = guarantee(unit, epsilon, delta, simulated=simulated, no_guarantee=why_not, scope=whom, asserted_by=by)
    noise = noise_kind(simulated=simulated)
    return {"guarantee": words, "noise": noise, "epsilon": finite_or_none(epsilon), "delta": delta}
