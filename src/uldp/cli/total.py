"""``uldp total``: what several runs on the same people cost together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from uldp.cli.output import Json, print_json, print_table, reporting
from uldp.errors import RunError

if TYPE_CHECKING:
    from uldp.experiment.config import Experiment
    from uldp.privacy.events import Event
    from uldp.runs.directory import RunDirectory

Folders = Annotated[list[Path], typer.Argument(help="Run directories, or folders that hold some at any depth.")]
Delta = Annotated[float, typer.Option("--delta", help="The delta of the total; 0 takes the smallest of the runs.")]


@dataclass(frozen=True)
class _Run:
    """One run: on whose data, and what it released.

    ``spent`` is about a person: without bound where a run promises a person nothing. ``of_client`` is what a run that
    protects clients released about one of them, and ``clients`` tells these clients from others.
    """

    path: Path
    experiment: Experiment
    data: frozenset[str]
    rounds: int
    spent: Counter[Event]
    clients: frozenset[str]
    of_client: Counter[Event]

    def to_json(self) -> dict[str, Any]:
        from uldp.privacy.accountants import account

        delta = self.experiment.privacy.delta
        return {
            "run": str(self.path),
            "method": self.experiment.method_name,
            "unit": self.experiment.method.unit,
            "rounds": self.rounds,
            "noise": self.experiment.run.secrets,
            "delta": delta,
            "epsilon": account(self.of_client or self.spent, delta).value,
        }


@reporting
def total(folders: Folders, delta: Delta = 0.0, as_json: Json = False) -> None:
    """Add up the privacy that runs on the same data have spent: trials, comparisons and tuning count too."""
    from uldp.privacy.accountants import account
    from uldp.privacy.statement import finite_or_none

    paths = sorted({path.parent.resolve() for folder in folders for path in _runs_below(folder)})
    if not paths:
        listed = ", ".join(str(folder) for folder in folders)
        raise RunError("holds no run directory (a folder with experiment.json)", place=listed, value=listed)
    totals: list[dict[str, Any]] = []
    for group in _sharing([_read(path) for path in paths], lambda run: run.data):
        at = delta or min(run.experiment.privacy.delta for run in group)
        together: Counter[Event] = sum((run.spent for run in group), Counter())
        totals.append(
            {
                "data": ", ".join(sorted(frozenset().union(*(run.data for run in group)))),
                "runs": [run.to_json() for run in group],
                "delta": at,
                "epsilon": account(together, at).value,
                "clients": _client_totals(group, delta),
                "simulated": any(run.experiment.run.secrets == "simulated" for run in group),
            }
        )
    if as_json:
        for found in totals:
            for entry in (found, *found["runs"], *found["clients"]):
                entry["epsilon"] = finite_or_none(entry["epsilon"])
        print_json({"totals": totals})
        return
    for found in totals:
        _show(found)


def _client_totals(runs: list[_Run], delta: float) -> list[dict[str, Any]]:
    """What a client faces that was in all runs that protect clients, for each body of clients."""
    from uldp.privacy.accountants import account

    found = []
    for group in _sharing([run for run in runs if run.of_client], lambda run: run.clients):
        at = delta or min(run.experiment.privacy.delta for run in group)
        together: Counter[Event] = sum((run.of_client for run in group), Counter())
        paths = [str(run.path) for run in group]
        found.append({"runs": paths, "delta": at, "epsilon": account(together, at).value})
    return found


def _show(found: dict[str, Any]) -> None:
    """A total for people."""
    from uldp.privacy.statement import show_epsilon

    rows = []
    for run in found["runs"]:
        mark = f" ({run['unit']})" if run["unit"] == "client" else ""
        rows.append((run["run"], run["method"], str(run["rounds"]), show_epsilon(run["epsilon"]) + mark))
    print_table(("run", "method", "rounds", "epsilon"), rows, title=f"on {found['data']}")
    secret = ", had all of the noise been secret (some is simulated)" if found["simulated"] else ""
    of_people = [run for run in found["runs"] if run["unit"] != "client"]
    if of_people:
        typer.echo(
            f"together: epsilon {show_epsilon(found['epsilon'])} at delta {found['delta']:g}, for the outside world "
            f"and a person whose records were in all of them{secret}."
        )
    if any(math.isinf(run["epsilon"]) for run in of_people):
        typer.echo("(infinite: a run without noise or guarantee, or one that protects records and not people)")
    elif of_people and found["clients"]:
        typer.echo("(infinite: some runs protect clients, and a person may have records with several)")
    for one in found["clients"]:
        number = len(one["runs"])
        runs = f"{number} client-level runs" if number > 1 else "one client-level run"
        typer.echo(
            f"{runs} of the same clients: epsilon {show_epsilon(one['epsilon'])} at delta {one['delta']:g}, towards "
            f"everybody, for a client that was in all of them; s times as much for a person with records at s "
            f"clients{secret}."
        )
    if len(found["clients"]) > 1:
        typer.echo(
            "(clients of different runs are the same if their files are, or the data section and the seed; else "
            "nobody knows who was in several, and their totals are apart)"
        )


def _runs_below(folder: Path) -> list[Path]:
    own = folder / "experiment.json"
    return [own] if own.is_file() else [path for path in folder.rglob("experiment.json") if path.is_file()]


def _read(path: Path) -> _Run:
    """A run, with what it spent. A run that keeps no promise to a person has spent without bound."""
    from uldp.privacy.events import NonPrivate
    from uldp.privacy.ledger import Ledger
    from uldp.runs.directory import RunDirectory

    directory = RunDirectory.open(path)
    experiment = directory.experiment()
    entries = directory.ledger_entries()
    rounds = len({entry.round for entry in entries})
    _check_whole(directory, rounds)
    released: Counter[Event] = Counter(dict(Ledger(experiment.privacy.delta, None, entries).composition()))
    unbounded: Counter[Event] = Counter({NonPrivate(): len(entries)} if entries else {})
    released = unbounded if _void(directory, experiment) else released
    spent = released if experiment.method.unit == "user" else unbounded
    of_client: Counter[Event] = released if experiment.method.unit == "client" else Counter()
    return _Run(path, experiment, _data(experiment), rounds, spent, _clients(experiment), of_client)


def _check_whole(directory: RunDirectory, rounds: int) -> None:
    """Refuse a ledger that holds less than was trained."""
    trained = len(directory.metrics())
    if directory.finished:
        rounds_said = directory.read_json("result.json").get("rounds", 0)
        if not isinstance(rounds_said, int):
            raise RunError("is damaged: rounds is no whole number", place=str(directory.path / "result.json"))
        trained = max(trained, rounds_said)
    if rounds < trained:
        raise RunError(
            f"holds {rounds} of {trained} rounds; restore it: without it nobody knows what was spent",
            place=str(directory.path / "ledger.jsonl"),
        )


def _void(directory: RunDirectory, experiment: Experiment) -> bool:
    """Whether the statement, or the schema while there is none yet, says that there is no guarantee."""
    if (directory.path / "statement.json").is_file():
        return bool(directory.read_json("statement.json").get("epsilon") is None)
    return experiment.data.schema.get("standardise") == "silo"


def _data(experiment: Experiment) -> frozenset[str]:
    """What tells one body of people from another: the data set, or the files."""
    data = experiment.data
    if data.dataset is not None:
        return frozenset({data.dataset})
    assert isinstance(data.silos, tuple)
    return frozenset(str((experiment.base / file).resolve()) for file in data.silos)


def _clients(experiment: Experiment) -> frozenset[str]:
    """What tells clients from others: their files, or how and with which seed a data set's records are dealt."""
    data = experiment.data
    if data.dataset is None:
        return _data(experiment)
    return frozenset({repr((replace(data, data_dir=None), experiment.run.seed))})


def _sharing(runs: list[_Run], body: Callable[[_Run], frozenset[str]]) -> list[list[_Run]]:
    """Runs that have a part of ``body`` in common, or a chain of such runs, belong together: so may their people."""
    groups: list[tuple[frozenset[str], list[_Run]]] = []
    for run in runs:
        data, members = body(run), [run]
        for other in [group for group in groups if group[0] & data]:
            groups.remove(other)
            data, members = data | other[0], [*other[1], *members]
        groups.append((data, members))
    return [sorted(members, key=lambda run: run.path) for _, members in groups]
