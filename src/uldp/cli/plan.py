"""``uldp plan``: what a run would cost in privacy, before anything is trained."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from uldp.cli.budget import budget_sentence, fitting_changes
from uldp.cli.output import Json, Set, print_json, print_table, reporting, warn
from uldp.cli.run import warnings_before
from uldp.cli.source import (
    DataDirOption,
    DatasetOption,
    DeltaOption,
    EpsilonOption,
    File,
    MethodOption,
    PresetOption,
    RoundsOption,
    SeedOption,
    experiment_from,
    shortcuts,
)

if TYPE_CHECKING:
    from uldp.experiment.build import Prepared
    from uldp.experiment.config import Experiment
    from uldp.sessions.plan import Plan


@reporting
def plan(
    file: File = None,
    dataset: DatasetOption = None,
    method: MethodOption = None,
    preset: PresetOption = "",
    data_dir: DataDirOption = None,
    epsilon: EpsilonOption = None,
    delta: DeltaOption = None,
    rounds: RoundsOption = None,
    seed: SeedOption = None,
    overrides: Set = [],  # noqa: B006
    budget: Annotated[
        float | None, typer.Option("--budget", help="An epsilon: at which round does it end, and what would fit?")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show noise, epsilon per round and who faces which epsilon. Trains nothing."""
    from uldp.errors import ConfigError
    from uldp.privacy.accountants import account
    from uldp.privacy.sentences import finite_or_none, show_epsilon
    from uldp.reports.statement import text as statement_text

    chosen = shortcuts(overrides, epsilon, delta, rounds, seed)
    experiment = experiment_from(file, dataset, method, chosen, preset, data_dir)
    prepared = _prepared(experiment)
    agreed, at = prepared.plan, experiment.privacy.delta
    if budget is not None and (agreed.release.unit is None or not 0 < budget < math.inf):
        wanted = (
            f"a positive number, not {budget:g}"
            if agreed.release.unit
            else f"{experiment.method_name} spends without a bound"
        )
        raise ConfigError(wanted, location="--budget", value=budget)
    event = agreed.release.event(agreed.facts.silos)
    statement = prepared.planned_statement()
    void = prepared.no_guarantee
    per_round = {t: math.inf if void else account({event: t}, at).value for t in _milestones(agreed.rounds)}
    if budget is not None and void:
        raise ConfigError("there is no guarantee, so no budget either", location="--budget", value=budget)
    budgeted = None if budget is None else fitting_changes(prepared, budget)
    for text in warnings_before(prepared):
        warn(text)
    if as_json:
        print_json(
            {
                "dataset": prepared.federation.name,
                "method": experiment.method_name,
                "noise_multiplier": agreed.method.noise_multiplier,
                "rounds": agreed.rounds,
                "epsilon": finite_or_none(statement.epsilon),
                "delta": at,
                "epsilon_after_round": {str(t): finite_or_none(e) for t, e in per_round.items()},
                "users": agreed.facts.users,
                "silos": agreed.facts.silos,
                "parameters": agreed.facts.dimension,
                "aggregation": {
                    "name": agreed.aggregation.name,
                    **agreed.aggregation.costs(agreed.release, agreed.rounds),
                },
                "statement": statement.to_json(),
                **(budgeted or {}),
            }
        )
        return
    facts = agreed.facts
    typer.echo(
        f"{experiment.method_name} on {prepared.federation.name}: |U| = {facts.users} users, "
        f"|S| = {facts.silos} silos, {facts.dimension} parameters"
        + ("" if agreed.release.local else f", noise multiplier {agreed.method.noise_multiplier:g}")
    )
    typer.echo(_traffic(agreed))
    print_table(("after round", "epsilon"), [(str(t), show_epsilon(e)) for t, e in per_round.items()])
    if budgeted is not None:
        typer.echo(budget_sentence(budgeted, agreed.rounds) + "\n")
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


def _traffic(plan: Plan) -> str:
    """What a silo sends in a round, and what would make it less."""
    costs = plan.aggregation.costs(plan.release, plan.rounds)
    packed = f", {costs['slots']} parameters to a ciphertext" if costs.get("slots", 1) > 1 else ""
    once = f", and once {costs['setup_bytes']:,} bytes of setup" if "setup_bytes" in costs else ""
    advice = plan.aggregation.advice(plan.release, plan.rounds)
    sends, gets = costs["update_bytes"], costs["question_bytes"]
    traffic = f"a silo gets {gets:,} bytes a round and sends {sends:,} ({plan.aggregation.name}{packed}){once}"
    return f"{traffic}\n{advice}" if advice else traffic


def _milestones(rounds: int) -> list[int]:
    """1, 2, 5, 10, 20, 50 ... and the last round."""
    steps = [factor * 10**power for power in range(7) for factor in (1, 2, 5)]
    return [*(step for step in steps if step < rounds), rounds]
