"""``uldp plan``: what a run would cost in privacy, before anything is trained."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from uldp.cli import options as opt
from uldp.cli.output import name_options, print_json, print_table, report_errors, warn
from uldp.cli.source import experiment_from, shortcuts

if TYPE_CHECKING:
    from uldp.experiment.build import PreparedExperiment
    from uldp.experiment.config import Experiment


@report_errors
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
    what_if: Annotated[
        bool,
        typer.Option("--what-if", help="Try more people, fewer columns, other epsilons on made-up tables; seconds."),
    ] = False,
    as_json: opt.Json = False,
) -> None:
    """Show noise, epsilon per round and who faces which epsilon. Trains nothing."""
    from uldp.library.planning import TrainingPlan, budget_sentence
    from uldp.library.what_if import alternatives, sentence
    from uldp.privacy.sentences import show_epsilon
    from uldp.reports.statement import text

    chosen = shortcuts(overrides, epsilon, delta, rounds, seed)
    experiment = experiment_from(file, dataset, method, chosen, preset, data_dir)
    planned = TrainingPlan(_prepare(experiment))
    with name_options({"budget": "--budget"}):
        budgeted = None if budget is None else planned.within(budget)
    for note in planned.warnings:
        warn(note)
    tried = alternatives(experiment) if what_if else []
    if as_json:
        document = {**planned.to_json(), **(budgeted or {})}
        print_json({**document, "what_if": [asdict(one) for one in tried]} if tried else document)
        return
    typer.echo("\n".join(planned.headline()))
    spent = [(str(t), show_epsilon(epsilon)) for t, epsilon in planned.epsilon_after.items()]
    print_table(("after round", "epsilon"), spent)
    if budgeted is not None:
        typer.echo(budget_sentence(budgeted, planned.prepared.plan.rounds) + "\n")
    if tried:
        typer.echo(sentence(tried, experiment) + "\n")
    typer.echo("\n".join(["Privacy after the last round", *text(planned.statement)]))


def _prepare(experiment: Experiment) -> PreparedExperiment:
    """With all tables here they are read; a party that does not hold all of them plans from the file alone."""
    from uldp.experiment.build import prepare
    from uldp.experiment.parties import prepare_server

    files = experiment.data.silos
    if isinstance(files, tuple) and not all((experiment.base / file).exists() for file in files):
        warn("not all tables are here: planned from the experiment file alone, nobody's records were read")
        return prepare_server(experiment, rehearsal=True)
    return prepare(experiment)
