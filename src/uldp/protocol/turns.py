"""Who may speak when: one table for both sides. The diagrams in the docs are drawn from it.

The server asks, a silo answers. Before the first round there is a setup, a fixed path of exchanges: which one follows
from what the experiment needs. A question that the table does not have for the silo's phase, or an answer of another
type than the table says, is refused and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from uldp.errors import MessageRefused
from uldp.protocol import messages as m

Question = type[m.Message]


class Phase(Enum):
    """Where a silo stands."""

    NEW = "new"
    GREETED = "greeted"
    INTRODUCED = "introduced"
    PAIRED = "paired"
    COUNTED = "counted"
    BLINDED = "blinded"
    CHOSEN = "chosen"
    READY = "ready"
    MEASURED = "measured"
    CLOSED = "closed"


ANSWERS: Final[dict[Question, tuple[type[m.Message], Phase]]] = {
    m.Hello: (m.Welcome, Phase.GREETED),
    m.AskKey: (m.Key, Phase.INTRODUCED),
    m.TellKeys: (m.Paired, Phase.PAIRED),
    m.AskCounts: (m.Counts, Phase.COUNTED),
    m.TellUsers: (m.Accepted, Phase.READY),
    m.TellSeed: (m.Blinded, Phase.BLINDED),
    m.TellWeights: (m.Accepted, Phase.READY),
    m.AskChoices: (m.Choices, Phase.CHOSEN),
    m.AskUpdate: (m.Update, Phase.READY),
    m.AskMetrics: (m.Metrics, Phase.MEASURED),
    m.Finish: (m.Goodbye, Phase.CLOSED),
}
"""What a silo answers to each question, and where it stands then, unless the setup ends here: then it is ready."""

Turns = dict[tuple[Phase, Question], tuple[type[m.Message], Phase]]

AGREE_KEYS: Final[tuple[Question, ...]] = (m.AskKey, m.TellKeys)
SHOW_COUNTS: Final[tuple[Question, ...]] = (m.AskCounts, m.TellUsers)
BLIND_COUNTS: Final[tuple[Question, ...]] = (m.TellSeed,)
FIXED_WEIGHTS: Final[tuple[Question, ...]] = (m.TellWeights,)


@dataclass(frozen=True)
class Route:
    """The exchanges of an experiment after the greeting: once before the first round, in every round, and at the end.

    Whoever was measured takes no round any more. What comes at the end may be missing.
    """

    setup: tuple[Question, ...] = ()
    round: tuple[Question, ...] = (m.AskUpdate,)
    end: tuple[Question, ...] = ()


ROUTES: Final[dict[str, Route]] = {
    "plain": Route(),
    "plain, weights by records": Route(SHOW_COUNTS),
    "masked": Route(AGREE_KEYS),
    "masked, weights by records": Route(AGREE_KEYS + SHOW_COUNTS),
    "paillier": Route(AGREE_KEYS + BLIND_COUNTS + FIXED_WEIGHTS),
    "paillier, users sampled": Route(AGREE_KEYS + BLIND_COUNTS),
    "paillier, users sampled in private": Route(AGREE_KEYS + BLIND_COUNTS, (m.AskChoices, m.AskUpdate)),
    "masked, measured by silos": Route(AGREE_KEYS, end=(m.AskMetrics,)),
}
"""The routes that there are, for the diagrams. An experiment's own is in its plan.

Each of the others may end as the last one does.
"""


def turns(route: Route) -> Turns:
    """The table of an experiment on this route."""
    table: Turns = {}
    path: list[Question] = [m.Hello, *route.setup]
    phase = Phase.NEW
    for question in path:
        answer, after = ANSWERS[question]
        after = Phase.READY if question is path[-1] else after
        table[phase, question] = (answer, after)
        phase = after
    for question in route.round:
        table[phase, question] = ANSWERS[question]
        phase = ANSWERS[question][1]
    for question in route.end:
        table[phase, question] = ANSWERS[question]
        phase = ANSWERS[question][1]
        table[phase, m.Finish] = ANSWERS[m.Finish]
    table[Phase.READY, m.Finish] = ANSWERS[m.Finish]
    return table


def turn(table: Turns, phase: Phase, question: m.Message, location: str) -> tuple[type[m.Message], Phase]:
    """The answer's type and the next phase, if ``question`` is allowed in ``phase``."""
    found = table.get((phase, type(question)))
    if found is None:
        allowed = [q.__name__ for p, q in table if p is phase] or ["nothing"]
        raise MessageRefused(
            f"{type(question).__name__} is out of turn: a silo that is {phase.value} takes {', '.join(allowed)}",
            location=location,
            value=type(question).__name__,
        )
    return found


def diagram() -> str:
    """All routes together as a Mermaid state diagram."""
    edges = {
        f"    {phase.value} --> {after.value}: {question.__name__} / {answer.__name__}": None
        for route in ROUTES.values()
        for (phase, question), (answer, after) in turns(route).items()
    }
    first, last = f"    [*] --> {Phase.NEW.value}", f"    {Phase.CLOSED.value} --> [*]"
    return "\n".join(["stateDiagram-v2", first, *edges, last])


def sequence(route: str) -> str:
    """One route as a Mermaid sequence diagram, with a round at its end."""
    lines = ["sequenceDiagram", "    participant A as server", "    participant S as every silo"]
    in_round = ROUTES[route].round
    asked = {question: answer for (_, question), (answer, _) in turns(ROUTES[route]).items()}
    for question, answer in asked.items():
        inside = "    " if question in in_round else ""
        if question is in_round[0]:
            lines.append("    loop every round")
        lines.append(f"    {inside}A->>S: {question.__name__}")
        lines.append(f"    {inside}S->>A: {answer.__name__}")
        if question is in_round[-1]:
            lines.append("    end")
    return "\n".join(lines)
