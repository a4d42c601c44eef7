"""Pictures: utility and epsilon over rounds, side by side for several methods."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from uldp.errors import ConfigError, shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from uldp.runtimes.compare import Compared

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#555555", "#CC79A7", "#E69F00", "#56B4E9", "#8C564B", "#117733")


def compare_figure(compared: Sequence[Compared], metric: str, path: Path) -> Path:
    """A two-panel picture of ``metric`` (mean, and a band of one standard deviation) and epsilon over rounds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import MaxNLocator

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    colours = {method.method: colour for colour, method in zip(cycle(_COLOURS), compared, strict=False)}
    for method in compared:
        colour = colours[method.method]
        values = _curves(method, metric)
        rounds = np.arange(1, values.shape[1] + 1)
        mean = values.mean(axis=0)
        left.plot(rounds, mean, "--" if math.isinf(method.epsilon) else "-", color=colour, label=method.method)
        if len(values) > 1:
            deviation = values.std(axis=0, ddof=1)
            left.fill_between(rounds, mean - deviation, mean + deviation, color=colour, alpha=0.15, linewidth=0)
    lines = _by_epsilon(compared)
    records = {method.method for method in compared if method.unit == "record"}
    for spent, methods in lines.items():
        style = ":" if methods[0] in records else "-"
        label = ", ".join(f"{name} (one record)" if name in records else name for name in methods)
        right.plot(range(1, len(spent) + 1), spent, style, color=colours[methods[0]], label=label)
    if len(lines) > 1 and max(line[-1] for line in lines) > 20 * min(line[-1] for line in lines):
        right.set_yscale("log")
    first = compared[0].results[0]
    left.set(xlabel="round", ylabel=f"test {metric.replace('_', ' ')}", title=f"Utility on {first.dataset}")
    title = "What one record risks" if len(records) == len(compared) else "What one person risks"
    simulated = ", simulated noise" if first.statement.simulated else ""
    right.set(xlabel="round", ylabel=f"epsilon (delta = {first.statement.delta:g}{simulated})", title=title)
    for axes in (left, right):
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize="small")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    return save_picture(figure, path)


def check_picture(path: Path) -> None:
    """Refuse a place or an ending for which no picture can be written, before anything is computed for it."""
    from matplotlib.backend_bases import FigureCanvasBase

    known = sorted(FigureCanvasBase.get_supported_filetypes())
    if path.suffix and path.suffix[1:].lower() not in known:
        raise ConfigError(
            f"{path.suffix!r} is no kind of picture; use one of {', '.join(known)}", location="--out", value=str(path)
        )
    above = next((folder for folder in path.parents if os.path.lexists(folder)), path)
    if not above.is_dir():
        raise ConfigError(f"{shown(str(above))} is no folder", location="--out", value=str(path))


def save_picture(figure: Figure, path: Path) -> Path:
    """Write the picture and let go of it. ``path`` is what somebody asked for with ``--out``."""
    from matplotlib import pyplot as plt

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:  # ValueError: an ending that is no picture
        raise ConfigError(f"cannot write the picture ({error})", location="--out", value=str(path)) from error
    finally:
        plt.close(figure)
    return path


def _curves(method: Compared, metric: str) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """(seeds, rounds); runs that a budget stopped early are cut to the shortest."""
    rounds = min(len(result.history) for result in method.results)
    return np.array(
        [[report.metrics.get(metric, math.nan) for report in result.history[:rounds]] for result in method.results]
    )


def _by_epsilon(compared: Sequence[Compared]) -> dict[tuple[float, ...], list[str]]:
    """Methods that spend alike share a line."""
    found: dict[tuple[float, ...], list[str]] = {}
    for method in compared:
        if math.isfinite(method.epsilon):
            spent = tuple(report.epsilon for report in method.results[0].history)
            found.setdefault(spent, []).append(method.method)
    return found
