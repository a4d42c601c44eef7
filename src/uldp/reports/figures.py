"""Pictures: utility and epsilon over rounds, side by side for several methods."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

from uldp.runtimes.local import Result

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#555555", "#CC79A7", "#E69F00", "#56B4E9")


def compare_figure(results: Sequence[Result], metric: str, path: Path) -> Path:
    """A two-panel picture of ``metric`` and epsilon over rounds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import MaxNLocator

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for colour, result in zip(cycle(_COLOURS), results, strict=False):
        rounds = [report.round for report in result.history]
        values = [report.metrics.get(metric, math.nan) for report in result.history]
        style = "--" if math.isinf(result.epsilon) else "-"
        left.plot(rounds, values, style, color=colour, label=result.method)
    for spent, methods in _by_epsilon(results).items():
        right.plot(range(1, len(spent) + 1), spent, color="#222222", label="\n".join(methods))
    left.set(xlabel="round", ylabel=f"test {metric.replace('_', ' ')}", title=f"Utility on {results[0].dataset}")
    delta = results[0].statement.delta
    right.set(xlabel="round", ylabel=f"epsilon (delta = {delta:g})", title="What one person risks")
    for axes in (left, right):
        axes.legend(frameon=False)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def _by_epsilon(results: Sequence[Result]) -> dict[tuple[float, ...], list[str]]:
    """Methods that spend alike share a line."""
    found: dict[tuple[float, ...], list[str]] = {}
    for result in results:
        if math.isfinite(result.epsilon):
            found.setdefault(tuple(report.epsilon for report in result.history), []).append(result.method)
    return found
