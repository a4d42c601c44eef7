"""Train from Python: data frames, arrays and modules, or an experiment file, in; a model and a statement out.

The sessions, the ledger and the run directories are those of the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Unpack

from uldp.caveats import Caveat, Severity
from uldp.errors import ConfigError, RunError, format_value, warn_caller
from uldp.experiment.build import PreparedExperiment
from uldp.experiment.outlook import Outlook
from uldp.library.arguments import CallArguments, Settings
from uldp.library.progress import progress_bar, stopping_after_the_round
from uldp.library.tracking import track
from uldp.methods.standardized_sgd import StandardizedSgd
from uldp.runs.directory import RunDirectory
from uldp.runtimes.result import Result, RoundReport
from uldp.runtimes.simulation import InProcessSilos, LocalRun

if TYPE_CHECKING:
    from uldp.library.arguments import Silos

STOPPED: Final = Caveat(
    "stopped-early",
    "Training was ended before its last round. A choice of when, made by looking at test metrics, is not covered: the "
    "number of rounds then depends on the test records, and on everybody who is in both.",
    Severity.LIMITS,
)
Callback = Callable[[RoundReport], object]


def train(
    silos: Silos,
    *,
    directory: Path | str | None = None,
    callbacks: Callback | Iterable[Callback] = (),
    progress: bool | None = None,
    **what: Unpack[Settings],
) -> Result:
    """Train a model over silos with user-level differential privacy.

    Ctrl-C ends training after the round under way; the result then covers the rounds so far, and :meth:`Result.resume`
    goes on.

    Args:
        silos: A data frame per silo by its name, a :class:`uldp.Federation`, the name of a built-in data set, or a
            :class:`uldp.Experiment`; the settings of an experiment can be overridden by the arguments below.
        directory: A run directory. The run can then be resumed (call again with the same arguments) and looked at with
            the command line; without one all is in memory.
        callbacks: Called with a :class:`uldp.RoundReport` after every round; one that returns True ends training. A
            :class:`uldp.MlflowTracker` or :class:`uldp.TensorBoardTracker` is one of them.
        progress: Whether to show a progress bar; by default in terminals and notebooks.
        what: What is trained, as the following keyword arguments.
        user: The column of user ids, where ``silos`` are data frames.
        label: The column to predict.
        schema: Public ranges and categories of the columns (:class:`uldp.Schema`, or its dict). Without one they are
            read from the data, with a warning and a caveat in the statement.
        test: A data frame to evaluate on.
        test_fraction: Instead: the fraction of users to evaluate on (0.2 if neither is given, 0 for nobody).
        users: |U|, the public number of users (ids are hashed into it), or a list of all ids. Without it the ids in the
            data count as public, and the statement says so.
        population: What you call these people: runs with the same name are added up, whatever ids they use.
        model: An ``nn.Module``, a name from the zoo ("logistic", "mlp", ...), a factory
            ``(feature_shape, task) -> nn.Module``, or "auto".
        method: A name (see ``uldp methods``) or a :class:`uldp.Method`, "auto" by default.
        epsilon: The budget; the noise is calibrated to it.
        noise_multiplier: Instead of ``epsilon``.
        delta: Far below 1 / number of users.
        rounds: How many.
        aggregation: "auto" by default ("lattice" where record counts are to be hidden and it fits, else "masked"),
            "plain", "paillier" or "shuffled".
        seed: Of everything that is not secret.
        secrets: "os" for secret noise (the default for your own data), "simulated" for noise from the seed.
        options: Any other settings of an experiment file, such as ``{"run.threads": 1}``.

    Returns:
        The model with its metrics and its privacy statement.

    Raises:
        InputError: Arguments, data or model are wrong; nothing was trained and nothing charged.

    Example:
        >>> import pandas as pd
        >>> from uldp import Schema
        >>> frame = pd.DataFrame({"id": range(40), "age": [30, 60] * 20, "ill": [0, 1] * 20})
        >>> schema = Schema.classes("ill", [0, 1]).numeric("age", 0, 110)
        >>> result = train({"north": frame[:20], "south": frame[20:]}, user="id", label="ill", schema=schema,
        ...                users=40, test=frame, epsilon=5.0, rounds=2)
        >>> result.rounds, round(result.epsilon, 2)
        (2, 5.0)
    """
    called = checked_callbacks(callbacks)
    return run_training(CallArguments.of(silos, what).prepare(), directory, called, progress)


def resume(
    directory: Path | str, *, callbacks: Callback | Iterable[Callback] = (), progress: bool | None = None
) -> Result:
    """Continue a run from its last checkpoint: the same rounds, the same noise, nothing charged twice.

    A run whose data frames or module were handed over in Python is continued by calling :func:`train` again with the
    same arguments and the same ``directory``.

    Args:
        directory: The run directory.
        callbacks: As for :func:`train`.
        progress: As for :func:`train`.

    Returns:
        The same result that the run would have had without an interruption; a finished run is read again.

    Raises:
        RunError: No run is there, another process works on it, or another version of uldp made it.

    Example:
        >>> resume("no-such-run")
        Traceback (most recent call last):
        uldp.errors.RunError: no-such-run: ...
    """
    called, run_directory = checked_callbacks(callbacks), RunDirectory.open(checked_path(directory))
    prepared = CallArguments(run_directory.experiment(), None, None).prepare()
    return run_training(prepared, run_directory, called, progress)


def run_training(
    prepared: PreparedExperiment,
    directory: RunDirectory | Path | str | None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
) -> Result:
    """The result of a prepared run, with a progress bar, Ctrl-C that ends after the round, and callbacks."""
    if not isinstance(directory, RunDirectory | None):
        directory = _directory(checked_path(directory), prepared)
    for note in warnings_before(prepared):
        warn_caller(note)
    shown_round: list[Callback] = []
    stopping: list[Callable[[], bool]] = []

    def on_round(report: RoundReport) -> bool:
        shown_round[-1](report)
        answers = [callback(report) for callback in callbacks]
        return stopping[-1]() or any(answer is True for answer in answers)

    run = LocalRun(prepared, directory, on_round, None, InProcessSilos())

    def go() -> Result:
        label, rounds = prepared.experiment.method_name, prepared.plan.rounds
        discarded = nullcontext() if directory is None else directory.discard_unless_started()
        bar_shown, tracking = progress_bar(label, rounds, progress), track(callbacks, prepared.experiment)
        with discarded, tracking as finished, bar_shown as bar, stopping_after_the_round() as stop:
            shown_round.append(bar)
            stopping.append(stop)
            result = run.run()
            if result.continuation is not None:
                caveats = (*result.statement.caveats, STOPPED)
                result = replace(result, statement=replace(result.statement, caveats=caveats))
            finished(result)
        for note in [] if result.continuation else warnings_after(result, rounds):
            warn_caller(note)
        return result if result.continuation is None else replace(result, continuation=go)

    return go()


WIDE_LABELS: Final = 0.1
"""From this deviation of the mean label up, in halves of its range, noise may hide how labels vary."""


def warnings_before(prepared: PreparedExperiment) -> list[str]:
    """What should be known before this experiment is run."""
    found = list(prepared.federation.notes)
    delta, users = prepared.experiment.privacy.delta, prepared.plan.facts.users
    if prepared.plan.release.privacy_unit == "user" and delta * users >= 1:
        found.append(
            f"privacy.delta {delta:g} is not below 1/|U| = {1 / users:g}: it permits revealing one user outright."
        )
    if prepared.no_guarantee:
        found.append(f"NO GUARANTEE: {prepared.no_guarantee}.")
    method = prepared.plan.method
    if method.privacy_unit is not None and not method.local and method.noise_multiplier == 0:
        found.append("noise_multiplier = 0: NO PRIVACY, epsilon is infinite.")
    outlook = Outlook.of(prepared.plan, delta) if prepared.experiment.trains_model else None
    if outlook is not None and outlook.is_noise_dominated:
        found.append(outlook.words())
    task = prepared.federation.task
    if isinstance(method, StandardizedSgd) and task.kind == "regression" and prepared.federation.schema is not None:
        deviation, half = method.label_deviation(prepared.plan.facts), abs(task.label_scale)
        if deviation > WIDE_LABELS:
            found.append(
                f"the mean label will be known to about +-{deviation * half:.3g} only, as its range is {2 * half:.3g} "
                "wide: if labels vary less than that, expect no better than their mean; a narrower range helps most"
            )
    return found


def warnings_after(result: Result, rounds: int) -> list[str]:
    """What did not go as planned. A simulation can say so; in a real federation most of it stays in the silo."""
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


def checked_callbacks(callbacks: Callback | Iterable[Callback]) -> tuple[Callback, ...]:
    """One callback or several, as a tuple of functions."""
    if not callable(callbacks) and not isinstance(callbacks, Iterable):
        raise ConfigError(f"functions that take a RoundReport, not {format_value(callbacks)}", location="callbacks")
    called = (callbacks,) if callable(callbacks) else tuple(callbacks)
    for callback in called:
        if not callable(callback):
            raise ConfigError(f"functions that take a RoundReport, not {format_value(callback)}", location="callbacks")
    return called


def checked_path(path: object) -> Path:
    if not isinstance(path, Path | str):
        raise ConfigError(f"the path of a folder, not {format_value(path)}", location="directory")
    return Path(path)


def _directory(path: Path, prepared: PreparedExperiment) -> RunDirectory:
    """A new run directory, or the one of the same experiment, to go on with."""
    if not (path / "experiment.json").exists():
        return RunDirectory.create(path, prepared.experiment)
    directory = RunDirectory.open(path)
    if directory.experiment().digest() != prepared.experiment.digest():
        raise RunError("holds a run with other settings; choose another directory", location=str(path))
    if directory.finished:
        raise RunError("holds a finished run; uldp.load(path) reads it", location=str(path))
    return directory
