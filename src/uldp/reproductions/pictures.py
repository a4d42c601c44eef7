"""A reproduction's picture for pages and papers: a row of plots for each metric, a column for each panel."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING, Any

from uldp.reports.figures import METHOD_COLOURS, panels
from uldp.reproductions.plots import Plot, plots_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(document: Mapping[str, Any]) -> Figure:
    """The picture of a reproduction's document, or of its summary."""
    rows = plots_of(document)
    shown, grid = panels((3.6 * len(rows[0]), 3.0 * len(rows)), len(rows), len(rows[0]), squeeze=False)
    names = dict.fromkeys(line.name for row in rows for plot in row for line in plot.lines)
    colours = dict(zip(names, cycle(METHOD_COLOURS), strict=False))
    for line, row in zip(grid, rows, strict=True):
        for axes, plot in zip(line, row, strict=True):
            _draw_plot(axes, plot, colours)
        line[0].set_ylabel(row[0].metric.replace("_", " "))
    handles: dict[str, Any] = {}
    for axes in grid.flat:
        handles |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if handles:
        shown.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize="x-small")
    return shown


def _draw_plot(axes: Any, plot: Plot, colours: Mapping[str, str]) -> None:
    for line in plot.lines:
        style: dict[str, Any] = {"color": colours[line.name], "label": line.name}
        if line.dashed:
            style["linestyle"] = "--"
        if plot.axis != "round" and not line.dashed:
            style |= {"marker": "o", "markersize": 3, "yerr": line.spread}
        axes.errorbar(line.across, line.values, **style)
    if plot.log:
        axes.set_yscale("log")
    axes.set_xlabel(plot.axis)
    axes.set_title(plot.panel, fontsize="small")
    axes.grid(alpha=0.25)
