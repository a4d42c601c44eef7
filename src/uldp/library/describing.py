"""Describe tables before anything is trained: counts, histograms, means, quantiles and missing rates with noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack

from uldp.data.schema import Schema
from uldp.data.tallies import tallies, tally_schema
from uldp.errors import ConfigError, RunError, warn_caller
from uldp.experiment.build import PreparedExperiment
from uldp.experiment.config import Experiment
from uldp.library.arguments import CallArguments, Settings
from uldp.library.training import warnings_before
from uldp.methods.registry import DESCRIBE
from uldp.privacy.statement import Statement
from uldp.runs.description import Description, count_error, people_error
from uldp.runs.directory import RunDirectory
from uldp.runtimes.simulation import run

if TYPE_CHECKING:
    from uldp.library.arguments import Silos

EPSILON: Final = 0.5
BINS: Final = 10
_OF_TRAINING: Final = ("model", "method", "rounds", "test", "test_fraction", "noise_multiplier")
"""Arguments that say how a model is trained."""


def describe(
    silos: Silos | Path,
    *,
    bins: int = BINS,
    directory: Path | str | None = None,
    **what: Unpack[Settings],
) -> Description:
    """Describe the data with user-level differential privacy: one release, charged like a round of training.

    What is described is public: the columns, ranges and categories of the schema. So are the bins: equal parts of each
    range, with what lies below and above it, and what is missing.

    Args:
        silos: A data frame per silo by its name with ``user``, ``label`` and ``schema``; an experiment, whose method,
            model and noise do not matter; or the directory of a run that described data, to read it again.
        bins: Into how many equal parts each range is divided.
        directory: A run directory to write to.
        what: As for :func:`uldp.train`; what says how a model is trained is refused.
        epsilon: What it may cost, 0.5 by default. It adds up with the training of a model on the same people
            (:func:`uldp.total`).

    Returns:
        The description, with the error of its numbers and its privacy statement.

    Raises:
        InputError: Arguments or data are wrong, or there is no schema; nothing was released.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"id": range(400), "smoker": ["no", "no", "no", "yes"] * 100, "ill": [0, 1] * 200})
        >>> schema = Schema.classes("ill", [0, 1]).category("smoker", ["no", "yes"])
        >>> found = describe({"north": frame[:200], "south": frame[200:]}, user="id", label="ill", schema=schema,
        ...                  users=4000, secrets="simulated")
        >>> abs(found["smoker"].shares[1] - 0.25) < 2 * found.share_error, found.statement.privacy_unit
        (True, 'user')
    """
    if isinstance(silos, str | Path) and Path(silos).is_dir():
        return read_description(silos)
    planned = plan_description(silos, bins=bins, **what)  # type: ignore[arg-type]
    for note in warnings_before(planned.prepared):
        warn_caller(note)
    return planned.release(directory)


def plan_description(silos: Silos, *, bins: int = BINS, **what: Unpack[Settings]) -> PlannedDescription:
    """What :func:`describe` would release, before it does; the arguments are the same."""
    for key in _OF_TRAINING:
        if key in what:
            raise ConfigError("says how a model is trained, and nothing is trained here; leave it out", location=key)
    given: dict[str, Any] = {"epsilon": EPSILON, **what}
    if isinstance(silos, Experiment):
        described = description_of(silos, bins)
        return PlannedDescription(CallArguments.of(described, given, "describe").prepare())
    if isinstance(silos, Mapping):
        given |= {"schema": _tally_schema(given, bins), "test_fraction": 0.0}
    options = {"method.bins": bins, **given.pop("options", {})}
    called = CallArguments.of(silos, {**given, "method": DESCRIBE, "options": options}, "describe")
    if called.federation is None or called.federation.schema is None or not tallies(called.federation.schema):
        reason = "give data frames (or files) with a schema, or an experiment; features say nothing about columns"
        raise ConfigError(reason, location="silos")
    return PlannedDescription(called.prepare())


def description_of(experiment: Experiment, bins: int, epsilon: float = EPSILON) -> Experiment:
    """The experiment that describes the data of another one: the same people, columns, aggregation and delta.

    Args:
        experiment: The one that trains a model.
        bins: Into how many equal parts each range is divided.
        epsilon: The budget of the description.
    """
    tree = experiment.to_tree()
    privacy = {key: value for key, value in tree["privacy"].items() if key in ("delta", "dropout_tolerance")}
    run = {key: value for key, value in tree["run"].items() if key != "evaluate_silos"}
    tree |= {"method": {"name": DESCRIBE, "bins": bins}, "privacy": {**privacy, "epsilon": epsilon}, "run": run}
    tree.pop("model", None)
    return Experiment.from_tree(tree, experiment.base, experiment.name)


@dataclass(frozen=True, repr=False)
class PlannedDescription:
    """A description that is not released yet: what it would cost, and how far its numbers would be off."""

    prepared: PreparedExperiment

    @property
    def statement(self) -> Statement:
        """The privacy statement that it would have."""
        return self.prepared.planned_statement()

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise in each number."""
        plan = self.prepared.plan
        return float(plan.release.noise_variance(plan.facts.silos) ** 0.5)

    @property
    def count_error(self) -> float:
        """In 95 of 100 cases no count is off by more than so many people."""
        return count_error(self.deviation)

    @property
    def people_error(self) -> float:
        """The same for the number of people."""
        schema = self.prepared.federation.schema
        return people_error(tallies(schema), self.deviation) if schema is not None else 0.0

    def sentence(self) -> str:
        """The error, in public numbers, before anything is released."""
        plan = self.prepared.plan
        people, columns = plan.facts.people, len(tallies(self.prepared.federation.schema or Schema.classes("", [0, 1])))
        return (
            f"{columns} columns; in 95 of 100 cases a count will be off by at most {self.count_error:.0f} people "
            f"({self.count_error / people:.1%} of {people:,}), and the number of people by {self.people_error:.0f}"
        )

    def release(self, directory: Path | str | RunDirectory | None = None) -> Description:
        """Release the description, and charge it.

        Args:
            directory: A run directory to write to.
        """
        result = run(self.prepared, directory)
        if result.description is None:
            raise RunError("the budget does not allow a description", location="privacy.epsilon")
        return replace(result.description, run=result.run)


def read_description(path: Path | str) -> Description:
    """The description that a run wrote."""
    directory = RunDirectory.open(path)
    if not directory.has("description.json"):
        raise RunError("is not the run of a description, or not finished", location=str(path))
    statement = Statement.from_json(directory.read_json("statement.json"))
    return Description.from_json(directory.read_json("description.json"), statement, str(directory.path))


def _tally_schema(given: Mapping[str, Any], bins: int) -> Schema:
    schema = given.get("schema")
    if schema is None:
        reason = "a description needs a schema of public ranges and categories: bins read from the data would show them"
        raise ConfigError(reason, location="schema")
    if isinstance(schema, Mapping):
        schema = Schema.from_dict(schema, label=given.get("label"), user=given.get("user"), location="schema")
    if not isinstance(schema, Schema):
        raise ConfigError("a uldp.Schema, or its dict", location="schema")
    return tally_schema(schema, bins)
