"""Pictures: methods side by side, tables of epsilons, attacks, and how records lie over users and silos."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from uldp.errors import ConfigError, format_value

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from uldp.attacks.inference import Outcome
    from uldp.attacks.membership_result import Attack
    from uldp.data.federation import Federation
    from uldp.runtimes.compare import MethodRuns

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555", "#F0E442")
METHOD_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#555555", "#CC79A7", "#E69F00", "#56B4E9", "#8C564B", "#117733")
_TABLE_COLOURS = ("#D55E00", "#555555", "#56B4E9", "#0072B2")


def comparison_figure(compared: Sequence[MethodRuns], metric: str) -> Figure:
    """Panels of ``metric``, of the loss (means, and bands of one standard deviation) and of epsilon over rounds."""
    from matplotlib.ticker import MaxNLocator

    has_loss = metric != "loss" and all("loss" in one.metrics for one in compared)
    shown = [metric, "loss"] if has_loss else [metric]
    figure, axes = panels((5 * len(shown) + 5, 4), 1, len(shown) + 1)
    colours = {method.method: colour for colour, method in zip(cycle(METHOD_COLOURS), compared, strict=False)}
    for panel, name in zip(axes, shown, strict=False):
        for method in compared:
            _draw_curve(panel, method, name, colours[method.method])
        panel.set(xlabel="round", ylabel=f"test {name.replace('_', ' ')}")
    axes[0].set_title(f"Utility on {compared[0].results[0].dataset}")
    if has_loss:
        _limit_losses(axes[1], [_curves(method, "loss") for method in compared])
    _draw_epsilons(axes[-1], compared, colours)
    for panel in axes:
        if panel.get_legend_handles_labels()[0] and (panel is axes[0] or panel is axes[-1]):
            panel.legend(frameon=False, fontsize="small")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_curve(panel: Any, method: MethodRuns, name: str, colour: str) -> None:
    values = _curves(method, name)
    rounds = np.arange(1, values.shape[1] + 1)
    mean = values.mean(axis=0)
    panel.plot(rounds, mean, "--" if math.isinf(method.epsilon) else "-", color=colour, label=method.method)
    if len(values) > 1:
        deviation = values.std(axis=0, ddof=1)
        panel.fill_between(rounds, mean - deviation, mean + deviation, color=colour, alpha=0.15, linewidth=0)


def _limit_losses(panel: Any, curves: Sequence[np.ndarray[tuple[int, int], np.dtype[np.float64]]]) -> None:
    """On a logarithmic axis where one method's loss is many times another's."""
    ends = [float(values[:, -1].mean()) for values in curves]
    if min(ends) > 0 and max(ends) > 20 * min(ends):
        panel.set_yscale("log")


def _draw_epsilons(panel: Any, compared: Sequence[MethodRuns], colours: Mapping[str, str]) -> None:
    lines = _by_epsilon(compared)
    records = {method.method for method in compared if method.privacy_unit == "record"}
    for spent, methods in lines.items():
        style = ":" if methods[0] in records else "-"
        label = ", ".join(f"{name} (one record)" if name in records else name for name in methods)
        panel.plot(range(1, len(spent) + 1), spent, style, color=colours[methods[0]], label=label)
    if len(lines) > 1 and max(line[-1] for line in lines) > 20 * min(line[-1] for line in lines):
        panel.set_yscale("log")
    first = compared[0].results[0]
    title = "What one record risks" if len(records) == len(compared) else "What one person risks"
    simulated = ", simulated noise" if first.statement.simulated else ""
    panel.set(xlabel="round", ylabel=f"epsilon (delta = {first.statement.delta:g}{simulated})", title=title)


def _curves(method: MethodRuns, metric: str) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """(seeds, rounds); runs that a budget stopped early are cut to the shortest."""
    rounds = min(len(result.reports) for result in method.results)
    return np.array(
        [[report.metrics.get(metric, math.nan) for report in result.reports[:rounds]] for result in method.results]
    )


def _by_epsilon(compared: Sequence[MethodRuns]) -> dict[tuple[float, ...], list[str]]:
    """Methods that spend alike share a line."""
    found: dict[tuple[float, ...], list[str]] = {}
    for method in compared:
        if math.isfinite(method.epsilon):
            spent = tuple(report.epsilon for report in method.results[0].reports)
            found.setdefault(spent, []).append(method.method)
    return found


def table_figure(head: str, columns: Sequence[str], rows: Sequence[tuple[int, Sequence[float]]], path: Path) -> Path:
    """A table of epsilons: one line per column, on logarithmic axes where the numbers ask for it."""
    figure, axes = panels((6, 4))
    keys = [key for key, _ in rows]
    for column, values, colour in zip(columns, zip(*(row for _, row in rows), strict=True), cycle(_TABLE_COLOURS)):
        style = "--" if column == "published" else "-"
        axes.plot(keys, values, style, marker="o", markersize=4, color=colour, label=column)
    finite = [value for _, values in rows for value in values if math.isfinite(value) and value > 0]
    if finite and max(finite) > 50 * min(finite):
        axes.set_yscale("log")
    if len(keys) > 2 and keys[-1] >= 16 * keys[0]:
        axes.set_xscale("log", base=2 if head == "k" else 10)
        axes.set_xticks(keys, [str(key) for key in keys])
        axes.minorticks_off()
    axes.set(xlabel=head, ylabel="epsilon")
    axes.legend(frameon=False)
    axes.grid(alpha=0.25)
    return save_figure(figure, path)


def attack_figure(outcomes: Sequence[Outcome], path: Path, varied: Sequence[Mapping[str, float]] = ()) -> Path:
    """Error against epsilon, or against the first thing that ``varied`` names of each outcome.

    A line for each adversary (marker), and each mechanism and value of everything else (colour).
    """
    figure, axes = panels((7, 4.5))
    adversaries = dict.fromkeys(outcome.adversary for outcome in outcomes)
    styles = dict(zip(adversaries, (("s", ":"), ("o", "-"), ("^", "--"), ("v", "-.")), strict=False))
    axis = next(iter(varied[0]), "epsilon") if varied else "epsilon"
    lines: dict[tuple[str, ...], list[tuple[float, Outcome]]] = {}
    for outcome, values in zip(outcomes, varied or cycle([{}])):  # noqa: B905
        others = {key: value for key, value in {**values, "epsilon": outcome.epsilon}.items() if key != axis}
        several = others if axis != "epsilon" else {}
        name = (outcome.mechanism, outcome.adversary, *(f"{key} {value:g}" for key, value in several.items()))
        lines.setdefault(name, []).append((values.get(axis, outcome.epsilon), outcome))
    colours = dict(zip(dict.fromkeys((name[0], *name[2:]) for name in lines), cycle(COLOURS), strict=False))
    for name, points in lines.items():
        points.sort(key=lambda point: point[0])
        marker, linestyle = styles[name[1]]
        axes.errorbar(
            [place for place, _ in points],
            [100 * outcome.error for _, outcome in points],
            yerr=[100 * (outcome.standard_error or 0.0) for _, outcome in points],
            color=colours[name[0], *name[2:]],
            marker=marker,
            linestyle=linestyle,
            markersize=4,
            label=", ".join(name),
        )
    errors = [outcome.error for outcome in outcomes if outcome.error > 0]
    if errors and max(errors) > 10 * min(errors):
        axes.set_yscale("log")
    label = "epsilon of one weight" if axis == "epsilon" else axis
    axes.set(xlabel=label, ylabel="error, % of the range", title="Guessing the clients' mean weight")
    axes.legend(frameon=False, fontsize="small")
    axes.grid(alpha=0.25)
    return save_figure(figure, path)


def membership_figure(found: Attack, path: Path) -> Path:
    """A panel for each method: the AUC of every attack with its interval, by kind of people, below its ceiling."""
    number = len(found.methods)
    figure, grid = panels((3.2 * number + 1, 4.2), 1, number, squeeze=False, sharey=True)
    for axes, method in zip(grid[0], found.methods, strict=True):
        places, attacks = np.arange(len(method.kinds)), list(method.kinds[0].rates)
        for index, (attack, colour) in enumerate(zip(attacks, cycle(COLOURS))):
            auc = [kind.rates[attack].auc for kind in method.kinds]
            values = [one.value for one in auc]
            spans = [[one.value - one.low for one in auc], [one.high - one.value for one in auc]]
            shifted = places + 0.1 * (index - (len(attacks) - 1) / 2)
            axes.errorbar(shifted, values, yerr=spans, fmt="o", markersize=3, color=colour, label=attack)
        for place, kind in zip(places, method.kinds, strict=True):
            label = "ceiling by the guarantee" if place == 0 else None
            axes.hlines(kind.ceiling.auc, place - 0.45, place + 0.45, color="black", linewidth=1.2, label=label)
        axes.axhline(0.5, color="#BBBBBB", linewidth=0.8)
        names = [str(kind.kind).replace(", ", "\n") for kind in method.kinds]
        axes.set_xticks(places, names, fontsize="x-small", rotation=45)
        axes.set_title(f"{method.method}\n{method.claim}\n{method.shown_metric}", fontsize="small")
        axes.grid(alpha=0.25, axis="y")
    grid[0][0].set_ylabel("AUC of membership")
    figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return save_figure(figure, path)


def users_figure(card: Mapping[str, Any], federation: Federation, path: Path) -> Path:
    """Left: records per user, largest first, coloured by silo. Right: records per silo, coloured by label."""
    counts = federation.counts()
    counts = counts[:, np.argsort(-counts.sum(axis=0), kind="stable")]
    figure, (left, right) = panels((11, 4), 1, 2, width_ratios=[2, 1])
    edges, below = np.arange(federation.users + 1) - 0.5, np.zeros(federation.users)
    for silo, own, colour in zip(federation, counts, cycle(COLOURS), strict=False):
        left.stairs(below + own, edges, baseline=below, fill=True, color=colour, label=silo.name)
        below = below + own
    left.set(xlabel="users, largest first", ylabel="records", title=f"{card['dataset']}: records per user")
    left.legend(frameon=False, title="silo", ncols=2)
    _silo_bars(right, card)
    return save_figure(figure, path)


def _silo_bars(axes: Any, card: Mapping[str, Any]) -> None:
    from matplotlib import colormaps

    names = [silo["name"] for silo in card["silos"]]
    if card["task"] == "regression":
        parts = {"records": [silo["records"] for silo in card["silos"]]}
    else:
        parts = {label: [silo["labels"][label] for silo in card["silos"]] for label in card["silos"][0]["labels"]}
    start = np.zeros(len(names))
    for number, (label, counts) in enumerate(parts.items()):
        colour = colormaps["viridis"](number / max(1, len(parts) - 1) * 0.9)
        axes.barh(names, counts, left=start, color=colour, label=label)
        start = start + counts
    axes.invert_yaxis()
    axes.set(xlabel="records", title="records per silo")
    if len(parts) > 1:
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.15)}
        axes.legend(frameon=False, fontsize="small", ncols=5 if len(parts) > 6 else 3, **below)


def utility_figure(rows: Sequence[Mapping[str, Any]], lines: Sequence[str], path: Path) -> Path:
    """Skill against epsilon: a panel for each data set, a line for each way to train.

    A row has ``dataset``, ``epsilon``, ``rho`` and ``skills`` by the names in ``lines``. What does not depend on
    epsilon is the same in all rows of a set, and drawn as a dashed line.
    """
    sets = list(dict.fromkeys(str(row["dataset"]) for row in rows))
    columns = min(4, len(sets))
    height = math.ceil(len(sets) / columns)
    figure, grid = panels((3.1 * columns, 2.5 * height + 0.5), height, columns, squeeze=False, sharey=True)
    for axes, name in zip(grid.flat, sets, strict=False):
        own = [row for row in rows if row["dataset"] == name]
        epsilons = [row["epsilon"] for row in own]
        for line, colour in zip(lines, cycle(METHOD_COLOURS)):
            values = [row["skills"].get(line, math.nan) for row in own]
            flat = len(set(values)) == 1
            axes.plot(epsilons, values, "--" if flat else "-", marker="" if flat else "o", color=colour, label=line)
        axes.axhline(0.0, color="#999999", linewidth=0.8)
        axes.set_xscale("log")
        axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
        axes.minorticks_off()
        axes.set_title(f"{name} (rho {own[0]['rho']:.2g} to {own[-1]['rho']:.2g})", fontsize="small")
        axes.set_ylim(-0.3, 1.0)  # what lies below is no better than a coin, however far
    for axes in list(grid.flat)[len(sets) :]:
        axes.set_axis_off()
    figure.supxlabel("epsilon")
    figure.supylabel("skill, or R2")
    figure.legend(
        *grid.flat[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(lines), frameon=False
    )
    return save_figure(figure, path)


def check_picture(path: Path) -> None:
    """Refuse a location or an extension for which no picture can be written, before anything is computed for it."""
    from matplotlib.backend_bases import FigureCanvasBase

    known = sorted(FigureCanvasBase.get_supported_filetypes())
    if path.suffix and path.suffix[1:].lower() not in known:
        raise ConfigError(
            f"{path.suffix!r} is no kind of picture; use one of {', '.join(known)}", location="--out", value=str(path)
        )
    above = next((folder for folder in path.parents if os.path.lexists(folder)), path)
    if not above.is_dir():
        raise ConfigError(f"{format_value(str(above))} is no folder", location="--out", value=str(path))


def panels(size: tuple[float, float], *grid: int, **options: Any) -> tuple[Figure, Any]:
    """A figure of its own, known to no user interface, and its axes. A notebook shows it all the same."""
    from matplotlib.figure import Figure

    class Picture(Figure):
        def _repr_png_(self) -> bytes:
            png = io.BytesIO()
            self.savefig(png, format="png", dpi=100)
            return png.getvalue()

    figure = Picture(figsize=size, layout="constrained")
    return figure, figure.subplots(*grid, **options)


def save_figure(figure: Figure, path: Path) -> Path:
    """Write the picture to ``path``, as given with ``--out``."""
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:  # ValueError: an extension that is no picture
        raise ConfigError(f"cannot write the picture ({error})", location="--out", value=str(path)) from error
    return path
