"""A reproduction's picture: curves over rounds, or a metric over a setting, one column for each panel."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from uldp.reports.figures import METHOD_COLOURS, panels, save_figure
from uldp.reproductions.figure import Figure
from uldp.reproductions.rows import MeasuredRow, PanelRows


def draw(figure: Figure, measured: Sequence[PanelRows], folder: Path) -> None:
    """Write ``figure.png`` and ``figure.svg``.

    ``[picture]`` of the file may name ``metrics`` (a row of panels for each) and ``over`` (a value on the x axis,
    instead of rounds); ``log`` lists metrics on a logarithmic axis.
    """
    metrics = list(figure.picture.get("metrics", ["score"]))
    over, log = figure.picture.get("over"), figure.picture.get("log", [])
    shown, grid = panels((3.6 * len(measured), 3.0 * len(metrics)), len(metrics), len(measured), squeeze=False)
    names = list(dict.fromkeys(_line_name(row, over) for panel in measured for row in panel.rows))
    colours = dict(zip(names, cycle(METHOD_COLOURS), strict=False))
    for line, metric in zip(grid, metrics, strict=True):
        for axes, panel in zip(line, measured, strict=True):
            _draw_panel(axes, panel, metric, over, colours)
            if metric in log:
                axes.set_yscale("log")
            axes.set_title(panel.name, fontsize="small")
            axes.grid(alpha=0.25)
        line[0].set_ylabel(_axis_name(metric, measured[0]))
    handles: dict[str, Any] = {}
    for axes in grid.flat:
        handles |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if handles:
        shown.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize="x-small")
    save_figure(shown, folder / "figure.png")
    save_figure(shown, folder / "figure.svg")


def _draw_panel(axes: Any, panel: PanelRows, metric: str, over: str | None, colours: Mapping[str, str]) -> None:
    lines: dict[str, list[MeasuredRow]] = {}
    for row in panel.rows:
        lines.setdefault(_line_name(row, over), []).append(row)
    for name, rows in lines.items():
        if over is None:
            _draw_curve(axes, rows[0], metric, name, colours[name])
        else:
            _draw_values(axes, rows, metric, over, {"label": name, "color": colours[name]})
    axes.set_xlabel("round" if over is None else over.rpartition(".")[2])


def _draw_curve(axes: Any, row: MeasuredRow, metric: str, name: str, colour: str) -> None:
    curve = row.curves.get(row.score if metric == "score" else metric)
    if curve is None:
        return
    values = [math.nan if value is None else value for value in curve]
    if not all(map(math.isnan, values)):
        axes.plot(range(1, len(values) + 1), values, color=colour, label=name)


def _draw_values(axes: Any, rows: Sequence[MeasuredRow], metric: str, over: str, style: dict[str, Any]) -> None:
    found = [row for row in rows if (row.score if metric == "score" else metric) in row.metrics]
    points = [row for row in found if over in row.values]
    if not points:
        for row in found[:1]:
            axes.axhline(row.value(metric), linestyle="--", **style)
        return
    values = [row.value(metric) for row in points]
    spread = [row.deviation(metric) for row in points]
    axes.errorbar([row.values[over] for row in points], values, yerr=spread, marker="o", markersize=3, **style)


def _line_name(row: MeasuredRow, over: str | None) -> str:
    """A row's name without the value on the x axis."""
    if over is None or over not in row.values:
        return row.name
    short = over.rpartition(".")[2]
    rest = [part for part in row.name.split(" ") if not part.startswith(f"{short}=")]
    return " ".join(rest) or "measured"


def _axis_name(metric: str, panel: PanelRows) -> str:
    name = panel.rows[0].score if metric == "score" and panel.rows else metric
    return name.replace("_", " ")
