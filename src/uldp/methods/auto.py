"""``auto``: ULDP-AVG with record weights, and a server that knows its noise. Nothing has to be set.

Kato et al. (ULDP-FL, Algorithm 3) leave clip, step sizes and rounds to whoever has data to try them on; every trial on
real data costs privacy. Here they follow from what is public: people, parameters, the noise for the target epsilon, the
task and the schema's bound on the features (:mod:`uldp.methods.recipe`).

The method stands for a :class:`~uldp.methods.uldp_avg.UldpAvg` with all settings filled in: :meth:`Auto.for_facts`
gives it, and a plan holds that one. Its guarantee is that of :class:`uldp.privacy.releases.GaussianSum`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from uldp.methods.base import Method, State, not_a_setting
from uldp.methods.recipe import RECIPE, Recipe
from uldp.methods.uldp_avg import UldpAvg
from uldp.privacy.releases import GaussianSum, PublicFacts, RoundFacts
from uldp.vectors import Vector


@dataclass(frozen=True, kw_only=True)
class Auto(Method):
    """ULDP-AVG with settings from public facts.

    Args:
        rounds: T.
        server_lr: The server's steps relative to the ordinary ones.
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
    participation_groups: int = 1
    recipe: Recipe = not_a_setting(RECIPE)  # noqa: RUF009

    summary: ClassVar[str] = "ULDP-AVG by records; clip and steps from people, parameters, noise and task"
    paper: ClassVar[str] = "ULDP-FL (PVLDB 2024), Algorithm 3, with a server of our own"

    neutral_start: ClassVar[bool] = True

    def for_facts(self, facts: PublicFacts) -> UldpAvg:
        wanted = self.recipe.task(facts)
        method = UldpAvg(
            rounds=self.rounds,
            noise_multiplier=self.noise_multiplier,
            dropout_tolerance=self.dropout_tolerance,
            weighting="records",
            server_optimizer="auto",
            server_lr=self.server_lr,
            participation_groups=self.participation_groups,
            local_epochs=self.recipe.local_epochs,
            local_lr=wanted.bounded_lr(facts),
            recipe=self.recipe,
        )
        rho = method.release(facts).noise_to_signal(self.rounds)  # whatever the clip
        return replace(method, clip=wanted.clip_at(rho, facts))

    def release(self, facts: PublicFacts) -> GaussianSum:
        return self.for_facts(facts).release(facts)

    def server(self, state: State, total: Vector, facts: RoundFacts) -> State:
        return self.for_facts(facts).server(state, total, facts)
