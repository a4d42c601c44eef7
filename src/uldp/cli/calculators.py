"""``uldp epsilon`` and ``uldp sigma``: privacy calculators."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from uldp.cli import options as opt
from uldp.cli.output import name_options, print_json, print_table, report_errors
from uldp.errors import ConfigError, format_value

if TYPE_CHECKING:
    from uldp.experiment.calculator import PrivacyQuery

MethodName = Annotated[str, typer.Option(help="Method by name (see `uldp methods`).")]
Rounds = Annotated[int | None, typer.Option(help="Number of rounds T.")]
AccountantName = Annotated[
    str, typer.Option(help="Accountant: auto, or by name (rdp, lemma5, lemma6 for the papers' figures).")
]
Adversary = Annotated[str, typer.Option(help="Adversary: public, server or silo.")]
AggregationName = Annotated[
    str, typer.Option(help="Aggregation, which decides what the server and the silos see: plain, masked or paillier.")
]
Silos = Annotated[int, typer.Option(help="Number of silos |S|.")]
Colluding = Annotated[int, typer.Option(help="With --adversary silo: number of colluding silos.")]
Dropped = Annotated[int, typer.Option(help="Number of silos that dropped out.")]
Delta = Annotated[float, typer.Option(help="delta of the guarantee; choose it far below 1/|U|.")]


_OPTIONS = {
    "privacy.accountant": "--accountant",
    "privacy.delta": "--delta",
    "privacy.noise_multiplier": "--noise-multiplier",
    "privacy.epsilon": "--epsilon",
    **{name: f"--{name}" for name in ("adversary", "silos", "colluding", "dropped", "method", "rounds")},
}
"""The options of settings, for errors."""


@report_errors
def epsilon(
    noise_multiplier: Annotated[
        float, typer.Option(help="sigma; the standard deviation of the noise is sigma * clip.", show_default=False)
    ],
    rounds: Rounds = None,
    method: MethodName = "uldp-avg",
    overrides: opt.Set = [],  # noqa: B006
    delta: Delta = 1e-5,
    adversary: Adversary = "public",
    aggregation: AggregationName = "masked",
    silos: Silos = 5,
    colluding: Colluding = 1,
    dropped: Dropped = 0,
    accountant: AccountantName = "auto",
    table: Annotated[
        bool, typer.Option("--table", help="Print the paper's formula, a valid one and the tight value side by side.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="With --table: draw it to this file.")] = None,
    as_json: opt.Json = False,
) -> None:
    """Compute the epsilon of a run, and for whom it holds."""
    from uldp.experiment.calculator import PrivacyQuery, Side
    from uldp.library.calculators import PrivacyCost
    from uldp.reports.figures import check_picture

    if out is not None and not table:
        raise ConfigError("goes with --table", location="--out", value=str(out))
    if out is not None:
        check_picture(out)
    with name_options(_OPTIONS):
        side, settings = Side(adversary, aggregation, silos, colluding, dropped), _settings(overrides)
        query = PrivacyQuery.of(method, rounds=rounds, side=side, delta=delta, accountant=accountant, **settings)
        if table:
            _print_side_by_side(query, noise_multiplier, out, as_json)
            return
        cost = PrivacyCost(query, noise_multiplier)
    if as_json:
        print_json(cost.to_json())
    else:
        typer.echo("\n".join([str(cost), *cost.notes()]))


@report_errors
def sigma(
    target: Annotated[float, typer.Option("--epsilon", help="Target epsilon.")],
    rounds: Rounds = None,
    method: MethodName = "uldp-avg",
    overrides: opt.Set = [],  # noqa: B006
    delta: Delta = 1e-5,
    adversary: Adversary = "public",
    aggregation: AggregationName = "masked",
    silos: Silos = 5,
    colluding: Colluding = 1,
    dropped: Dropped = 0,
    as_json: opt.Json = False,
) -> None:
    """Compute the smallest noise multiplier with which a run stays within an epsilon."""
    from uldp.experiment.calculator import PrivacyQuery, Side
    from uldp.library.calculators import CalibratedNoise

    with name_options(_OPTIONS):
        side, settings = Side(adversary, aggregation, silos, colluding, dropped), _settings(overrides)
        found = CalibratedNoise(PrivacyQuery.of(method, rounds=rounds, side=side, delta=delta, **settings), target)
    if as_json:
        print_json(found.to_json())
    else:
        typer.echo("\n".join([str(found), *found.cost.notes()]))


def _settings(overrides: list[str]) -> dict[str, Any]:
    """``--set method.key=value`` and ``privacy.dropout_tolerance=value``, as arguments of a query."""
    from uldp.experiment.sections import with_override

    tree: dict[str, Any] = {"method": {}}
    for assignment in overrides:
        tree = with_override(tree, assignment)
    privacy: dict[str, Any] = tree.pop("privacy", {})
    for path in (*(key for key in tree if key != "method"), *(f"privacy.{key}" for key in privacy)):
        if path != "privacy.dropout_tolerance":
            wanted = "method.key=value or privacy.dropout_tolerance=value"
            raise ConfigError(f"{wanted}, not {format_value(path)}", location="--set", value=path)
    return {"settings": tree["method"], **privacy}


def _print_side_by_side(query: PrivacyQuery, noise_multiplier: float, out: Path | None, as_json: bool) -> None:
    from uldp.experiment.calculator import side_by_side
    from uldp.library.calculators import PrivacyCost
    from uldp.privacy.sentences import finite_or_none, show_epsilon

    table = side_by_side(query, noise_multiplier)
    figure = None
    if out is not None:
        from uldp.reports.figures import table_figure

        figure = str(table_figure(table.head, table.columns, table.rows, out))
    if as_json:
        rows = [
            {table.head: key, **dict(zip(table.columns, map(finite_or_none, values), strict=True))}
            for key, values in table.rows
        ]
        print_json(
            {"table": rows, "delta": query.delta, "asserted_by": list(query.third_party_names()), "figure": figure}
        )
        return
    shown = [(str(key), *("-" if math.isnan(v) else show_epsilon(v) for v in values)) for key, values in table.rows]
    print_table((table.head, *table.columns), shown)
    if "published" in table.columns:
        typer.echo(
            "'published' is what the paper's formula or figure says; where it is the smaller one it is no bound."
        )
    for line in PrivacyCost(query, noise_multiplier).notes():
        typer.echo(line)
    if figure:
        typer.echo(f"picture: {figure}")
