"""``uldp total``: what several runs on the same people cost together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from uldp.cli import options as opt
from uldp.cli.output import print_json, print_table, report_errors
from uldp.cli.source import experiment_of

Folders = Annotated[list[Path], typer.Argument(help="Run directories, or folders that hold some at any depth.")]
Delta = Annotated[float, typer.Option(help="delta of the total; 0 takes the smallest delta of the runs.")]


@report_errors
def total(folders: Folders, delta: Delta = 0.0, as_json: opt.Json = False) -> None:
    """Add up the privacy that runs on the same people have spent: trials, comparisons and tuning count too."""
    from uldp.library.totals import add_up, read_runs

    found = add_up(read_runs(folders, experiment_of), delta)
    if as_json:
        print_json(found.to_json())
        return
    for group in found.groups:
        print_table(("run", "method", "rounds", "epsilon"), group.rows(), title=group.title)
        for line in group.sentences():
            typer.echo(line)
    if found.group_note:
        typer.echo(found.group_note)
