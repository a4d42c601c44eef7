"""What the parties of an experiment agree on before the first message."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from uldp._version import __version__
from uldp.aggregation import is_builtin
from uldp.aggregation.base import Aggregation, AggregationContext
from uldp.crypto.keys import SECURITY_BITS
from uldp.errors import ConfigError
from uldp.methods.base import Method, State
from uldp.privacy.statement import Disclosure
from uldp.protocol import messages as m
from uldp.protocol.turns import METRICS, Phase, RequestType, Turns, turns


@dataclass(frozen=True, kw_only=True)
class Plan(AggregationContext):
    """The public part of an experiment. ``digest`` is a digest of all of its settings.

    Args:
        min_silos: How many silos a repeated round needs when others do not respond; 0 for the default.
        layers: A digest of the model's layers (:class:`uldp.protocol.messages.Handshake`).
        outputs: The model's first outputs, likewise.
        aggregation_reason: Why it is this aggregation, where the settings leave it open.
        mean_metrics: Which metrics of held-out people silos are asked for at the end
            (:attr:`uldp.learners.base.Learner.mean_metrics`).
    """

    method: Method
    aggregation: Aggregation
    min_silos: int = 0
    layers: str = ""
    outputs: bytes = b""
    aggregation_reason: str = ""
    mean_metrics: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        if (self.facts.rounding, self.facts.residual) != (self.aggregation.rounding, self.aggregation.residual):
            raise ConfigError(
                f"the facts count a rounding of {self.facts.rounding} and a residual of {self.facts.residual:g}, "
                f"{self.aggregation.name} has {self.aggregation.rounding} and {self.aggregation.residual:g}",
                location="aggregation.name",
            )
        if len(self.silos) != self.facts.silos:
            raise ConfigError(
                f"the release is made for {self.facts.silos} silos, there are {len(self.silos)}", location="method"
            )
        self.release.check()
        _ = self.kinds  # refuses two messages with one name
        self.aggregation.check(self.release, self.rounds)
        self._check_min_silos()
        if self.mean_metrics and self.release.local:
            raise ConfigError(
                "sums without noise would show the server something about a client, and local DP trusts no server; "
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
    def required_silos(self) -> int:
        """How many silos a round needs: by default all but ``dropout_tolerance`` of them."""
        if not self.aggregation.repeatable:
            return self.facts.silos
        return self.min_silos or max(min(2, self.facts.silos), self.facts.silos - self.release.dropout_tolerance)

    @property
    def may_repeat(self) -> bool:
        """Whether a round may be repeated without silos that do not respond."""
        return self.required_silos < self.facts.silos

    @property
    def setup(self) -> tuple[RequestType, ...]:
        """The requests between the handshake and the first round."""
        return tuple(exchange.request for exchange in self.aggregation.route(self.release).setup)

    @cached_property
    def round_requests(self) -> dict[str, RequestType]:
        """The requests of a round, by the phase in which each is made, in their order."""
        exchanges = self.aggregation.route(self.release).round
        phases = [Phase.READY, *(exchange.phase for exchange in exchanges[:-1])]
        return {phase: exchange.request for phase, exchange in zip(phases, exchanges, strict=True)}

    @cached_property
    def turns(self) -> Turns:
        """Which request may come in which phase, and what follows."""
        return turns(replace(self.aggregation.route(self.release), end=(METRICS,) if self.mean_metrics else ()))

    @cached_property
    def kinds(self) -> tuple[type[m.Message], ...]:
        """The types of all messages of the experiment: the common ones and the aggregation's."""
        own = [kind for found in self.turns.values() for kind in (found.request, found.response)]
        kinds = tuple(dict.fromkeys([*m.CORE, *own]))
        if len({kind.__name__ for kind in kinds}) < len(kinds):
            raise ConfigError(
                "two types of messages have one name; rename the aggregation's", location="aggregation.name"
            )
        return kinds

    def phase(self, saved: str) -> str:
        """``saved``, if it is a phase of this experiment."""
        if saved not in {Phase.NEW, *(found.phase for found in self.turns.values())}:
            raise ValueError(f"{saved!r} is no phase of this experiment")
        return saved

    @property
    def shows_counts(self) -> bool:
        """Whether record counts are exchanged in the clear."""
        return self.release.exchange is not None and not self.aggregation.hides_counts

    @property
    def disclosure(self) -> Disclosure:
        """What the aggregation shows to whom, for the privacy statement."""
        aggregation = self.aggregation
        return Disclosure(
            name=_display_name(aggregation),
            server_sees_each_silo=aggregation.server_sees_each_silo,
            shows_counts=self.shows_counts,
            silos_know_sample=not (aggregation.hides_sample and aggregation.secure),
            silo_pairs_learn=aggregation.silo_pairs_learn,
            secure=aggregation.secure,
            shuffles=aggregation.shuffles,
            required_silos=self.required_silos if self.may_repeat else None,
            holdout_metrics=bool(self.mean_metrics),
            distance=aggregation.distance(self.release),
            security_bits=SECURITY_BITS if aggregation.needs_key_agreement else 0,
            caveats=aggregation.caveats(self.release),
        )

    @property
    def silos_know_sample(self) -> bool:
        """Whether silos learn which users were sampled."""
        return not self.release.user_sampling.everybody and not self.aggregation.hides_sample

    @cached_property
    def broadcast_size(self) -> int:
        """How many numbers the server sends to a silo in a round: the model, and what the method puts behind it."""
        state = State(np.zeros(self.facts.dimension))
        return len(self.method.broadcast(state, self.facts.in_round(1, self.facts.silos)))

    @property
    def sample_sizes(self) -> tuple[int, int]:
        """How many silos and users a round's request has a bit for: 0 where all take part, or silos do not learn it."""
        return (
            0 if self.release.silo_sampling.all_silos else self.facts.silos,
            self.facts.users if self.silos_know_sample else 0,
        )

    @property
    def hello(self) -> m.Hello:
        """The first request, which every silo must agree with."""
        facts = self.facts
        return m.Hello(facts.silos, facts.users, facts.dimension, __version__, self.layers, self.outputs)

    def welcome(self, roster: str) -> m.Welcome:
        """A silo's response to :attr:`hello`."""
        facts = self.facts
        return m.Welcome(facts.silos, facts.users, facts.dimension, __version__, self.layers, self.outputs, roster)

    @property
    def message_limit(self) -> int:
        facts = self.facts
        item, user = self.aggregation.item_bytes(), self.aggregation.user_bytes(self.release)
        return m.size_limit(facts.users, self.broadcast_size, silos=facts.silos, item=item, user=user)


def _display_name(aggregation: Aggregation) -> str:
    """The aggregation's name in a statement: of a third-party one its class, not a name it may have inherited."""
    kind = type(aggregation)
    return aggregation.name if is_builtin(aggregation) else f"{kind.__module__}:{kind.__qualname__}"
