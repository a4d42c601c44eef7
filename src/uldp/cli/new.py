"""``uldp new``: a commented experiment file to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from uldp.cli import options as opt
from uldp.cli.output import name_options, print_json, report_errors


@report_errors
def new(
    name: Annotated[str, typer.Argument(help="Writes NAME.toml.")],
    silo: Annotated[
        list[Path], typer.Option(help="CSV or Parquet file, or folder of images, of a silo; repeat for each silo.")
    ] = [],  # noqa: B006
    user: Annotated[str | None, typer.Option(help="Column with the user ids.")] = None,
    label: Annotated[str | None, typer.Option(help="Column to predict.")] = None,
    test: Annotated[Path | None, typer.Option(help="File of held-out records (default: 20 % of the users).")] = None,
    people: Annotated[int | None, typer.Option(help="Approximate number of people; public.")] = None,
    suggest: Annotated[
        bool, typer.Option("--suggest", help="Propose ranges and categories from the files, marked as not agreed yet.")
    ] = False,
    dataset: Annotated[str, typer.Option(help="Without --silo: use this built-in data set.")] = "breast-cancer",
    as_json: opt.Json = False,
) -> None:
    """Draft an experiment file: for a built-in data set, or with a schema for your own tables."""
    from uldp.errors import ConfigError
    from uldp.experiment.drafting import OwnTables, write_draft

    with name_options({"name": "NAME", **{key: f"--{key}" for key in ("user", "label", "people", "silo", "test")}}):
        tables = None
        if silo:
            for option, value in (("--user", user), ("--label", label), ("--people", people)):
                if value is None:
                    raise ConfigError("is needed with --silo", location=option)
            tables = OwnTables(tuple(silo), str(user), str(label), int(people or 0), test, from_data=suggest)
        target = write_draft(name, tables, dataset)
    if as_json:
        print_json({"file": str(target)})
    else:
        typer.echo(f"wrote {target}")
        if silo:
            typer.echo(
                "Next: check the kinds of the columns and those left out, agree with all parties on the ranges and"
                " categories in [data.schema], then `uldp plan`."
            )
