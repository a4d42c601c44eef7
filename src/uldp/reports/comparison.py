"""Several runs side by side: seeds of one setting together, and which settings no other one beats."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from uldp.privacy.sentences import show_epsilon
from uldp.reports.charts import Series, line_chart
from uldp.reports.drawing import COLOURS, Chart
from uldp.reports.epsilons import Point, frontier_chart
from uldp.reports.view import RunView
from uldp.reports.words import LOWER_IS_BETTER, metric_name, show_metric, show_with_spread

MAX_LINES: Final = COLOURS
"""Of a chart over rounds: more cannot be told apart."""
SAME_EPSILON: Final = 0.01
"""Two epsilons that differ by less were meant to be the same: noise is calibrated to a tolerance."""


@dataclass(frozen=True)
class SeedGroup:
    """Runs that differ in their seeds only; ``differs`` are the settings in which they differ from other groups."""

    label: str
    runs: tuple[RunView, ...]
    differs: Mapping[str, str]

    @property
    def first(self) -> RunView:
        return self.runs[0]

    @property
    def epsilon(self) -> float:
        """Of one run, against anyone who sees the released models; infinite where there is no guarantee."""
        return max(run.statement.epsilon if run.statement.holds else math.inf for run in self.runs)

    @property
    def unit(self) -> str | None:
        return self.first.statement.privacy_unit

    @property
    def shown_epsilon(self) -> str:
        unit = f" ({self.unit})" if self.unit in ("record", "client") and math.isfinite(self.epsilon) else ""
        return show_epsilon(self.epsilon) + unit if math.isfinite(self.epsilon) else "no bound"

    @property
    def seeds(self) -> str:
        return f"{len(self.runs)} seeds" if len(self.runs) > 1 else "1 seed"

    def metric(self, name: str) -> tuple[float, float]:
        """Mean and standard deviation over the seeds."""
        values = [run.metrics.get(name, math.nan) for run in self.runs]
        return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0

    def shown_metric(self, name: str) -> str:
        mean, deviation = self.metric(name)
        if math.isnan(mean):
            return ""
        return show_with_spread(name, mean, deviation) if len(self.runs) > 1 else show_metric(name, mean)

    def series(self, name: str, colour: int) -> Series:
        """Mean of a metric over the rounds (or ``epsilon``), in a band of one standard deviation."""
        rounds = min(len(run.rounds) for run in self.runs)
        columns = []
        for index in range(rounds):
            states = [run.rounds[index] for run in self.runs]
            columns.append([one.epsilon if name == "epsilon" else one.metrics.get(name, math.nan) for one in states])
        means = [statistics.fmean(column) for column in columns]
        if len(self.runs) == 1 or name == "epsilon":
            return Series(self.label, means, colour, dashed=math.isinf(self.epsilon))
        return Series(self.label, means, colour, [statistics.stdev(column) for column in columns])


def grouped(runs: Sequence[RunView]) -> list[SeedGroup]:
    """Runs by their settings without the seed, labelled by method and by the settings in which namesakes differ."""
    found: dict[str, list[RunView]] = {}
    for run in runs:
        key = json.dumps([run.dataset, run.method, run.flat_settings()], sort_keys=True)
        found.setdefault(key, []).append(run)
    settings = [group[0].flat_settings() for group in found.values()]
    known = dict.fromkeys(key for flat in settings for key in flat)
    varied = [key for key in known if len({flat.get(key, "") for flat in settings}) > 1]
    methods = Counter(group[0].method for group in found.values())
    groups = []
    for group in found.values():
        flat, method = group[0].flat_settings(), group[0].method
        differs = {key: flat[key] for key in varied if key in flat}
        alike = [other for other, one in zip(settings, found.values(), strict=True) if one[0].method == method]
        own = [key for key in varied if len({other.get(key, "") for other in alike}) > 1]
        detail = ", ".join(f"{key.rpartition('.')[2]} {flat.get(key) or 'none'}" for key in own[:3])
        label = f"{method}, {detail}" if methods[method] > 1 and detail else method
        groups.append(SeedGroup(label, tuple(sorted(group, key=lambda run: str(run.seed))), differs))
    order = {method: number for number, method in enumerate(methods)}
    return _distinct(sorted(groups, key=lambda group: (order[group.first.method], group.epsilon)))


def colours(groups: Sequence[SeedGroup]) -> list[int]:
    """Each setting's own colour; where there are more settings than colours, that of its method."""
    if len(groups) <= COLOURS:
        return list(range(len(groups)))
    order = list(dict.fromkeys(group.first.method for group in groups))
    return [order.index(group.first.method) % COLOURS for group in groups]


def _distinct(groups: Sequence[SeedGroup]) -> list[SeedGroup]:
    """No two labels alike: where settings do not tell runs apart, their directories do."""
    times = Counter(group.label for group in groups)
    return [
        group
        if times[group.label] == 1
        else SeedGroup(f"{group.label} ({group.first.name})", group.runs, group.differs)
        for group in groups
    ]


def common_metrics(groups: Sequence[SeedGroup]) -> list[str]:
    """The metrics that every run has, in the order of the first."""
    return [name for name in groups[0].first.metrics if all(name in run.metrics for one in groups for run in one.runs)]


def unbeaten(points: Sequence[Point], name: str) -> list[Point]:
    """The points about people that no other one beats: no larger epsilon (but for rounding) and a better value."""
    sign = -1.0 if name.removeprefix("holdout_") in LOWER_IS_BETTER else 1.0
    candidates = [point for point in points if math.isfinite(point.epsilon) and not point.hollow]

    def beaten(point: Point) -> bool:
        cheaper = [other for other in candidates if other.epsilon <= point.epsilon * (1 + SAME_EPSILON)]
        return any(sign * other.value > sign * point.value for other in cheaper)

    return sorted((point for point in candidates if not beaten(point)), key=lambda point: point.epsilon)


def frontier(groups: Sequence[SeedGroup], name: str) -> tuple[Chart, list[str]]:
    """The privacy-utility frontier, and the labels on it."""
    points = []
    for colour, group in zip(colours(groups), groups, strict=True):
        mean, deviation = group.metric(name)
        points.append(Point(group.label, group.epsilon, mean, deviation, colour, hollow=group.unit != "user"))
    best = unbeaten(points, name)
    chart = frontier_chart(points, best, name)
    return chart, [point.label for point in best]


def comparison_charts(groups: Sequence[SeedGroup]) -> list[Chart]:
    """A chart for each metric, and one for epsilon, where the lines can be told apart."""
    drawn = list(groups)[:MAX_LINES]
    charts = []
    for name in common_metrics(groups):
        lines = [group.series(name, colour) for colour, group in enumerate(drawn) if group.first.rounds]
        if lines and any(len(line.values) > 1 for line in lines):
            charts.append(_over_rounds(name, metric_name(name), drawn, lines))
    private = [(colour, group) for colour, group in enumerate(drawn) if math.isfinite(group.epsilon)]
    if private and any(len(group.first.rounds) > 1 for _, group in private):
        lines = [group.series("epsilon", colour) for colour, group in private]
        charts.append(_over_rounds("epsilon", "Epsilon spent", [group for _, group in private], lines))
    return charts


def _over_rounds(name: str, title: str, groups: Sequence[SeedGroup], lines: Sequence[Series]) -> Chart:
    most = max(len(line.values) for line in lines)
    longest = max((run for group in groups for run in group.runs), key=lambda run: len(run.rounds))
    rounds = [one.number for one in longest.rounds][:most]
    padded = [_padded(line, most) for line in lines]
    return line_chart(name, title, rounds, padded)


def _padded(line: Series, rounds: int) -> Series:
    """A line that ends early: nothing is drawn where it has no values."""
    nothing = [math.nan] * (rounds - len(line.values))
    spread = None if line.spread is None else [*line.spread, *nothing]
    return replace(line, values=[*line.values, *nothing], spread=spread)
