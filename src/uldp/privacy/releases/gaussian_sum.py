"""A sum of clipped, weighted per-user rows over all silos, with Gaussian noise of which every silo adds a share.

Kato, Xiong, Takagi, Cao, Yoshikawa: "ULDP-FL: Federated Learning with Across Silo User-Level Differential Privacy",
PVLDB 17(11), 2024; Algorithms 3 and 4, Theorem 3.

Guarantee. Each row is clipped to C here, a user with records has at most one row in a silo, other users have none, and
sum_s w_su <= 1: one user moves the total by at most C. Each of the |S| silos adds N(0, sigma^2 C^2 / |S|), so the total
carries N(0, sigma^2 C^2): every round is a Gaussian mechanism with noise multiplier sigma. With user-level sub-sampling
it is Poisson-sampled at rate q against adversaries who do not know the sample. Without weights (``weighting = "none"``)
a user moves the total by C in each of up to s silos (``max_silos``): the noise multiplier is sigma / s.

The method must ensure that row u is a function of the model and of user u's records alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, cast

import numpy as np

from uldp.caveats import Caveat, Severity
from uldp.data.federation import IntArray, SiloData
from uldp.errors import ConfigError, ModelError, require
from uldp.learners.base import Learner
from uldp.limits import MAX_SILOS, check_whole
from uldp.privacy.events import Event, Gaussian, Joint, NonPrivate, PoissonSampled, sampled_gaussian
from uldp.privacy.releases.base import Adversary, PublicFacts, Release, SiloPart
from uldp.privacy.releases.counts import CountExchange, RecordTotals
from uldp.privacy.releases.sums import Contribution, check_share, continuous_multiplier, require_limit
from uldp.privacy.releases.weights import record_weights, uniform_weights
from uldp.rng import Secrets, Streams
from uldp.vectors import FixedPoint, Rows, Vector, clip_rows

WEIGHTINGS: Final = ("none", "uniform", "records")
RESIDUAL_SHARE: Final = 1e-4
"""The fraction of the noise's variance that covers the residual of users outside the sample."""


@dataclass(frozen=True, kw_only=True)
class GaussianSum(Release):
    """sum_s sum_u w_su clip(row_su, C) + N(0, sigma^2 C^2).

    Args:
        clip: C.
        noise_multiplier: sigma.
        weighting: ``uniform`` (1/|S|), ``records`` (n_su / N_u) or ``none`` (1, so a user counts in every silo).
        max_silos: A user has records in at most this many silos, 0 for no bound; used only with ``weighting = "none"``.
        dropout_tolerance: Every silo's share of the noise is enlarged so that noise multiplier sigma remains when this
            many shares are missing or known to the adversary.

    Raises:
        ConfigError: A value outside its range.

    Example:
        >>> GaussianSum(facts=PublicFacts(100, 5, 10), clip=1.0, noise_multiplier=5.0).event(5)
        Gaussian(noise_multiplier=4.999999999999984)
    """

    clip: float
    noise_multiplier: float
    weighting: str = "uniform"
    max_silos: int = 0

    shared_noise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_limit("method.clip", self.clip)
        require(0 <= self.noise_multiplier < math.inf, "privacy.noise_multiplier", self.noise_multiplier, "0 or more")
        known = ", ".join(WEIGHTINGS)
        require(self.weighting in WEIGHTINGS, "method.weighting", self.weighting, f"one of {known}")
        check_whole(self.max_silos, 0, MAX_SILOS, "method.max_silos")

    @property
    def privacy_unit(self) -> str:
        return "user"

    @property
    def encoding(self) -> FixedPoint:
        return FixedPoint(limit=self.clip)

    @property
    def silo_noise_std(self) -> float:
        # Algorithm 3, lines 17 and 24: variance sigma^2 C^2 / |S| in each silo; here over |S| - dropout_tolerance
        shares = max(1, self.facts.silos - self.dropout_tolerance)
        return self.noise_multiplier * self.encoding.integer_limit / math.sqrt(shares)

    @property
    def _has_weights(self) -> bool:
        return self.weighting != "none"

    @property
    def user_weighting(self) -> str | None:
        return self.weighting if self._has_weights else None

    @property
    def sensitivity(self) -> float:
        """How far one user moves the total, as a multiple of the clip: 1, if weights sum to at most 1 over silos."""
        return 1.0 if self._has_weights else float(self.silo_sampling.silos_per_user(self.max_silos, self.facts.silos))

    def noise_to_signal(self, rounds: int) -> float:
        """rho of a whole run: the noise of all totals together, divided by the largest signal that they can have.

        The noise of T totals has the norm sqrt(T d) sigma C, and n people move them by T n C at most. With full
        participation this is sqrt(d) / (mu n), where mu is that of the whole run, so it does not depend on the
        number of rounds. With b groups that take turns it is sqrt(b) times as large.

        Args:
            rounds: T.
        """
        return self.noise_multiplier * math.sqrt(self.facts.dimension / rounds) / people_in_a_round(self)

    @property
    def max_rows(self) -> int:
        if self._has_weights:
            return max(self.facts.users, self.facts.silos)
        return self.facts.users * self.silo_sampling.silos_per_user(self.max_silos, self.facts.silos) + self.facts.silos

    @property
    def exchange(self) -> CountExchange | None:
        return RecordTotals() if self.weighting == "records" else None

    def weights(self, counts: IntArray, user_totals: IntArray | None) -> Vector | None:
        if not self._has_weights:
            return None
        if self.weighting == "uniform":
            return uniform_weights(self.facts.users, self.facts.silos)
        assert user_totals is not None, "record weights need the totals"
        return record_weights(counts, user_totals)

    def rows(
        self, method: SiloPart, x: Vector, data: SiloData, learner: Learner, streams: Streams, secrets: Secrets
    ) -> Iterator[Contribution]:
        # Only the first row of a sampled user with records here counts: a second one would move the total by a second
        # clip, and one of a user outside the sample would take part in spite of the sampling.
        expected = np.zeros(self.facts.users, dtype=np.bool_)
        expected[data.users] = True
        for contribution in method.silo(x, data, learner, streams):
            users, rows = self._check_rows(*contribution)
            first = np.zeros(len(users), dtype=np.bool_)
            first[np.unique(users, return_index=True)[1]] = True
            first &= expected[users]
            expected[users] = False
            # The users are a copy: the method may overwrite its array before these rows are weighted.
            yield users[first], clip_rows(rows if first.all() else rows[first], self.clip)

    def _check_rows(self, user_indices: IntArray | None, values: Rows) -> tuple[IntArray, Rows]:
        """Users and one row for each; anything else is refused."""
        users, rows = np.asarray(user_indices), cast("Rows", np.asarray(values))
        if user_indices is None or users.ndim != 1 or users.dtype.kind not in "iu" or rows.ndim != 2:
            raise ModelError("one row for each of some users, (users, rows), is expected", location="method.silo")
        if len(users) != len(rows):
            raise ModelError(f"{len(rows)} rows for {len(users)} users", location="method.silo")
        if len(users) and not 0 <= users.min() <= users.max() < self.facts.users:
            raise ModelError(f"a user index outside 0 to {self.facts.users - 1}", location="method.silo")
        return users.astype(np.int64, copy=False), rows

    def event(self, silos_heard: int) -> Event:
        # Theorem 3. The share of a silo that dropped out is missing from the noise.
        return self._gaussian(silos_heard, self.sensitivity, self.user_sampling.rate)

    def view(self, adversary: Adversary) -> Event:
        if adversary.who == "public":
            return self.event(adversary.shares(self.facts))
        facts, rate = self.facts, 1.0 if adversary.knows_sample else self.user_sampling.rate
        shares, sums, sensitivity = adversary.shares(facts), 1, self.sensitivity
        if adversary.who == "server" and adversary.sees_silo_sums:
            # All silos' shares count: a silo that sent nothing has revealed nothing.
            shares, sums, sensitivity, rate = facts.silos, facts.silos, self._sensitivity_of_sums, 1.0
        if adversary.unsampled:
            sensitivity, rate = math.sqrt(sums) * facts.residual, 1.0
        return self._gaussian(shares, sensitivity, rate, sums)

    @property
    def _sensitivity_of_sums(self) -> float:
        """sigma mu of a round against an adversary who sees each silo's sum, with noise sigma C / sqrt(|S|) each.

        mu^2 = |S| sum_s w_su^2 / sigma^2. Uniform weights: sum_s w_su^2 = 1/|S|. By records it is 1 for a user whose
        records are all in one silo. Without weights it is s, one clip in each of s sums.
        """
        if self.weighting == "uniform":
            return 1.0
        return math.sqrt(
            self.facts.silos
            * (1 if self._has_weights else self.silo_sampling.silos_per_user(self.max_silos, self.facts.silos))
        )

    def _gaussian(self, shares: int, sensitivity: float, sample_rate: float, sums: int = 1) -> Event:
        """The event of a total (or of ``sums`` sums) with ``shares`` shares of noise; ``sensitivity`` in clips."""
        if self.silo_noise_std == 0 or shares <= 0:
            return NonPrivate()
        limit = self.encoding.integer_limit
        multiplier = continuous_multiplier(self.silo_noise_std, shares, limit)
        # The adversary may know where the aggregation rounds. Rounding then adds less than ``facts.rounding``
        # fixed-point units to a user's effect on each of the d coordinates (errata U13). If the adversary sees |S|
        # sums, each with 1/|S| of the noise's variance, this happens in each: sqrt(|S|) (|w| + sqrt(|S|) rounding).
        rounding = self.facts.rounding * math.sqrt(self.facts.dimension) / limit
        event = sampled_gaussian(multiplier / (sensitivity + max(sensitivity, sums) * rounding), sample_rate)
        if not self.facts.residual or not isinstance(event, PoissonSampled):
            return event
        # A user outside the sample still moves the total by the residual. Noise of variance v is the sum of two
        # independent parts, of RESIDUAL_SHARE v and the rest: one covers the residual, whether the user is sampled or
        # not, the other covers the sampled contribution. The total is a function of both.
        always = multiplier * math.sqrt(RESIDUAL_SHARE) / (self.facts.residual + rounding)
        rest = event.event.noise_multiplier * math.sqrt(1 - RESIDUAL_SHARE)
        return Joint(Gaussian(always), PoissonSampled(sample_rate, Gaussian(rest)))

    def check(self) -> None:
        super().check()
        require(
            0 <= self.dropout_tolerance < self.facts.silos,
            "privacy.dropout_tolerance",
            self.dropout_tolerance,
            f"from 0 to below the number of silos ({self.facts.silos})",
        )
        check_share(self.silo_noise_std)
        require(
            self.silo_sampling.all_silos or not self.user_sampling.private,
            "method.fraction",
            self.silo_sampling.fraction,
            "1 with private sampling of users",
        )

    def check_counts(self, counts: IntArray) -> None:
        if not self._has_weights:
            check_max_silos(self.max_silos, counts)

    def caveats(self) -> tuple[Caveat, ...]:
        return () if self._has_weights else max_silos_caveats(self.max_silos, self.facts)


def people_in_a_round(release: Release) -> float:
    """The expected number of people in a round, from public facts."""
    share = release.user_sampling.rate * release.silo_sampling.fraction / release.participation.groups
    return share * release.facts.people


def check_max_silos(max_silos: int, counts: IntArray) -> None:
    """Refuse data in which a user has records in more than ``max_silos`` silos (0 for no bound)."""
    if max_silos and int((counts > 0).sum(axis=0).max(initial=0)) > max_silos:
        raise ConfigError(
            f"a user has records in more than {max_silos} silos; raise it, or leave it out (no limit)",
            location="method.max_silos",
            value=max_silos,
        )


def max_silos_caveats(max_silos: int, facts: PublicFacts) -> tuple[Caveat, ...]:
    """The assumption behind an epsilon that depends on the number of a user's silos."""
    if not max_silos or max_silos >= facts.silos:
        return ()
    return (
        Caveat(
            "max-silos",
            f"Assumed: nobody has records in more than {max_silos} silos (method.max_silos). A simulation checks this; "
            "in a real federation no party can.",
            Severity.WEAKENS,
        ),
    )
