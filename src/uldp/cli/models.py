"""``uldp predict`` and ``uldp export``: use the trained model, preprocessing included."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from uldp.cli.output import Json, print_json, reporting, warn
from uldp.cli.source import experiment_of

if TYPE_CHECKING:
    import pandas as pd

    from uldp.data.federation import FloatArray
    from uldp.data.schema import Schema
    from uldp.learners.torch import TorchLearner
    from uldp.runs.directory import RunDirectory
    from uldp.vectors import Vector

_PRIVACY = ("guarantee", "unit", "noise", "epsilon", "delta")

Run = Annotated[Path, typer.Argument(help="A run directory with a trained model.")]


@reporting
def predict(
    run_directory: Run,
    table: Annotated[Path, typer.Argument(help="A CSV or Parquet file with the columns of the schema.")],
    out: Annotated[Path | None, typer.Option("--out", help="Write a CSV file instead of stdout.")] = None,
    as_json: Json = False,
) -> None:
    """Apply a trained model to a table: one prediction per row."""
    from uldp.data.files import read_table
    from uldp.errors import RunError
    from uldp.learners.torch import SlowTrainingWarning
    from uldp.runs.directory import RunDirectory

    directory = RunDirectory.open(run_directory)
    if out is not None:
        _check_target(out)
    x = directory.load_model()
    schema = _schema(directory)
    frame = read_table(table, "table", schema.column_names())
    features = schema.features(frame, str(table))
    learner = _learner(directory, schema, x)
    with warnings.catch_warnings():  # nobody trains here
        warnings.simplefilter("ignore", SlowTrainingWarning)
        predicted = _predictions(learner, schema, x, features)
    if out is not None:
        try:
            predicted.to_csv(out, index=False)
        except OSError as error:
            raise RunError(f"cannot be written: {error}", location=str(out), value=str(out)) from error
    if as_json:
        print_json(
            {
                "rows": len(predicted),
                "out": str(out) if out else None,
                "predictions": [] if out else predicted.to_dict("records"),
            }
        )
    elif out is None:
        typer.echo(predicted.to_csv(index=False), nl=False)
    else:
        typer.echo(f"{len(predicted)} predictions in {out}")


@reporting
def export(
    run_directory: Run,
    out: Annotated[Path | None, typer.Option("--out", help="The file to write (default: RUN/model.pt).")] = None,
    as_json: Json = False,
) -> None:
    """Write the model as a plain PyTorch state with its schema and its privacy statement, for use without uldp."""
    import json

    import torch

    from uldp.errors import RunError
    from uldp.privacy.sentences import NOT_SECRET
    from uldp.runs.directory import RunDirectory

    directory = RunDirectory.open(run_directory)
    target = out or directory.path / "model.pt"
    _check_target(target)
    x = directory.load_model()
    statement = _statement(directory)
    schema = _schema(directory) if (directory.path / "schema.json").exists() else None
    learner = _learner(directory, schema, x)
    content = {
        "state_dict": learner.state_dict(x),
        "model": str(learner.module),
        "schema": json.dumps(schema.to_dict()) if schema else "",
        "features": list(schema.feature_names()) if schema else [],
        "statement": statement,
    }
    try:
        torch.save(content, target)
    except (OSError, RuntimeError) as error:
        raise RunError(f"cannot be written: {error}", location=str(target)) from error
    if statement["epsilon"] is None:
        warn(str(statement["guarantee"]))
    elif statement["noise"] != "secret":
        warn(f"{NOT_SECRET}, so whoever knows it can remove it; train with run.secrets = 'os' before a release.")
    described = {"out": str(target), "parameters": int(x.size), "features": content["features"]}
    described["privacy"] = {key: statement[key] for key in _PRIVACY}
    if as_json:
        print_json(described)
    else:
        typer.echo(f"{x.size} parameters in {target}; read them with torch.load(..., weights_only=True)")


def _check_target(path: Path) -> None:
    """Refuse a file that cannot be written before time is spent on what to write."""
    from uldp.errors import RunError

    try:
        exists, folder = path.exists(), path.parent.is_dir()
    except OSError as error:
        raise RunError(f"cannot be written: {error.strerror}", location=str(path), value=str(path)) from error
    if exists:
        raise RunError("exists already; choose another file with --out", location=str(path), value=str(path))
    if not folder:
        raise RunError(f"no folder {str(path.parent)!r}; make it first", location=str(path), value=str(path))


def _statement(directory: RunDirectory) -> dict[str, Any]:
    """What a model that is given away must carry with it: statement.json."""
    from uldp.errors import RunError

    if not directory.has("statement.json"):
        raise RunError("has no privacy statement yet; finish it with `uldp resume`", location=str(directory.path))
    statement = directory.read_json("statement.json")
    if not isinstance(statement, dict) or not set(_PRIVACY) <= set(statement):
        raise RunError(
            f"does not hold {', '.join(_PRIVACY)}; restore it, or train again with this version",
            location=str(directory.path / "statement.json"),
        )
    return statement


def _schema(directory: RunDirectory) -> Schema:
    from uldp.data.schema import Schema
    from uldp.errors import RunError

    if not (directory.path / "schema.json").exists():
        raise RunError(
            "was trained on a data set without a table schema, so a table cannot become its features",
            location=str(directory.path),
        )
    return Schema.from_dict(directory.read_json("schema.json"), location="schema.json")


def _learner(directory: RunDirectory, schema: Schema | None, x: Vector) -> TorchLearner:
    """The run's model, without loading the data it was trained on if the schema says what it needs."""
    from uldp.errors import RunError
    from uldp.experiment.build import build_learner
    from uldp.experiment.loading import load_federation

    experiment = experiment_of(directory)
    if schema is not None:
        learner = build_learner(experiment, (len(schema.feature_names()),), schema.task)
    else:
        federation = load_federation(experiment)
        learner = build_learner(experiment, federation.feature_shape, federation.task)
    if learner.dimension != x.size:
        raise RunError(
            f"model.npz holds {x.size} parameters, the model has {learner.dimension}",
            location=str(directory.path),
        )
    return learner


def _predictions(learner: TorchLearner, schema: Schema, x: Vector, features: FloatArray) -> pd.DataFrame:
    import pandas as pd

    from uldp.data.columns import ClassLabel

    scores = learner.predict(x, features)
    if not isinstance(schema.label, ClassLabel):
        within = scores.clip(-1, 1)  # the agreed range of the label: public, so this costs nothing
        return pd.DataFrame({"prediction": schema.task.label_offset + schema.task.label_scale * within})
    classes = schema.label.classes
    table = {"prediction": [classes[i] for i in scores.argmax(axis=1)]}
    return pd.DataFrame({**table, **{f"probability_{name}": scores[:, i] for i, name in enumerate(classes)}})
