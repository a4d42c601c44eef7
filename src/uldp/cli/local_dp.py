"""``uldp local``: what values cost that clients perturb themselves, with a shuffler and without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from uldp.cli.output import Json, naming, print_json, print_table, reporting

if TYPE_CHECKING:
    from uldp.privacy.shuffle import RunCost

_KEYS = ("per_weight_round", "per_client_round", "per_run")
_OPTIONS = {
    "method.epsilon_weight": "--epsilon-weight",
    "epsilon": "--epsilon-weight",
    "weights": "--weights",
    "rounds": "--rounds",
    "clients": "--clients",
    "method.mechanism": "--mechanism",
    "privacy.delta": "--delta",
}


@reporting
def local(
    epsilon_weight: Annotated[
        float, typer.Option("--epsilon-weight", help="The epsilon of one weight in one round, from 1e-6 to 20.")
    ],
    weights: Annotated[int, typer.Option("--weights", help="n_w: how many weights a client sends in a round.")] = 1,
    rounds: Annotated[int, typer.Option("--rounds", help="T: in how many rounds a client takes part.")] = 1,
    clients: Annotated[
        int | None, typer.Option("--clients", help="N: clients of a round whose values a shuffler mixes.")
    ] = None,
    mechanism: Annotated[
        str,
        typer.Option(
            "--mechanism",
            help="srr, two-point, grr, piecewise or hybrid. It matters with --clients only: some are amplified more.",
        ),
    ] = "piecewise",
    delta: Annotated[float, typer.Option("--delta", help="The probability with which epsilon may fail.")] = 1e-5,
    as_json: Json = False,
) -> None:
    """Epsilon of local DP: of one weight, of a client in a round, and of its whole run."""
    from uldp.errors import ConfigError
    from uldp.mechanisms.local_registry import local_mechanism
    from uldp.privacy.accountants import account
    from uldp.privacy.events import LocalReports
    from uldp.privacy.releases.local_perturbation import EXTREMAL
    from uldp.privacy.shuffle import erlingsson, local_run, shuffled_run

    mixed: RunCost | None = None
    formula: float | None = None
    with naming(_OPTIONS):
        local_mechanism(mechanism, epsilon=epsilon_weight)
        pure = local_run(epsilon_weight, weights, rounds)
        counts = (1, weights, weights * rounds)
        alone = [account({LocalReports(epsilon_weight, count): 1}, delta).value for count in counts]
        if clients is not None:
            mixed = shuffled_run(epsilon_weight, clients, weights, rounds, delta, extremal=mechanism in EXTREMAL)
            try:
                formula = erlingsson(epsilon_weight, clients, delta)
            except ConfigError:
                formula = None  # outside of its region it says nothing
    if as_json:
        found: dict[str, Any] = dict(zip(_KEYS, alone, strict=True))
        shuffled = None if mixed is None else {**mixed.to_json(), "mechanism": mechanism}
        print_json({"epsilon": alone[2], "delta": delta, "accountant": "local", **found, "pure": pure.to_json(),
                    "shuffled": shuffled, "erlingsson_per_weight": formula})  # fmt: skip
        return
    _show(pure, alone, mixed, delta)
    if mixed is not None:
        typer.echo(f"Shuffled, {mechanism}: {mixed.how}")
        inside = (
            "its formula is for N >= 1000, epsilon < 1/2 and delta < 1/100" if formula is None else f"{formula:.4g}"
        )
        typer.echo(f"Erlingsson et al. 2019, one weight: {inside}")


def _show(pure: RunCost, alone: list[float], mixed: RunCost | None, delta: float) -> None:
    from uldp.privacy.sentences import show_epsilon

    names = ("one weight in a round", "a client in a round", "a client's whole run")
    columns = [[getattr(pure, key) for key in _KEYS], alone]
    head = ["epsilon of", "towards everybody, delta 0", f"delta {delta:g}"]
    if mixed is not None:
        columns.append([getattr(mixed, key) for key in _KEYS])
        head.append(f"the server, behind a shuffler, delta {delta:g}")
    rows = [(name, *map(show_epsilon, values)) for name, *values in zip(names, *columns, strict=True)]
    print_table(head, rows)
    typer.echo(f"At delta 0 epsilons add up; at delta {delta:g} they compose to less where there are many small ones.")
