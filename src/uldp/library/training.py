"""Train, plan and compare from Python: data frames, arrays and modules in, a model and a statement out.

These functions run the sessions, the ledger and the run directories of the command line. An experiment file is another
way to write their arguments down.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

from uldp.data.federation import Federation
from uldp.errors import ConfigError, RunError, check_keys, shown
from uldp.experiment.build import Prepared, prepare
from uldp.experiment.config import GIVEN, Experiment
from uldp.library.progress import progress_bar, stopping_after_the_round
from uldp.library.spending import charge
from uldp.library.tracking import tracked
from uldp.methods.base import Method, settings
from uldp.methods.registry import METHODS
from uldp.runs.directory import RunDirectory
from uldp.runtimes.recording import Result, RoundReport
from uldp.runtimes.simulation import LocalRun, SilosHere

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from uldp.data.schema import Schema

    Silos = Mapping[str, pd.DataFrame] | Federation | str

Callback = Callable[[RoundReport], object]
TABLES: Final = ("user", "label", "schema", "test", "test_fraction", "users")
"""The arguments that belong to data frames."""


class Settings(TypedDict, total=False):
    """The arguments of :func:`train` that say what is trained; :func:`plan` and :func:`compare` take the same."""

    user: str
    label: str
    schema: Schema | Mapping[str, Any]
    test: pd.DataFrame
    test_fraction: float
    users: int | Sequence[str]
    model: nn.Module | str
    method: Method | str
    epsilon: float
    noise_multiplier: float
    delta: float
    rounds: int
    seed: int
    secrets: str
    options: Mapping[str, Any]


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
        silos: A data frame per silo by its name, a :class:`uldp.Federation`, or the name of a built-in data set.
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
        model: An ``nn.Module``, a name from the zoo ("logistic", "mlp", ...), "package.module:factory", or "auto".
        method: A name (see ``uldp methods``) or a :class:`uldp.Method`, "uldp-avg-w" by default.
        epsilon: The budget; the noise is calibrated to it.
        noise_multiplier: Instead of ``epsilon``.
        delta: Far below 1 / number of users.
        rounds: How many.
        seed: Of everything that is not secret.
        secrets: "os" for secret noise (the default for your own data), "simulated" for noise from the seed.
        options: Any other settings of an experiment file, such as ``{"aggregation.name": "plain"}``.

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
    prepared = _prepared(silos, what)
    called = (callbacks,) if callable(callbacks) else tuple(callbacks)
    for callback in called:
        if not callable(callback):
            raise ConfigError(f"functions that take a RoundReport, not {shown(callback)}", location="callbacks")
    run_directory = None if directory is None else _directory(directory, prepared)
    for note in prepared.federation.notes:
        warnings.warn(note, stacklevel=2)
    shown_round: list[Callable[[RoundReport], None]] = []
    stopping: list[Callable[[], bool]] = []

    def on_round(report: RoundReport) -> bool:
        charge(run, prepared, run.released)  # before a callback may raise
        shown_round[-1](report)
        answers = [callback(report) for callback in called]
        return stopping[-1]() or any(answer is True for answer in answers)

    run = LocalRun(prepared, run_directory, on_round, None, SilosHere())

    def go() -> Result:
        label, rounds = prepared.experiment.method_name, prepared.plan.rounds
        discarded = nullcontext() if run_directory is None else run_directory.discarded_unless_begun()
        bar_shown, tracking = progress_bar(label, rounds, progress), tracked(called, prepared.experiment)
        with discarded, tracking as finished, bar_shown as bar, stopping_after_the_round() as stop:
            shown_round.append(bar)
            stopping.append(stop)
            result = run.go()
            finished(result)
        total = charge(run, prepared, run.released)
        return replace(result, total=total, continuation=None if result.complete else go)

    return go()


def plan(silos: Silos, **what: Unpack[Settings]) -> Prepared:
    """Check everything and calibrate the noise, without training: what :func:`train` would do.

    Args:
        silos: As for :func:`train`.
        what: As for :func:`train`.

    Returns:
        The prepared experiment; ``planned_statement()`` is the privacy statement that training would end with.

    Raises:
        InputError: Arguments, data or model are wrong.

    Example:
        >>> prepared = plan("synthetic", epsilon=5.0, rounds=2)
        >>> round(prepared.planned_statement().epsilon, 2)
        5.0
    """
    return _prepared(silos, what)


def _directory(path: Path | str, prepared: Prepared) -> RunDirectory:
    """A new run directory, or the one of the same experiment, to go on with."""
    if not (Path(path) / "experiment.json").exists():
        return RunDirectory.create(path, prepared.experiment)
    directory = RunDirectory.open(path)
    if directory.experiment().digest() != prepared.experiment.digest():
        raise RunError("holds a run with other settings; choose another directory", location=str(path))
    if directory.finished:
        raise RunError("holds a finished run; uldp.load(path) reads it", location=str(path))
    return directory


def _prepared(silos: Silos, what: Mapping[str, Any]) -> Prepared:
    check_keys(what, tuple(Settings.__annotations__), "train")
    federation, data = _data(silos, what)
    experiment = _experiment(data, what, own=federation is not None)
    module = what.get("model")
    return prepare(experiment, federation, None if module is None or isinstance(module, str) else module)


def _data(silos: Silos, what: Mapping[str, Any]) -> tuple[Federation | None, dict[str, Any]]:
    """The federation, where it is in memory, and the ``[data]`` section."""
    tables = {key: what[key] for key in TABLES if key in what}
    if isinstance(silos, str):
        if own := sorted(set(tables) - {"users"}):
            raise ConfigError("goes with data frames, not with a built-in data set", location=own[0])
        return None, {"dataset": silos, **tables}
    if not isinstance(silos, Federation):
        for key in ("user", "label"):
            if key not in tables:
                raise ConfigError(f"name the column of the data frames that holds the {key}", location=key)
        silos = Federation.from_frames(silos, seed=what.get("seed", 0), **tables)
    elif tables:
        raise ConfigError("is part of the federation; leave it out", location=min(tables))
    return silos, {"given": silos.name, "users": silos.users}


def _experiment(data: Mapping[str, Any], what: Mapping[str, Any], *, own: bool) -> Experiment:
    method, model = what.get("method", "uldp-avg-w"), what.get("model", "auto")
    section = {"name": method} if isinstance(method, str) else _section(method)
    if "rounds" in what:
        section["rounds"] = what["rounds"]
    tree: dict[str, dict[str, Any]] = {
        "data": dict(data),
        "method": section,
        "model": {"name": model if isinstance(model, str) else GIVEN},
        "privacy": {key: what[key] for key in ("epsilon", "noise_multiplier", "delta") if key in what},
        "run": {"seed": what.get("seed", 0), "secrets": what.get("secrets", "os" if own else "simulated")},
        "aggregation": {},
    }
    for key, value in what.get("options", {}).items():
        part, _, name = str(key).partition(".")
        if part not in tree or not name:
            reason = f"{key!r} is no setting; write section.name, such as 'aggregation.name'"
            raise ConfigError(reason, location="options", value=key)
        tree[part][name] = value
    return Experiment.from_tree(tree)


def _section(method: object) -> dict[str, Any]:
    """``[method]`` for a method object."""
    if not isinstance(method, Method):
        raise ConfigError(f"a name or a uldp.Method, not {shown(method)}", location="method")
    kind = type(method)
    own = [name for name, named in METHODS.items() if named.method is kind and not named.fixed]
    name = own[0] if own else f"{kind.__module__}:{kind.__qualname__}"
    return {"name": name, **{key: value for key in settings(kind) if (value := getattr(method, key)) is not None}}
