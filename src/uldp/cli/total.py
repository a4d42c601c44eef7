"""``uldp total``: what several runs on the same people cost together."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
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
    """One run: on whose data, and what it released."""

    path: Path
    experiment: Experiment
    data: frozenset[str]
    rounds: int
    spent: Counter[Event]

    def to_json(self) -> dict[str, Any]:
        from uldp.privacy.accountants import account

        delta = self.experiment.privacy.delta
        return {
            "run": str(self.path),
            "method": self.experiment.method_name,
            "rounds": self.rounds,
            "noise": self.experiment.run.secrets,
            "delta": delta,
            "epsilon": account(self.spent, delta).value,
        }


@reporting
def total(folders: Folders, delta: Delta = 0.0, as_json: Json = False) -> None:
    """Add up the privacy that runs on the same data have spent: trials, comparisons and tuning count too."""
    from uldp.privacy.accountants import account
    from uldp.privacy.statement import finite_or_none, show_epsilon

    paths = sorted({path.parent.resolve() for folder in folders for path in _runs_below(folder)})
    if not paths:
        listed = ", ".join(str(folder) for folder in folders)
        raise RunError("holds no run directory (a folder with experiment.json)", place=listed, value=listed)
    totals: list[dict[str, Any]] = []
    for group in _sharing_data([_read(path) for path in paths]):
        at = delta or min(run.experiment.privacy.delta for run in group)
        together: Counter[Event] = sum((run.spent for run in group), Counter())
        totals.append(
            {
                "data": ", ".join(sorted(frozenset().union(*(run.data for run in group)))),
                "runs": [run.to_json() for run in group],
                "delta": at,
                "epsilon": account(together, at).value,
                "simulated": any(run.experiment.run.secrets == "simulated" for run in group),
            }
        )
    if as_json:
        for found in totals:
            found["epsilon"] = finite_or_none(found["epsilon"])
            for run in found["runs"]:
                run["epsilon"] = finite_or_none(run["epsilon"])
        print_json({"totals": totals})
        return
    for found in totals:
        rows = [(run["run"], run["method"], str(run["rounds"]), show_epsilon(run["epsilon"])) for run in found["runs"]]
        print_table(("run", "method", "rounds", "epsilon"), rows, title=f"on {found['data']}")
        secret = ", had all of the noise been secret (some is simulated)" if found["simulated"] else ""
        typer.echo(
            f"together: epsilon {show_epsilon(found['epsilon'])} at delta {found['delta']:g}, for the outside world "
            f"and a person whose records were in all of them{secret}."
        )
        if any(math.isinf(run["epsilon"]) for run in found["runs"]):
            typer.echo(
                "(infinite: a run without noise or guarantee, or one that protects records or clients and not people)"
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
    spent: Counter[Event] = Counter(dict(Ledger(experiment.privacy.delta, None, entries).composition()))
    if entries and (experiment.method.unit != "user" or _void(directory, experiment)):
        spent = Counter({NonPrivate(): len(entries)})
    return _Run(path, experiment, _data(experiment), rounds, spent)


def _check_whole(directory: RunDirectory, rounds: int) -> None:
    """Refuse a ledger that holds less than was trained."""
    trained = len(directory.metrics())
    if directory.finished:
        trained = max(trained, int(directory.read_json("result.json").get("rounds", 0)))
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


def _sharing_data(runs: list[_Run]) -> list[list[_Run]]:
    """Runs that have a file in common, or a chain of such runs, belong together: so may their people."""
    groups: list[tuple[frozenset[str], list[_Run]]] = []
    for run in runs:
        data, members = run.data, [run]
        for other in [group for group in groups if group[0] & data]:
            groups.remove(other)
            data, members = data | other[0], [*other[1], *members]
        groups.append((data, members))
    return [sorted(members, key=lambda run: run.path) for _, members in groups]
