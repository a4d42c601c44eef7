"""``uldp total``: what several runs on the same people cost together."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from uldp.cli.output import Json, print_json, print_table, reporting

if TYPE_CHECKING:
    from uldp.privacy.events import Event

Folders = Annotated[list[Path], typer.Argument(help="Run directories, or folders that hold some at any depth.")]
Delta = Annotated[float, typer.Option("--delta", help="The delta of the total; 0 takes the smallest of the runs.")]


@reporting
def total(folders: Folders, delta: Delta = 0.0, as_json: Json = False) -> None:
    """Add up the privacy that runs on the same data have spent: trials, comparisons and tuning count too."""
    from uldp.errors import RunError
    from uldp.privacy.accountants import account
    from uldp.privacy.events import NonPrivate
    from uldp.privacy.statement import finite_or_none, show_epsilon
    from uldp.runs.directory import RunDirectory

    found = sorted({path.parent for folder in folders for path in _runs_below(folder)})
    if not found:
        listed = ", ".join(str(folder) for folder in folders)
        raise RunError("holds no run directory (a folder with experiment.json)", place=listed, value=listed)
    groups: dict[str, list[dict[str, Any]]] = {}
    events: dict[str, Counter[Event]] = {}
    for path in found:
        directory = RunDirectory.open(path)
        experiment = directory.experiment()
        spent = _ledger(directory, experiment.privacy.delta)
        if experiment.method.unit != "user":  # a promise to a record is none to a person
            spent = Counter({NonPrivate(): len(directory.ledger_entries())}) if spent else spent
        data = _data_name(experiment.to_tree()["data"])
        one = {
            "run": str(path),
            "method": experiment.method_name,
            "rounds": len(directory.ledger_entries()),
            "delta": experiment.privacy.delta,
            "epsilon": account(spent, experiment.privacy.delta).value,
        }
        groups.setdefault(data, []).append(one)
        events.setdefault(data, Counter()).update(spent)
    totals: list[dict[str, Any]] = []
    for data, runs in groups.items():
        at = delta or min(run["delta"] for run in runs)
        private = [run for run in runs if math.isfinite(run["epsilon"])]
        totals.append({"data": data, "runs": runs, "delta": at, "epsilon": account(events[data], at).value})
        if len(private) < len(runs):
            totals[-1]["without_privacy"] = len(runs) - len(private)
    if as_json:
        for group in totals:
            group["epsilon"] = finite_or_none(group["epsilon"])
            for run in group["runs"]:
                run["epsilon"] = finite_or_none(run["epsilon"])
        print_json({"totals": totals})
        return
    for group in totals:
        rows = [(run["run"], run["method"], str(run["rounds"]), show_epsilon(run["epsilon"])) for run in group["runs"]]
        print_table(("run", "method", "rounds", "epsilon"), rows, title=f"on {group['data']}")
        typer.echo(
            f"together: epsilon {show_epsilon(group['epsilon'])} at delta {group['delta']:g}, for the outside world "
            "and a person whose records were in all of them."
        )


def _runs_below(folder: Path) -> list[Path]:
    own = folder / "experiment.json"
    return [own] if own.is_file() else [path for path in folder.rglob("experiment.json") if path.is_file()]


def _ledger(directory: Any, delta: float) -> Counter[Event]:
    from uldp.privacy.ledger import Ledger

    return Counter(dict(Ledger(delta, None, directory.ledger_entries()).composition()))


def _data_name(data: dict[str, Any]) -> str:
    """What tells one body of people from another: the data set, or the files."""
    if "dataset" in data:
        return str(data["dataset"])
    return json.dumps(data.get("silos"))
