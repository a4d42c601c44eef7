"""``uldp describe``: what the data look like, with noise, before a model is trained."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from uldp.cli import options as opt
from uldp.cli.output import before_start, print_json, print_table, report_errors, say
from uldp.cli.run import warn_all
from uldp.cli.source import experiment_from, new_run

if TYPE_CHECKING:
    from uldp.runs.description import Description


@report_errors
def describe(
    file: Annotated[Path, typer.Argument(help="An experiment file, or the run directory of a description.")],
    epsilon: Annotated[float, typer.Option(help="What it may cost; adds up with training (`uldp total`).")] = 0.5,
    bins: Annotated[int, typer.Option(help="Into how many equal parts each agreed range is divided.")] = 10,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show error and cost, and release nothing.")] = False,
    histograms: Annotated[bool, typer.Option("--histograms", help="Show the counts of all bins.")] = False,
    overrides: opt.Set = [],  # noqa: B006
    out: opt.Out = None,
    as_json: opt.Json = False,
) -> None:
    """Describe the tables of an experiment with DP: counts, histograms, means, quantiles, missing rates."""
    from uldp.library.describing import plan_description, read_description
    from uldp.library.training import warnings_before
    from uldp.runs.directory import RunDirectory

    if file.is_dir():
        found = read_description(file)
    else:
        with before_start():
            if out is not None:
                RunDirectory.check_free(out)
            experiment = experiment_from(file, None, None, overrides)
            planned = plan_description(experiment, bins=bins, epsilon=epsilon)
        if dry_run:
            if as_json:
                errors = {"count_error": planned.count_error, "people_error": planned.people_error}
                print_json({**errors, "statement": planned.statement.to_json()})
            else:
                typer.echo("\n".join([planned.sentence(), planned.statement.headline()]))
            return
        directory = new_run(planned.prepared, out)
        warn_all(warnings_before(planned.prepared), directory)
        say(planned.sentence())
        found = planned.release(directory)
    if as_json:
        print_json({"run": found.run, **found.to_json(), "statement": found.statement.to_json()})
        return
    show(found, histograms=histograms)
    typer.echo(f"\nrun directory: {found.run}; what it costs with others: uldp total {quote(str(found.run))} ...")


def show(found: Description, *, histograms: bool = False) -> None:
    """A description for people: a line for each column, and on request the counts of all bins."""
    from uldp.reports.statement import summary
    from uldp.runs.description import HEADERS

    print_table(HEADERS, found.rows())
    if histograms:
        for column in found.columns:
            rows = [(name, f"{count:.0f}") for name, count in zip(column.bins, column.counts, strict=True)]
            print_table((column.name, "people"), rows)
    typer.echo("\n".join([*found.sentences(), "Privacy", *summary(found.statement)]))
