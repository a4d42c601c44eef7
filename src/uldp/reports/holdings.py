"""How records lie over users and silos: for the holder of the data only, never part of a report that is shown."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from uldp.data.federation import Federation
from uldp.reports.drawing import COLOURS, FLOOR, LEFT, RIGHT, TOP, WIDTH, Chart, frame, grid, shape, words
from uldp.reports.scales import Scale, ticks

MAX_COLUMNS: Final = 200
Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Holdings:
    """Record counts of all silos (rows) and users (columns), as the files have them now."""

    silos: tuple[str, ...]
    counts: Counts

    @classmethod
    def of(cls, federation: Federation) -> Holdings:
        return cls(tuple(silo.name for silo in federation), np.asarray(federation.counts(), dtype=np.int64))

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """(silo, records, users, median and most records of a user there), for people."""
        found = []
        for name, own in zip(self.silos, self.counts, strict=True):
            some = own[own > 0]
            median, most = (np.median(some), some.max()) if len(some) else (0, 0)
            found.append((name, f"{own.sum():,}", f"{len(some):,}", f"{median:g}", f"{most:,}"))
        return found

    def summary(self) -> str:
        """The counts in a sentence."""
        of_user = self.counts.sum(axis=0)
        several = int(((self.counts > 0).sum(axis=0) > 1).sum())
        return (
            f"{int(of_user.sum()):,} records of {int((of_user > 0).sum()):,} users in {len(self.silos)} silos; "
            f"{several:,} users have records in more than one silo, and the most records of one user are "
            f"{int(of_user.max(initial=0)):,}."
        )


def users_chart(held: Holdings) -> Chart:
    """Records per user, largest first, stacked by silo. Many users share a column, which shows their mean."""
    order = np.lexsort((held.counts.argmax(axis=0), -held.counts.sum(axis=0)))
    counts = held.counts[:, order]
    edges = np.unique(np.linspace(0, counts.shape[1], min(counts.shape[1], MAX_COLUMNS) + 1).round().astype(int))
    columns = [counts[:, first:last].mean(axis=1) for first, last in pairwise(edges)]
    highest = max((float(column.sum()) for column in columns), default=1.0)
    steps = ticks(0.0, highest)
    up, across = Scale(steps[0], steps[-1], FLOOR, TOP), Scale(0, max(1, counts.shape[1]), LEFT, WIDTH - RIGHT)
    body = [grid(up, steps, lambda value: f"{value:g}")]
    base = np.zeros(len(columns))
    for silo in range(len(held.silos)):
        top = base + np.array([column[silo] for column in columns])
        body.append(shape("polygon", "layer", silo, _steps(edges, base, top, across, up)))
        base = top
    body.append(words(WIDTH - RIGHT, FLOOR + 18, f"{counts.shape[1]:,} users, most records first", "axis end"))
    legend = tuple((name, number % COLOURS, False) for number, name in enumerate(held.silos))
    title = "Records per user, by silo"
    return Chart("users", title, frame(body), f"{title}. {held.summary()}", legend=legend)


def _steps(edges: Counts, base: Floats, top: Floats, across: Scale, up: Scale) -> list[tuple[float, float]]:
    """The outline of columns from ``base`` to ``top``."""
    upper, lower = [], []
    for (first, last), low, high in zip(pairwise(edges), base, top, strict=True):
        left, right = across(float(first)), across(float(last))
        upper += [(left, up(float(high))), (right, up(float(high)))]
        lower += [(left, up(float(low))), (right, up(float(low)))]
    return [*upper, *reversed(lower)]
