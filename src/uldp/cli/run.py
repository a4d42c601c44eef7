"""``uldp run`` and ``uldp resume``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Final

import typer

from uldp.cli import options as opt
from uldp.cli.output import NOTHING_STARTED, before_start, print_json, print_metrics, report_errors, warn
from uldp.cli.source import experiment_from, experiment_of, new_run, shortcuts
from uldp.errors import ConfigError, RunError

if TYPE_CHECKING:
    from uldp.experiment.build import PreparedExperiment
    from uldp.experiment.config import Experiment
    from uldp.runs.directory import RunDirectory
    from uldp.runtimes.recording import Silos
    from uldp.runtimes.result import Result

RUNTIMES: Final = ("local", "flower-sim")
MAX_WARNINGS: Final = 5
Runtime = Annotated[
    str, typer.Option(help="Where to simulate silos: local (this process), or flower-sim (Flower's engine, on Ray).")
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Print the whole privacy statement.")]
Transcript = Annotated[
    bool, typer.Option("--transcript", help="Write every message that each party received into RUN/private.")
]


@report_errors
def run(
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
    out: opt.Out = None,
    runtime: Runtime = "local",
    transcript: Transcript = False,
    verbose: Verbose = False,
    as_json: opt.Json = False,
) -> None:
    """Train: simulate all silos of an experiment on this machine."""
    from uldp.experiment.build import prepare
    from uldp.runs.directory import RunDirectory

    with before_start():
        chosen = shortcuts(overrides, epsilon, delta, rounds, seed)
        experiment = experiment_from(file, dataset, method, chosen, preset, data_dir)
        if out is not None:
            RunDirectory.check_free(out)
        _check_runtime(runtime, experiment)
        prepared = prepare(experiment)
        directory = new_run(prepared, out)
    _train(prepared, directory, runtime, transcript, verbose, as_json)


@report_errors
def resume(
    run_directory: opt.Run,
    runtime: Runtime = "local",
    transcript: Transcript = False,
    verbose: Verbose = False,
    as_json: opt.Json = False,
) -> None:
    """Continue a run from its last round; a finished run is only shown again."""
    from uldp.experiment.build import prepare
    from uldp.runs.directory import RunDirectory

    directory = RunDirectory.open(run_directory)
    if directory.is_served:
        raise RunError(
            f"this run has silos elsewhere; `uldp serve --resume {quote(str(run_directory))}` continues it",
            location=str(run_directory),
        )
    experiment = experiment_of(directory)
    _check_runtime(runtime, experiment)
    _train(prepare(experiment), directory, runtime, transcript, verbose, as_json)


def _check_runtime(runtime: str, experiment: Experiment) -> None:
    if runtime not in RUNTIMES:
        raise ConfigError(f"one of {', '.join(RUNTIMES)}, not {runtime!r}", location="--runtime", value=runtime)
    if runtime == "flower-sim":
        from uldp.runtimes.flower.simulation import check_simulation

        check_simulation(experiment)


@contextmanager
def _silos(runtime: str, directory: RunDirectory) -> Iterator[Silos]:
    if runtime == "flower-sim":
        from uldp.cli.output import ended_by_sigterm
        from uldp.runtimes.flower.simulation import SilosOnRay

        with ended_by_sigterm(), SilosOnRay(directory.path / "private" / "engine.log") as silos:
            yield silos
    else:
        from uldp.runtimes.simulation import InProcessSilos

        yield InProcessSilos()


def _train(
    prepared: PreparedExperiment, directory: RunDirectory, runtime: str, transcript: bool, verbose: bool, as_json: bool
) -> None:
    from uldp.library.progress import progress_bar
    from uldp.library.training import warnings_after, warnings_before
    from uldp.runtimes.simulation import run as run_local
    from uldp.runtimes.transcript import TranscriptFiles

    warn_all(warnings_before(prepared), directory)
    rounds = prepared.plan.rounds
    try:
        with progress_bar(prepared.experiment.method_name, rounds) as on_round, _silos(runtime, directory) as silos:
            record = TranscriptFiles(directory, prepared.plan.silos) if transcript else None
            result = run_local(prepared, directory, on_round, record, silos)
    except KeyboardInterrupt:
        if not directory.is_started:
            raise KeyboardInterrupt(NOTHING_STARTED) from None
        again = ("" if runtime == "local" else f" --runtime {runtime}") + (" --transcript" if transcript else "")
        text = f"stopped; nothing is lost. Continue with: uldp resume {quote(str(directory.path))}{again}"
        raise KeyboardInterrupt(text) from None
    warn_all(warnings_after(result, rounds))
    show_result(result, as_json=as_json, verbose=verbose)


def warn_all(texts: Sequence[str], directory: RunDirectory | None = None) -> None:
    """Show each warning once. With a directory at most five lines: the rest goes to a file of its private folder."""
    lines = list(dict.fromkeys(texts))
    further: list[str] = []
    if directory is not None and len(lines) > MAX_WARNINGS:
        lines, further = lines[: MAX_WARNINGS - 1], lines[MAX_WARNINGS - 1 :]
        for text in further:
            directory.append_private("warnings.jsonl", {"warning": text})
        further = [f"{len(further)} more in {directory.path / 'private' / 'warnings.jsonl'}"]
    for text in (*lines, *further):
        warn(text)


def show_result(result: Result, *, as_json: bool, verbose: bool = False) -> None:
    """Print a result: as JSON, or for people with the statement in three lines, or all of it."""
    from uldp.reports.statement import summary, text

    if as_json:
        print_json(result.to_json())
        return
    typer.echo(f"{result.method} on {result.dataset}: {result.rounds} rounds in {result.seconds:.1f} s")
    if result.constant_model_note:
        typer.echo(result.constant_model_note)
    print_metrics(result.metrics, result.constant_loss)
    typer.echo("Privacy")
    typer.echo("\n".join(text(result.statement) if verbose else summary(result.statement)))
    if not verbose:
        typer.echo(f"the whole statement: uldp statement {quote(str(result.run))}")
    typer.echo(f"\nrun directory: {result.run}")
