"""What both sides of an experiment agree on before the first message."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from uldp._version import __version__
from uldp.aggregation import AGGREGATIONS
from uldp.aggregation.base import Aggregation, AggregationContext
from uldp.errors import ConfigError
from uldp.methods.base import Method
from uldp.privacy.statement import Disclosure
from uldp.protocol import messages as m
from uldp.protocol.turns import Question, Turns, turns


@dataclass(frozen=True, kw_only=True)
class Plan(AggregationContext):
    """The public part of an experiment. ``digest`` stands for all of its settings.

    ``min_silos`` is with how few silos a round may be repeated when others do not answer; 0 for the default.
    ``layers`` and ``outputs`` stand for the model (:class:`uldp.protocol.messages.Greeting`).
    ``measures`` are what silos are asked for at the end about the people they hold out, and the factors of the means
    (:attr:`uldp.learners.base.Learner.measures`); none where they are not asked.
    """

    method: Method
    aggregation: Aggregation
    min_silos: int = 0
    layers: str = ""
    outputs: bytes = b""
    measures: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        if self.facts.rounding != self.aggregation.rounding:
            raise ConfigError(
                f"the facts count {self.facts.rounding} units of rounding, {self.aggregation.name} rounds by "
                f"{self.aggregation.rounding}",
                location="aggregation.name",
            )
        if len(self.silos) != self.facts.silos:
            raise ConfigError(
                f"the release is made for {self.facts.silos} silos, there are {len(self.silos)}", location="method"
            )
        self.release.check()
        self.aggregation.check(self.release, self.rounds)
        self._check_min_silos()
        if self.measures and self.release.local:
            raise ConfigError(
                "this method's clients trust nobody, and sums without noise would tell the server about a client; "
                "leave it out",
                location="run.evaluate_silos",
            )

    def _check_min_silos(self) -> None:
        silos, least = self.facts.silos, min(2, self.facts.silos)
        if self.min_silos and not self.aggregation.repeatable and self.min_silos != silos:
            raise ConfigError(
                f"{self.aggregation.name} cannot go on without a silo; leave it out",
                location="aggregation.min_silos",
                value=self.min_silos,
            )
        if self.min_silos and not least <= self.min_silos <= silos:
            raise ConfigError(
                f"from {least} to the number of silos ({silos}), not {self.min_silos}",
                location="aggregation.min_silos",
                value=self.min_silos,
            )

    @property
    def least_silos(self) -> int:
        """With how few silos a round may do: by default all but those whose noise is compensated for."""
        if not self.aggregation.repeatable:
            return self.facts.silos
        return self.min_silos or max(min(2, self.facts.silos), self.facts.silos - self.release.dropout_tolerance)

    @property
    def may_repeat(self) -> bool:
        """Whether a round may be repeated without silos that do not answer."""
        return self.least_silos < self.facts.silos

    @property
    def setup(self) -> tuple[Question, ...]:
        """The exchanges between the greeting and the first round."""
        return self.aggregation.route(self.release).setup

    @cached_property
    def turns(self) -> Turns:
        return turns(replace(self.aggregation.route(self.release), end=(m.AskMetrics,) if self.measures else ()))

    @property
    def shows_counts(self) -> bool:
        """Whether record counts are exchanged in the clear."""
        return self.release.exchange is not None and not self.aggregation.hides_counts

    @property
    def disclosure(self) -> Disclosure:
        """What the aggregation shows to whom, for the privacy statement."""
        aggregation = self.aggregation
        return Disclosure(
            name=_shown_name(aggregation),
            server_sees_each_silo=aggregation.server_sees_each_silo,
            shows_counts=self.shows_counts,
            silos_know_sample=not (aggregation.hides_sample and aggregation.secure),
            secure=aggregation.secure,
            shuffles=aggregation.shuffles,
            least_silos=self.least_silos if self.may_repeat else None,
            holdout_metrics=bool(self.measures),
            caveats=aggregation.caveats(self.release),
        )

    @property
    def tells_sample(self) -> bool:
        """Whether silos are told which users were sampled."""
        return not self.release.user_sampling.everybody and not self.aggregation.hides_sample

    @property
    def asks_with_sample(self) -> bool:
        """Whether a round's question says who takes part: users, or silos."""
        return self.tells_sample or not self.release.silo_sampling.all_silos

    @property
    def sample_sizes(self) -> tuple[int, int]:
        """How many silos and users a round's question has a bit for."""
        return (
            0 if self.release.silo_sampling.all_silos else self.facts.silos,
            self.facts.users if self.tells_sample else 0,
        )

    @property
    def hello(self) -> m.Hello:
        """What the server greets with, and what every silo must find to be so."""
        facts = self.facts
        return m.Hello(facts.silos, facts.users, facts.dimension, __version__, self.layers, self.outputs)

    def welcome(self, roster: str) -> m.Welcome:
        """A silo's answer to :attr:`hello`."""
        facts = self.facts
        return m.Welcome(facts.silos, facts.users, facts.dimension, __version__, self.layers, self.outputs, roster)

    @property
    def message_limit(self) -> int:
        facts = self.facts
        item, user = self.aggregation.item_bytes(), self.aggregation.user_bytes(self.release)
        return m.size_limit(facts.users, facts.dimension, silos=facts.silos, item=item, user=user)


def _shown_name(aggregation: Aggregation) -> str:
    """What a statement calls the aggregation: one that is not ours by its class, whatever name it has inherited."""
    kind = type(aggregation)
    return aggregation.name if kind in AGGREGATIONS.values() else f"{kind.__module__}:{kind.__qualname__}"
