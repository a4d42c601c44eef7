"""Lines over the rounds of a run, with what the page's script needs to answer a pointer or the arrow keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from markupsafe import Markup

from uldp.reports.drawing import (
    COLOURS,
    FLOOR,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Chart,
    Show,
    below,
    circle,
    frame,
    grid,
    shape,
    tag,
)
from uldp.reports.scales import Scale, log_ticks, ticks
from uldp.reports.words import most_of, show_tick, show_value

MAX_POINTS: Final = 300
"""Of a line: more cannot be told apart on this width."""
_AWAY: Final = -20
_END: Final = WIDTH - RIGHT


@dataclass(frozen=True)
class Series:
    """A line: its values (NaN where there is none), a colour, and a band of this half width where there is one."""

    label: str
    values: Sequence[float]
    colour: int = 0
    spread: Sequence[float] | None = None
    dashed: bool = False

    def at(self, indices: Sequence[int]) -> Series:
        """The same line at some of its points."""
        spread = None if self.spread is None else [self.spread[index] for index in indices]
        return replace(self, values=[self.values[index] for index in indices], spread=spread)

    def extent(self) -> list[float]:
        """All finite numbers that must fit on the axis."""
        spread = self.spread or [0.0] * len(self.values)
        pairs = zip(self.values, spread, strict=True)
        return [edge for value, half in pairs if math.isfinite(value) for edge in (value - half, value + half)]


def thinned(count: int, most: int = MAX_POINTS) -> list[int]:
    """Which of ``count`` points are drawn: all of them, or ``most`` at equal distances with the last one.

    >>> thinned(3), len(thinned(10_000)), thinned(10_000)[-1]
    ([0, 1, 2], 300, 9999)
    """
    if count <= most:
        return list(range(count))
    return sorted({round(step * (count - 1) / (most - 1)) for step in range(most)})


def line_chart(
    key: str, title: str, numbers: Sequence[float], series: Sequence[Series], *, axis: str = "round", log: bool = False
) -> Chart:
    """Lines of a metric, or of ``epsilon``, over the rounds (or another axis).

    The pointer and the arrow keys choose a round.
    """
    show, most = partial(show_value, key), most_of(key)
    count, kept = len(numbers), thinned(len(numbers))
    numbers, lines = [numbers[index] for index in kept], [one.at(kept) for one in series]
    across = Scale(min(numbers[0], numbers[-1] - 1) if axis == "round" else numbers[0], numbers[-1], LEFT + 6, _END)
    up, steps = upwards([min(value, most) for one in lines for value in one.extent()], log=log)
    at_axis = _round_ticks(numbers, across) if axis == "round" else _spaced(numbers, across)
    parts = [grid(up, steps, partial(show_tick, key)), below(across, at_axis, axis)]
    svg = frame([*parts, *(_line(one, numbers, across, up, dots=axis != "round") for one in lines), _cursor(lines)])
    many = f"over {count} rounds" if axis == "round" else f"by {axis}"
    text = f"{title} {many}. " + " ".join(_spoken(one, numbers, show, axis) for one in lines)
    data = {
        "x": [across(number) for number in numbers],
        "label": [f"{axis} {_plain(number)}" for number in numbers],
        "series": [_for_script(one, up, show) for one in lines],
    }
    legend = tuple((one.label, one.colour % COLOURS, one.dashed) for one in lines) if len(lines) > 1 else ()
    return Chart(key, title, svg, text, data, legend)


def _cursor(lines: Sequence[Series]) -> Markup:
    """What the page's script moves to the chosen round; until then it is out of sight."""
    marks = [circle("mark", one.colour, _AWAY, _AWAY, 4.5) for one in lines]
    return tag("g", "cursor", [tag("line", y1=TOP, y2=FLOOR), *marks])


def upwards(values: Sequence[float], *, log: bool = False) -> tuple[Scale, list[float]]:
    """The vertical axis for these values, and its ticks. One with values of zero is never logarithmic."""
    if log and values and min(values) > 0:
        steps = log_ticks(min(values), max(values))
        return Scale(steps[0], steps[-1], FLOOR, TOP, log=True), steps
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    steps = ticks(0.0 if 0 < low < 0.35 * high else low, high)
    return Scale(steps[0], steps[-1], FLOOR, TOP), steps


def _for_script(one: Series, up: Scale, show: Show) -> dict[str, Any]:
    return {
        "name": one.label,
        "colour": one.colour % COLOURS,
        "y": [up(value) if math.isfinite(value) else None for value in one.values],
        "text": [show(value) if math.isfinite(value) else "" for value in one.values],
    }


def _plain(number: float) -> str:
    """A whole number with all its digits, any other one with six."""
    return str(int(number)) if number == int(number) else f"{number:g}"


def _spaced(numbers: Sequence[float], across: Scale) -> list[float]:
    """The numbers themselves, without those that would stand on the one before."""
    shown = [numbers[0]]
    for number in numbers[1:]:
        if across(number) - across(shown[-1]) > 36:
            shown.append(number)
    return shown


def _round_ticks(numbers: Sequence[float], across: Scale) -> list[float]:
    """The first round, and round numbers that are not too close to it."""
    wanted = ticks(numbers[0], numbers[-1]) if len(numbers) > 1 else []
    inside = [step for step in wanted if step == int(step) and numbers[0] < step <= numbers[-1]]
    first = across(numbers[0])
    return [float(numbers[0]), *(step for step in inside if across(step) - first > 20)]


def _line(one: Series, numbers: Sequence[float], across: Scale, up: Scale, *, dots: bool) -> Markup:
    points = [
        (across(number), up(value)) for number, value in zip(numbers, one.values, strict=True) if math.isfinite(value)
    ]
    parts = []
    if one.spread is not None:
        edges = [
            (across(number), up(value + half), up(value - half))
            for number, value, half in zip(numbers, one.values, one.spread, strict=True)
            if math.isfinite(value)
        ]
        area = [*((x, high) for x, high, _ in edges), *((x, low) for x, _, low in reversed(edges))]
        parts.append(shape("polygon", "band", one.colour, area))
    parts.append(shape("polyline", "line dashed" if one.dashed else "line", one.colour, points))
    parts += [circle("dot", one.colour, *point, 3.2) for point in (points if dots else points[-1:])]
    return Markup("").join(parts)


def _spoken(one: Series, numbers: Sequence[float], show: Show, axis: str) -> str:
    """A line for those who do not see it."""
    pairs = [(number, value) for number, value in zip(numbers, one.values, strict=True) if math.isfinite(value)]
    if not pairs:
        return f"{one.label}: no values."
    (first, start), (last, end) = pairs[0], pairs[-1]
    lowest, highest = min(value for _, value in pairs), max(value for _, value in pairs)
    at = f"{'after' if axis == 'round' else 'at'} {axis}"
    return (
        f"{one.label}: {show(start)} {at} {_plain(first)}, {show(end)} {at} {_plain(last)}; "
        f"between {show(lowest)} and {show(highest)}."
    )
