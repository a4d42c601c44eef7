"""``uldp run`` and ``uldp resume``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Final

import typer

from uldp.cli.output import (
    NOTHING_STARTED,
    Json,
    Set,
    print_json,
    print_table,
    progress,
    reporting,
    stopped_with,
    warn,
)
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
    experiment_of,
    shortcuts,
)
from uldp.errors import ConfigError, RunError

if TYPE_CHECKING:
    from uldp.experiment.build import Prepared
    from uldp.experiment.config import Experiment
    from uldp.runs.directory import RunDirectory
    from uldp.runtimes.recording import Result
    from uldp.runtimes.simulation import Silos

RUNTIMES: Final = ("local", "flower-sim")
MAX_WARNINGS: Final = 5
Out = Annotated[Path | None, typer.Option("--out", help="The run directory to create (default: runs/NAME-N).")]
Run = Annotated[Path, typer.Argument(help="A run directory.")]
Runtime = Annotated[
    str,
    typer.Option(
        "--runtime", help="Where silos are simulated: local (in this process), or flower-sim (Flower's engine, on Ray)."
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Print the whole privacy statement.")]
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
    epsilon: EpsilonOption = None,
    delta: DeltaOption = None,
    rounds: RoundsOption = None,
    seed: SeedOption = None,
    overrides: Set = [],  # noqa: B006
    out: Out = None,
    runtime: Runtime = "local",
    transcript: Transcript = False,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Train: simulate all silos of an experiment on this machine."""
    from uldp.experiment.build import prepare
    from uldp.runs.directory import RunDirectory

    with stopped_with(NOTHING_STARTED):
        chosen = shortcuts(overrides, epsilon, delta, rounds, seed)
        experiment = experiment_from(file, dataset, method, chosen, preset, data_dir)
        if out is not None:
            RunDirectory.check_free(out)
        _check_runtime(runtime, experiment)
        prepared = prepare(experiment)
        name = f"{prepared.federation.name}-{experiment.method_name}".replace("/", "-").replace(":", "-")
        directory = RunDirectory.create(out or RunDirectory.next_free(Path("runs"), name), experiment)
    _train(prepared, directory, runtime, transcript, show=Show(as_json, verbose))


@reporting
def resume(
    run_directory: Run,
    runtime: Runtime = "local",
    transcript: Transcript = False,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Continue a run from its last round; a finished run is only shown again."""
    from uldp.experiment.build import prepare
    from uldp.runs.directory import RunDirectory

    directory = RunDirectory.open(run_directory)
    if directory.served:
        raise RunError(
            f"this run has silos elsewhere; `uldp serve --resume {quote(str(run_directory))}` continues it",
            location=str(run_directory),
        )
    experiment = experiment_of(directory)
    _check_runtime(runtime, experiment)
    _train(prepare(experiment), directory, runtime, transcript, show=Show(as_json, verbose))


def _check_runtime(runtime: str, experiment: Experiment) -> None:
    if runtime not in RUNTIMES:
        raise ConfigError(f"one of {', '.join(RUNTIMES)}, not {runtime!r}", location="--runtime", value=runtime)
    if runtime == "flower-sim":
        from uldp.runtimes.flower.simulation import check_simulation

        check_simulation(experiment)


@contextmanager
def _silos(runtime: str, directory: RunDirectory) -> Iterator[Silos]:
    if runtime == "flower-sim":
        from uldp.cli.federation import politely_ended
        from uldp.runtimes.flower.simulation import SilosOnRay

        with politely_ended(), SilosOnRay(directory.path / "private" / "engine.log") as silos:
            yield silos
    else:
        from uldp.runtimes.simulation import SilosHere

        yield SilosHere()


def _train(prepared: Prepared, directory: RunDirectory, runtime: str, transcript: bool, show: Show) -> None:
    from uldp.runtimes.simulation import run as run_local
    from uldp.runtimes.transcript import TranscriptFiles

    warn_all(warnings_before(prepared), directory)
    try:
        rounds = prepared.plan.rounds
        with progress(prepared.experiment.method_name, rounds) as on_round, _silos(runtime, directory) as silos:
            record = TranscriptFiles(directory, prepared.plan.silos) if transcript else None
            result = run_local(prepared, directory, on_round, record, silos)
    except KeyboardInterrupt:
        if not directory.begun:
            raise KeyboardInterrupt(NOTHING_STARTED) from None
        again = ("" if runtime == "local" else f" --runtime {runtime}") + (" --transcript" if transcript else "")
        text = f"stopped; nothing is lost. Continue with: uldp resume {quote(str(directory.path))}{again}"
        raise KeyboardInterrupt(text) from None
    warn_all(warnings_after(result, prepared.plan.rounds))
    if show.as_json:
        print_json(result.to_json())
    else:
        show_result(result, verbose=show.verbose)


@dataclass(frozen=True)
class Show:
    """How a result is shown."""

    as_json: bool = False
    verbose: bool = False


def warn_all(texts: Sequence[str], directory: RunDirectory | None = None) -> None:
    """Each warning once, and at most five lines of them; the rest goes to a file of the run's private folder."""
    lines = list(dict.fromkeys(texts))
    more = len(lines) - MAX_WARNINGS + 1 if len(lines) > MAX_WARNINGS else 0
    for text in lines[: len(lines) - more]:
        warn(text)
    if more and directory is not None:
        for text in lines[len(lines) - more :]:
            directory.append_private("warnings.jsonl", {"warning": text})
        warn(f"{more} more in {directory.path / 'private' / 'warnings.jsonl'}")
    elif more:
        for text in lines[len(lines) - more :]:
            warn(text)


def warnings_before(prepared: Prepared) -> list[str]:
    """What should be known before this experiment is run."""
    found = list(prepared.federation.notes)
    delta, users = prepared.experiment.privacy.delta, prepared.plan.facts.users
    if prepared.plan.release.unit == "user" and delta * users >= 1:
        found.append(
            f"privacy.delta {delta:g} is not below 1/|U| = {1 / users:g}: it permits revealing one user outright."
        )
    if prepared.no_guarantee:
        found.append(f"NO GUARANTEE: {prepared.no_guarantee}.")
    method = prepared.plan.method
    if method.unit is not None and not method.local and method.noise_multiplier == 0:
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
    if result.rounds < rounds:
        found.append(f"stopped after round {result.rounds} of {rounds}: the privacy budget is used up.")
    return found


def show_result(result: Result, *, verbose: bool = False) -> None:
    """A result for people: the statement in three lines, or all of it."""
    from uldp.reports.statement import summary, text

    typer.echo(f"{result.method} on {result.dataset}: {result.rounds} rounds in {result.seconds:.1f} s")
    print_table(("test metric", "value"), [(name, f"{value:.4f}") for name, value in result.metrics.items()])
    typer.echo("Privacy")
    typer.echo("\n".join(text(result.statement) if verbose else summary(result.statement)))
    if not verbose:
        typer.echo(f"the whole statement: uldp statement {quote(str(result.run))}")
    typer.echo(f"\nrun directory: {result.run}")
