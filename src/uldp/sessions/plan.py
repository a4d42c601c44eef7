"""What both sides of an experiment agree on before the first message."""

from __future__ import annotations

from dataclasses import dataclass

from uldp.aggregation import Aggregation
from uldp.methods.base import Facts, Method
from uldp.protocol.messages import size_limit


@dataclass(frozen=True)
class Plan:
    """The public part of an experiment. ``digest`` stands for all of its settings."""

    digest: str
    method: Method
    aggregation: Aggregation
    facts: Facts
    silos: tuple[str, ...]

    def __post_init__(self) -> None:
        self.method.check(self.facts)

    @property
    def message_limit(self) -> int:
        return size_limit(self.facts.users, self.facts.dimension)
