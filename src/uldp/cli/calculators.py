"""``uldp epsilon`` and ``uldp sigma``: privacy calculators."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from uldp.cli import options as opt
from uldp.cli.output import naming, print_json, print_table, reporting
from uldp.errors import ConfigError

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


_OPTIONS = {"privacy.accountant": "--accountant", "privacy.delta": "--delta"}
"""The options of settings, for errors."""


@reporting
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
    from uldp.privacy.sentences import PUBLIC, finite_or_none, show_epsilon
    from uldp.reports.figures import check_picture

    if out is not None and not table:
        raise ConfigError("goes with --table", location="--out", value=str(out))
    if out is not None:
        check_picture(out)
    with naming({**_OPTIONS, "privacy.noise_multiplier": "--noise-multiplier"}):
        side = Side(adversary, aggregation, silos, colluding, dropped)
        query = PrivacyQuery.of(
            method, rounds=rounds, settings=overrides, side=side, delta=delta, accountant=accountant
        )
        if table:
            _print_side_by_side(query, noise_multiplier, out, as_json)
            return
        spent, replaced = query.epsilon(noise_multiplier), query.replace_one(noise_multiplier)
    if as_json:
        print_json(
            {
                "epsilon": finite_or_none(spent.value),
                "epsilon_replace_one": finite_or_none(replaced),
                "delta": delta,
                "accountant": spent.accountant,
                "adversary": adversary,
                "silos_of_a_user": query.silos_of_a_user(),
                "asserted_by": list(query.authors()),
                "noise_multiplier": noise_multiplier,
            }
        )
        return
    who = {"public": PUBLIC, "server": "the server", "silo": "one silo"}[adversary]
    who = f"{colluding} colluding silos" if colluding > 1 else who
    typer.echo(
        f"epsilon {show_epsilon(spent.value)} at delta {delta:g} against {who} ({spent.accountant}, add/remove one "
        f"{query.method.privacy_unit or 'user'}; {show_epsilon(replaced)} under replace-one adjacency)"
    )
    _say_what_it_rests_on(query)


@reporting
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

    with naming({**_OPTIONS, "privacy.epsilon": "--epsilon"}):
        side = Side(adversary, aggregation, silos, colluding, dropped)
        query = PrivacyQuery.of(method, rounds=rounds, settings=overrides, side=side, delta=delta)
        found = query.noise_multiplier(target)
        reached = query.worst().epsilon(found)
    if as_json:
        print_json(
            {
                "noise_multiplier": found,
                "epsilon": reached.value,
                "delta": delta,
                "accountant": reached.accountant,
                "asserted_by": list(query.authors()),
            }
        )
    else:
        typer.echo(f"noise multiplier {found:g} (epsilon {reached.value:.4g} at delta {delta:g}, {reached.accountant})")
        _say_what_it_rests_on(query)


def _say_what_it_rests_on(query: PrivacyQuery) -> None:
    """Code that is not ours, and the number of a user's silos where epsilon depends on it."""

    if by := query.authors():
        typer.echo(f"asserted by {', '.join(by)}, not proven by uldp")
    if (silos := query.silos_of_a_user()) is not None:
        typer.echo(f"for a user with records in {silos} of {query.side.silos} silos (method.max_silos, --silos)")


def _print_side_by_side(query: PrivacyQuery, noise_multiplier: float, out: Path | None, as_json: bool) -> None:
    from uldp.experiment.calculator import side_by_side
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
        print_json({"table": rows, "delta": query.delta, "asserted_by": list(query.authors()), "figure": figure})
        return
    shown = [(str(key), *("-" if math.isnan(v) else show_epsilon(v) for v in values)) for key, values in table.rows]
    print_table((table.head, *table.columns), shown)
    if "published" in table.columns:
        typer.echo(
            "'published' is what the paper's formula or figure says; where it is the smaller one it is no bound."
        )
    _say_what_it_rests_on(query)
    if figure:
        typer.echo(f"picture: {figure}")
