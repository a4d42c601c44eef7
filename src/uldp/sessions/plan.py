"""What both sides of an experiment agree on before the first message."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from uldp.aggregation.base import Aggregation, Setting
from uldp.errors import ConfigError
from uldp.protocol.messages import size_limit
from uldp.protocol.turns import Question, Turns, turns


@dataclass(frozen=True, kw_only=True)
class Plan(Setting):
    """The public part of an experiment. ``digest`` stands for all of its settings."""

    aggregation: Aggregation

    def __post_init__(self) -> None:
        if self.facts.dither != self.aggregation.dither:
            raise ConfigError(
                f"the facts count {self.facts.dither} units of rounding, {self.aggregation.name} rounds by "
                f"{self.aggregation.dither}",
                place="aggregation.name",
            )
        self.method.check(self.facts)
        self.aggregation.check(self.method, self.facts)

    @property
    def setup(self) -> tuple[Question, ...]:
        """The exchanges between the greeting and the first round."""
        return self.aggregation.route(self.method).setup

    @cached_property
    def turns(self) -> Turns:
        return turns(self.aggregation.route(self.method))

    @property
    def shows_counts(self) -> bool:
        """Whether record counts are exchanged in the clear."""
        return self.method.needs_counts and not self.aggregation.hides_counts

    @property
    def tells_sample(self) -> bool:
        """Whether silos are told which users were sampled."""
        return self.method.sample_rate < 1 and not self.aggregation.hides_sample

    @property
    def asks_with_sample(self) -> bool:
        """Whether a round's question says who takes part: users, or silos."""
        return self.tells_sample or self.method.samples_silos

    @property
    def sample_sizes(self) -> tuple[int, int]:
        """How many silos and users a round's question has a bit for."""
        return (
            self.facts.silos if self.method.samples_silos else 0,
            self.facts.users if self.tells_sample else 0,
        )

    @property
    def server_samples(self) -> bool:
        """Whether the server draws the sample, and so knows it."""
        return self.method.sample_rate < 1 and not self.method.private_sampling

    @property
    def message_limit(self) -> int:
        facts = self.facts
        item, user = self.aggregation.item_bytes(), self.aggregation.user_bytes(self.method)
        return size_limit(facts.users, facts.dimension, silos=facts.silos, item=item, user=user)
