"""Training on made-up federations of the same public shape: what settings are worth, without reading anybody's records.

The rows, weights, clip and server are those of a run; without sessions and integers a round is several times faster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np

from uldp.data.builtin import dataset as find_dataset
from uldp.data.federation import Federation, Records
from uldp.data.schema import Schema, code_columns, feature_shape
from uldp.data.synthetic_tables import TableShape, draw_federation
from uldp.errors import ConfigError
from uldp.experiment.build import PreparedExperiment, prepare
from uldp.experiment.config import Experiment
from uldp.experiment.loading import schema_of
from uldp.learners.metrics import base_loss
from uldp.methods.base import State
from uldp.privacy.releases import GaussianSum
from uldp.rng import Secrets, Streams

RECORDS: Final = 4.0
"""Per person, where nobody says how many there are."""
MAX_PEOPLE: Final = 2000
"""Of a made-up federation. More people with more noise are as good: what counts is rho."""


@dataclass(frozen=True)
class PublicShape:
    """What an experiment file says about the data, and nothing that the tables say.

    ``max_features`` is how many of the features are used, all if it is 0.
    """

    tables: TableShape
    schema: Schema | None
    name: str
    max_features: int = 0

    @classmethod
    def of(cls, experiment: Experiment, records: float | None = None) -> PublicShape:
        """The shape that a file gives, for its own tables or a built-in data set; no table is opened.

        Args:
            experiment: Its ``[data]``.
            records: Per person, over all silos.

        Raises:
            ConfigError: The data were handed over in Python, or are not a table.
        """
        data = experiment.data
        if data.dataset is not None:
            info = find_dataset(data.dataset).info
            if len(info.features) != 1 or info.survival:
                reason = "is no table of columns and a label: images and survival times cannot be made up"
                raise ConfigError(reason, location="data.dataset", value=data.dataset)
            people = data.users or info.users
            silos = data.silos if isinstance(data.silos, int) else info.silos
            each = info.records / people if records is None else records
            return cls(TableShape(people, silos, each, info.features[0], (), info.classes), None, data.dataset)
        if not isinstance(data.silos, tuple):
            raise ConfigError("in memory; write the settings into an experiment file first", location="data.given")
        people = data.people or data.users or 0
        schema = schema_of(experiment)
        if len(feature_shape(schema)) > 1 or code_columns(schema):
            raise ConfigError("images and codes cannot be made up", location="data.schema")
        tables = TableShape.of_schema(schema, people, len(data.silos), RECORDS if records is None else records)
        return cls(replace(tables, base_rate=_public_labels(experiment, schema)), schema, experiment.name or "tables")

    def words(self) -> str:
        """For people."""
        tables = self.tables
        label = f"{tables.classes} classes" if tables.classes else "a number to predict"
        return (
            f"{tables.people:,} people in {tables.silos} silos, {tables.records:.3g} records each, {tables.features} "
            f"features and {label}"
        )

    def draw(self, number: int) -> Federation:
        """Federation ``number`` of this shape; at most ``MAX_PEOPLE`` people."""
        drawn = _draw_federation(replace(self.tables, people=min(self.tables.people, MAX_PEOPLE)), number)
        if self.max_features:
            return _narrow(drawn, self.max_features)
        return drawn if self.schema is None else replace(drawn, schema=self.schema)


def _narrow(federation: Federation, max_features: int) -> Federation:
    """With the first ``max_features`` features only; made-up columns are in no order."""
    test = Records(federation.test.features[:, :max_features], federation.test.labels)
    silos = tuple(replace(silo, features=silo.features[:, :max_features]) for silo in federation)
    return replace(federation, silos=silos, test=test)


def _public_labels(experiment: Experiment, schema: Schema) -> tuple[float, ...] | None:
    """Shares of the classes or the scaled mean of the label, where the file has them."""
    rate, mean, task = experiment.data.base_rate, experiment.data.label_mean, schema.label.task
    if mean is not None:
        return ((mean - task.label_offset) / task.label_scale,)
    if rate is None or isinstance(rate, tuple):
        return rate if rate is None or len(rate) > 1 else (1 - rate[0], rate[0])
    return (1 - rate, rate)


@lru_cache(maxsize=16)
def _draw_federation(tables: TableShape, number: int) -> Federation:
    return draw_federation(tables, Streams.from_seed(number))


def synthetic_skill(experiment: Experiment, shape: PublicShape, changes: Mapping[str, Any], number: int) -> float:
    """Skill of the experiment on made-up federation ``number``: 1 - loss / loss of the base rate, or R2.

    Args:
        experiment: Its method, model and noise; its data are not looked at.
        shape: Of the federation.
        changes: Settings of ``[method]`` instead of the experiment's.
        number: Which federation, and which noise.

    Returns:
        At least -1: what is worse is all the same.
    """
    return _skill(synthetic_plan(experiment, shape, changes, number), number)


def synthetic_plan(
    experiment: Experiment, shape: PublicShape, changes: Mapping[str, Any], number: int
) -> PreparedExperiment:
    """The experiment on made-up federation ``number``, with the rho that it would have on the real one."""
    tree, federation = experiment.to_tree(), shape.draw(number)
    people, drawn = shape.tables.people, federation.users
    data: dict[str, Any] = {"given": "synthetic tables", "users": drawn}
    if (known := shape.tables.base_rate) is not None:
        data |= {"base_rate": list(known)} if shape.tables.classes else {"label_mean": known[0]}
    given = {
        "data": data,
        "method": {**tree["method"], **changes},
        "model": tree["model"],
        "privacy": tree["privacy"],
        "aggregation": {"name": "plain"},
        "run": {"seed": experiment.run.seed, "threads": experiment.run.threads},
    }
    prepared = prepare(Experiment.from_tree(given), federation)
    if people == drawn:
        return prepared
    noise = prepared.plan.method.noise_multiplier * drawn / people
    fewer = {**given, "privacy": {"noise_multiplier": noise, "delta": experiment.privacy.delta}}
    return prepare(Experiment.from_tree(fewer), federation)


def _skill(prepared: PreparedExperiment, number: int) -> float:
    plan, learner, federation = prepared.plan, prepared.learner, prepared.federation
    release, facts = plan.release, plan.facts
    if not isinstance(release, GaussianSum):
        raise ConfigError("adds no Gaussian noise to a sum of users; there is nothing to try", location="method.name")
    streams, secrets = Streams.from_seed(number), Secrets.simulated_from_seed(number)
    noise = streams.child("noise").generator()
    deviation = math.sqrt(release.noise_variance(facts.silos))
    counts = federation.counts()
    weights = [release.weights(own, counts.sum(axis=0)) for own in counts]
    state = State(learner.initial(streams.child("model")))
    for round_ in range(1, plan.rounds + 1):
        total = deviation * noise.standard_normal(facts.dimension)
        x = plan.method.broadcast(state, facts.in_round(round_, facts.silos))
        for silo, weight in zip(federation, weights, strict=True):
            drawn = streams.child("round", round_, silo.name)
            for users, rows in release.rows(plan.method, x, silo, learner, drawn, secrets):
                total += (np.ones(len(rows)) if weight is None else weight[users]) @ np.nan_to_num(rows)
        state = plan.method.server(state, total, facts.in_round(round_, facts.silos))
        if not np.isfinite(state.x).all():
            return -1.0
    loss = learner.evaluate(state.x, federation.test).get("loss", math.inf)
    known = np.concatenate([silo.labels for silo in federation])
    return max(-1.0, 1.0 - loss / base_loss(federation.task, known, federation.test.labels))
