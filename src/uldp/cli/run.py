"""``uldp run``, ``uldp resume`` and ``uldp plan``."""

from __future__ import annotations

import math
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from uldp.cli.output import Json, Set, paragraphs, print_json, print_table, progress, reporting, warn
from uldp.cli.source import DataDirOption, DatasetOption, File, MethodOption, PresetOption, experiment_from

if TYPE_CHECKING:
    from uldp.experiment.build import Prepared
    from uldp.runs.directory import RunDirectory
    from uldp.runtimes.local import Result

Out = Annotated[Path | None, typer.Option("--out", help="The run directory to create (default: runs/NAME-N).")]
Run = Annotated[Path, typer.Argument(help="A run directory.")]


@reporting
def run(
    file: File = None,
    dataset: DatasetOption = None,
    method: MethodOption = None,
    preset: PresetOption = "",
    data_dir: DataDirOption = None,
    overrides: Set = [],  # noqa: B006
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Train: simulate all silos of an experiment on this machine."""
    from uldp.experiment.build import prepare
    from uldp.runs.directory import RunDirectory

    experiment = experiment_from(file, dataset, method, overrides, preset, data_dir)
    if out is not None:
        RunDirectory.check_free(out)
    prepared = prepare(experiment)
    name = f"{prepared.federation.name}-{experiment.method_name}".replace("/", "-").replace(":", "-")
    directory = RunDirectory.create(out or RunDirectory.next_free(Path("runs"), name), experiment)
    _train(prepared, directory, as_json)


@reporting
def resume(run_directory: Run, as_json: Json = False) -> None:
    """Continue a run from its last round; a finished run is only shown again."""
    from uldp.experiment.build import prepare
    from uldp.runs.directory import RunDirectory

    directory = RunDirectory.open(run_directory)
    _train(prepare(directory.experiment()), directory, as_json)


def _train(prepared: Prepared, directory: RunDirectory, as_json: bool) -> None:
    from uldp.runtimes.local import run as run_local

    for note in prepared.federation.notes:
        warn(note)
    if prepared.plan.method.unit is not None and prepared.federation.void:
        warn(f"NO GUARANTEE: {prepared.federation.void}.")
    if prepared.plan.method.unit is not None and prepared.plan.method.noise_multiplier == 0:
        warn("noise_multiplier = 0: NO PRIVACY, epsilon is infinite.")
    try:
        with progress(prepared.experiment.method_name, prepared.plan.method.rounds) as show:
            result = run_local(prepared, directory, show)
    except KeyboardInterrupt:
        typer.echo(f"stopped; nothing is lost. Continue with: uldp resume {quote(str(directory.path))}", err=True)
        raise typer.Exit(130) from None
    _local_warnings(result, prepared)
    if as_json:
        print_json(result.to_json())
    else:
        _show(result)


def _local_warnings(result: Result, prepared: Prepared) -> None:
    if result.left_out:
        warn(
            f"{result.left_out} user updates were not finite, or longer than the clip, and counted as zero: lower "
            "method.local_lr, or clip the rows of your own method. "
            "(A simulation can say so; in a real federation this stays in the silo.)"
        )
    if result.saturated:
        warn(f"{result.saturated} coordinates were cut off at method.value_range; raise it.")
    done = result.history[-1].round if result.history else 0
    if done < prepared.plan.method.rounds:
        warn(f"stopped after round {done} of {prepared.plan.method.rounds}: the privacy budget is used up.")


def _show(result: Result) -> None:
    rounds = result.history[-1].round if result.history else 0
    typer.echo(f"{result.method} on {result.dataset}: {rounds} rounds in {result.seconds:.1f} s")
    print_table(("test metric", "value"), [(name, f"{value:.4f}") for name, value in result.metrics.items()])
    typer.echo("Privacy")
    typer.echo(paragraphs(result.statement.lines()))
    typer.echo(f"\nrun directory: {result.run}")


@reporting
def plan(
    file: File = None,
    dataset: DatasetOption = None,
    method: MethodOption = None,
    preset: PresetOption = "",
    data_dir: DataDirOption = None,
    overrides: Set = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Show noise, epsilon per round and who faces which epsilon. Trains nothing."""
    from uldp.experiment.build import planned_statement, prepare
    from uldp.privacy.accountants import account
    from uldp.privacy.statement import finite_or_none, show_epsilon

    experiment = experiment_from(file, dataset, method, overrides, preset, data_dir)
    prepared = prepare(experiment)
    agreed, delta = prepared.plan, experiment.privacy.delta
    event = agreed.method.event(agreed.facts, agreed.facts.silos)
    statement = planned_statement(agreed, delta, prepared.federation, simulated=experiment.run.secrets == "simulated")
    void = prepared.federation.void
    per_round = {t: math.inf if void else account({event: t}, delta).value for t in _milestones(agreed.method.rounds)}
    for note in prepared.federation.notes:
        warn(note)
    if as_json:
        print_json(
            {
                "dataset": prepared.federation.name,
                "method": experiment.method_name,
                "noise_multiplier": agreed.method.noise_multiplier,
                "rounds": agreed.method.rounds,
                "epsilon": finite_or_none(statement.epsilon),
                "delta": delta,
                "epsilon_after_round": {str(t): finite_or_none(e) for t, e in per_round.items()},
                "users": agreed.facts.users,
                "silos": agreed.facts.silos,
                "parameters": agreed.facts.dimension,
                "statement": statement.to_json(),
            }
        )
        return
    facts = agreed.facts
    typer.echo(
        f"{experiment.method_name} on {prepared.federation.name}: |U| = {facts.users} users, "
        f"|S| = {facts.silos} silos, {facts.dimension} parameters, noise multiplier {agreed.method.noise_multiplier:g}"
    )
    print_table(("after round", "epsilon"), [(str(t), show_epsilon(e)) for t, e in per_round.items()])
    typer.echo("Privacy after the last round")
    typer.echo(paragraphs(statement.lines()))


def _milestones(rounds: int) -> list[int]:
    """1, 2, 5, 10, 20, 50 ... and the last round."""
    steps = [factor * 10**power for power in range(7) for factor in (1, 2, 5)]
    return [*(step for step in steps if step < rounds), rounds]
