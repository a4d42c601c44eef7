"""Epsilon without an experiment: what a method's settings cost, towards whom.

>>> query = PrivacyQuery.of("uldp-avg", rounds=50, settings={"sample_rate": 0.1})
>>> round(query.epsilon(5.0).value, 3)
0.526
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from uldp.aggregation import lookup_aggregation
from uldp.errors import ConfigError, check_keys, format_value, require
from uldp.experiment.config import build_method
from uldp.experiment.foreign import qualified_name
from uldp.limits import MAX_ROUNDS, MAX_SILOS, check_whole
from uldp.methods.base import Method, settings
from uldp.methods.registry import is_builtin, lookup
from uldp.privacy.accountants import Epsilon, account, account_replace_one
from uldp.privacy.calibrate import calibrate
from uldp.privacy.distance import NO_DISTANCE, Distance
from uldp.privacy.events import Composition, sampled_gaussian
from uldp.privacy.groups import published_epsilon
from uldp.privacy.releases import Adversary, ClippedSilo, GaussianSum, NoisedModel, PublicFacts, Release, views

ADVERSARIES: Final = ("public", "server", "silo")
TABLE_ROUNDS: Final = (1, 10, 50, 100, 200)
TABLE_SILOS: Final = (1, 2, 5, 10)
DIMENSION: Final = 10**6
"""Epsilon depends on the number of parameters only where an aggregation rounds (lattice, paillier): up to so many."""


@dataclass(frozen=True)
class Side:
    """Towards whom: ``adversary`` is "public", "server" or "silo", of which ``colluding`` collude."""

    adversary: str = "public"
    aggregation: str = "masked"
    silos: int = 5
    colluding: int = 1
    dropped: int = 0

    def __post_init__(self) -> None:
        known = f"one of {', '.join(ADVERSARIES)}"
        require(self.adversary in ADVERSARIES, "adversary", self.adversary, known)
        check_whole(self.silos, 1, MAX_SILOS, "silos")
        check_whole(self.colluding, 1, MAX_SILOS, "colluding")
        check_whole(self.dropped, 0, MAX_SILOS, "dropped")
        away = self.dropped + (self.colluding if self.adversary == "silo" else 0)
        if away > self.silos:
            raise ConfigError(f"{away} silos of {self.silos} drop out or collude", location="silos", value=self.silos)
        if self.colluding > 1 and self.adversary != "silo":
            raise ConfigError("goes with the adversary silo", location="colluding", value=self.colluding)
        lookup_aggregation(self.aggregation)

    @property
    def facts(self) -> PublicFacts:
        # Nothing here depends on |U|.
        kind = lookup_aggregation(self.aggregation)()
        return PublicFacts(2, self.silos, DIMENSION, kind.rounding, residual=kind.residual)

    def of(self, release: Release) -> Adversary:
        """The adversary's view of a release under this aggregation."""
        kind = lookup_aggregation(self.aggregation)
        if self.adversary == "public":
            return Adversary(dropped=self.dropped)
        if self.adversary == "server":
            sums, knows = kind.server_sees_each_silo, not release.user_sampling.private
            return Adversary("server", dropped=self.dropped, sees_silo_sums=sums, knows_sample=knows)
        knows = not kind.hides_sample or (self.colluding > 1 and kind.silo_pairs_learn)
        return Adversary("silos", self.colluding, self.dropped, knows_sample=knows)

    def distance(self, release: Release, rounds: int) -> Distance:
        """How far this adversary's view of so many rounds is from what their events describe."""
        kind = lookup_aggregation(self.aggregation)()
        return kind.distance(release).times(rounds) if self.adversary == "server" else NO_DISTANCE


@dataclass(frozen=True)
class PrivacyQuery:
    """A method without its noise, and towards whom it is to be accounted."""

    method: Method
    side: Side
    delta: float
    accountant: str = "auto"
    name: str = ""

    def __post_init__(self) -> None:
        # More than there are silos would be counted as all of them: forgetting `silos` would make epsilon too small.
        silos, tolerance = self.side.silos, self.method.dropout_tolerance
        for location, given, most in (
            ("method.max_silos", getattr(self.method, "max_silos", 0), silos),
            ("privacy.dropout_tolerance", tolerance, silos - 1),
        ):
            require(given <= most, location, given, f"at most {most} with {silos} silos (see silos)")

    @classmethod
    def of(
        cls,
        method: Method | str,
        *,
        rounds: int | None = None,
        settings: Mapping[str, Any] = {},
        dropout_tolerance: int = 0,
        side: Side = Side(),  # noqa: B008
        delta: float = 1e-5,
        accountant: str = "auto",
    ) -> PrivacyQuery:
        """The query about a method: an object, or a name with ``settings`` of ``[method]``."""
        tolerance = check_whole(dropout_tolerance, 0, MAX_SILOS, "privacy.dropout_tolerance")
        built = resolve_method(method, rounds, settings)
        name = method if isinstance(method, str) else qualified_name(type(method))
        return cls(replace(built, dropout_tolerance=tolerance), side, delta, accountant, name)

    def release(self, noise_multiplier: float, **changes: Any) -> Release:
        """What a round releases with this noise, checked."""
        noise = noise_multiplier if self.method.privacy_unit is not None else 0.0
        release = replace(self.method, noise_multiplier=noise, **changes).release(self.side.facts)
        release.check()
        lookup_aggregation(self.side.aggregation)().check(release, self.method.rounds)
        return release

    def view_of_run(self, release: Release, rounds: int | None = None) -> Composition:
        """What the adversary sees of the whole run."""
        rounds = release.participation.rounds_of_a_user(rounds or self.method.rounds)
        return views(release, self.side.of(release), [1] * rounds)

    def epsilon(self, noise_multiplier: float) -> Epsilon:
        """The adversary's epsilon under add/remove adjacency."""
        release = self.release(noise_multiplier)
        return self.accounted(self.view_of_run(release), release)

    def accounted(self, seen: Composition, release: Release, rounds: int = 0, accountant: str = "") -> Epsilon:
        """The adversary's epsilon of ``seen``: the events of so many rounds, by default of all."""
        distance, name = self.side.distance(release, rounds or self.method.rounds), accountant or self.accountant
        found = account(seen, self.delta, name)
        return replace(found, value=distance.epsilon(lambda at: account(seen, at, name).value, self.delta))

    def replace_one(self, noise_multiplier: float) -> float:
        """The adversary's epsilon under replace-one adjacency."""
        release = self.release(noise_multiplier)
        if release.replace_one:
            return self.epsilon(noise_multiplier).value
        seen, distance = self.view_of_run(release), self.side.distance(release, self.method.rounds)
        return distance.epsilon(lambda at: account_replace_one(seen, at).value, self.delta)

    def silos_of_a_user(self) -> int | None:
        """In how many silos a user may have records, where epsilon depends on it."""
        release = self.method.release(self.side.facts)
        if isinstance(release, GaussianSum):
            return (
                None
                if release.user_weighting is not None
                else release.silo_sampling.silos_per_user(release.max_silos, release.facts.silos)
            )
        if isinstance(release, NoisedModel) and release.sampling != "records":
            return release.silo_sampling.silos_per_user(release.max_silos, release.facts.silos)
        return None

    def third_party_names(self) -> tuple[str, ...]:
        """Code that is not ours and on which the response rests."""
        methods = () if is_builtin(self.method) else (qualified_name(type(self.method)),)
        return (*methods, *(name for name in (self.side.aggregation, self.accountant) if ":" in name))

    def noise_multiplier(self, epsilon: float) -> float:
        """The smallest noise with which the run stays within ``epsilon``.

        It must do when as many shares of the noise are missing or known as are tolerated.
        """
        if self.method.privacy_unit is None:
            reason = f"{self.name} adds no noise, so no noise reaches an epsilon"
            raise ConfigError(reason, location="method", value=self.name)
        side, rounds = self.worst().side, self.method.rounds
        return calibrate(
            lambda noise: replace(self, side=side).view_of_run(self.release(noise)),
            epsilon,
            self.delta,
            lambda noise: side.distance(self.release(noise), rounds),
        )

    def worst(self) -> PrivacyQuery:
        """The query with as many silos missing as the noise tolerates."""
        known = self.side.colluding if self.side.adversary == "silo" else 0
        dropped = max(self.side.dropped, self.method.dropout_tolerance - known)
        return replace(self, side=replace(self.side, dropped=dropped))


def resolve_method(method: Method | str, rounds: int | None, changes: Mapping[str, Any]) -> Method:
    """The method with these settings."""
    if rounds is not None:
        if "rounds" in changes:
            raise ConfigError("given twice; leave out one of them", location="method.rounds", value=changes["rounds"])
        changes = {**changes, "rounds": check_whole(rounds, 1, MAX_ROUNDS, "rounds")}
    if isinstance(method, str):
        if "rounds" not in {**changes, **lookup(method).fixed}:
            raise ConfigError("how many rounds?", location="rounds")
        built = build_method(method, changes)
    elif isinstance(method, Method):
        check_keys(changes, sorted(settings(type(method))), "method")
        built = replace(method, **changes)
    else:
        raise ConfigError(f"a name or a uldp.Method, not {format_value(method)}", location="method")
    if built.local:
        reason = "its clients perturb by themselves; `uldp local` says what that costs"
        raise ConfigError(reason, location="method", value=method if isinstance(method, str) else None)
    return built


@dataclass(frozen=True)
class EpsilonTable:
    """Epsilons side by side: the name of the first column, the other columns' names, and the rows."""

    head: str
    columns: tuple[str, ...]
    rows: tuple[tuple[int, tuple[float, ...]], ...]


def side_by_side(query: PrivacyQuery, noise_multiplier: float) -> EpsilonTable:
    """The paper's formula, a valid one and the tight value."""
    release = query.release(noise_multiplier)
    if isinstance(release, NoisedModel) and release.group_size is not None:
        return _by_group_size(query, noise_multiplier, release.group_size)
    if query.silos_of_a_user() is not None:
        return _by_silos(query, noise_multiplier)
    return _by_rounds(query, release, noise_multiplier)


def _by_silos(query: PrivacyQuery, noise_multiplier: float) -> EpsilonTable:
    """For a user with records in several silos, beside one with a single record in one silo."""

    def epsilon(silos: int) -> float:
        release = query.release(noise_multiplier, max_silos=silos)
        return account(query.view_of_run(release), query.delta, query.accountant).value

    given = getattr(query.method, "max_silos", 0) or 1
    silos = sorted({*(s for s in TABLE_SILOS if s <= query.side.silos), given})
    one = epsilon(1)
    return EpsilonTable("silos of a user", ("in one silo", "true"), tuple((s, (one, epsilon(s))) for s in silos))


def _by_group_size(query: PrivacyQuery, noise_multiplier: float, largest: int) -> EpsilonTable:
    rows = []
    for size in sorted({*(2**power for power in range(30) if 2**power <= largest), largest}):
        seen = query.view_of_run(query.release(noise_multiplier, group_size=size))
        values = [published_epsilon(seen, query.delta) if size & (size - 1) == 0 else math.nan]
        values += [account(seen, query.delta, name).value for name in ("lemma6", "lemma5", "auto")]
        rows.append((size, tuple(values)))
    return EpsilonTable("k", ("published", "Lemma 6, valid orders", "Lemma 5", "tight"), tuple(rows))


def _by_rounds(query: PrivacyQuery, release: Release, noise_multiplier: float) -> EpsilonTable:
    rows, rounds = [], query.method.rounds
    for count in sorted({*(t for t in TABLE_ROUNDS if t < rounds), rounds}):
        seen = query.view_of_run(release, count)
        naive = isinstance(release, ClippedSilo)  # its Theorem 1 takes half the sensitivity
        claimed: Composition = {sampled_gaussian(noise_multiplier): count} if naive else seen
        values = [account(claimed, query.delta, "rdp").value]
        values += [query.accounted(seen, release, count, name).value for name in ("rdp", "auto")]
        rows.append((count, tuple(values)))
    return EpsilonTable("rounds", ("published", "valid, by RDP", "tight"), tuple(rows))
