"""Who may speak when: one table for both sides. The diagram in the docs is drawn from it.

The server asks, a silo answers. A question that the table does not have for the silo's phase, or an answer of another
type than the table says, is refused and changes nothing.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from uldp.errors import MessageRefused
from uldp.protocol import messages as m


class Phase(Enum):
    """Where a silo stands."""

    NEW = "new"
    GREETED = "greeted"
    COUNTED = "counted"
    READY = "ready"
    CLOSED = "closed"


TURNS: Final[dict[tuple[Phase, type[m.Message]], tuple[type[m.Message], Phase]]] = {
    (Phase.NEW, m.Hello): (m.Welcome, Phase.GREETED),
    (Phase.GREETED, m.AskCounts): (m.Counts, Phase.COUNTED),
    (Phase.COUNTED, m.TellUsers): (m.Accepted, Phase.READY),
    (Phase.GREETED, m.AskUpdate): (m.Update, Phase.READY),
    (Phase.READY, m.AskUpdate): (m.Update, Phase.READY),
    (Phase.READY, m.Finish): (m.Goodbye, Phase.CLOSED),
}


def turn(phase: Phase, question: m.Message, place: str) -> tuple[type[m.Message], Phase]:
    """The answer's type and the next phase, if ``question`` is allowed in ``phase``."""
    found = TURNS.get((phase, type(question)))
    if found is None:
        allowed = [q.__name__ for p, q in TURNS if p is phase] or ["nothing"]
        raise MessageRefused(
            f"{type(question).__name__} is out of turn: a silo that is {phase.value} takes {', '.join(allowed)}",
            place=place,
            value=type(question).__name__,
        )
    return found


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {Phase.NEW.value}"]
    for (phase, question), (answer, after) in TURNS.items():
        lines.append(f"    {phase.value} --> {after.value}: {question.__name__} / {answer.__name__}")
    lines.append(f"    {Phase.CLOSED.value} --> [*]")
    return "\n".join(lines)
