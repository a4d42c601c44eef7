"""``uldp attack``: what a server that is not trusted, or anyone who sees the models, finds out, by simulation."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from uldp.cli import options as opt
from uldp.cli.membership import membership
from uldp.cli.output import name_options, print_json, print_table, report_errors
from uldp.errors import ConfigError
from uldp.limits import MAX_CURVE, MAX_SEED, check_whole

if TYPE_CHECKING:
    from uldp.attacks.inference import Scene

attack = typer.Typer(help="Run attacks on what is sent and on what is released.", no_args_is_help=True)
attack.command()(membership)

_OPTIONS = {
    "method.epsilon_weight": "--epsilon",
    "method.center": "--center",
    "method.radius": "--radius",
    "method.mechanism": "--mechanism",
    "method.groups": "--groups",
    "method.delta_sizes": "--delta-sizes",
    "method.precision": "--precision",
    "adversary": "--adversary",
}

Mechanisms = Annotated[
    list[str], typer.Option("--mechanism", help="srr, two-point, grr, piecewise, hybrid; comma-separated, or repeated.")
]
Epsilons = Annotated[list[str], typer.Option("--epsilon", help="Epsilon of one weight; comma-separated, or repeated.")]
Adversaries = Annotated[
    list[str],
    typer.Option(
        "--adversary",
        help="frequency (two-point only), mean, likelihood, em; comma-separated, or repeated (default: all).",
    ),
]
Vary = Annotated[
    list[str],
    typer.Option(
        "--vary",
        help="clients, rounds, weight, spread or tolerance, as clients=100,1000; may be repeated.",
        show_default=False,
    ),
]
_VARIED: dict[str, type[int] | type[float]] = {
    "clients": int,
    "rounds": int,
    "weight": float,
    "spread": float,
    "tolerance": float,
}


@attack.command()
@report_errors
def inference(
    mechanism: Mechanisms = ["two-point,srr"],  # noqa: B006
    epsilon: Epsilons = ["1,2,3,5,8,10"],  # noqa: B006
    adversary: Adversaries = [],  # noqa: B006
    clients: Annotated[int, typer.Option(help="Number of clients, all of them in every round.")] = 1000,
    rounds: Annotated[int, typer.Option(help="Number of rounds that the server sees.")] = 50,
    center: Annotated[float, typer.Option(help="Center c of the range of weights.")] = 0.0,
    radius: Annotated[float, typer.Option(help="Radius r of the range of weights.")] = 1.0,
    weight: Annotated[float | None, typer.Option(help="The clients' mean weight (default: c + 0.3 r).")] = None,
    spread: Annotated[
        float, typer.Option(help="Standard deviation between clients, in units of the weights.")
    ] = 0.00548,
    tolerance: Annotated[
        float, typer.Option(help="Largest change of the mean in a round, in units of the weights.")
    ] = 0.01,
    trials: Annotated[int, typer.Option(help="Number of attacks to average over.")] = 500,
    groups: Annotated[int, typer.Option(help="SRR: number of groups m.")] = 10,
    delta_sizes: Annotated[
        float | None,
        typer.Option(help="SRR: growth of groups Delta(d) (default: as published, scaled).", show_default=False),
    ] = None,
    precision: Annotated[int, typer.Option(help="SRR and GRR: number of decimals of the grid.")] = 4,
    vary: Vary = [],  # noqa: B006
    seed: Annotated[int, typer.Option(help="Seed of the simulation.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Draw the error against epsilon, or against what is varied, to this file (png, pdf, svg)."),
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Estimate the clients' mean weight from perturbed ones, as an untrusted server (SRR-FL, Section 3).

    The error is in percent of the range. Confidence (of frequency alone, Eq. 10 of the paper) is 1 / (0.01 + d), where
    d is by how much of the range the guesses from two halves of the rounds differ: 100 if they agree.
    """
    from uldp.attacks.series import chosen_adversaries, mechanisms_of, misfits, play
    from uldp.reports.figures import attack_figure, check_picture

    check_whole(seed, 0, MAX_SEED, "--seed")
    chosen = {"clients": clients, "rounds": rounds, "spread": spread, "tolerance": tolerance, "trials": trials}
    chosen["weight"] = center + 0.3 * radius if weight is None else weight
    combinations = _combinations(vary)
    scenes = [_scene({**chosen, **values}, center) for values in combinations]
    settings = {"center": center, "radius": radius, "groups": groups, "delta": delta_sizes, "precision": precision}
    with name_options(_OPTIONS):
        mechanisms = mechanisms_of(_split_names(mechanism), _numbers(_split_names(epsilon)), settings)
        adversaries = chosen_adversaries(_split_names(adversary), mechanisms)
    if out is not None:
        check_picture(out)
    played = [play(mechanisms, adversaries, scene, seed) for scene in scenes]
    outcomes = [outcome for found in played for outcome in found]
    for one in adversaries:
        for name, why in misfits(one, mechanisms).items():
            typer.echo(f"{one.name} is not played on {name}: {why}", err=as_json)
    varied = [values for values, found in zip(combinations, played, strict=True) for _ in found]
    if out is not None:
        attack_figure(outcomes, out, varied)
    rows = [{**values, **outcome.to_json()} for values, outcome in zip(varied, outcomes, strict=True)]
    if as_json:
        print_json(rows)
        return
    _print_outcomes(rows)
    if out is not None:
        typer.echo(f"picture: {out}")


def _combinations(vary: Sequence[str]) -> list[dict[str, Any]]:
    """All combinations of what is varied; one without anything if nothing is."""
    lists: dict[str, list[Any]] = {}
    for assignment in vary:
        name, _, text = assignment.partition("=")
        kind = _VARIED.get(name.strip())
        if kind is None or name.strip() in lists:
            reason = f"each of {', '.join(_VARIED)} at most once, as clients=100,1000; not {assignment!r}"
            raise ConfigError(reason, location="--vary", value=assignment)
        try:
            lists[name.strip()] = list(dict.fromkeys(map(kind, text.split(","))))
        except ValueError:
            wanted = "whole numbers" if kind is int else "numbers"
            raise ConfigError(f"{wanted} with commas between, not {text!r}", location="--vary", value=text) from None
    found = [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]
    if len(found) > MAX_CURVE:
        raise ConfigError(f"at most {MAX_CURVE:,} combinations", location="--vary", value=len(found))
    return found


def _scene(chosen: dict[str, Any], center: float) -> Scene:
    from uldp.attacks.inference import Scene

    return Scene(offset=chosen["weight"] - center, **{key: value for key, value in chosen.items() if key != "weight"})


def _split_names(given: Sequence[str]) -> list[str]:
    """The names in all lists, each once."""
    return list(dict.fromkeys(name.strip() for text in given for name in text.split(",") if name.strip()))


def _numbers(given: Sequence[str]) -> list[float]:
    if not given:
        raise ConfigError("give at least one number, such as 3", location="--epsilon")
    if len(given) > MAX_CURVE:
        raise ConfigError(f"at most {MAX_CURVE:,} numbers, not {len(given):,}", location="--epsilon", value=len(given))
    numbers = []
    for text in given:
        try:
            numbers.append(float(text))
        except ValueError:
            raise ConfigError(f"a number such as 3, not {text!r}", location="--epsilon", value=text) from None
    return numbers


def _print_outcomes(rows: Sequence[dict[str, Any]]) -> None:
    digits = {"epsilon": "g", "error_percent": ".3f", "standard_error": ".3f", "confidence": ".1f"}
    shown = [["" if row[key] is None else format(row[key], digits.get(key, "")) for key in row] for row in rows]
    titles = {"error_percent": "error, % of the range", "standard_error": "standard error"}
    print_table([titles.get(key, key) for key in rows[0]] if rows else (), shown)
