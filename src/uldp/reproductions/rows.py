"""What was measured: rows of metrics, the same for all kinds of panels."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from uldp.errors import ConfigError
from uldp.runtimes.result import metric_names


class MeasuredRow(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a table: means, deviations over seeds (where there are several), and curves over rounds.

    ``line`` is the line of a picture that it is a point of, where the picture is over one of ``values``.
    """

    name: str
    metrics: dict[str, float | None]
    deviations: dict[str, float] = {}
    values: dict[str, Any] = {}
    line: str = ""
    curves: dict[str, list[float | None]] = {}

    def value(self, metric: str) -> float:
        """A metric; ``score`` is the first one that people want, ``mean_score`` its mean over the rounds.

        Infinity is written as null.
        """
        name = self._named(metric)
        if name not in self.metrics:
            raise ConfigError(f"row {self.name!r} has no {metric!r}", location="claims", value=metric)
        found = self.metrics[name]
        return math.inf if found is None else found

    def deviation(self, metric: str) -> float:
        """Its deviation over seeds; 0 where there is one seed, or none is known."""
        return self.deviations.get(self._named(metric), 0.0)

    def _named(self, metric: str) -> str:
        return {"score": self.score, "mean_score": f"mean_{self.score}"}.get(metric, metric)

    @property
    def score(self) -> str:
        """The metric that people want; means over the rounds and epsilons are none."""
        own = [name for name in self.metrics if not name.startswith("mean_") and not name.endswith("epsilon")]
        return metric_names(dict.fromkeys(own))[0]


class PanelRows(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a panel, on which data, and what must be said about them."""

    name: str
    rows: list[MeasuredRow]
    dataset: str = ""
    stand_in: bool = False
    notes: list[str] = []
    seconds: float = 0.0

    def row(self, name: str) -> MeasuredRow | None:
        return next((row for row in self.rows if row.name == name), None)


def finite(value: float) -> float | None:
    """A number for JSON: None for what is not finite."""
    return value if math.isfinite(value) else None


def averaged(name: str, runs: Sequence[Mapping[str, float]], **about: Any) -> MeasuredRow:
    """A row of the means over several runs."""
    shared = [key for key in runs[0] if all(key in run for run in runs)]
    metrics = {key: finite(statistics.fmean(run[key] for run in runs)) for key in shared}
    several = len(runs) > 1
    deviations = {
        key: statistics.stdev(run[key] for run in runs) for key in shared if several and metrics[key] is not None
    }
    return MeasuredRow(name=name, metrics=metrics, deviations=deviations, **about)
