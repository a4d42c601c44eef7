"""What a method is: a silo part, a server part, and the event that says what was released.

A method is a frozen dataclass. Its fields are the keys of the ``[method]`` section of an experiment (and
``noise_multiplier``, which comes from ``[privacy]``). See ``docs/add-a-method.md``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from uldp.data.federation import IntArray, SiloData
from uldp.errors import ConfigError
from uldp.learners.base import Learner
from uldp.privacy.events import Event, NonPrivate
from uldp.rng import Streams
from uldp.vectors import FixedPoint, Vector


@dataclass(frozen=True)
class Facts:
    """What everybody knows about a federation: |U|, |S| and the number d of parameters."""

    users: int
    silos: int
    dimension: int


@dataclass(frozen=True)
class State:
    """What the server carries from round to round: the model, and whatever vectors a method remembers beside it."""

    x: Vector
    memory: Mapping[str, Vector] = field(default_factory=dict)


Contribution = tuple[IntArray | None, Vector]
"""Users and one row for each; ``None`` for a row that belongs to the silo as a whole."""


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """One paper's algorithm."""

    rounds: int = 10
    noise_multiplier: float = 0.0

    summary: ClassVar[str]
    """One line for ``uldp methods``."""
    paper: ClassVar[str]
    unit: ClassVar[str | None] = "user"
    """Whom the guarantee protects; None for a method without one."""

    sample_rate: float = 1.0

    def __post_init__(self) -> None:
        require(self.rounds >= 1, "rounds", self.rounds, "at least 1")
        require(
            0 <= self.noise_multiplier < math.inf,
            "noise_multiplier",
            self.noise_multiplier,
            "0 or more",
            "privacy",
        )
        require(0 < self.sample_rate <= 1, "sample_rate", self.sample_rate, "above 0 and at most 1")

    @property
    def needs_counts(self) -> bool:
        """Whether the weights depend on record counts, so that totals must be exchanged before the first round."""
        return False

    @abstractmethod
    def silo(self, x: Vector, data: SiloData, learner: Learner, streams: Streams) -> Iterator[Contribution]:
        """The silo's part: rows to be weighted, encoded and summed."""

    @abstractmethod
    def server(self, state: State, total: Vector, facts: Facts) -> State:
        """The server's part: the next state from the noised total."""

    @abstractmethod
    def encoding(self, facts: Facts) -> FixedPoint:
        """How rows become integers."""

    @abstractmethod
    def event(self, facts: Facts, silos_heard: int) -> Event:
        """What the world sees of a round in which ``silos_heard`` silos took part."""

    def noise_scale(self, facts: Facts) -> float:
        """The deviation of one silo's share of the noise, in units of the encoding."""
        return 0.0

    def weights(self, facts: Facts, counts: IntArray, totals: IntArray | None) -> Vector | None:
        """w_su for all users of one silo, from this user's own counts only; None for weight 1."""
        return None

    def count_cap(self, facts: Facts) -> int:
        """The largest count a silo reports for one user."""
        return 0

    # What others see of a round, for the statement. ``factor`` is 1 where a user is left out, and 2 where a user's
    # records are replaced by others. A method that does not say makes no claim.

    def seen_by_world(self, facts: Facts, factor: float) -> Event:
        """What the world sees, which does not know the sample."""
        return self.event(facts, facts.silos) if factor == 1 else NonPrivate()

    def seen_by_server(self, facts: Facts, factor: float) -> Event:
        """What a server sees that is shown every silo's noised sum and knows the sample."""
        return NonPrivate()

    def seen_by_silo(self, facts: Facts, factor: float) -> Event:
        """What a silo sees that takes its own noise off the total and knows the sample."""
        return NonPrivate()

    def check(self, facts: Facts) -> None:
        """Refuse settings under which a sum could overflow or the noise would not be what the event says."""
        scale = self.noise_scale(facts)
        self.encoding(facts).check_range(max(facts.users, facts.silos), scale * math.sqrt(facts.silos))

    def caveats(self, facts: Facts) -> tuple[str, ...]:
        """Sentences that a privacy statement must carry for this method."""
        return ()


def require(holds: bool, key: str, value: Any, wanted: str, section: str = "method") -> None:
    """One clear sentence for a setting that does not hold."""
    if not holds:
        raise ConfigError(f"{wanted}, not {value!r}", place=f"{section}.{key}", value=value)
