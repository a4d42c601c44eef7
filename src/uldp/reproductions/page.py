"""A reproduction as a page, in Markdown and HTML: verdicts, published numbers beside ours, tables, settings."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from uldp._version import __version__
from uldp.reports.charts import Series, line_chart
from uldp.reports.drawing import Chart
from uldp.reports.page import environment
from uldp.reports.words import metric_name
from uldp.reproductions.plots import Line, plots_of
from uldp.runtimes.result import metric_names

_HIDDEN = ("mean_",)


@dataclass(frozen=True)
class PageTable:
    """A table of the page: its caption, and rows below a head."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    notes: tuple[str, ...] = ()


def page(document: Mapping[str, Any], picture: str = "figure.svg") -> str:
    """The page of a reproduction's document, or of its summary."""
    parts = [
        f"# {document['title']}",
        f"{document['paper']}. {document['about']}",
        f"`{document['command']}`, {document['seconds']:.0f} s.",
        *(f"- {note}" for note in document["notes"]),
        f"![{document['about']}]({picture})",
    ]
    for one in tables(document):
        parts += [f"## {one.title}", *one.notes, table(one.head, one.rows)]
    settings = json.dumps(document["settings"], indent=1)
    parts += ["## Settings", f"```json\n{settings}\n```", f"Versions: {show_versions(document['versions'])}."]
    return "\n\n".join(parts) + "\n"


def html_page(document: Mapping[str, Any]) -> str:
    """The same as a page that opens from disk and loads nothing, with charts that answer to the pointer."""
    charts = list(_charts(document))
    return (
        environment()
        .get_template("reproduction.html")
        .render(
            title=document["title"],
            document=document,
            charts=charts,
            tables=tables(document),
            settings=json.dumps(document["settings"], indent=1),
            versions=show_versions(document["versions"]),
            scripts={chart.key: chart.data for chart in charts},
            version=__version__,
        )
    )


def tables(document: Mapping[str, Any]) -> list[PageTable]:
    """Claims, published numbers, and a table for each panel."""
    found = [_claims(document["claims"])] if document["claims"] else []
    found += [_published(document["published"])] if document["published"] else []
    return [*found, *map(_panel, document["panels"])]


def _charts(document: Mapping[str, Any]) -> Iterator[Chart]:
    """A chart for each metric and panel in which something can be drawn."""
    plots = [plot for row in plots_of(document) for plot in row]
    colours = {name: at for at, name in enumerate(dict.fromkeys(line.name for plot in plots for line in plot.lines))}
    for number, plot in enumerate(plots):
        across = sorted({x for line in plot.lines for x in line.across})
        if len(across) > 1:
            lines = [_series(line, across, colours[line.name]) for line in plot.lines]
            title = f"{metric_name(plot.metric)}: {plot.panel}"
            chart = line_chart(plot.metric, title, across, lines, axis=plot.axis, log=plot.log)
            yield replace(chart, key=f"chart-{number}")


def _series(line: Line, across: Sequence[float], colour: int) -> Series:
    """A line with a value, or none, at each place of the axis."""
    values = dict(zip(line.across, line.values, strict=True))
    spread = None if line.spread is None else dict(zip(line.across, line.spread, strict=True))
    return Series(
        line.name,
        [values.get(x, math.nan) for x in across],
        colour,
        None if spread is None else [spread.get(x, 0.0) for x in across],
        line.dashed,
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def show(value: float | None) -> str:
    """A number for people; None is infinite."""
    if value is None:
        return "infinite"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _claims(claims: Sequence[Mapping[str, Any]]) -> PageTable:
    rows = []
    for claim in claims:
        numbers = "; ".join(
            f"{one['panel']}: {show(one['left'])} and {show(one['right'])}" for one in claim["decisions"]
        )
        verdict = ", ".join(filter(None, (claim["verdict"], claim["reason"])))
        rows.append((f"{claim['text']} {claim['where']}".strip(), verdict, numbers))
    return PageTable("What the paper says", ("claim", "verdict", "the numbers that decide"), rows)


def _published(numbers: Sequence[Mapping[str, Any]]) -> PageTable:
    rows = []
    for one in numbers:
        row = ", ".join(filter(None, (one["panel"], one["row"])))
        ours = "not measured" if one["ours"] is None else show(one["ours"])
        rows.append((row, one["metric"].replace("_", " "), show(one["published"]), ours, one["where"]))
    return PageTable("Published numbers", ("", "metric", "published", "ours", "where"), rows)


def _panel(panel: Mapping[str, Any]) -> PageTable:
    every = {key: 0 for row in panel["rows"] for key in row["metrics"] if not key.startswith(_HIDDEN)}
    names = [name for name in metric_names(every) if name not in ("epsilon", "server_epsilon")]
    names += [name for name in ("epsilon",) if name in every]
    lines = []
    for row in panel["rows"]:
        cells = []
        for name in names:
            if name not in row["metrics"]:
                cells.append("")
                continue
            deviation = row["deviations"].get(name)
            cells.append(show(row["metrics"][name]) + ("" if deviation is None else f" ± {deviation:.2g}"))
        lines.append((row["name"], *cells))
    title = panel["name"] + (f" on {panel['dataset']}" if panel["dataset"] else "")
    return PageTable(title, ("", *(name.replace("_", " ") for name in names)), lines, tuple(panel["notes"]))


def show_versions(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items())
