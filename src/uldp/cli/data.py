"""``uldp data``: fetch the files of a data set, check them, and describe how its records lie over users and silos."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from uldp.cli.output import Json, paragraphs, print_json, print_table, reporting
from uldp.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from uldp.data.federation import Federation, LabelArray
    from uldp.data.sets.base import DatasetInfo
    from uldp.data.store import FileReport

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555", "#F0E442")

Name = Annotated[str, typer.Argument(help="A data set by name (see `uldp datasets`).", show_default=False)]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="The folder that holds the data sets' folders; otherwise $ULDP_DATA, the cache."),
]

data = typer.Typer(help="Fetch, check and describe data sets.", no_args_is_help=True)


@data.callback()
def _data() -> None:
    pass


@data.command()
@reporting
def fetch(name: Name, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Download a data set from its public source, and verify its checksums."""
    from uldp.data import store
    from uldp.data.builtin import dataset

    files = dataset(name).files
    say = (lambda text: None) if as_json else (lambda text: typer.echo(text, err=True))
    _show_files(name, () if files is None else store.fetch(files, data_dir, say), as_json)


@data.command()
@reporting
def check(name: Name, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Say which files of a data set are used, and whether they are the known ones."""
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
@reporting
def describe(
    name: Name,
    users: Annotated[int | None, typer.Option("--users", help="How many users.")] = None,
    silos: Annotated[int | None, typer.Option("--silos", help="How many silos.")] = None,
    allocation: Annotated[
        str | None, typer.Option("--allocation", help="How records are dealt out: uniform, zipf or non-iid.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the allocation.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", help="The picture; by default NAME-users.png.", show_default=False)
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Print a card of a data set and draw how its records lie over users and silos."""
    from uldp.data.builtin import dataset, load_builtin
    from uldp.limits import MAX_SEED, check_whole
    from uldp.reports.figures import check_picture
    from uldp.rng import Streams

    info = dataset(name).info
    picture = out or Path(f"{name}-users.png")
    check_picture(picture)
    check_whole(seed, 0, MAX_SEED, "--seed")
    federation = load_builtin(name, users, silos, allocation, Streams.from_seed(seed), data_dir)
    card = _card(info, federation, allocation or info.allocation, seed)
    card["picture"] = str(_draw(card, federation, picture))
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
        rows = [(str(report.path), f"{report.bytes:,}" if report.bytes else "", _state(report)) for report in reports]
        print_table(("file", "bytes", "state"), rows, title=name)


def _state(report: FileReport) -> str:
    return f"fetched, {report.state}" if report.fetched else report.state


def _card(info: DatasetInfo, federation: Federation, allocation: str, seed: int) -> dict[str, Any]:
    """What there is to know about the data set, as it is loaded here."""
    counts = federation.counts()
    return {
        "dataset": info.name,
        "description": info.description,
        "source": info.source,
        "licence": info.licence,
        "scaling": info.scaling or "see the loader",
        "quirks": list(info.quirks),
        "features": list(federation.feature_shape),
        "task": federation.task.kind,
        "allocation": allocation,
        "seed": seed,
        "users": federation.users,
        "users_without_records": int((counts.sum(axis=0) == 0).sum()),
        "records": int(counts.sum()),
        "records_per_user": _spread(counts.sum(axis=0)),
        "records_per_user_and_silo": _spread(counts[counts > 0]),
        "silos": [
            {
                "name": silo.name,
                "records": len(silo),
                "users": int((own > 0).sum()),
                "labels": _labels(silo.labels, info, federation),
            }
            for silo, own in zip(federation, counts, strict=True)
        ],
        "test": {
            "records": len(federation.test),
            "labels": _labels(federation.test.labels, info, federation),
        },
    }


def _spread(counts: npt.NDArray[np.int64]) -> dict[str, float]:
    import numpy as np

    if not len(counts):
        return {"min": 0, "median": 0, "max": 0}
    return {"min": int(counts.min()), "median": float(np.median(counts)), "max": int(counts.max())}


def _labels(labels: LabelArray, info: DatasetInfo, federation: Federation) -> dict[str, int] | dict[str, float]:
    """How often each class occurs; events and censored records of survival data; the range of a number."""
    import numpy as np

    task = federation.task
    if task.kind == "survival":
        return {"event": int((labels > 0).sum()), "censored": int((labels < 0).sum())}
    if task.kind == "regression":
        units = task.label_offset + task.label_scale * np.asarray(labels, dtype=np.float64)
        return {"min": float(units.min()), "max": float(units.max())} if len(units) else {}
    names = info.labels if len(info.labels) == task.classes else tuple(map(str, range(task.classes)))
    counts = np.bincount(np.asarray(labels, dtype=np.int64), minlength=task.classes)
    return {name: int(count) for name, count in zip(names, counts, strict=True)}


def _show_card(card: dict[str, Any]) -> None:
    typer.echo(f"{card['dataset']}: {card['description']}")
    shape = " x ".join(map(str, card["features"]))
    facts = (
        f"source: {card['source']}",
        f"licence: {card['licence']}",
        f"inputs: {shape}; task: {card['task']}",
        f"scaling: {card['scaling']}",
        *card["quirks"],
    )
    typer.echo(paragraphs(facts))
    rows = [
        (silo["name"], f"{silo['records']:,}", f"{silo['users']:,}", _shown(silo["labels"])) for silo in card["silos"]
    ]
    rows.append(("test", f"{card['test']['records']:,}", "", _shown(card["test"]["labels"])))
    print_table(("silo", "records", "users", "labels"), rows)
    for what, key in (("records per user", "records_per_user"), ("... and silo", "records_per_user_and_silo")):
        spread = card[key]
        typer.echo(f"{what}: min {spread['min']}, median {spread['median']:g}, max {spread['max']}")
    typer.echo(
        f"{card['users']} users ({card['users_without_records']} without records), allocation {card['allocation']}, "
        f"seed {card['seed']}; picture: {card['picture']}"
    )


def _shown(labels: dict[str, Any]) -> str:
    return ", ".join(
        f"{name}: {count:,}" if isinstance(count, int) else f"{name}: {count:.4g}" for name, count in labels.items()
    )


def _draw(card: dict[str, Any], federation: Federation, path: Path) -> Path:
    """Left: records per user, largest first, coloured by silo. Right: records per silo, coloured by label."""
    import matplotlib
    import numpy as np

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    counts = federation.counts()
    counts = counts[:, np.argsort(-counts.sum(axis=0), kind="stable")]
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11, 4), layout="constrained", gridspec_kw={"width_ratios": [2, 1]}
    )
    edges, below = np.arange(federation.users + 1) - 0.5, np.zeros(federation.users)
    for number, (silo, own) in enumerate(zip(federation, counts, strict=True)):
        left.stairs(
            below + own, edges, baseline=below, fill=True, color=_COLOURS[number % len(_COLOURS)], label=silo.name
        )
        below = below + own
    left.set(xlabel="users, largest first", ylabel="records", title=f"{card['dataset']}: records per user")
    left.legend(frameon=False, title="silo", ncols=2)
    _draw_silos(right, card)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    from uldp.reports.figures import save_picture

    return save_picture(figure, path)


def _draw_silos(axes: Any, card: dict[str, Any]) -> None:
    names = [silo["name"] for silo in card["silos"]]
    if card["task"] == "regression":
        parts = {"records": [silo["records"] for silo in card["silos"]]}
    else:
        parts = {label: [silo["labels"][label] for silo in card["silos"]] for label in card["silos"][0]["labels"]}
    from matplotlib import colormaps

    shades = colormaps["viridis"]
    start = [0] * len(names)
    for number, (label, counts) in enumerate(parts.items()):
        colour = shades(number / max(1, len(parts) - 1) * 0.9)
        axes.barh(names, counts, left=start, color=colour, label=label)
        start = [a + b for a, b in zip(start, counts, strict=True)]
    axes.invert_yaxis()
    axes.set(xlabel="records", title="records per silo")
    if len(parts) > 1:
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.15)}
        axes.legend(frameon=False, fontsize="small", ncols=5 if len(parts) > 6 else 3, **below)
