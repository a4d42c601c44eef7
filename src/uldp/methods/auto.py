"""``auto``: ULDP-AVG with record weights, and a server that knows its noise. Nothing has to be set.

Kato et al. (ULDP-FL, Algorithms 3 and 4) leave clip, step sizes and rounds to whoever has data to try them on; every
trial on real data costs privacy. Here they follow from what is public: people, parameters, the noise for the target
epsilon, the task and the schema's bound on the features (:mod:`uldp.methods.recipe`), and from what was released.

The method stands for another one with all settings filled in, which :meth:`Auto.for_facts` gives, and a plan holds that
one: of linear models a :class:`~uldp.methods.standardized_sgd.StandardizedSgd` (one local step, so gradients instead of
model deltas), of others a :class:`~uldp.methods.uldp_avg.UldpAvg`. The guarantee of both is that of
:class:`uldp.privacy.releases.GaussianSum`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from uldp.errors import require
from uldp.methods.base import Method, State, not_a_setting
from uldp.methods.recipe import RECIPE, Recipe
from uldp.methods.standardized_sgd import StandardizedSgd
from uldp.methods.uldp_avg import UldpAvg
from uldp.methods.user_sum import UserSum
from uldp.privacy.releases import GaussianSum, PublicFacts, RoundFacts
from uldp.vectors import Vector


@dataclass(frozen=True, kw_only=True)
class Auto(Method):
    """ULDP-AVG with settings from public facts.

    Args:
        rounds: T.
        server_lr: The server's steps relative to the ordinary ones.
        clip_scale: How long a person's row may be, relative to the ordinary length.
        participation_groups: In how many groups people take turns; 1 for everybody in every round.

    Raises:
        ConfigError: A value outside its range.

    Example:
        >>> facts = PublicFacts(users=100, silos=5, dimension=10, task="regression", feature_norm=1.0)
        >>> Auto(noise_multiplier=20.0).for_facts(facts).clip
        0.05
    """

    rounds: int = RECIPE.rounds
    server_lr: float = 1.0
    clip_scale: float = 1.0
    participation_groups: int = 1
    recipe: Recipe = not_a_setting(RECIPE)  # noqa: RUF009

    summary: ClassVar[str] = "ULDP-AVG by records; clip and steps from people, parameters, noise and task"
    paper: ClassVar[str] = "ULDP-FL (PVLDB 2024), Algorithm 3, with a server of our own"

    neutral_start: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(0 < self.clip_scale < math.inf, "method.clip_scale", self.clip_scale, "a positive number")
        super().__post_init__()

    def for_facts(self, facts: PublicFacts) -> UserSum:
        common: dict[str, Any] = {
            "rounds": self.rounds,
            "noise_multiplier": self.noise_multiplier,
            "dropout_tolerance": self.dropout_tolerance,
            "weighting": "records",
            "server_optimizer": "auto",
            "server_lr": self.server_lr,
            "participation_groups": self.participation_groups,
            "recipe": self.recipe,
        }
        if facts.linear_outputs:
            return StandardizedSgd(clip_scale=self.clip_scale, **common)
        wanted = self.recipe.task(facts)
        method = UldpAvg(local_epochs=self.recipe.local_epochs, local_lr=wanted.bounded_lr(facts), **common)
        rho = method.release(facts).noise_to_signal(self.rounds)  # whatever the clip
        return replace(method, clip=self.clip_scale * wanted.clip_at(rho, facts))

    def release(self, facts: PublicFacts) -> GaussianSum:
        return self.for_facts(facts).release(facts)

    def server(self, state: State, total: Vector, facts: RoundFacts) -> State:
        return self.for_facts(facts).server(state, total, facts)
