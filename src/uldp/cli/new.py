"""``uldp new``: a commented experiment file to start from."""

from __future__ import annotations

import os
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from uldp.cli import options as opt
from uldp.cli.output import print_json, reporting

BUCKETS = 10
"""Buckets for each person that ids are hashed into: about a tenth of the people then share one."""

_METHOD = """\
[model]
name = "auto"                  # what people and epsilon allow; or "logistic", "mlp", "package.module:factory"

[method]
name = "auto"                  # clip, steps and rounds follow from public facts; for others see `uldp methods`

[privacy]
delta = 1e-5                   # far below 1 / number of people
epsilon = 4.0                  # the noise is calibrated to it; or give noise_multiplier = 5.0 instead

[aggregation]
name = "masked"                # the server sees the total only; "paillier" also hides record counts, and is slower

[run]
seed = 0
secrets = "simulated"          # "os" before a model trained on real data is released: noise that nobody can repeat
"""

_BUILTIN = """\
[data]
dataset = "{name}"      # see `uldp datasets`
users = {users}
silos = {silos}
allocation = "{allocation}"            # how records are dealt to users and silos

"""


@reporting
def new(
    name: Annotated[str, typer.Argument(help="Writes NAME.toml.")],
    silo: Annotated[list[Path], typer.Option(help="CSV or Parquet file of a silo; repeat for each silo.")] = [],  # noqa: B006
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
    from uldp.data.builtin import dataset as find_dataset
    from uldp.errors import ConfigError, shown

    stem = name.removesuffix(".toml")
    if not stem.strip() or stem.endswith(("/", ".")):
        raise ConfigError(f"a name for the file, not {shown(name)}", location="NAME", value=name)
    target = Path(f"{stem}.toml")
    if os.path.exists(target):
        raise ConfigError("exists already; choose another name", location=str(target), value=str(target))
    if silo:
        data = _tables(target, silo, user, label, test, people, suggest)
    else:
        info = find_dataset(dataset).info
        data = _BUILTIN.format(name=info.name, users=info.users, silos=info.silos, allocation=info.allocation)
    file = target.name if target.name.isprintable() else "FILE"
    head = f"# An experiment of uldp. Show what it costs: uldp plan {quote(file)}. Train: uldp run {quote(file)}"
    text = f"{head}\n\n{data}{_METHOD}"
    try:
        target.write_bytes(text.encode())
    except (OSError, UnicodeEncodeError) as error:  # a file's name need not be Unicode; an experiment file must be
        raise ConfigError(f"cannot be written: {error}", location=str(target), value=str(target)) from error
    if as_json:
        print_json({"file": str(target)})
    else:
        typer.echo(f"wrote {target}")
        if silo:
            typer.echo(
                "Next: check the kinds of the columns and those left out, agree with all parties on the ranges and"
                " categories in [data.schema], then `uldp plan`."
            )


def _tables(
    target: Path,
    silos: list[Path],
    user: str | None,
    label: str | None,
    test: Path | None,
    people: int | None,
    suggest: bool,
) -> str:
    """The ``[data]`` section for one's own tables."""
    from uldp.data.draft import draft_silos, toml_value
    from uldp.data.files import read_table
    from uldp.errors import ConfigError
    from uldp.limits import MAX_USERS, check_whole

    for option, value in (("--user", user), ("--label", label), ("--people", people)):
        if value is None:
            raise ConfigError("is needed with --silo", location=option)
    if user == label:
        raise ConfigError(f"{label!r} is the user column and cannot be predicted", location="--label", value=label)
    check_whole(people, 2, MAX_USERS // BUCKETS, "--people")
    draft = draft_silos(
        {str(path): read_table(path, "--silo") for path in silos},
        str(user),
        str(label),
        from_data=suggest,
        test=(str(test), read_table(test, "--test")) if test else None,
    )
    base = target.resolve().parent

    def relative(path: Path) -> str:
        return os.path.relpath(path.resolve(), base)

    return "\n".join(
        [
            "[data]",
            f"silos = {toml_value([relative(path) for path in silos])}",
            f"user = {toml_value(user)}",
            f"label = {toml_value(label)}",
            f"# Ids are hashed into buckets: {BUCKETS} for each of {people} people, so that few share one.",
            '# Or give roster = "ids.txt" instead, a list of all ids.',
            f"users = {BUCKETS * int(people or 0)}",
            f"people = {people}",
            f"test = {toml_value(relative(test))}" if test else "test_fraction = 0.2   # of the users",
            "",
            "# Public constants. Ranges and categories are agreed on by the parties, never computed from the data:",
            "# a statistic of the data would let one person move everybody's features.",
            draft.to_toml(),
            "",
        ]
    )
