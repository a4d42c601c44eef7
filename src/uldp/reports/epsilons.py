"""Charts with epsilon as their axis: the privacy-utility frontier, and who faces which epsilon."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from uldp.privacy.sentences import show_epsilon
from uldp.reports.charts import upwards
from uldp.reports.drawing import (
    BOTTOM,
    COLOURS,
    FLOOR,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Chart,
    below,
    circle,
    frame,
    grid,
    shape,
    tag,
    words,
)
from uldp.reports.scales import Scale, log_ticks
from uldp.reports.words import metric_name, most_of, show_metric, show_tick, show_with_spread

_COLUMN: Final = 74
"""The width of the column at the right for what has no epsilon."""
_ROW: Final = 34
_BESIDE: Final = 13.0


@dataclass(frozen=True)
class Point:
    """A point of the frontier: an epsilon (infinite for none) and a value, with its deviation over seeds.

    Hollow ones are about something else than a person.
    """

    label: str
    epsilon: float
    value: float
    spread: float
    colour: int
    hollow: bool = False


def frontier_chart(points: Sequence[Point], best: Sequence[Point], metric: str) -> Chart:
    """A metric against epsilon. ``best`` are the points that no other one beats; a line joins them."""
    finite = [point.epsilon for point in points if 0 < point.epsilon < math.inf]
    unbounded = any(math.isinf(point.epsilon) for point in points)
    edge = WIDTH - RIGHT - _COLUMN * unbounded
    steps = log_ticks(min(finite) * 0.8, max(finite) * 1.25) if finite else [1.0, 10.0]
    across = Scale(steps[0], steps[-1], LEFT + 10, edge - 8, log=True)
    up, rows = upwards(
        [value for p in points for value in (p.value - p.spread, min(p.value + p.spread, most_of(metric)))]
    )
    body = [grid(up, rows, lambda value: show_tick(metric, value)), below(across, steps, "epsilon: less protects more")]
    if unbounded:
        body.append(tag("line", "break", x1=edge, x2=edge, y1=TOP, y2=FLOOR))
        body.append(words(edge + _COLUMN / 2, FLOOR + 16, "no bound", "tick middle"))
    places = _apart([edge + _COLUMN / 2 if math.isinf(p.epsilon) else across(p.epsilon) for p in points])
    at = dict(zip(map(id, points), places, strict=True))
    body.append(shape("polyline", "frontier", 0, [(at[id(point)], up(point.value)) for point in best]))
    body += [_point(point, place, up, metric) for point, place in zip(points, places, strict=True)]
    title = f"{metric_name(metric)} against epsilon"
    spoken = "; ".join(_told(point, metric) for point in points)
    return Chart("frontier", title, frame(body, css="scatter", role="group", aria_label=title), f"{title}. {spoken}.")


def _apart(places: Sequence[float]) -> list[float]:
    """Points that would cover each other lie side by side."""
    found = list(places)
    for place in set(places):
        near = [index for index, other in enumerate(places) if abs(other - place) < 1]
        if near[0] == places.index(place) and len(near) > 1:
            for number, index in enumerate(near):
                found[index] = round(place + _BESIDE * (number - (len(near) - 1) / 2), 2)
    return found


def _told(point: Point, metric: str) -> str:
    value = show_with_spread(metric, point.value, point.spread) if point.spread else show_metric(metric, point.value)
    epsilon = f"epsilon {show_epsilon(point.epsilon)}" if math.isfinite(point.epsilon) else "no bound on epsilon"
    return f"{point.label}: {metric_name(metric).lower()} {value}, {epsilon}"


def _point(point: Point, x: float, up: Scale, metric: str) -> Markup:
    """A point that says what it is, to a pointer and to whoever reaches it by the keyboard."""
    told, parts = _told(point, metric), []
    if point.spread:
        low, high = up(point.value - point.spread), up(point.value + point.spread)
        parts.append(tag("line", f"whisker c{point.colour % COLOURS}", x1=x, x2=x, y1=low, y2=high))
    parts.append(circle("point hollow" if point.hollow else "point", point.colour, x, up(point.value), 5.5))
    return tag("g", "spot", parts, tabindex=0, role="img", aria_label=told, data_tip=told)


def adversary_chart(rows: Sequence[tuple[str, float, float]], delta: float) -> Chart:
    """Who faces which epsilon, on one axis: (adversary, epsilon, epsilon under replace-one adjacency)."""
    finite = [value for _, *pair in rows for value in pair if 0 < value < math.inf]
    steps = log_ticks(min(finite, default=1.0) * 0.6, max(finite, default=10.0) * 1.1)
    floor = TOP + _ROW * len(rows)
    height = floor + BOTTOM
    across = Scale(steps[0], steps[-1], 12, WIDTH - 34, log=True)
    lines = [tag("line", "grid", x1=across(step), x2=across(step), y1=TOP, y2=floor) for step in steps]
    body = [*lines, below(across, steps, f"epsilon at delta {delta:g}", height)]
    body += [_adversary(*row, across, TOP + _ROW * number) for number, row in enumerate(rows)]
    spoken = "; ".join(f"{who}: {show_epsilon(one)}, replace-one {show_epsilon(other)}" for who, one, other in rows)
    return Chart("adversaries", "Epsilon by adversary", frame(body, height), f"Epsilon by adversary. {spoken}.")


def _adversary(who: str, epsilon: float, replaced: float, across: Scale, top: float) -> Markup:
    first, second, y = across(epsilon), across(replaced), top + 24
    parts = [
        words(12, top + 14, who, "who"),
        tag("line", "bar more", x1=first, x2=second, y1=y, y2=y),
        tag("line", "bar", x1=12, x2=first, y1=y, y2=y),
        circle("point hollow", 1, second, y, 4),
        circle("point", 0, first, y, 5),
    ]
    return Markup("").join(parts)
