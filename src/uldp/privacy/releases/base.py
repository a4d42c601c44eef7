"""What a round releases, as one frozen value.

A method makes a release from its settings and the public facts. The aggregation draws the noise from it, the
accountant reads the event from it, and the statement asks it what each adversary sees. Rows pass through
:meth:`Release.rows`, which enforces what the event assumes of them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Protocol

from uldp.caveats import Caveat
from uldp.data.federation import IntArray, SiloData
from uldp.learners.base import Learner
from uldp.privacy.events import Event, NonPrivate
from uldp.privacy.ledger import merge
from uldp.privacy.releases.counts import CountExchange
from uldp.privacy.releases.sampling import Participation, SiloSampling, UserSampling
from uldp.privacy.releases.sums import Contribution
from uldp.rng import Secrets, Streams
from uldp.vectors import FixedPoint, Vector


@dataclass(frozen=True)
class PublicFacts:
    """What everybody knows about a federation. A release depends on it and on the settings alone.

    Args:
        users: |U|, the number of user indices.
        silos: |S|.
        dimension: d, the number of model parameters.
        rounding: By how many fixed-point units the aggregation rounds each coordinate of the total, where an
            adversary may know the rounding.
        people: About how many people there are, where ids are hashed into more ``users`` than that; no guarantee
            depends on it.
        task: What is learned: ``classification``, ``regression`` or ``survival``.
        category_columns: How many columns are categories, of which one feature is 1 in every record.
        linear_outputs: How many outputs the model W f + b of the features f has; 0 for another model.
        feature_norm: A bound on the L2 norm of a record's features, from the schema; infinity without one.
        silo_names: Their names, in the order of settings that have a value for each silo.
        residual: How far, in clips, a user outside the round's sample still moves the total, where the aggregation
            cannot leave them out exactly.

    Example:
        >>> PublicFacts(users=100, silos=5, dimension=10).people
        100
    """

    users: int
    silos: int
    dimension: int
    rounding: float = 0
    people: int = 0
    task: str = "classification"
    category_columns: int = 0
    linear_outputs: int = 0
    feature_norm: float = math.inf
    residual: float = 0.0
    silo_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "people", self.people or self.users)

    def in_round(self, round_: int, silos_heard: int) -> RoundFacts:
        """These facts with those of a round that has ended.

        Args:
            round_: The round's number, from 1 up.
            silos_heard: How many silos took part.
        """
        return RoundFacts(**vars(self), round=round_, silos_heard=silos_heard)


@dataclass(frozen=True)
class RoundFacts(PublicFacts):
    """What everybody knows about a round that has ended.

    Args:
        round: Its number, from 1 up.
        silos_heard: How many silos took part; the shares of the others are missing from the noise.

    Example:
        >>> PublicFacts(users=100, silos=5, dimension=10).in_round(1, silos_heard=4).silos_heard
        4
    """

    round: int = 1
    silos_heard: int = 1


@dataclass(frozen=True)
class Adversary:
    """Against whom an epsilon holds: anyone who sees the released models, the server, or colluding silos.

    Args:
        who: ``public``, ``server`` or ``silos``.
        colluding: How many silos collude, where ``who`` is ``silos``.
        dropped: How many silos sent nothing; their shares of the noise are missing from the total.
        sees_silo_sums: Whether the server sees each silo's sum; the aggregation decides.
        knows_sample: Whether the adversary knows which users were sampled; the public never does.
        unsampled: Whether the view is of a user outside the round's sample, as the adversary knows.
        with_silo: Whether the server colludes with a silo, which knows its own share of the noise.

    Example:
        >>> Adversary("silos", colluding=2).shares(PublicFacts(users=100, silos=5, dimension=10))
        3
    """

    who: Literal["public", "server", "silos"] = "public"
    colluding: int = 1
    dropped: int = 0
    sees_silo_sums: bool = True
    knows_sample: bool = True
    unsampled: bool = False
    with_silo: bool = False

    @property
    def own_shares(self) -> int:
        """How many shares of the noise this adversary knows."""
        return self.colluding if self.who == "silos" else int(self.with_silo)

    def shares(self, facts: PublicFacts) -> int:
        """How many shares of the noise this adversary cannot subtract from the total.

        Args:
            facts: The federation.
        """
        return max(0, facts.silos - self.dropped - self.own_shares)


class SiloPart(Protocol):
    """What a release asks of a method: its part inside a silo."""

    def silo(self, x: Vector, data: SiloData, learner: Learner, streams: Streams) -> Iterator[Contribution]:
        """Rows that are functions of one user's records each (or of the silo's), from the model x."""
        ...


@dataclass(frozen=True, kw_only=True)
class Release(ABC):
    """What all silos together release in a round: sensitivity, encoding, noise and event in one frozen value.

    Args:
        facts: The federation it is made for.
        user_sampling: Which users take part in a round.
        participation: Which group of users a round is about, where they take turns.
        silo_sampling: Which silos take part in a round.
        dropout_tolerance: How many shares of the noise may be missing or known without a larger epsilon.

    Example:
        >>> from uldp.privacy.releases import GaussianSum
        >>> release = GaussianSum(facts=PublicFacts(100, 5, 10), clip=1.0, noise_multiplier=5.0)
        >>> release.privacy_unit, [round(release.event(silos).noise_multiplier, 6) for silos in (5, 4)]
        ('user', [5.0, 4.472136])
    """

    facts: PublicFacts
    user_sampling: UserSampling = field(default_factory=UserSampling)
    participation: Participation = field(default_factory=Participation)
    silo_sampling: SiloSampling = field(default_factory=SiloSampling)
    dropout_tolerance: int = 0

    shared_noise: ClassVar[bool] = False
    """Whether the noise of the total is the sum of shares, one from each silo; an adversary may know some of them."""
    replace_one: ClassVar[bool] = False
    """Whether the event also holds under replace-one adjacency: a user's records are replaced, not removed."""
    local: ClassVar[bool] = False
    """Local DP: every client perturbs its own values, and ``[privacy]`` has no noise multiplier."""

    @property
    @abstractmethod
    def privacy_unit(self) -> str | None:
        """Whom the guarantee protects: "user", "record" or "client"; None for a release without one."""

    @property
    @abstractmethod
    def encoding(self) -> FixedPoint:
        """How rows become integers."""

    @abstractmethod
    def rows(
        self, method: SiloPart, x: Vector, data: SiloData, learner: Learner, streams: Streams, secrets: Secrets
    ) -> Iterator[Contribution]:
        """A silo's rows, within what :meth:`event` assumes of them.

        Args:
            method: Computes the rows, from the silo's records.
            x: The current model.
            data: The silo's records that take part in the round.
            learner: Trains the model.
            streams: Randomness that may be public (order of records, dropout layers).
            secrets: Randomness that the guarantee rests on.
        """

    @abstractmethod
    def event(self, silos_heard: int) -> Event:
        """What a round releases, for the accountant.

        Args:
            silos_heard: How many silos took part in the round.
        """

    @property
    def silo_noise_std(self) -> float:
        """The standard deviation of the noise that one silo adds to its sum, in fixed-point units."""
        return 0.0

    def noise_variance(self, silos_heard: int) -> float:
        """The variance of the noise in each coordinate of the total.

        Args:
            silos_heard: How many silos took part in the round.
        """
        return silos_heard * (self.silo_noise_std * self.encoding.limit / self.encoding.integer_limit) ** 2

    @property
    def max_rows(self) -> int:
        """An upper bound on the sum of all rows' weights."""
        return self.facts.silos

    @property
    def exchange(self) -> CountExchange | None:
        """What silos must learn about record counts before the first round."""
        return None

    @property
    def user_weighting(self) -> str | None:
        """``uniform`` or ``records``, for aggregations that apply the weights themselves; None without weights."""
        return None

    def weights(self, counts: IntArray, user_totals: IntArray | None) -> Vector | None:
        """w_su for all users of one silo, each from that user's counts only; None where all weights are 1.

        Args:
            counts: How many records each user has in the silo.
            user_totals: How many each user has in all silos; None where the silo does not know it.
        """
        return None

    def select(self, data: SiloData, user_totals: IntArray | None, streams: Streams) -> SiloData:
        """The records that take part, the same in every round.

        Args:
            data: All records of the silo.
            user_totals: How many records each user has in all silos; None where the silo does not know it.
            streams: Randomness for the selection.
        """
        return data

    def view(self, adversary: Adversary) -> Event:
        """What an adversary sees of a round. By default the guarantee holds against the public only.

        Args:
            adversary: Who it is, and what else it knows.
        """
        return self.event(adversary.shares(self.facts)) if adversary.who == "public" else NonPrivate()

    def check(self) -> None:
        """Refuse settings under which a sum could overflow or the noise would not be what the event says."""
        self.silo_sampling.check(self.facts.silos)
        self.encoding.check_range(self.max_rows, self.silo_noise_std * self.facts.silos**0.5)

    def check_counts(self, counts: IntArray) -> None:  # noqa: B027
        """Refuse data that break what the guarantee assumes. Called in a simulation only: no party has all counts.

        Args:
            counts: (silos, users): how many records each user has in each silo.
        """

    def caveats(self) -> tuple[Caveat, ...]:
        """What a privacy statement must say about this release."""
        return ()


@dataclass(frozen=True, kw_only=True)
class Unprotected(Release):
    """Rows without clip or noise, for the non-private baseline.

    Args:
        value_range: Rows are still summed as integers, so coordinates beyond this are cut off; the run reports how
            many were.

    Example:
        >>> Unprotected(facts=PublicFacts(users=100, silos=5, dimension=10)).event(5)
        NonPrivate()
    """

    value_range: float = 1024.0

    @property
    def privacy_unit(self) -> None:
        return None

    @property
    def encoding(self) -> FixedPoint:
        return FixedPoint(limit=self.value_range, bits=48, saturate=True)

    def rows(
        self, method: SiloPart, x: Vector, data: SiloData, learner: Learner, streams: Streams, secrets: Secrets
    ) -> Iterator[Contribution]:
        return method.silo(x, data, learner, streams)

    def event(self, silos_heard: int) -> Event:
        return NonPrivate()


def views(release: Release, adversary: Adversary, releases: Sequence[int]) -> Mapping[Event, int]:
    """What an adversary sees of several rounds, with these numbers of releases (one, but for repeated rounds).

    Releases of one round share its sample, so they are merged before they are composed. Against an adversary who knows
    the sample there is no amplification, but no user is in more rounds than the limit. Against the public the limit
    costs nothing: given what was seen before, a user is sampled with probability at most q.
    """
    limit = release.user_sampling.max_participations
    others = 0
    if limit and adversary.who != "public" and adversary.knows_sample:
        most = sorted(releases, reverse=True)
        releases, others = most[:limit], sum(most[limit:])
    event = release.view(adversary)
    found = Counter(seen for count in releases for seen in merge([event] * count))
    if others and release.facts.residual:
        found[release.view(replace(adversary, unsampled=True))] += others
    return found
