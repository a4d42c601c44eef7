"""``uldp total``: what several runs on the same people cost together."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from uldp.cli import options as opt
from uldp.cli.output import print_json, print_table, reporting
from uldp.cli.source import experiment_of

Folders = Annotated[list[Path], typer.Argument(help="Run directories, or folders that hold some at any depth.")]
Delta = Annotated[float, typer.Option(help="delta of the total; 0 takes the smallest delta of the runs.")]

_APART = (
    "These totals are about different people: no id is in two of them (by keyed digests in the runs' private folders), "
    "or they are of different data sets. A person who has another id in other tables is not recognised: give such "
    "experiments the same data.population, or add the totals up."
)


@reporting
def total(folders: Folders, delta: Delta = 0.0, as_json: opt.Json = False) -> None:
    """Add up the privacy that runs on the same people have spent: trials, comparisons and tuning count too."""
    from uldp.runs.totals import SpentRun, grouped, no_runs, runs_below

    paths = sorted({path.resolve() for folder in folders for path in runs_below(folder)})
    if not paths:
        raise no_runs(", ".join(str(folder) for folder in folders))
    totals = [group.to_json(delta) for group in grouped([SpentRun.read(path, experiment_of) for path in paths])]
    apart = _APART if len(totals) > 1 else None
    if as_json:
        print_json({"totals": totals, "apart": apart})
        return
    for found in totals:
        _show(found)
    if apart:
        typer.echo(apart)


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
