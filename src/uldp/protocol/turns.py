"""Who may speak when: one table for both sides. The diagrams in the docs are drawn from it.

The server sends requests, a silo responds. Before the first round there is a setup, a fixed path of exchanges that the
aggregation defines, messages included. A request that the table does not have for the silo's phase, or a response of
another type than the table says, is refused and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from uldp.errors import MessageRefused
from uldp.protocol import messages as m

RequestType = type[m.Message]


class Phase(StrEnum):
    """Where a silo stands. An aggregation's setup has phases of its own between ``CONNECTED`` and ``READY``."""

    NEW = "new"
    CONNECTED = "connected"
    COUNTED = "counted"
    READY = "ready"
    MEASURED = "measured"
    CLOSED = "closed"


@dataclass(frozen=True)
class Exchange:
    """A request, the response to it, and the phase of a silo after it.

    ``individual`` requests may differ from silo to silo; all others are the same for all silos. A request that is not
    ``replayed`` need not be stored: a session is restored without it.
    """

    request: RequestType
    response: type[m.Message]
    phase: str
    individual: bool = False
    replayed: bool = True


HANDSHAKE: Final = Exchange(m.Hello, m.Welcome, Phase.CONNECTED)
SHOW_COUNTS: Final = (
    Exchange(m.CountsRequest, m.Counts, Phase.COUNTED),
    Exchange(m.UserTotals, m.Accepted, Phase.READY, individual=True),
)
UPDATE: Final = Exchange(m.UpdateRequest, m.Update, Phase.READY)
METRICS: Final = Exchange(m.MetricsRequest, m.Metrics, Phase.MEASURED)
CLOSE: Final = Exchange(m.Close, m.Closed, Phase.CLOSED)

Turns = dict[tuple[str, RequestType], Exchange]


@dataclass(frozen=True)
class Route:
    """The exchanges of an experiment after the handshake: once before the first round, in every round, and at the end.

    Whoever was measured takes no round any more. What comes at the end may be missing. ``repeats``: a round's update
    may be asked for again, from fewer silos, and who was left out takes the next round.
    """

    setup: tuple[Exchange, ...] = ()
    round: tuple[Exchange, ...] = (UPDATE,)
    end: tuple[Exchange, ...] = ()
    repeats: bool = False


def turns(route: Route) -> Turns:
    """The table of an experiment on this route: by the phase of a silo and the request."""
    table: Turns = {}
    path = [HANDSHAKE, *route.setup]
    phase: str = Phase.NEW
    for exchange in [*path[:-1], replace(path[-1], phase=Phase.READY), *route.round]:
        table[phase, exchange.request] = exchange
        phase = exchange.phase
    for exchange in route.end:
        table[phase, exchange.request] = exchange
        phase = exchange.phase
        table[phase, m.Close] = CLOSE
    table[Phase.READY, m.Close] = CLOSE
    if route.repeats and len(route.round) > 1:
        first, before, update = route.round[0], route.round[-2], route.round[-1]
        table[Phase.READY, update.request] = update
        # Who was left out of a round's updates stays where they are asked for: the next round begins there, or the end.
        for follows in (first, *route.end[:1], CLOSE):
            table[before.phase, follows.request] = follows
    return table


def turn(table: Turns, phase: str, request: m.Message, location: str) -> Exchange:
    """The exchange that ``request`` begins, if it is allowed in ``phase``."""
    found = table.get((phase, type(request)))
    if found is None:
        allowed = [q.__name__ for p, q in table if p == phase] or ["nothing"]
        raise MessageRefused(
            f"{type(request).__name__} is out of turn: a silo that is {phase} takes {', '.join(allowed)}",
            location=location,
            value=type(request).__name__,
        )
    return found


def diagram(routes: Iterable[Route]) -> str:
    """All routes together as a Mermaid state diagram."""
    edges = {
        f"    {phase} --> {found.phase}: {found.request.__name__} / {found.response.__name__}": None
        for route in routes
        for (phase, _), found in turns(route).items()
    }
    first, last = f"    [*] --> {Phase.NEW}", f"    {Phase.CLOSED} --> [*]"
    return "\n".join(["stateDiagram-v2", first, *edges, last])


def sequence(route: Route) -> str:
    """One route as a Mermaid sequence diagram, with a round at its end."""
    lines = ["sequenceDiagram", "    participant A as server", "    participant S as every silo"]
    for exchange in dict.fromkeys(turns(route).values()):  # each once, though some are in the table in two phases
        inside = "    " if exchange in route.round else ""
        if exchange == route.round[0]:
            lines.append("    loop every round")
        lines.append(f"    {inside}A->>S: {exchange.request.__name__}")
        lines.append(f"    {inside}S->>A: {exchange.response.__name__}")
        if exchange == route.round[-1]:
            lines.append("    end")
    return "\n".join(lines)
