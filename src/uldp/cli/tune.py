"""``uldp tune``: settings that work on made-up tables of the same public shape."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from uldp.cli import options as opt
from uldp.cli.output import print_json, print_table, report_errors, say


@report_errors
def tune(
    file: Annotated[Path, typer.Argument(help="An experiment file; what is chosen goes into its [method].")],
    records: Annotated[float | None, typer.Option(help="Records per person over all silos, if that is public.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be chosen, and leave the file.")] = False,
    as_json: opt.Json = False,
) -> None:
    """Choose settings on made-up tables drawn from the public schema. Opens no table, so it costs no privacy."""
    from uldp.library.tuning import FREE
    from uldp.library.tuning import tune as choose

    found = choose(file, records=records, write=not dry_run, progress=say)
    if as_json:
        trials = [{"settings": dict(one.settings), "skill": one.skill, "of": one.federations} for one in found.trials]
        about = {"file": found.file, "backup": found.backup, "shape": found.shape, "note": FREE}
        print_json({"chosen": dict(found.chosen), "trials": trials, **about})
        return
    rows = [
        (
            one.settings["name"],
            *(f"{one.settings[key]:g}" if key in one.settings else "" for key in ("rounds", "clip", "server_lr")),
            f"{one.skill:.3f}",
            str(one.federations),
        )
        for one in found.trials[:9]
    ]
    print_table(("method", "rounds", "clip", "server_lr", "skill", "federations"), rows, title="The best of all tried")
    typer.echo(found.summary())
    if found.file is not None:
        typer.echo(f"wrote [method] of {found.file}; the file before is {found.backup}")
    elif not dry_run:
        typer.echo(f"{file} has these settings already and stays as it is")
