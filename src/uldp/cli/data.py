"""``uldp data``: fetch the files of a data set, check them, and describe how its records lie over users and silos."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from uldp.cli import options as opt
from uldp.cli.output import paragraphs, print_json, print_table, report_errors, say
from uldp.errors import DataError

if TYPE_CHECKING:
    from uldp.data.store import FileReport

Name = Annotated[str, typer.Argument(help="A data set by name (see `uldp datasets`).", show_default=False)]
data = typer.Typer(help="Fetch, check and describe data sets.", no_args_is_help=True)


@data.command()
@report_errors
def fetch(name: Name, data_dir: opt.DataDir = None, as_json: opt.Json = False) -> None:
    """Download a data set from its public source, and verify its checksums."""
    from uldp.data import store
    from uldp.data.builtin import dataset

    files = dataset(name).files
    reports = () if files is None else store.fetch(files, data_dir, (lambda text: None) if as_json else say)
    _show_files(name, reports, as_json)


@data.command()
@report_errors
def check(name: Name, data_dir: opt.DataDir = None, as_json: opt.Json = False) -> None:
    """Show which files of a data set are used, and verify their checksums."""
    from uldp.data import store
    from uldp.data.builtin import dataset

    files = dataset(name).files
    reports = () if files is None else store.check(files, data_dir)
    different = [report for report in reports if report.state == store.DIFFERENT]
    if files is not None and different:
        names = ", ".join(report.name for report in different)
        raise DataError(
            f"not the known file: {names}; take it away and {store.remedy(files, data_dir)}, or use it knowing that",
            location=str(different[0].path.parent),
            value=names,
        )
    _show_files(name, reports, as_json)


@data.command()
@report_errors
def describe(
    name: Name,
    users: Annotated[int | None, typer.Option(help="Number of users.")] = None,
    silos: Annotated[int | None, typer.Option(help="Number of silos.")] = None,
    allocation: Annotated[str | None, typer.Option(help="Allocation: uniform, zipf, non-iid or stratified.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the allocation.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Draw the picture to this file (default: NAME-users.png).")] = None,
    data_dir: opt.DataDir = None,
    as_json: opt.Json = False,
) -> None:
    """Print a card of a data set and draw how its records lie over users and silos."""
    from uldp.data.builtin import dataset, load_builtin
    from uldp.data.card import data_card
    from uldp.limits import MAX_SEED, check_whole
    from uldp.reports.figures import check_picture, users_figure
    from uldp.rng import Streams

    info = dataset(name).info
    picture = out or Path(f"{name}-users.png")
    check_picture(picture)
    check_whole(seed, 0, MAX_SEED, "--seed")
    federation = load_builtin(name, users, silos, allocation, Streams.from_seed(seed), data_dir)
    card = data_card(info, federation, allocation or info.allocation, seed)
    card["picture"] = str(users_figure(card, federation, picture))
    if as_json:
        print_json(card)
    else:
        _show_card(card)


def _show_files(name: str, reports: Sequence[FileReport], as_json: bool) -> None:
    if as_json:
        print_json({"dataset": name, "files": [report.to_json() for report in reports]})
    elif not reports:
        typer.echo(f"{name} needs no files.")
    else:
        rows = []
        for report in reports:
            state = f"fetched, {report.state}" if report.fetched else report.state
            rows.append((str(report.path), f"{report.bytes:,}" if report.bytes else "", state))
        print_table(("file", "bytes", "state"), rows, title=name)


def _show_card(card: dict[str, Any]) -> None:
    typer.echo(f"{card['dataset']}: {card['description']}")
    facts = (
        f"source: {card['source']}",
        f"licence: {card['licence']}",
        f"inputs: {' x '.join(map(str, card['features']))}; task: {card['task']}",
        f"scaling: {card['scaling']}",
        *card["quirks"],
    )
    typer.echo(paragraphs(facts))
    rows = [
        (silo["name"], f"{silo['records']:,}", f"{silo['users']:,}", _format_labels(silo["labels"]))
        for silo in card["silos"]
    ]
    rows.append(("test", f"{card['test']['records']:,}", "", _format_labels(card["test"]["labels"])))
    print_table(("silo", "records", "users", "labels"), rows)
    for what, key in (("records per user", "records_per_user"), ("... and silo", "records_per_user_and_silo")):
        spread = card[key]
        typer.echo(f"{what}: min {spread['min']}, median {spread['median']:g}, max {spread['max']}")
    typer.echo(
        f"{card['users']} users ({card['users_without_records']} without records), allocation {card['allocation']}, "
        f"seed {card['seed']}; picture: {card['picture']}"
    )


def _format_labels(labels: dict[str, Any]) -> str:
    return ", ".join(
        f"{name}: {count:,}" if isinstance(count, int) else f"{name}: {count:.4g}" for name, count in labels.items()
    )
