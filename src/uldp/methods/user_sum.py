"""What ULDP-AVG and ULDP-SGD share: per-user rows (model deltas or gradients) are clipped, weighted and summed.

Kato, Xiong, Takagi, Cao, Yoshikawa: "ULDP-FL: Federated Learning with Across Silo User-Level Differential Privacy",
PVLDB 17(11), 2024; Algorithms 3 and 4. The guarantee is that of :class:`uldp.privacy.releases.GaussianSum`.

Symbols: C ``clip``, sigma ``noise_multiplier``, T ``rounds``, eta_g ``global_lr``, q ``sample_rate``; |U| users, |S|
silos, w_su the weight of user u's row in silo s, x the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Final

from uldp.errors import require
from uldp.limits import check_whole
from uldp.methods.base import Method, State, not_a_setting
from uldp.methods.recipe import RECIPE, Recipe
from uldp.methods.server_optimizer import SERVER_OPTIMIZERS, NoisedTotal
from uldp.privacy.releases import GaussianSum, Participation, PublicFacts, RoundFacts, UserSampling
from uldp.privacy.releases.gaussian_sum import people_in_a_round
from uldp.vectors import Vector

SAMPLINGS: Final = ("open", "private")
PUBLISHED: Final = "published"
"""The server's step as in the paper."""


def check_groups(groups: int, rounds: int) -> None:
    """Refuse more groups than rounds: some groups would never take part."""
    check_whole(groups, 1, max(1, rounds), "method.participation_groups")


@dataclass(frozen=True, kw_only=True)
class UserSum(Method):
    """A method that releases sum_s sum_u w_su clip(row_su, C) + noise. Subclasses add ``silo``.

    Args:
        clip: C; a row with a larger L2 norm is scaled down to it.
        global_lr: eta_g of the paper, whose step is eta_g / (q |U| |S|); for ``server_optimizer = "published"`` only.
        server_optimizer: ``published`` (the paper's step), or ``auto``, ``sgd``, ``momentum`` or ``adam``
            (:mod:`uldp.methods.server_optimizer`).
        server_lr: The learning rate of the other optimisers, as a multiple of their default, which takes |U| and |S|
            into account.
        weighting: ``uniform`` (1/|S|) or ``records`` (n_su / N_u, Eq. 3: n_su of user u's N_u records are in silo s).
        sample_rate: q, the probability with which a user takes part in a round.
        sampling: ``open`` (the server draws the sample), or ``private`` (nobody knows it; needs ``lattice`` or
            ``paillier`` aggregation).
        max_participations: With sub-sampling, the largest number of rounds in which a user takes part; 0 for no limit.
        participation_groups: Number of fixed groups that take turns, one group a round; 1 for everybody in every round.
        recipe: The constants from which default step sizes are computed; not a setting of an experiment file.

    Raises:
        ConfigError: A value outside its range.

    Example:
        >>> from uldp.methods.uldp_avg import UldpAvg
        >>> UldpAvg(clip=0.5, noise_multiplier=5.0).release(PublicFacts(100, 5, 10)).clip
        0.5
    """

    clip: float = 1.0
    global_lr: float = 1.0
    server_optimizer: str = PUBLISHED
    server_lr: float = 1.0
    weighting: str = "uniform"
    sample_rate: float = 1.0
    sampling: str = "open"
    max_participations: int = 0
    participation_groups: int = 1
    recipe: Recipe = not_a_setting(RECIPE)  # noqa: RUF009

    paper: ClassVar[str] = "ULDP-FL (PVLDB 2024), Algorithms 3 and 4"
    weightings: ClassVar[tuple[str, ...]] = ("uniform", "records")

    def __post_init__(self) -> None:
        known = ", ".join(self.weightings)
        require(self.weighting in self.weightings, "method.weighting", self.weighting, f"one of {known}")
        require(self.sampling in SAMPLINGS, "method.sampling", self.sampling, f"one of {', '.join(SAMPLINGS)}")
        self._check_server()
        check_groups(self.participation_groups, self.rounds)
        not_both = self.participation_groups == 1 or self.sample_rate == 1
        require(not_both, "method.sample_rate", self.sample_rate, "1 where people take turns (participation_groups)")
        super().__post_init__()

    def _check_server(self) -> None:
        known = (PUBLISHED, *SERVER_OPTIMIZERS)
        name = self.server_optimizer
        require(name in known, "method.server_optimizer", name, f"one of {', '.join(known)}")
        for key in ("global_lr", "server_lr"):
            require(0 < getattr(self, key) < math.inf, f"method.{key}", getattr(self, key), "a positive number")
        # Two settings for one step: a value of the unused one would have no effect, so it is refused.
        unused, used = ("server_lr", "global_lr") if name == PUBLISHED else ("global_lr", "server_lr")
        wanted = f"left out: with server_optimizer = {name!r} the step is {used}"
        require(getattr(self, unused) == 1, f"method.{unused}", getattr(self, unused), wanted)

    @property
    def user_sampling(self) -> UserSampling:
        return UserSampling(self.sample_rate, self.sampling == "private", self.max_participations)

    def release(self, facts: PublicFacts) -> GaussianSum:
        return GaussianSum(
            facts=facts,
            clip=self.clip,
            noise_multiplier=self.noise_multiplier,
            weighting=self.weighting,
            dropout_tolerance=self.dropout_tolerance,
            user_sampling=self.user_sampling,
            participation=Participation(self.participation_groups),
        )

    def server(self, state: State, total: Vector, facts: RoundFacts) -> State:
        if self.server_optimizer == PUBLISHED:
            return State(state.x + self.published_step(facts) * total)
        release = self.release(facts)
        noised_total = NoisedTotal(
            values=total,
            noise_variance=release.noise_variance(facts.silos_heard),
            people=people_in_a_round(release),
            step=self.recipe.task(facts).step_at(release.noise_to_signal(self.rounds), facts),
            remaining=1 - (facts.round - 1) / self.rounds,
        )
        optimizer = self.recipe.server if self.server_optimizer == "auto" else SERVER_OPTIMIZERS[self.server_optimizer]
        return optimizer.step(state, noised_total, self.server_lr)

    def published_step(self, facts: PublicFacts) -> float:
        """What the total is multiplied by: Algorithm 3, line 6; Algorithm 4, line 10.

        Args:
            facts: The federation.
        """
        return self.global_lr / (self.sample_rate * facts.users * facts.silos)

    def corrections(self) -> tuple[str, ...]:
        if self.sample_rate == 1:
            return ("Theorem 3 converts from RDP; here a Gaussian's epsilon is exact, and smaller (errata U4).",)
        return (
            "Algorithm 4 as printed zeroes the users that were sampled; here the others are left out (errata U3).",
            "Lemma 4 is about samples of a fixed size; here Poisson sampling is accounted for, by PLD (errata U4).",
        )
