"""``uldp run`` and ``uldp resume``."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from uldp.cli.output import Json, Set, print_json, print_table, progress, reporting, warn
from uldp.cli.source import DataDirOption, DatasetOption, File, MethodOption, PresetOption, experiment_from

if TYPE_CHECKING:
    from uldp.experiment.build import Prepared
    from uldp.runs.directory import RunDirectory
    from uldp.runtimes.recording import Result

Out = Annotated[Path | None, typer.Option("--out", help="The run directory to create (default: runs/NAME-N).")]
Run = Annotated[Path, typer.Argument(help="A run directory.")]
Transcript = Annotated[
    bool, typer.Option("--transcript", help="Write every message that each party received into RUN/private.")
]


@reporting
def run(
    file: File = None,
    dataset: DatasetOption = None,
    method: MethodOption = None,
    preset: PresetOption = "",
    data_dir: DataDirOption = None,
    overrides: Set = [],  # noqa: B006
    out: Out = None,
    transcript: Transcript = False,
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
    _train(prepared, directory, transcript, as_json)


@reporting
def resume(run_directory: Run, transcript: Transcript = False, as_json: Json = False) -> None:
    """Continue a run from its last round; a finished run is only shown again."""
    from uldp.experiment.build import prepare
    from uldp.runs.directory import RunDirectory

    directory = RunDirectory.open(run_directory)
    _train(prepare(directory.experiment()), directory, transcript, as_json)


def _train(prepared: Prepared, directory: RunDirectory, transcript: bool, as_json: bool) -> None:
    from uldp.runtimes.local import run as run_local
    from uldp.runtimes.transcript import TranscriptFiles

    for text in warnings_before(prepared):
        warn(text)
    try:
        with progress(prepared.experiment.method_name, prepared.plan.method.rounds) as show:
            record = TranscriptFiles(directory, prepared.plan.silos) if transcript else None
            result = run_local(prepared, directory, show, record)
    except KeyboardInterrupt:
        again = " --transcript" if transcript else ""
        typer.echo(
            f"stopped; nothing is lost. Continue with: uldp resume {quote(str(directory.path))}{again}", err=True
        )
        raise typer.Exit(130) from None
    for text in warnings_after(result, prepared.plan.method.rounds):
        warn(text)
    if as_json:
        print_json(result.to_json())
    else:
        show_result(result)


def warnings_before(prepared: Prepared) -> list[str]:
    """What should be known before this experiment is run."""
    found = list(prepared.federation.notes)
    delta, users = prepared.experiment.privacy.delta, prepared.plan.facts.users
    if prepared.plan.method.unit == "user" and delta * users >= 1:
        found.append(f"privacy.delta {delta:g} is not below 1/|U| = {1 / users:g}: it allows to give away a person.")
    if prepared.void:
        found.append(f"NO GUARANTEE: {prepared.void}.")
    method = prepared.plan.method
    if method.unit is not None and not method.local_noise and not method.claims and method.noise_multiplier == 0:
        found.append("noise_multiplier = 0: NO PRIVACY, epsilon is infinite.")
    return found


def warnings_after(result: Result, rounds: int) -> list[str]:
    """What went otherwise than planned. A simulation can say so; in a real federation most of it stays in the silo."""
    found = []
    if result.left_out:
        found.append(
            f"{result.left_out} user updates were not finite, or longer than the clip, and counted as zero: lower "
            "method.local_lr, or clip the rows of your own method. "
            "(A simulation can say so; in a real federation this stays in the silo.)"
        )
    if result.saturated:
        found.append(f"{result.saturated} coordinates were cut off at method.value_range; raise it.")
    done = result.history[-1].round if result.history else 0
    if done < rounds:
        found.append(f"stopped after round {done} of {rounds}: the privacy budget is used up.")
    return found


def show_result(result: Result) -> None:
    """A result for people."""
    rounds = result.history[-1].round if result.history else 0
    typer.echo(f"{result.method} on {result.dataset}: {rounds} rounds in {result.seconds:.1f} s")
    print_table(("test metric", "value"), [(name, f"{value:.4f}") for name, value in result.metrics.items()])
    typer.echo("Privacy")
    typer.echo("\n".join(result.statement.lines()))
    typer.echo(f"\nrun directory: {result.run}")
