"""``uldp bench``: ratios, both sides measured in the same run."""

from __future__ import annotations

from typing import Annotated

import typer

from uldp.cli.output import Json, print_json, print_table, reporting

bench = typer.Typer(help="Measure ourselves against simple code, in one run.", no_args_is_help=True)


@bench.callback()
def _bench() -> None:
    pass


@bench.command()
@reporting
def train(
    case: Annotated[list[str], typer.Option("--case", help="Only this case; may be repeated.")] = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """The per-user trainer against a loop over users."""
    from uldp.bench.train import run_cases

    cases = run_cases(case or None, say=lambda text: typer.echo(text, err=True))
    if as_json:
        print_json(cases)
        return
    rows = [
        (
            item["name"],
            f"{item['ours']:.3g} s",
            f"{item['baseline']:.4g} s",
            f"{item['ratio']:.1f}x",
            f"{item['peak_mb']:.0f} MB",
            f"{100 * item['flops_share']:.0f} %",
        )
        for item in cases
    ]
    print_table(("case", "ours", "loop", "ratio", "peak memory", "of peak flops"), rows)
    for item in cases:
        typer.echo(f"{item['name']}: {item['note']}")
