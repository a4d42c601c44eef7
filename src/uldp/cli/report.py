"""``uldp report``: a page about one run, or about several side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from uldp.cli import options as opt
from uldp.cli.output import print_json, report_errors, warn

Runs = Annotated[list[Path], typer.Argument(help="Run directories, or folders that hold some, such as a comparison's.")]


@report_errors
def report(
    runs: Runs,
    out: Annotated[Path | None, typer.Option(help="Write to this file (default: report.html in RUN).")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    holder: Annotated[
        bool, typer.Option("--holder", help="Also show record counts: a page for the holder of the data only.")
    ] = False,
    registry: Annotated[
        bool, typer.Option("--registry", help="Also draft a record for the registry of DP deployments (JSON).")
    ] = False,
    as_json: opt.Json = False,
) -> None:
    """Write a page about a run that may be shown, with a model card beside it; of several runs a comparison."""
    from uldp.library.reporting import make_report

    written = make_report(runs, out, holder, registry=registry, force=force)
    if holder:
        warn("this page shows record counts, which no epsilon covers: it is for the holder of the data only.")
    if as_json:
        print_json(written.to_json())
        return
    typer.echo(f"report: {written.page}")
    if written.card is not None:
        typer.echo(f"model card: {written.card}")
    if written.record is not None:
        typer.echo(f"draft for the registry: {written.record}; fill in: {', '.join(written.missing)}")
