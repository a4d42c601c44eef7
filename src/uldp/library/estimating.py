"""The coefficients of a trained linear, logistic or Cox model, with their uncertainty: a release of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack

import numpy as np

from uldp.data.contrasts import contrasts
from uldp.data.draft import tree_toml
from uldp.errors import ConfigError, RunError, format_value, warn_caller
from uldp.experiment.build import PreparedExperiment, prepare
from uldp.experiment.config import Experiment
from uldp.library.arguments import CallArguments, Settings
from uldp.library.training import checked_path, warnings_before
from uldp.methods.person_scores import KINDS
from uldp.methods.registry import COEFFICIENTS
from uldp.privacy.statement import Statement
from uldp.runs.coefficients import CoefficientTable
from uldp.runs.directory import RunDirectory
from uldp.runs.files import replace_file
from uldp.runs.trained import TrainedModel
from uldp.runtimes.result import Result
from uldp.runtimes.simulation import run

if TYPE_CHECKING:
    from uldp.library.arguments import Silos
    from uldp.runs.trained import FittedModel

EPSILON: Final = 1.0
STEPS: Final = {"linear": 1, "logistic": 3, "cox": 3}
"""One step is exact for least squares; the others need some, each of which has a part of the budget."""
_OF_TRAINING: Final = ("model", "method", "test", "rounds", "noise_multiplier")
"""Arguments that say how a model is trained."""


def coefficients(
    trained: Result | Path | str,
    silos: Silos | None = None,
    *,
    steps: int | None = None,
    directory: Path | str | None = None,
    **what: Unpack[Settings],
) -> CoefficientTable:
    """The coefficients of a trained model in original units, with 95 % intervals: a release of its own, and charged.

    The intervals cover sampling and noise. They do not rest on the trained model, which clipping and early stopping may
    have biased: Newton steps lead from it to an ordinary estimate.

    Args:
        trained: A result, or the directory of a run, of a linear, logistic or Cox model; or the directory of a run of
            coefficients, to read it again.
        silos: The data frames that the model was trained on, where they were handed over in Python.
        steps: How many Newton steps: 1 for a linear model and 3 for others by default.
        directory: A run directory to write to.
        what: With ``silos``, the arguments of :func:`uldp.train`; what says how a model is trained is refused.
        epsilon: What it may cost, 1 by default. It adds up with the training (:func:`uldp.total`).

    Returns:
        The table, with what its intervals cover and its privacy statement.

    Raises:
        InputError: The model has no such coefficients, or data are wrong; nothing was released.

    Example:
        >>> coefficients("no-such-run")
        Traceback (most recent call last):
        uldp.errors.RunError: no-such-run: ...
    """
    if not isinstance(trained, Result) and RunDirectory.open(checked_path(trained)).has("coefficients.json"):
        return read_coefficients(trained)
    planned = plan_coefficients(trained, silos, steps=steps, **what)
    for note in warnings_before(planned.prepared):
        warn_caller(note)
    return planned.release(directory)


def plan_coefficients(
    trained: Result | Path | str, silos: Silos | None = None, *, steps: int | None = None, **what: Unpack[Settings]
) -> PlannedCoefficients:
    """What :func:`coefficients` would release, before it does; the arguments are the same."""
    for key in _OF_TRAINING:
        if key in what:
            raise ConfigError("says how a model is trained; leave it out", location=key)
    fitted = _fitted(trained)
    method = method_section(fitted, steps)
    if silos is None:
        experiment = _experiment(trained)
        if extra := [key for key in what if key not in ("epsilon", "delta", "options", "seed", "secrets")]:
            raise ConfigError("goes with data frames; here the run's experiment says it", location=extra[0])
        given = {"epsilon": EPSILON, **what}
        called = CallArguments.of(coefficients_of(experiment, method), given, "coefficients")
        return PlannedCoefficients(called.prepare())
    if not isinstance(silos, Mapping):
        raise ConfigError(f"data frames by the silos' names, not {format_value(silos)}", location="silos")
    options = {**{f"method.{key}": value for key, value in method.items() if key != "name"}, **what.pop("options", {})}
    about: dict[str, Any] = {"epsilon": EPSILON, "schema": fitted.schema, **what}
    called = CallArguments.of(silos, {**about, "method": COEFFICIENTS, "options": options}, "coefficients")
    if called.federation is None or called.federation.schema != fitted.schema:
        raise ConfigError("not the schema that the model was trained with", location="schema")
    untested = replace(called.federation, test=called.federation.test.take(np.zeros(0, dtype=np.int64)))
    return PlannedCoefficients(prepare(called.experiment, untested))


def coefficients_of(experiment: Experiment, method: Mapping[str, Any], epsilon: float = EPSILON) -> Experiment:
    """The experiment of the coefficients of another one's model: the same people, columns, aggregation and delta.

    Args:
        experiment: The one that trained the model.
        method: Section ``[method]``, from :func:`method_section`.
        epsilon: The budget of the coefficients.
    """
    tree = experiment.to_tree()
    privacy = {key: value for key, value in tree["privacy"].items() if key in ("delta", "dropout_tolerance")}
    run_section = {key: value for key, value in tree["run"].items() if key != "evaluate_silos"}
    tree |= {"method": dict(method), "privacy": {**privacy, "epsilon": epsilon}, "run": run_section}
    tree["data"] = {key: value for key, value in tree["data"].items() if key not in ("base_rate", "label_mean")}
    tree.pop("model", None)
    return Experiment.from_tree(tree, experiment.base, experiment.name)


def write_experiment(path: Path | str, file: Path | str, *, steps: int | None = None, epsilon: float = EPSILON) -> Path:
    """Write the experiment file of the coefficients of a run's model, for parties on machines of their own.

    Args:
        path: The run directory.
        file: The file to write, in the folder of the run's own experiment file: paths in it are relative.
        steps: As for :func:`coefficients`.
        epsilon: Likewise.
    """
    directory, target = RunDirectory.open(checked_path(path)), Path(file)
    experiment = directory.experiment()
    if target.resolve().parent != experiment.base.resolve():
        reason = f"write it to {experiment.base}, for the paths in it are relative to that folder"
        raise ConfigError(reason, location="--write", value=str(file))
    if target.exists():
        raise ConfigError("is there already; choose another name", location="--write", value=str(file))
    fitted = TrainedModel.of(directory).fitted_model()
    tree = coefficients_of(experiment, method_section(fitted, steps), epsilon).to_tree()
    replace_file(target, tree_toml(tree).encode(), mode=0o644)
    return target


def method_section(fitted: FittedModel, steps: int | None = None) -> dict[str, Any]:
    """The section ``[method]`` that starts at a trained model.

    Args:
        fitted: The model.
        steps: How many; by default as many as its kind needs.
    """
    schema, task = fitted.schema, fitted.task
    if schema is None:
        raise ConfigError("features have no columns; train on tables with a schema", location="model")
    kind = next(name for name, of in KINDS.items() if of == task.kind)
    size = len(schema.feature_names())
    modules = list(fitted.learner.module.modules())
    if task.classes > 2:
        raise ConfigError(f"coefficients are for two classes, not {task.classes}", location="model")
    if fitted.x.size != size + 1 or any(type(one).__name__ not in _LINEAR for one in modules):
        raise ConfigError("only linear, logistic and Cox models have coefficients", location="model")
    weights, bias, chosen = fitted.x[:size], float(fitted.x[size]), contrasts(schema)
    references = {one.reference for one in chosen if one.reference is not None}
    bias += float(sum(weights[reference] for reference in sorted(references)))
    start = [weights[one.feature] - (0.0 if one.reference is None else weights[one.reference]) for one in chosen]
    first = [] if kind == "cox" else [bias]
    return {
        "name": COEFFICIENTS,
        "kind": kind,
        "rounds": STEPS[kind] if steps is None else steps,
        "start": [float(value) for value in (*first, *start)],
        "features": [one.feature for one in chosen],
    }


_LINEAR: Final = ("Sequential", "Flatten", "Linear")


@dataclass(frozen=True, repr=False)
class PlannedCoefficients:
    """Coefficients that are not released yet."""

    prepared: PreparedExperiment

    @property
    def statement(self) -> Statement:
        """The privacy statement that they would have."""
        return self.prepared.planned_statement()

    def sentence(self) -> str:
        """What is released, in public numbers."""
        plan = self.prepared.plan
        return f"{plan.rounds} Newton step(s), {plan.facts.dimension} numbers each"

    def release(self, directory: Path | str | RunDirectory | None = None) -> CoefficientTable:
        """Release the coefficients, and charge them.

        Args:
            directory: A run directory to write to.
        """
        result = run(self.prepared, directory)
        if result.coefficients is None or result.rounds < self.prepared.plan.rounds:
            raise RunError("the budget does not allow all steps", location="privacy.epsilon")
        return replace(result.coefficients, run=result.run)


def read_coefficients(path: Path | str) -> CoefficientTable:
    """The coefficients that a run wrote."""
    directory = RunDirectory.open(path)
    if not directory.has("coefficients.json"):
        raise RunError("is not the run of coefficients, or not finished", location=str(path))
    statement = Statement.from_json(directory.read_json("statement.json"))
    return CoefficientTable.from_json(directory.read_json("coefficients.json"), statement, str(directory.path))


def _fitted(trained: Result | Path | str) -> FittedModel:
    if not isinstance(trained, Result):
        directory = RunDirectory.open(checked_path(trained))
        return TrainedModel.of(directory).fitted_model()
    if trained.fitted is None:
        raise ConfigError("this result has no model to start from", location="trained")
    return trained.fitted


def _experiment(trained: Result | Path | str) -> Experiment:
    if not isinstance(trained, Result):
        return RunDirectory.open(trained).experiment()
    if trained.spent is None:
        raise ConfigError("nobody knows where its data are; give the run directory", location="trained")
    return trained.spent.people.experiment
