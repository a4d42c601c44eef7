"""``uldp total``: what several runs on the same people cost together."""

from __future__ import annotations

import math
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from uldp.cli.output import Json, print_json, print_table, reporting
from uldp.cli.source import experiment_of
from uldp.errors import RunError, concerning

if TYPE_CHECKING:
    from uldp.experiment.config import Experiment
    from uldp.privacy.events import Event
    from uldp.runs.directory import RunDirectory
    from uldp.runs.people import Population, Together

Folders = Annotated[list[Path], typer.Argument(help="Run directories, or folders that hold some at any depth.")]
Delta = Annotated[float, typer.Option("--delta", help="The delta of the total; 0 takes the smallest of the runs.")]

_APART = (
    "These totals are about different people: no id is in two of them (by keyed digests in the runs' private folders), "
    "or they are of different data sets. A person who has another id in other tables is not recognised: give such "
    "experiments the same data.population, or add the totals up."
)


@dataclass(frozen=True)
class _Run:
    """One run: on whose data, and what it released.

    ``spent`` is about a person: without bound where a run promises a person nothing. ``of_client`` is what a run that
    protects clients released about one of them.
    """

    people: Population
    rounds: int
    spent: Counter[Event]
    of_client: Counter[Event]
    void: bool
    unit: str | None
    asserted_by: tuple[str, ...] = ()

    @property
    def experiment(self) -> Experiment:
        return self.people.experiment

    @property
    def simulated(self) -> bool:
        return self.experiment.run.secrets == "simulated"

    def to_json(self) -> dict[str, Any]:
        from uldp.privacy.accountants import account
        from uldp.privacy.sentences import guarantee

        unit, delta = self.unit, self.experiment.privacy.delta
        epsilon = account(self.of_client or self.spent, delta).value
        why_not = "a person faces a loss without bound in this run" if self.void or unit == "record" else ""
        by = self.asserted_by
        words = guarantee(unit, epsilon, delta, simulated=self.simulated, no_guarantee=why_not, asserted_by=by)
        about = {"run": self.people.run, "method": self.experiment.method_name, "unit": unit, "rounds": self.rounds}
        return {**about, **_privacy(words, epsilon, delta, simulated=self.simulated)}

    @property
    def hashed(self) -> bool:
        """Whether two people may share a bucket."""
        data = self.experiment.data
        return data.dataset is None and data.roster is None


@dataclass
class _Group:
    """Runs whose people are the same, or may be; and what leaves that in doubt."""

    runs: list[_Run]
    doubts: set[str] = field(default_factory=set)

    def to_json(self, delta: float) -> dict[str, Any]:
        clients = [run for run in self.runs if run.of_client]
        whom = " for a person whose records were in all of these runs, against whoever sees the models"
        for_clients = " for a client that was in all client-level runs, towards everybody"
        return {
            "data": "; ".join(sorted({run.people.name for run in self.runs})),
            "runs": [run.to_json() for run in self.runs],
            **_summed(self.runs, [run.spent for run in self.runs], delta, "user", whom),
            "clients": {
                "runs": [run.people.run for run in clients],
                **_summed(clients, [run.of_client for run in clients], delta, "client", for_clients),
            }
            if clients
            else None,
            "doubts": sorted(self.doubts),
            "hashed": any(run.hashed for run in self.runs),
        }


def _privacy(words: str, epsilon: float, delta: float, *, simulated: bool) -> dict[str, Any]:
    """An epsilon with what must stand beside it."""
    from uldp.privacy.sentences import finite_or_none, noise_kind

    noise = noise_kind(simulated=simulated)
    return {"guarantee": words, "noise": noise, "epsilon": finite_or_none(epsilon), "delta": delta}


def _summed(runs: list[_Run], released: list[Counter[Event]], delta: float, unit: str, whom: str) -> dict[str, Any]:
    """What these releases cost together."""
    from uldp.privacy.accountants import account
    from uldp.privacy.sentences import guarantee

    at = delta or min(run.experiment.privacy.delta for run in runs)
    simulated = any(run.simulated for run in runs)
    epsilon = account(sum(released, Counter()), at).value
    why_not = "" if math.isfinite(epsilon) else "one of these runs bounds nobody's loss"
    by = () if why_not else tuple(dict.fromkeys(name for run in runs for name in run.asserted_by))
    words = guarantee(unit, epsilon, at, simulated=simulated, no_guarantee=why_not, scope=whom, asserted_by=by)
    return {**_privacy(words, epsilon, at, simulated=simulated), "asserted_by": list(by)}


@reporting
def total(folders: Folders, delta: Delta = 0.0, as_json: Json = False) -> None:
    """Add up the privacy that runs on the same people have spent: trials, comparisons and tuning count too."""
    paths = sorted({path.resolve() for folder in folders for path in _runs_below(folder)})
    if not paths:
        raise _no_runs(", ".join(str(folder) for folder in folders))
    totals = [group.to_json(delta) for group in _grouped([_read(path) for path in paths])]
    if as_json:
        print_json({"totals": totals, "apart": _APART if len(totals) > 1 else None})
        return
    for found in totals:
        _show(found)
    if len(totals) > 1:
        typer.echo(_APART)


def _grouped(runs: list[_Run]) -> list[_Group]:
    """Runs whose people may be the same, or a chain of such runs, belong together. What is in doubt is added up."""
    groups: list[_Group] = []
    for run in runs:
        new, others = _Group([run]), []
        for group in groups:
            why = _joined(group, run)
            if why is None:
                others.append(group)
            else:
                new = _Group([*group.runs, *new.runs], group.doubts | new.doubts | ({why.why} if why.doubt else set()))
        groups = [*others, new]
    return sorted(
        (_Group(sorted(group.runs, key=lambda run: run.people.run), group.doubts) for group in groups),
        key=lambda group: group.runs[0].people.run,
    )


def _joined(group: _Group, run: _Run) -> Together | None:
    """Why a run belongs to a group: by what is certain, if anything is; None if its people are in none of its runs."""
    from uldp.runs.people import together

    doubt: Together | None = None
    for other in group.runs:
        why = together(other.people, run.people)
        if why is not None and not why.doubt:
            return why
        doubt = doubt or why
    return doubt


def _show(found: dict[str, Any]) -> None:
    """A total for people."""
    from uldp.privacy.sentences import NOT_SECRET

    rows, simulated = [], False
    for run in found["runs"]:
        marks = [run["unit"]] if run["unit"] == "client" else []
        if run["noise"] == "simulated" and run["epsilon"] is not None:
            marks, simulated = [*marks, "simulated noise"], True
        mark = f" ({', '.join(marks)})" if marks else ""
        rows.append((run["run"], run["method"], str(run["rounds"]), _shown(run) + mark))
    print_table(("run", "method", "rounds", "epsilon"), rows, title=f"on {found['data']}")
    if any(run["unit"] != "client" for run in found["runs"]):
        typer.echo(
            f"together: epsilon {_shown(found)} at delta {found['delta']:g}, towards anyone who sees the released "
            "models, for a person whose records were in all of them."
        )
        if found["hashed"]:
            typer.echo(
                "(ids were hashed: for two people who share a bucket the larger numbers hold that each run's "
                "statement gives under replace-one adjacency)"
            )
    _show_unbounded(found)
    by = {*found["asserted_by"], *(found["clients"] or {}).get("asserted_by", [])}
    if by:
        typer.echo(f"Asserted by {', '.join(sorted(by))}, not proven by uldp.")
    for why in found["doubts"]:
        typer.echo(f"(added up because nobody knows that they are about different people: {why})")
    if clients := found["clients"]:
        number = len(clients["runs"])
        runs = f"{number} client-level runs" if number > 1 else "one client-level run"
        typer.echo(
            f"{runs}: epsilon {_shown(clients)} at delta {clients['delta']:g}, towards everybody, for a client that "
            "was in all of them; s times as much for a person with records at s clients."
        )
    if simulated:
        typer.echo(f"{NOT_SECRET} (where it is marked as simulated).")


def _show_unbounded(found: dict[str, Any]) -> None:
    """Why a person's total is infinite."""
    of_people = [run for run in found["runs"] if run["unit"] != "client"]
    if any(run["epsilon"] is None or run["unit"] == "record" for run in of_people):
        typer.echo("(infinite: a run without noise or guarantee, or one that protects records and not people)")
    elif of_people and found["clients"]:
        typer.echo("(infinite: some runs protect clients, and a person may have records with several)")


def _shown(privacy: dict[str, Any]) -> str:
    from uldp.privacy.sentences import show_epsilon

    return show_epsilon(math.inf if privacy["epsilon"] is None else privacy["epsilon"])


def _runs_below(folder: Path) -> list[Path]:
    """All run directories in ``folder``: through links too, inside of one another too. None is left out silently."""
    if not folder.is_dir():
        raise _no_runs(str(folder))
    found, seen = [], set()
    for path, below, files in os.walk(folder, followlinks=True, onerror=_unreadable):
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


def _no_runs(where: str) -> RunError:
    return RunError("holds no run directory (a folder with experiment.json)", location=where, value=where)


def _unreadable(error: OSError) -> None:
    raise RunError(f"cannot be read: {error.strerror}", location=str(error.filename)) from error


def _read(path: Path) -> _Run:
    """A run, with what it spent. A run that keeps no promise to a person has spent without bound."""
    from uldp.privacy.events import NonPrivate
    from uldp.privacy.ledger import Ledger
    from uldp.runs.directory import RunDirectory
    from uldp.runs.people import Population

    directory = RunDirectory.open(path)
    with concerning(str(path)):
        experiment = experiment_of(directory)
    entries = directory.log.ledger_entries()
    rounds = len({entry.round for entry in entries})
    _check_whole(directory, rounds)
    void, unit = _void(directory, experiment), _unit(directory, experiment)
    released: Counter[Event] = Counter(dict(Ledger(experiment.privacy.delta, None, entries).composition()))
    unbounded: Counter[Event] = Counter({NonPrivate(): len(entries)} if entries else {})
    released = unbounded if void else released
    spent = released if unit == "user" else unbounded
    of_client: Counter[Event] = released if unit == "client" else Counter()
    by = _asserted_by(directory, experiment)
    return _Run(Population.of(directory, experiment), rounds, spent, of_client, void, unit, by)


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


def _asserted_by(directory: RunDirectory, experiment: Experiment) -> tuple[str, ...]:
    """Code that is not ours and on which the run's epsilon rests: as its statement says, and as its settings say."""
    from uldp.experiment.foreign import authors

    stated = directory.read_json("statement.json").get("asserted_by") if directory.has("statement.json") else None
    named = [str(name) for name in stated] if isinstance(stated, list) else []
    return tuple(dict.fromkeys([*named, *authors([experiment])]))


def _unit(directory: RunDirectory, experiment: Experiment) -> str | None:
    """Whom the run protects: as its statement says, which knows the release, or as its method says so far."""
    if (directory.path / "statement.json").is_file():
        unit = directory.read_json("statement.json").get("unit")
        return unit if isinstance(unit, str) else None
    return experiment.method.unit


def _void(directory: RunDirectory, experiment: Experiment) -> bool:
    """Whether the statement, or method and schema while there is none yet, say that there is no guarantee."""
    from uldp.experiment.config import as_printed

    if (directory.path / "statement.json").is_file():
        return bool(directory.read_json("statement.json").get("epsilon") is None)
    return as_printed(directory.read_json("experiment.json")) or experiment.data.schema.get("standardise") == "silo"
