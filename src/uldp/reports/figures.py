"""Pictures: utility and epsilon over rounds, side by side for several methods."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from uldp.runtimes.local import Result

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#555555", "#CC79A7", "#E69F00", "#56B4E9")


def compare_figure(results: Sequence[Result], metric: str, path: Path) -> Path:
    """A two-panel picture of ``metric`` and epsilon over rounds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for colour, result in zip(_COLOURS * len(results), results, strict=False):
        rounds = [report.round for report in result.history]
        style = "--" if math.isinf(result.epsilon) else "-"
        values = [report.metrics.get(metric, math.nan) for report in result.history]
        left.plot(rounds, values, style, color=colour, label=result.method)
        if math.isfinite(result.epsilon):
            # Methods with equal noise have equal epsilon: markers of different size keep all of them visible.
            right.plot(
                rounds,
                [report.epsilon for report in result.history],
                style,
                color=colour,
                label=result.method,
            )
    left.set(xlabel="round", ylabel=f"test {metric.replace('_', ' ')}", title=f"Utility on {results[0].dataset}")
    delta = results[0].statement.delta
    right.set(xlabel="round", ylabel=f"epsilon (delta = {delta:g})", title="What one person risks")
    left.legend(frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path
