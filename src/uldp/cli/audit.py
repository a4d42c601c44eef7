"""``uldp audit``: try to refute the epsilon that an experiment claims."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from uldp.cli import options as opt
from uldp.cli.output import name_options, print_json, print_table, report_errors, say, warn
from uldp.cli.source import experiment_from, experiment_of, shortcuts
from uldp.errors import BudgetExhausted, ConfigError

if TYPE_CHECKING:
    from uldp.runs.directory import RunDirectory

_OPTIONS = {
    "canaries": "--canaries",
    "adversary": "--adversary",
    "budget": "--budget",
    "audit_seed": "--audit-seed",
    "directory": "--run",
}


@report_errors
def audit(
    file: Annotated[
        Path | None,
        typer.Argument(help="An experiment file, or a run: then the result goes to its report.", show_default=False),
    ] = None,
    dataset: opt.Dataset = None,
    method: opt.Method = None,
    data_dir: opt.DataDir = None,
    epsilon: opt.Epsilon = None,
    delta: opt.Delta = None,
    rounds: opt.Rounds = None,
    overrides: opt.Set = [],  # noqa: B006
    canaries: Annotated[int | None, typer.Option(help="Canary users over all runs (default: by aggregation).")] = None,
    adversary: Annotated[str | None, typer.Option(help="Audit this adversary of the statement only.")] = None,
    audit_seed: Annotated[int, typer.Option(help="Seed of coins, synthetic people and the audit's noise.")] = 0,
    records: Annotated[
        Path | None,
        typer.Option(help="Audit the real records instead: a run, charged to the ledger of this new run directory."),
    ] = None,
    budget: Annotated[
        float | None, typer.Option(help="With --records: epsilon of this run and those beside it (default: --epsilon).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Draw the trade-off curves to this file (png, pdf, svg).")] = None,
    as_json: opt.Json = False,
) -> None:
    """Try to refute the claimed epsilon with canary users in real sessions. Uses nobody's records by default.

    Exit code 1 if the claim is refuted, 0 if not.
    """
    from uldp.audits.audit import size_of
    from uldp.data.store import expand_home
    from uldp.library.arguments import CallArguments
    from uldp.library.auditing import public_shape, real_records, run_audit
    from uldp.limits import MAX_SEED, check_whole
    from uldp.reports.figures import check_picture
    from uldp.runtimes.reporting import AUDIT

    if out is not None:
        check_picture(out)
    with name_options(_OPTIONS):
        check_whole(audit_seed, 0, MAX_SEED, "audit_seed")
        chosen = shortcuts(overrides, epsilon, delta, rounds, None)
        run = _run_of(file, [*chosen, dataset, method, data_dir, records])
        given = experiment_from(file, dataset, method, chosen, "", data_dir) if run is None else experiment_of(run)
        request = CallArguments(given, None, None)
        prepared = public_shape(request) if records is None else request.prepare()
        size = size_of(prepared, canaries, real=records is not None)
        say(f"audit of {prepared.experiment.method_name} on {prepared.federation.name}: {size}")
        if records is None:
            made = run_audit(prepared, size, adversary, audit_seed, None)
        else:
            try:
                with real_records(prepared, expand_home(records, "--records"), budget) as real:
                    made = run_audit(prepared, size, adversary, audit_seed, None, real)
            except BudgetExhausted as error:  # 1 is for what was refuted
                raise ConfigError(error.message, location=error.location, value=error.value) from error
    if run is not None:
        run.write_json(AUDIT, made.to_json())
    if as_json:
        print_json(made.to_json())
    else:
        typer.echo(made.headline())
        print_table(("adversary", "claimed epsilon", "refuted at 95 %", "verdict"), made.rows())
        print_table(("statistic, first adversary", "refutes", "assumes"), made.bound_rows())
        if made.checks:
            print_table(("direct check", "found", ""), made.check_rows())
        for note in made.notes:
            typer.echo(note)
    if out is not None:
        if any(found.curve is not None and found.claim is not None for found in made.found):
            made.figure(out)
        else:
            warn("no trade-off curve was measured, so there is no picture.")
    raise typer.Exit(1 if made.refuted else 0)


def _run_of(file: Path | None, settings: Sequence[object]) -> RunDirectory | None:
    """The run whose experiment is audited; None for an experiment file or a data set."""
    from uldp.runs.directory import RunDirectory

    if file is None or not file.is_dir():
        return None
    run = RunDirectory.open(file)
    if any(setting is not None for setting in settings):
        reason = "an audit of a run takes its settings; leave the others out, or audit an experiment file"
        raise ConfigError(reason, location=str(file), value=str(file))
    return run
