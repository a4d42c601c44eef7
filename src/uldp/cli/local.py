"""``uldp local``: what values cost that clients perturb themselves, with a shuffler and without."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from uldp.cli.output import Json, print_json, print_table, reporting


@reporting
def local(
    epsilon_weight: Annotated[float, typer.Option("--epsilon-weight", help="The epsilon of one weight in one round.")],
    weights: Annotated[int, typer.Option("--weights", help="n_w: how many weights a client sends in a round.")] = 1,
    rounds: Annotated[int, typer.Option("--rounds", help="T: in how many rounds a client takes part.")] = 1,
    clients: Annotated[
        int | None, typer.Option("--clients", help="N: clients of a round whose values a shuffler mixes.")
    ] = None,
    mechanism: Annotated[
        str, typer.Option("--mechanism", help="srr, two-point, grr, piecewise or hybrid: some are amplified more.")
    ] = "piecewise",
    delta: Annotated[float, typer.Option("--delta", help="The probability with which epsilon may fail.")] = 1e-5,
    as_json: Json = False,
) -> None:
    """Epsilon of local DP: of one weight, of a client in a round, and of its whole run."""
    from uldp.errors import ConfigError
    from uldp.mechanisms.local_registry import local_mechanism
    from uldp.methods.ldp_fedavg import EXTREMAL
    from uldp.privacy.accountants import account
    from uldp.privacy.events import LocalReports
    from uldp.privacy.shuffle import RunCost, erlingsson, local_run, shuffled_run
    from uldp.privacy.statement import show_epsilon

    local_mechanism(mechanism, epsilon=epsilon_weight)
    local_run(epsilon_weight, weights, rounds)  # checks the numbers
    alone = [account({LocalReports(epsilon_weight, count): 1}, delta).value for count in (1, weights, weights * rounds)]
    mixed: RunCost | None = None
    formula: float | None = None
    if clients is not None:
        mixed = shuffled_run(epsilon_weight, clients, weights, rounds, delta, extremal=mechanism in EXTREMAL)
        try:
            formula = erlingsson(epsilon_weight, clients, delta)
        except ConfigError:
            formula = None  # outside of its region it says nothing
    keys = ("per_weight_round", "per_client_round", "per_run")
    if as_json:
        found: dict[str, Any] = dict(zip(keys, alone, strict=True))
        shuffled = None if mixed is None else mixed.to_json()
        print_json({"epsilon": alone[2], "delta": delta, "accountant": "local", **found, "shuffled": shuffled,
                    "erlingsson_per_weight": formula})  # fmt: skip
        return
    names = ("one weight in a round", "a client in a round", "a client's whole run")
    rows = [(name, show_epsilon(value)) for name, value in zip(names, alone, strict=True)]
    head: tuple[str, ...] = ("epsilon of", "towards everybody")
    if mixed is not None:
        head += ("the server, behind a shuffler",)
        rows = [(*row, show_epsilon(getattr(mixed, key))) for row, key in zip(rows, keys, strict=True)]  # type: ignore[misc]
    print_table(head, rows)
    if mixed is not None:
        typer.echo(mixed.how)
        inside = (
            "its formula is for N >= 1000, epsilon < 1/2 and delta < 1/100" if formula is None else f"{formula:.4g}"
        )
        typer.echo(f"Erlingsson et al. 2019, one weight: {inside}")
