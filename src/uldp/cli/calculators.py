"""``uldp epsilon`` and ``uldp sigma``: privacy calculators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from uldp.cli.output import Json, print_json, reporting

if TYPE_CHECKING:
    from uldp.privacy.accountants import Composition

Method = Annotated[str, typer.Option("--method", help="A method by name (see `uldp methods`).")]
Rounds = Annotated[int, typer.Option("--rounds", help="T, the number of rounds.")]
Rate = Annotated[float, typer.Option("--sample-rate", help="q, the probability that a user takes part in a round.")]
Delta = Annotated[float, typer.Option("--delta", help="The probability with which epsilon may fail; far below 1/|U|.")]


@reporting
def epsilon(
    noise_multiplier: Annotated[float, typer.Option("--noise-multiplier", help="sigma; the noise is sigma * clip.")],
    rounds: Rounds,
    method: Method = "uldp-avg",
    sample_rate: Rate = 1.0,
    delta: Delta = 1e-5,
    as_json: Json = False,
) -> None:
    """Epsilon of a run, for whoever sees the model of every round."""
    from uldp.privacy.accountants import account
    from uldp.privacy.statement import finite_or_none, show_epsilon

    spent = account(_planned(method, noise_multiplier, rounds, sample_rate), delta)
    if as_json:
        print_json({"epsilon": finite_or_none(spent.value), "delta": delta, "accountant": spent.accountant})
    else:
        typer.echo(f"epsilon {show_epsilon(spent.value)} at delta {delta:g} ({spent.accountant}, add/remove one user)")


@reporting
def sigma(
    target: Annotated[float, typer.Option("--epsilon", help="The epsilon to stay within.")],
    rounds: Rounds,
    method: Method = "uldp-avg",
    sample_rate: Rate = 1.0,
    delta: Delta = 1e-5,
    as_json: Json = False,
) -> None:
    """The smallest noise multiplier with which a run stays within an epsilon."""
    from uldp.errors import ConfigError
    from uldp.methods.registry import lookup
    from uldp.privacy.accountants import account
    from uldp.privacy.calibrate import calibrate

    if lookup(method).method.unit is None:
        raise ConfigError(f"{method} adds no noise, so no noise reaches an epsilon", place="--method", value=method)
    found = calibrate(lambda noise: _planned(method, noise, rounds, sample_rate), target, delta)
    reached = account(_planned(method, found, rounds, sample_rate), delta)
    if as_json:
        print_json(
            {
                "noise_multiplier": found,
                "epsilon": reached.value,
                "delta": delta,
                "accountant": reached.accountant,
            }
        )
    else:
        typer.echo(f"noise multiplier {found:g} (epsilon {reached.value:.4g} at delta {delta:g}, {reached.accountant})")


def _planned(method: str, noise_multiplier: float, rounds: int, sample_rate: float) -> Composition:
    from uldp.experiment.build import planned_events
    from uldp.methods.base import Facts
    from uldp.methods.registry import lookup

    named = lookup(method)
    noise = noise_multiplier if named.method.unit is not None else 0.0
    built = named.method(rounds=rounds, noise_multiplier=noise, sample_rate=sample_rate, **dict(named.fixed))
    # The outside world's epsilon depends neither on |U| nor on |S|.
    return planned_events(built, Facts(users=2, silos=2, dimension=1))
