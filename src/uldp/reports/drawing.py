"""Parts of charts: SVG elements, their frame, and what a finished chart consists of.

Colours are CSS classes (``c0`` to ``c7``), so that the page's theme decides on them. A chart is drawn for the width of
a telephone and scaled up: its text stays legible on both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from markupsafe import Markup

from uldp.reports.scales import Scale

WIDTH: Final = 440
HEIGHT: Final = 240
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 36
FLOOR: Final = HEIGHT - BOTTOM
COLOURS: Final = 8

Show = Callable[[float], str]


@dataclass(frozen=True)
class Chart:
    """A drawn chart: ``text`` says what it shows, ``data`` is for the page's script.

    ``legend`` has a label, a colour and whether the line is dashed.
    """

    key: str
    title: str
    svg: Markup
    text: str
    data: dict[str, Any] = field(default_factory=dict)
    legend: tuple[tuple[str, int, bool], ...] = ()


def tag(element: str, css: str = "", inside: Iterable[Markup] | str = "", **attributes: object) -> Markup:
    """An SVG element; every value is escaped, and ``_`` in a name stands for ``-``.

    >>> tag("line", "grid", x1=0, x2=5)
    Markup('<line class="grid" x1="0" x2="5"/>')
    >>> tag("g", data_tip="a < b")
    Markup('<g data-tip="a &lt; b"/>')
    """
    named = {"class": css, **attributes} if css else attributes
    shown = Markup("").join(Markup(' {}="{}"').format(key.replace("_", "-"), value) for key, value in named.items())
    content = Markup("{}").format(inside) if isinstance(inside, str) else Markup("").join(inside)
    name = Markup(element)  # a word of this package
    return (
        Markup("<{}{}>{}</{}>").format(name, shown, content, name) if content else Markup("<{}{}/>").format(name, shown)
    )


def words(x: float, y: float, text: object, css: str = "tick") -> Markup:
    """Text in a picture."""
    return tag("text", css, str(text), x=x, y=y)


def frame(body: Iterable[Markup], height: int = HEIGHT, css: str = "", **attributes: object) -> Markup:
    """The parts of a picture in their frame. Without ``role`` it is silent: what it shows is said beside it."""
    spoken = attributes or {"aria_hidden": "true", "focusable": "false"}
    return tag("svg", f"plot {css}".strip(), body, viewBox=f"0 0 {WIDTH} {height}", **spoken)


def grid(up: Scale, steps: Sequence[float], show: Show) -> Markup:
    """Horizontal lines with their values."""
    rows = []
    for step in steps:
        y = up(step)
        rows += [
            tag("line", "grid", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y),
            words(LEFT - 6, y + 4, show(step), "tick end"),
        ]
    return Markup("").join(rows)


def below(across: Scale, steps: Iterable[float], label: str, height: int = HEIGHT) -> Markup:
    """The values of the horizontal axis, and what it is about."""
    marks = [words(across(step), height - BOTTOM + 16, f"{step:g}", "tick middle") for step in steps]
    return Markup("").join([*marks, words(WIDTH - RIGHT, height - 4, label, "axis end")])


def circle(css: str, colour: int, x: float, y: float, r: float) -> Markup:
    return tag("circle", f"{css} c{colour % COLOURS}", cx=x, cy=y, r=r)


def shape(kind: str, css: str, colour: int, points: Iterable[tuple[float, float]]) -> Markup:
    """A ``polyline`` or ``polygon`` through these points."""
    way = " ".join(f"{x:g},{y:g}" for x, y in points)
    return tag(kind, f"{css} c{colour % COLOURS}", points=way)
