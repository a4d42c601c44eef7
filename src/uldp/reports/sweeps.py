"""Pictures of comparisons in which settings are varied."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

from uldp.experiment.sweeps import show_value
from uldp.reports.figures import METHOD_COLOURS, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from uldp.runtimes.compare import MethodRuns


def sweep_figure(compared: Sequence[MethodRuns], metric: str, setting: str) -> Figure:
    """Metric and loss at the end over ``setting``, and the metric over epsilon: a line for each method (and for each
    combination of the other settings), with bars of one standard deviation."""
    lines = _lines(compared, setting)
    has_loss = metric != "loss" and all("loss" in one.metrics for one in compared)
    shown = [metric, "loss"] if has_loss else [metric]
    figure, axes = panels((5 * len(shown) + 5, 4), 1, len(shown) + 1)
    values = list(dict.fromkeys(one.values[setting] for one in compared if setting in one.values))
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    for (label, line), colour in zip(lines.items(), cycle(METHOD_COLOURS), strict=False):
        for panel, name in zip(axes, shown, strict=False):
            _over_setting(panel, line, name, setting, values if not numeric else None, label=label, color=colour)
        private = [one for one in line if math.isfinite(one.epsilon)]
        if private:
            _error_bars(axes[-1], [one.epsilon for one in private], private, metric, label=label, color=colour)
    for panel, name in zip(axes, shown, strict=False):
        panel.set(xlabel=setting, ylabel=f"test {name.replace('_', ' ')}")
        if not numeric:
            panel.set_xticks(range(len(values)), [show_value(value) for value in values])
    axes[0].set_title(compared[0].results[0].dataset)
    axes[-1].set(xlabel="epsilon of a run", ylabel=f"test {metric.replace('_', ' ')}", title="privacy and utility")
    for panel in axes:
        if panel.get_legend_handles_labels()[0]:
            panel.legend(frameon=False, fontsize="small")
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    return figure


def _lines(compared: Sequence[MethodRuns], setting: str) -> dict[str, list[MethodRuns]]:
    """The variants by what they are called without ``setting``."""
    lines: dict[str, list[MethodRuns]] = {}
    for one in compared:
        others = [f"{key.rpartition('.')[2]}={show_value(v)}" for key, v in one.values.items() if key != setting]
        lines.setdefault(" ".join([one.results[0].method, *others]), []).append(one)
    return lines


def _over_setting(
    panel: Any, line: Sequence[MethodRuns], name: str, setting: str, places: Sequence[Any] | None, **style: Any
) -> None:
    if len(line) == 1 and setting not in line[0].values:  # a method without this setting: the same everywhere
        panel.axhline(line[0].metrics[name][0], linestyle="--", **style)
        return
    chosen = [one.values[setting] for one in line]
    _error_bars(panel, chosen if places is None else [places.index(value) for value in chosen], line, name, **style)


def _error_bars(panel: Any, x: Sequence[float], line: Sequence[MethodRuns], name: str, **style: Any) -> None:
    means = [one.metrics[name][0] for one in line]
    deviations = [one.metrics[name][1] or 0.0 for one in line]
    panel.errorbar(x, means, yerr=deviations, marker="o", markersize=4, capsize=3, **style)
