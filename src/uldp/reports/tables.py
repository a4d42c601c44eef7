"""A picture of a table of epsilons: published, valid, tight."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from uldp.reports.figures import save_picture

_COLOURS = ("#D55E00", "#555555", "#56B4E9", "#0072B2")


def table_figure(head: str, columns: Sequence[str], rows: Sequence[tuple[int, Sequence[float]]], path: Path) -> Path:
    """One line per column, on logarithmic axes where the numbers ask for it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    keys = [key for key, _ in rows]
    for index, column in enumerate(columns):
        values = [values[index] for _, values in rows]
        style = "--" if column == "published" else "-"
        axes.plot(keys, values, style, marker="o", markersize=4, color=_COLOURS[index % len(_COLOURS)], label=column)
    finite = [value for _, values in rows for value in values if math.isfinite(value) and value > 0]
    if finite and max(finite) > 50 * min(finite):
        axes.set_yscale("log")
    if len(keys) > 2 and keys[-1] >= 16 * keys[0]:
        axes.set_xscale("log", base=2 if head == "k" else 10)
        axes.set_xticks(keys, [str(key) for key in keys])
        axes.minorticks_off()
    axes.set(xlabel=head, ylabel="epsilon")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    return save_picture(figure, path)
