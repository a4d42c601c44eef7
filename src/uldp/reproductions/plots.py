"""What is drawn of a reproduction: lines of a metric over the rounds, or over the setting that a panel varies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from uldp.reproductions.rows import MeasuredRow, PanelRows


@dataclass(frozen=True)
class Line:
    """A line of a plot: where it has points, their values, and deviations over seeds where these are known."""

    name: str
    across: Sequence[float]
    values: Sequence[float]
    spread: Sequence[float] | None = None
    dashed: bool = False


@dataclass(frozen=True)
class Plot:
    """A metric of one panel. ``axis`` is ``round``, or the name of the setting on the horizontal axis."""

    panel: str
    metric: str
    axis: str
    log: bool
    lines: Sequence[Line]


def plots_of(document: Mapping[str, Any]) -> list[list[Plot]]:
    """The plots of a reproduction's document or summary: a list for each metric, with a plot for each panel.

    ``[picture]`` of the figure's file may name ``metrics`` and ``over``: settings, of which a panel is drawn over the
    first one that it varies, and over the rounds if it varies none. ``log`` lists metrics on a logarithmic axis.
    """
    measured, picture = msgspec.convert(document["panels"], type=list[PanelRows]), document["picture"]
    over, log = picture.get("over", []), picture.get("log", [])
    return [
        [_plot(panel, metric, over, log=metric in log) for panel in measured]
        for metric in picture.get("metrics", ["score"])
    ]


def _plot(panel: PanelRows, metric: str, over: Sequence[str], *, log: bool) -> Plot:
    varied = next((key for key in over if _is_varied(key, panel.rows)), None)
    name = panel.rows[0].score if metric == "score" else metric
    if varied is None:
        lines = [line for row in panel.rows if (line := _curve(row, name)) is not None]
        return Plot(panel.name, name, "round", log, lines)
    groups: dict[str, list[MeasuredRow]] = {}
    for row in panel.rows:
        if name in row.metrics:
            groups.setdefault(_line_name(row, varied), []).append(row)
    every = sorted({row.values[varied] for row in panel.rows if varied in row.values})
    axis = varied.rpartition(".")[2].replace("_", " ")
    return Plot(
        panel.name, name, axis, log, [_points(line, rows, name, varied, every) for line, rows in groups.items()]
    )


def _is_varied(key: str, rows: Sequence[MeasuredRow]) -> bool:
    """Whether these rows differ in this setting, by numbers."""
    values = [row.values[key] for row in rows if key in row.values]
    return all(isinstance(value, int | float) for value in values) and len(set(values)) > 1


def _curve(row: MeasuredRow, metric: str) -> Line | None:
    values = [math.nan if value is None else value for value in row.curves.get(metric, [])]
    if all(map(math.isnan, values)):
        return None
    endless = "epsilon" in row.metrics and row.metrics["epsilon"] is None
    return Line(row.name, range(1, len(values) + 1), values, dashed=endless)


def _points(name: str, rows: Sequence[MeasuredRow], metric: str, varied: str, every: Sequence[float]) -> Line:
    """A line through these rows; what does not vary (a method without the setting) is the same everywhere."""
    if varied not in rows[0].values:
        return Line(name, every, len(every) * [_number(rows[0], metric)], dashed=True)
    ordered = sorted(rows, key=lambda row: row.values[varied])
    spread = [row.deviation(metric) for row in ordered]
    across, values = [row.values[varied] for row in ordered], [_number(row, metric) for row in ordered]
    return Line(name, across, values, spread if any(spread) else None)


def _number(row: MeasuredRow, metric: str) -> float:
    """A metric; what is infinite is not drawn."""
    return value if math.isfinite(value := row.value(metric)) else math.nan


def _line_name(row: MeasuredRow, varied: str) -> str:
    """A row's line; of a training its name without the value on the axis."""
    short = varied.rpartition(".")[2]
    return row.line or " ".join(part for part in row.name.split(" ") if not part.startswith(f"{short}="))
