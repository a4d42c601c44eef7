"""``uldp predict``, ``uldp export`` and ``uldp statement``: use the model of a run, and show what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from uldp.cli import options as opt
from uldp.cli.output import print_json, report_errors, warn
from uldp.cli.source import experiment_of
from uldp.errors import RunError

Run = Annotated[Path, typer.Argument(help="A run directory with a trained model.")]


@report_errors
def predict(
    run_directory: Run,
    table: Annotated[
        Path, typer.Argument(help="A CSV or Parquet file with the columns of the schema, or a folder of images.")
    ],
    out: Annotated[Path | None, typer.Option(help="Write to this CSV file instead of stdout.")] = None,
    silo: Annotated[str, typer.Option(help="Whose units the table's numbers are in (default: the agreed ones).")] = "",
    as_json: opt.Json = False,
) -> None:
    """Apply a trained model to a table: one prediction per row."""
    from uldp.runs.directory import RunDirectory
    from uldp.runs.trained import TrainedModel

    directory = RunDirectory.open(run_directory)
    if out is not None:
        _check_target(out)
    model = TrainedModel.of(directory, experiment_of)
    predicted = model.predict(table, silo)
    for note in model.notes(table, silo):
        warn(note)
    if out is not None:
        try:
            predicted.to_csv(out, index=False)
        except OSError as error:
            raise RunError(f"cannot be written: {error}", location=str(out), value=str(out)) from error
    if as_json:
        rows = [] if out else predicted.to_dict("records")
        print_json({"rows": len(predicted), "out": str(out) if out else None, "predictions": rows})
    elif out is None:
        typer.echo(predicted.to_csv(index=False), nl=False)
    else:
        typer.echo(f"{len(predicted)} predictions in {out}")


@report_errors
def export(
    run_directory: Run,
    out: Annotated[Path | None, typer.Option(help="Write to this file (default: RUN/model.pt).")] = None,
    as_json: opt.Json = False,
) -> None:
    """Write the model as a plain PyTorch state with its schema and its privacy statement, for use without uldp."""
    import torch

    from uldp.privacy.sentences import NOT_SECRET
    from uldp.runs.directory import RunDirectory
    from uldp.runs.trained import PRIVACY, TrainedModel

    directory = RunDirectory.open(run_directory)
    target = out or directory.path / "model.pt"
    _check_target(target)
    model = TrainedModel.of(directory, experiment_of)
    content, parameters = model.export(), int(model.x.size)
    try:
        torch.save(content, target)
    except (OSError, RuntimeError) as error:
        raise RunError(f"cannot be written: {error}", location=str(target)) from error
    statement = content["statement"]
    if statement["epsilon"] is None:
        warn(str(statement["guarantee"]))
    elif statement["noise"] != "secret":
        warn(f"{NOT_SECRET}, so whoever knows it can remove it; train with run.secrets = 'os' before a release.")
    if as_json:
        privacy = {key: statement[key] for key in PRIVACY}
        described = {"out": str(target), "parameters": parameters, "features": content["features"]}
        print_json({**described, "privacy": privacy})
    else:
        typer.echo(f"{parameters} parameters in {target}; read them with torch.load(..., weights_only=True)")


@report_errors
def statement(
    run_directory: opt.Run,
    as_html: Annotated[bool, typer.Option("--html", help="Print the HTML page instead of text.")] = False,
    as_json: opt.Json = False,
) -> None:
    """Show who faces which epsilon after a run, what is assumed, and what is not covered."""
    from uldp.runs.directory import RunDirectory

    directory = RunDirectory.open(run_directory)
    if not directory.has("statement.json"):
        raise RunError("has no privacy statement yet; finish it with `uldp resume`", location=str(run_directory))
    if as_json:
        print_json(directory.read_json("statement.json"))
        return
    typer.echo(directory.read_text("statement.html" if as_html else "statement.txt"), nl=False)


def _check_target(path: Path) -> None:
    """Refuse a file that cannot be written before time is spent on what to write."""
    try:
        exists, folder = path.exists(), path.parent.is_dir()
    except OSError as error:
        raise RunError(f"cannot be written: {error.strerror}", location=str(path), value=str(path)) from error
    if exists:
        raise RunError("exists already; choose another file with --out", location=str(path), value=str(path))
    if not folder:
        raise RunError(f"no folder {str(path.parent)!r}; make it first", location=str(path), value=str(path))
