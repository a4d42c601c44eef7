"""``uldp attack``: what a server that is not trusted finds out, by simulation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from uldp.cli import options as opt
from uldp.cli.output import naming, print_json, print_table, reporting
from uldp.errors import ConfigError, did_you_mean
from uldp.limits import MAX_CURVE, MAX_SEED, check_whole

if TYPE_CHECKING:
    from uldp.attacks.estimators import Adversary
    from uldp.attacks.inference import Outcome, Scene
    from uldp.mechanisms.local_mechanism import LocalMechanism

attack = typer.Typer(help="Run attacks on what is sent.", no_args_is_help=True)

_OPTIONS = {
    "method.epsilon_weight": "--epsilon",
    "method.center": "--center",
    "method.radius": "--radius",
    "method.mechanism": "--mechanism",
    "method.groups": "--groups",
    "method.delta_sizes": "--delta-sizes",
    "method.precision": "--precision",
}
_PUBLISHED = (1501, 10, 20.0)  # g, m and Delta(d) of the paper's experiments

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


@attack.command()
@reporting
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
    seed: Annotated[int, typer.Option(help="Seed of the simulation.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Draw error against epsilon to this file (png, pdf, svg).")] = None,
    as_json: opt.Json = False,
) -> None:
    """Estimate the clients' mean weight from perturbed ones, as an untrusted server (SRR-FL, Section 3).

    The error is in percent of the range. Confidence (of frequency alone, Eq. 10 of the paper) is 1 / (0.01 + d), where
    d is by how much of the range the guesses from two halves of the rounds differ: 100 if they agree.
    """
    from uldp.attacks.inference import Scene
    from uldp.reports.figures import attack_figure, check_picture

    check_whole(seed, 0, MAX_SEED, "--seed")
    offset = 0.3 * radius if weight is None else weight - center
    scene = Scene(clients=clients, rounds=rounds, offset=offset, spread=spread, tolerance=tolerance, trials=trials)
    settings = {"center": center, "radius": radius, "groups": groups, "delta": delta_sizes, "precision": precision}
    mechanisms = _mechanisms(_listed(mechanism), _numbers(_listed(epsilon)), settings)
    adversaries = _adversaries(_listed(adversary), mechanisms)
    if out is not None:
        check_picture(out)
    outcomes = _played(mechanisms, adversaries, scene, seed)
    for one in adversaries:
        for name, why in _misfits(one, mechanisms).items():
            typer.echo(f"{one.name} is not played on {name}: {why}", err=as_json)
    if out is not None:
        attack_figure(outcomes, out)
    rows = [_row(outcome) for outcome in outcomes]
    if as_json:
        print_json(rows)
        return
    _print_outcomes(rows)
    if out is not None:
        typer.echo(f"picture: {out}")


def _listed(given: Sequence[str]) -> list[str]:
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


def _mechanisms(names: Sequence[str], epsilons: Sequence[float], settings: dict[str, Any]) -> list[LocalMechanism]:
    """Each mechanism with each epsilon; a setting goes to those that have it."""
    from dataclasses import fields

    from uldp.mechanisms.local_registry import LOCAL_MECHANISMS, local_mechanism

    if not names:
        raise ConfigError("give at least one mechanism, such as srr", location="--mechanism")
    built = []
    with naming(_OPTIONS):
        for name in names:
            known = {field.name for field in fields(LOCAL_MECHANISMS[name])} if name in LOCAL_MECHANISMS else set()
            own = {key: value for key, value in settings.items() if key in known}
            if "delta" in own and own["delta"] is None:
                own["delta"] = _published_delta(settings)
            built += [local_mechanism(name, epsilon=epsilon, **own) for epsilon in epsilons]
    return built


def _published_delta(settings: dict[str, Any]) -> float:
    """The paper's Delta(d), which is about 0.6 of the largest possible one, for another grid."""
    from uldp.mechanisms.staircase import StaircaseResponse, largest_delta

    groups = settings["groups"]
    size = StaircaseResponse(**{**settings, "epsilon": 1.0, "delta": 0.0}).grid.size
    if groups == 1:
        return 0.0
    size_then, groups_then, delta = _PUBLISHED
    return delta * float(largest_delta(size, groups) / largest_delta(size_then, groups_then))


def _adversaries(names: Sequence[str], mechanisms: Sequence[LocalMechanism]) -> list[Adversary]:
    """The named ones, or all. One that fits none of the mechanisms is refused."""
    from uldp.attacks.estimators import ADVERSARIES

    for name in names:
        if name not in ADVERSARIES:
            raise ConfigError(
                f"unknown adversary {name!r}. Known: {', '.join(ADVERSARIES)}" + did_you_mean(name, ADVERSARIES),
                location="--adversary",
                value=name,
            )
        if not any(ADVERSARIES[name].fits(mechanism) for mechanism in mechanisms):
            reasons = _misfits(ADVERSARIES[name], mechanisms)
            listed = "; ".join(f"{name!r} does not work on {on}: {why}" for on, why in reasons.items())
            raise ConfigError(listed, location="--adversary", value=name)
    return [ADVERSARIES[name] for name in names or ADVERSARIES]


def _misfits(adversary: Adversary, mechanisms: Sequence[LocalMechanism]) -> dict[str, str]:
    """The mechanisms that an adversary cannot be used on, and why."""
    found = {mechanism.name: adversary.misfit(mechanism) for mechanism in mechanisms}
    return {name: why for name, why in found.items() if why}


def _played(
    mechanisms: Sequence[LocalMechanism], adversaries: Sequence[Adversary], scene: Scene, seed: int
) -> list[Outcome]:
    from uldp.attacks.inference import attack
    from uldp.rng import Secrets, Streams

    streams, secrets = Streams.from_seed(seed), Secrets.simulated_from_seed(seed)
    outcomes: list[Outcome] = []
    for mechanism in mechanisms:
        path = ("attack", mechanism.name, repr(mechanism.epsilon))
        outcomes += attack(mechanism, adversaries, scene, streams.child(*path), secrets.child(*path))
    return outcomes


def _row(outcome: Outcome) -> dict[str, Any]:
    return {
        "mechanism": outcome.mechanism,
        "adversary": outcome.adversary,
        "epsilon": outcome.epsilon,
        "error_percent": 100 * outcome.error,
        "standard_error": None if outcome.standard_error is None else 100 * outcome.standard_error,
        "confidence": outcome.confidence,
    }


def _print_outcomes(rows: Sequence[dict[str, Any]]) -> None:
    digits = {"epsilon": "g", "error_percent": ".3f", "standard_error": ".3f", "confidence": ".1f"}
    shown = [["" if row[key] is None else format(row[key], digits.get(key, "")) for key in row] for row in rows]
    print_table(("mechanism", "adversary", "epsilon", "error, % of the range", "standard error", "confidence"), shown)
