"""The trained model of a run, its preprocessing included: predictions for a table, and a plain PyTorch state."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd
from torch import nn

from uldp.data.federation import FloatArray, Task
from uldp.data.files import Table, read_table, table_name
from uldp.data.labels import ClassLabel
from uldp.data.memory import feature_array
from uldp.data.schema import Schema, feature_shape, notes_on
from uldp.data.tables import silo_files
from uldp.errors import ConfigError, DataError, RunError, did_you_mean
from uldp.experiment.build import build_learner
from uldp.experiment.config import Experiment
from uldp.experiment.loading import load_federation
from uldp.learners.torch import SlowTrainingWarning, TorchLearner
from uldp.runs.directory import RunDirectory
from uldp.vectors import Vector

if TYPE_CHECKING:
    from uldp.experiment.build import OwnModel

Load = Callable[[RunDirectory], Experiment]
PRIVACY: Final = ("guarantee", "unit", "noise", "epsilon", "delta")
"""What a statement must say that a released model carries with it."""


@dataclass(frozen=True)
class FittedModel:
    """A trained model with the preprocessing that makes its features; ``schema`` is None where there is none."""

    learner: TorchLearner
    task: Task
    schema: Schema | None
    x: Vector
    feature_shape: tuple[int, ...] = ()

    def module(self) -> nn.Module:
        """A copy of the model with its trained parameters, in evaluation mode."""
        module = copy.deepcopy(self.learner.module)
        module.load_state_dict(self.learner.state_dict(self.x))
        return module.eval()

    def scores(self, data: Table | FloatArray, silo: str = "") -> npt.NDArray[np.float64]:
        """The model's predictions: probabilities of classes, or numbers in the units of training.

        ``silo`` says whose units the numbers of a table are in; without it they are in the agreed ones.
        """
        if isinstance(data, np.ndarray):
            if self.schema is not None and data.shape[1:] != feature_shape(self.schema):
                wanted = " x ".join(map(str, feature_shape(self.schema)))
                raise DataError(
                    f"features of shape {data.shape[1:]}; the schema makes {wanted} per row", location="data"
                )
            features = feature_array(data, "data")
        elif self.schema is None:
            raise DataError("trained without a table schema: give an array of features", location="data")
        else:
            location = table_name(data, "data")
            features = self.schema.features(read_table(data, "table", self.schema.column_names()), location, silo)
        with warnings.catch_warnings():  # nobody trains here
            warnings.simplefilter("ignore", SlowTrainingWarning)
            return self.learner.predict(self.x, features)

    def predict(self, data: Table | FloatArray, silo: str = "") -> npt.NDArray[Any]:
        """One prediction per row: the likeliest class, a number in the label's own units, or a relative risk's log."""
        scores = self.scores(data, silo)
        if self.task.kind == "classification":
            likeliest = scores.argmax(axis=1)
            listed = self.schema.label.classes if self.schema and isinstance(self.schema.label, ClassLabel) else None
            named: npt.NDArray[Any] = likeliest if listed is None else np.array(listed)[likeliest]
            return named
        if self.task.kind == "survival":
            return scores
        if self.schema is not None:
            scores = scores.clip(-1, 1)  # the agreed range of the label: public, so this costs nothing
        numbers: npt.NDArray[Any] = self.task.label_offset + self.task.label_scale * scores
        return numbers

    def predict_proba(self, data: Table | FloatArray) -> npt.NDArray[np.float64]:
        """(rows, classes): the probability of each class."""
        if self.task.kind != "classification":
            raise DataError(f"this model is for {self.task.kind} and has no classes", location="predict_proba")
        return self.scores(data)


@dataclass(frozen=True)
class TrainedModel:
    """The parameters of a finished run. ``schema`` says how a table becomes features, None for a built-in data set."""

    directory: RunDirectory
    x: Vector
    schema: Schema | None
    load: Load = RunDirectory.experiment

    @classmethod
    def of(cls, directory: RunDirectory, load: Load = RunDirectory.experiment) -> TrainedModel:
        x, schema = directory.load_model(), None
        if directory.has("schema.json"):
            schema = Schema.from_dict(directory.read_json("schema.json"), location="schema.json")
        return cls(directory, x, schema, load)

    def learner(self) -> TorchLearner:
        """The run's model, without loading the data that it was trained on."""
        return self.fitted_model().learner

    def fitted_model(self, module: OwnModel | None = None) -> FittedModel:
        """The model with its preprocessing, ready to predict."""
        experiment, schema = self.load(self.directory), self.schema
        shape: tuple[int, ...]
        if schema is not None:
            shape, task = feature_shape(schema), schema.label.task
        elif self.directory.has("task.json"):
            shape, task = self._task()
        else:  # of an earlier version
            federation = load_federation(experiment)
            shape, task = federation.feature_shape, federation.task
        learner = build_learner(experiment, shape, task, module)
        if learner.dimension != self.x.size:
            raise RunError(
                f"model.npz holds {self.x.size} parameters, the model has {learner.dimension}",
                location=str(self.directory.path),
            )
        return FittedModel(learner, task, schema, self.x, shape)

    def _task(self) -> tuple[tuple[int, ...], Task]:
        """What the model was trained for."""
        tree = self.directory.read_json("task.json")
        try:
            return tuple(map(int, tree["features"])), Task(**{key: tree[key] for key in tree if key != "features"})
        except (KeyError, TypeError, ValueError) as error:
            raise RunError("is damaged; restore it", location=str(self.directory.path / "task.json")) from error

    def predict(self, table: Path, silo: str = "") -> pd.DataFrame:
        """One prediction for each row of a CSV or Parquet file; with classes, their probabilities too.

        ``silo`` says whose units its numbers are in; without it they are in the agreed ones.
        """
        schema = self._own_schema()
        if silo:
            _check_silo(self.load(self.directory), silo)
        fitted = self.fitted_model()
        if not isinstance(schema.label, ClassLabel):
            name = "log_risk" if schema.label.task.survival else "prediction"
            return pd.DataFrame({name: fitted.predict(table, silo)})
        classes, scores = schema.label.classes, fitted.scores(table, silo)
        likeliest = [classes[i] for i in scores.argmax(axis=1)]
        probabilities = {f"probability_{name}": scores[:, i] for i, name in enumerate(classes)}
        return pd.DataFrame({"prediction": likeliest, **probabilities})

    def notes(self, table: Path, silo: str = "") -> tuple[str, ...]:
        """What the schema's rules changed in a table: cells that were clipped, columns that are not there."""
        schema = self._own_schema()
        return notes_on(schema, read_table(table, "table", schema.column_names()), table_name(table, "table"), silo)

    def _own_schema(self) -> Schema:
        if self.schema is None:
            raise RunError(
                "was trained on a data set without a table schema, so a table cannot become its features",
                location=str(self.directory.path),
            )
        return self.schema

    def export(self) -> dict[str, Any]:
        """What ``torch.save`` writes for use without uldp: state, schema, and the privacy statement."""
        statement = self._statement()
        learner, schema = self.learner(), self.schema
        return {
            "state_dict": learner.state_dict(self.x),
            "model": str(learner.module),
            "schema": json.dumps(schema.to_dict()) if schema else "",
            "features": list(schema.feature_names()) if schema else [],
            "statement": statement,
        }

    def _statement(self) -> dict[str, Any]:
        if not self.directory.has("statement.json"):
            raise RunError(
                "has no privacy statement yet; finish it with `uldp resume`", location=str(self.directory.path)
            )
        statement = self.directory.read_json("statement.json")
        if not isinstance(statement, dict) or not set(PRIVACY) <= set(statement):
            raise RunError(
                f"does not hold {', '.join(PRIVACY)}; restore it, or train again with this version",
                location=str(self.directory.path / "statement.json"),
            )
        return statement


def _check_silo(experiment: Experiment, silo: str) -> None:
    """Refuse a silo that took no part: its units are not known."""
    files = experiment.data.silos
    names = list(silo_files(files)) if isinstance(files, tuple) else []
    if silo not in names:
        reason = f"this run has no silo {silo!r}. Its silos: {', '.join(names)}{did_you_mean(silo, names)}"
        raise ConfigError(reason, location="--silo", value=silo)
