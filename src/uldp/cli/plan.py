"""``uldp plan``: what a run would cost in privacy, before anything is trained."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from uldp.cli import options as opt
from uldp.cli.output import print_json, print_table, reporting, warn
from uldp.cli.run import warnings_before
from uldp.cli.source import experiment_from, shortcuts
from uldp.errors import ConfigError

if TYPE_CHECKING:
    from uldp.experiment.build import Prepared
    from uldp.experiment.config import Experiment
    from uldp.sessions.plan import Plan


@reporting
def plan(
    file: opt.File = None,
    dataset: opt.Dataset = None,
    method: opt.Method = None,
    preset: opt.Preset = "",
    data_dir: opt.DataDir = None,
    epsilon: opt.Epsilon = None,
    delta: opt.Delta = None,
    rounds: opt.Rounds = None,
    seed: opt.Seed = None,
    overrides: opt.Set = [],  # noqa: B006
    budget: Annotated[
        float | None, typer.Option(help="Show in which round this epsilon is used up, and what would fit.")
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Show noise, epsilon per round and who faces which epsilon. Trains nothing."""
    from uldp.experiment.budget import fitting_changes
    from uldp.privacy.accountants import account
    from uldp.privacy.sentences import finite_or_none, show_epsilon
    from uldp.reports.statement import text as statement_text

    chosen = shortcuts(overrides, epsilon, delta, rounds, seed)
    experiment = experiment_from(file, dataset, method, chosen, preset, data_dir)
    prepared = _prepared(experiment)
    agreed, facts, at = prepared.plan, prepared.plan.facts, experiment.privacy.delta
    if budget is not None:
        _check_budget(budget, prepared)
    event = agreed.release.event(facts.silos)
    statement = prepared.planned_statement()
    no_guarantee = prepared.no_guarantee
    per_round = {t: math.inf if no_guarantee else account({event: t}, at).value for t in _milestones(agreed.rounds)}
    budgeted = None if budget is None else fitting_changes(prepared, budget)
    for text in warnings_before(prepared):
        warn(text)
    if as_json:
        costs = agreed.aggregation.costs(agreed.release, agreed.rounds)
        print_json(
            {
                "dataset": prepared.federation.name,
                "method": experiment.method_name,
                "noise_multiplier": agreed.method.noise_multiplier,
                "rounds": agreed.rounds,
                "epsilon": finite_or_none(statement.epsilon),
                "delta": at,
                "epsilon_after_round": {str(t): finite_or_none(e) for t, e in per_round.items()},
                "users": facts.users,
                "silos": facts.silos,
                "parameters": facts.dimension,
                "aggregation": {"name": agreed.aggregation.name, **costs},
                "statement": statement.to_json(),
                **(budgeted or {}),
            }
        )
        return
    typer.echo(
        f"{experiment.method_name} on {prepared.federation.name}: |U| = {facts.users} users, "
        f"|S| = {facts.silos} silos, {facts.dimension} parameters"
        + ("" if agreed.release.local else f", noise multiplier {agreed.method.noise_multiplier:g}")
    )
    typer.echo(_traffic(agreed))
    print_table(("after round", "epsilon"), [(str(t), show_epsilon(e)) for t, e in per_round.items()])
    if budgeted is not None:
        typer.echo(_budget_sentence(budgeted, agreed.rounds) + "\n")
    typer.echo("Privacy after the last round")
    typer.echo("\n".join(statement_text(statement)))


def _prepared(experiment: Experiment) -> Prepared:
    """With all tables here they are read; a party that does not hold all of them plans from the file alone."""
    from uldp.experiment.build import prepare
    from uldp.experiment.parties import prepare_server

    files = experiment.data.silos
    if isinstance(files, tuple) and not all((experiment.base / file).exists() for file in files):
        warn("not all tables are here: planned from the experiment file alone, nobody's records were read")
        return prepare_server(experiment, rehearsal=True)
    return prepare(experiment)


def _check_budget(budget: float, prepared: Prepared) -> None:
    wanted = ""
    if not prepared.plan.release.privacy_unit:
        wanted = f"{prepared.experiment.method_name} spends without a bound"
    elif not 0 < budget < math.inf:
        wanted = f"a positive number, not {budget:g}"
    elif prepared.no_guarantee:
        wanted = "there is no guarantee, so no budget either"
    if wanted:
        raise ConfigError(wanted, location="--budget", value=budget)


def _traffic(plan: Plan) -> str:
    """What a silo sends in a round, and what would make it less."""
    costs = plan.aggregation.costs(plan.release, plan.rounds)
    packed = f", {costs['slots']} parameters to a ciphertext" if costs.get("slots", 1) > 1 else ""
    once = f", and once {costs['setup_bytes']:,} bytes of setup" if "setup_bytes" in costs else ""
    advice = plan.aggregation.advice(plan.release, plan.rounds)
    sends, gets = costs["update_bytes"], costs["request_bytes"]
    traffic = f"a silo gets {gets:,} bytes a round and sends {sends:,} ({plan.aggregation.name}{packed}){once}"
    return f"{traffic}\n{advice}" if advice else traffic


def _milestones(rounds: int) -> list[int]:
    """1, 2, 5, 10, 20, 50 ... and the last round."""
    steps = [factor * 10**power for power in range(7) for factor in (1, 2, 5)]
    return [*(step for step in steps if step < rounds), rounds]


def _budget_sentence(found: dict[str, Any], rounds: int) -> str:
    from uldp.privacy.sentences import show_epsilon

    budget, last = show_epsilon(found["budget"]), found["rounds_within_budget"]
    counted = " (it counts the local number, not the server's behind the shuffler)" if "budget_counts" in found else ""
    if last >= rounds:
        return f"A budget of epsilon {budget}{counted} lasts for all {rounds} rounds."
    until = f"ends after round {last} of {rounds}" if last else "is less than one round costs"
    ends = f"A budget of epsilon {budget}{counted} {until}."
    changes = found["changes"]
    if not changes:
        return f"{ends} No single change fits it; take a larger one, or fewer rounds and more noise."
    listed = ", or ".join(f"{key} = {value:g}" for key, value in changes.items())
    sampled = " (sampling helps towards those who do not know the sample)" if "method.sample_rate" in changes else ""
    return f"{ends} One change would fit: {listed}{sampled}."
