"""``uldp local``: what values cost that clients perturb themselves, with a shuffler and without."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from uldp.cli import options as opt
from uldp.cli.output import name_options, print_json, print_table, report_errors

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


@report_errors
def local(
    epsilon_weight: Annotated[float, typer.Option(help="Epsilon of one weight in one round, from 1e-6 to 20.")],
    weights: Annotated[int, typer.Option(help="Number of weights n_w that a client sends in a round.")] = 1,
    rounds: Annotated[int, typer.Option(help="Number of rounds T in which a client takes part.")] = 1,
    clients: Annotated[int | None, typer.Option(help="Number of clients N whose values a shuffler mixes.")] = None,
    mechanism: Annotated[
        str, typer.Option(help="srr, two-point, grr, piecewise or hybrid; matters with --clients only.")
    ] = "piecewise",
    delta: Annotated[float, typer.Option(help="delta of the guarantee.")] = 1e-5,
    as_json: opt.Json = False,
) -> None:
    """Compute the epsilon of local DP: of one weight, of a client in a round, and of its whole run."""
    from uldp.errors import ConfigError
    from uldp.mechanisms.local_registry import local_mechanism
    from uldp.privacy.accountants import account
    from uldp.privacy.events import LocalReports
    from uldp.privacy.releases.local_perturbation import EXTREMAL
    from uldp.privacy.shuffle import erlingsson, local_run, shuffled_run

    mixed = formula = None
    with name_options(_OPTIONS):
        local_mechanism(mechanism, epsilon=epsilon_weight)
        pure = local_run(epsilon_weight, weights, rounds)
        counts = (1, weights, weights * rounds)
        alone = [account({LocalReports(epsilon_weight, count): 1}, delta).value for count in counts]
        if clients is not None:
            mixed = shuffled_run(epsilon_weight, clients, weights, rounds, delta, extremal=mechanism in EXTREMAL)
            with suppress(ConfigError):  # outside of its region it says nothing
                formula = erlingsson(epsilon_weight, clients, delta)
    if as_json:
        found = {"epsilon": alone[2], "delta": delta, "accountant": "local", **dict(zip(_KEYS, alone, strict=True))}
        shuffled = None if mixed is None else {**mixed.to_json(), "mechanism": mechanism}
        print_json({**found, "pure": pure.to_json(), "shuffled": shuffled, "erlingsson_per_weight": formula})
        return
    _show(pure, alone, mixed, delta)
    if mixed is not None:
        typer.echo(f"Shuffled, {mechanism}: {mixed.how}")
        region = "its formula is for N >= 1000, epsilon < 1/2 and delta < 1/100"
        typer.echo(f"Erlingsson et al. 2019, one weight: {region if formula is None else f'{formula:.4g}'}")


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
