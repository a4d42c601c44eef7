"""``uldp statement``: the whole privacy statement of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from uldp.cli.output import Json, print_json, reporting
from uldp.errors import RunError


@reporting
def statement(
    run_directory: Annotated[Path, typer.Argument(help="A run directory.")],
    as_html: Annotated[bool, typer.Option("--html", help="Print the page instead of text.")] = False,
    as_json: Json = False,
) -> None:
    """Show who faces which epsilon after a run, what is assumed, and what is not covered."""
    from uldp.runs.directory import RunDirectory

    directory = RunDirectory.open(run_directory)
    if not directory.has("statement.json"):
        raise RunError("has no privacy statement yet; finish it with `uldp resume`", location=str(run_directory))
    if as_json:
        print_json(directory.read_json("statement.json"))
        return
    typer.echo(directory.read_text("statement.html" if as_html else "statement.txt"), nl=False)
