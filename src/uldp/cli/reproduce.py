"""``uldp reproduce``: figures and tables of the papers, with the published numbers beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from uldp.cli import options as opt
from uldp.cli.output import print_json, print_table, report_errors, say
from uldp.errors import ConfigError


@report_errors
def reproduce(
    figure: Annotated[str | None, typer.Argument(help="A figure (see --list).", show_default=False)] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the figures.")] = False,
    all_: Annotated[bool, typer.Option("--all", help="Reproduce all figures.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Small settings, minutes (the default).")] = False,
    medium: Annotated[bool, typer.Option("--medium", help="Settings in between, ten minutes of a core.")] = False,
    full: Annotated[bool, typer.Option("--full", help="The paper's settings; may take hours.")] = False,
    repeats: Annotated[int | None, typer.Option(help="Number of seeds (default: the figure's).")] = None,
    data_dir: opt.DataDir = None,
    out: Annotated[Path, typer.Option(help="Folder with one folder per figure.")] = Path("reproductions"),
    as_json: opt.Json = False,
) -> None:
    """Reproduce a figure or table of the papers: results.json, a page and a picture.

    What was computed before is read, and a run that was stopped goes on. Where a data set is not here, a built-in one
    takes its place, and the page says so.
    """
    from uldp.reproductions.figure import load, names

    if [list_, all_, figure is not None].count(True) != 1:
        raise ConfigError("give one of FIGURE, --all and --list", location="command line")
    modes = [mode for mode, given in (("quick", quick), ("medium", medium), ("full", full)) if given] or ["quick"]
    if len(modes) > 1:
        raise ConfigError("give one of --quick, --medium and --full", location="command line")
    if list_:
        known = [{"figure": name, "title": load(name).title, "paper": load(name).paper} for name in names()]
        if as_json:
            print_json(known)
        else:
            print_table(("figure", "title", "paper"), [tuple(one.values()) for one in known])
        return
    chosen = names() if all_ else [str(figure)]
    documents = [_reproduce_one(name, out, modes[0], repeats, data_dir, as_json) for name in chosen]
    if as_json:
        print_json(documents if all_ else documents[0])


def _reproduce_one(
    name: str, out: Path, mode: str, repeats: int | None, data_dir: Path | None, as_json: bool
) -> dict[str, Any]:
    from uldp.data.store import expand_home
    from uldp.reproductions.page import show
    from uldp.reproductions.run import reproduce as run

    folder = None if data_dir is None else expand_home(data_dir, "--data-dir").resolve()
    try:
        found = run(name, out, mode=mode, repeats=repeats, data_dir=folder, progress=None, say=say)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped; nothing is lost: the same command goes on") from None
    if not as_json:
        rows = [
            (
                claim["text"],
                claim["verdict"],
                "; ".join(f"{show(one['left'])} and {show(one['right'])}" for one in claim["decisions"]),
            )
            for claim in found.document["claims"]
        ]
        print_table(("claim", "verdict", "numbers"), rows, title=found.document["title"])
        for note in found.document["notes"]:
            typer.echo(note)
        typer.echo(f"page: {found.folder / 'page.html'}")
    return found.document
