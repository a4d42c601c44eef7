"""``uldp coefficients``: the coefficients of a trained model in original units, with intervals."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from uldp.cli import options as opt
from uldp.cli.output import before_start, print_json, print_table, report_errors, say
from uldp.cli.run import warn_all
from uldp.cli.source import experiment_of, new_run


@report_errors
def coefficients(
    run: Annotated[Path, typer.Argument(help="The run of a linear, logistic or Cox model; or one of coefficients.")],
    epsilon: Annotated[float, typer.Option(help="What it may cost; adds up with training (`uldp total`).")] = 1.0,
    steps: Annotated[int | None, typer.Option(help="Newton steps (1 for linear models, else 3).")] = None,
    write: Annotated[
        Path | None,
        typer.Option(help="Release nothing: write the experiment that does, for `uldp serve` and `uldp join`."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the cost, and release nothing.")] = False,
    out: opt.Out = None,
    as_json: opt.Json = False,
) -> None:
    """Coefficients of a linear, logistic or Cox model with 95 % intervals: a release of its own, with DP."""
    from uldp.library.estimating import plan_coefficients, read_coefficients, write_experiment
    from uldp.library.training import warnings_before
    from uldp.reports.statement import summary
    from uldp.runs.directory import RunDirectory

    directory = RunDirectory.open(run)
    if directory.has("coefficients.json"):
        found = read_coefficients(run)
    else:
        with before_start():
            if out is not None:
                RunDirectory.check_free(out)
            experiment_of(directory)  # which may name code of its own
            if write is not None:
                say(f"wrote {write_experiment(run, write, steps=steps, epsilon=epsilon)}")
                return
            planned = plan_coefficients(run, steps=steps, epsilon=epsilon)
        if dry_run:
            if as_json:
                print_json({"statement": planned.statement.to_json()})
            else:
                typer.echo("\n".join([planned.sentence(), planned.statement.headline()]))
            return
        made = new_run(planned.prepared, out)
        warn_all(warnings_before(planned.prepared), made)
        say(planned.sentence())
        found = planned.release(made)
    if as_json:
        print_json({"run": found.run, **found.to_json(), "statement": found.statement.to_json()})
        return
    print_table(found.headers(), found.rows())
    typer.echo("\n".join([*found.sentences(), "Privacy", *summary(found.statement)]))
    typer.echo(f"\nrun directory: {found.run}; with the training: uldp total {quote(str(run))} {quote(str(found.run))}")
