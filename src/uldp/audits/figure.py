"""The picture of an audit: trade-off curves, claimed and measured."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from uldp.errors import ConfigError
from uldp.reports.figures import COLOURS, panels, save_figure

if TYPE_CHECKING:
    from uldp.audits.result import Audit


def trade_off_figure(audit: Audit, path: Path) -> Path:
    """One colour per adversary: the claimed curve as a line, what the canaries showed as steps.

    A measured curve below the claimed one speaks against the claim.
    """
    drawn = [found for found in audit.found if found.curve is not None and found.claim is not None]
    if not drawn:
        raise ConfigError("no trade-off curve was measured: there is nothing to draw", location="--out")
    figure, axes = panels((6, 5))
    grid = np.linspace(1e-4, 1 - 1e-4, 400)
    for number, (found, colour) in enumerate(zip(drawn, cycle(COLOURS), strict=False)):
        assert found.curve is not None and found.claim is not None
        label = f"{found.exposure.who}: epsilon {found.exposure.epsilon:.3g}"
        axes.plot(grid, found.claim.false_out(grid), color=colour, label=f"{label}, claimed")
        shown = "measured on canaries" if number == len(drawn) - 1 else None
        axes.step(*found.curve, color=colour, alpha=0.6, linestyle=":", where="post", label=shown)
    axes.plot([0, 1], [1, 0], color="#BBBBBB", linewidth=0.8)
    title = f"{audit.experiment} under {audit.aggregation}: {audit.verdict}"
    axes.set(xlabel='rate of false "in"', ylabel='rate of false "out"', title=title, xlim=(0, 1), ylim=(0, 1))
    axes.legend(frameon=False, fontsize="x-small")
    axes.grid(alpha=0.25)
    return save_figure(figure, path)
