"""Accountants: interpret events, refuse what they cannot interpret, and give the smallest epsilon they can prove.

=================== ================================================================= ========================
name                reads                                                             above the truth by
=================== ================================================================= ========================
analytic-gaussian   unsampled Gaussians                                               nothing
pld                 these and Poisson-sampled Gaussians                               at most 0.01 % (*)
mixture-pld         these and groups of Poisson-sampled records                       at most 0.01 % (*)
rdp                 as pld; the papers' figures                                       5 to 10 %
lemma5, lemma6      all of these, by group privacy; for tables                        a factor, growing with k
local               reports that a client perturbed itself (pure local DP)            nothing
=================== ================================================================= ========================

(*) As measured over the settings that docs/privacy.md lists; elsewhere a bound all the same.

The neighbouring relation of all is add/remove: all records of a user are there, or none. ``account_replace_one`` is
for replace-one adjacency.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np

from uldp.errors import ConfigError, did_you_mean, format_value, require, user_code
from uldp.plugins import named_object
from uldp.privacy.events import Composition, Event, LocalReports, NoisedSum, NonPrivate, Single, flatten, ways
from uldp.privacy.gaussian import AnalyticGaussian, gaussian_epsilon, unsampled_mu
from uldp.privacy.groups import Lemma5, Lemma6
from uldp.privacy.local_reports import LocalAccountant
from uldp.privacy.pld import ORDERS, MixturePld, Pld, quick_epsilon, renyi_bounds, renyi_curves
from uldp.privacy.rdp import Rdp, convert_rdp


@dataclass(frozen=True)
class Epsilon:
    """An epsilon, and who computed it."""

    value: float
    accountant: str


class Accountant(Protocol):
    """One way to turn a composition into an epsilon."""

    name: str

    def accepts(self, event: Event) -> bool:
        """Whether it can interpret ``event``."""

    def epsilon(self, composition: Composition, delta: float) -> float:
        """An epsilon that holds for ``composition``, all of whose events it accepts."""


ACCOUNTANTS: tuple[Accountant, ...] = (
    AnalyticGaussian(),
    Pld(),
    MixturePld(),
    Rdp(),
    Lemma5(),
    Lemma6(),
    LocalAccountant(),
)
"""The first one is exact. What the paper published for GROUP is no bound and not among them."""


def check_delta(delta: float) -> float:
    """``delta`` if it is a probability strictly between 0 and 1."""
    require(0 < delta < 1, "privacy.delta", delta, "a number between 0 and 1")
    return delta


def account(composition: Composition, delta: float, accountant: str = "auto") -> Epsilon:
    """The epsilon of ``composition`` by the named accountant, or the smallest valid one of all that can interpret it.

    >>> from uldp.privacy.events import Gaussian
    >>> account({Gaussian(5.0): 100}, 1e-5)
    Epsilon(value=9.997..., accountant='analytic-gaussian')
    """
    check_delta(delta)
    if len(possible := ways(composition)) > 1 or possible[0] is not composition:
        return _worst_way(possible, delta, accountant)
    names = [one.name for one in ACCOUNTANTS]
    if accountant not in names and ":" in accountant:
        events = cast("dict[Event, int]", flatten(composition))
        if any(isinstance(event, NonPrivate) for event in events):
            return Epsilon(math.inf, "none")
        kind = named_object(accountant, "privacy.accountant")
        with user_code(ConfigError, f"{accountant!r} failed", "privacy.accountant"):
            named: Accountant = kind()
            _check_accepted(named, events)
            return Epsilon(float(named.epsilon(events, delta)), accountant)
    if accountant not in ("auto", *names):
        hint = did_you_mean(accountant, names)
        raise ConfigError(
            f"unknown accountant {format_value(accountant)}. Known accountants: auto, {', '.join(names)}{hint}",
            location="privacy.accountant",
            value=accountant,
        )
    return _account(frozenset(flatten(composition).items()), delta, accountant)


def _worst_way(possible: list[Composition], delta: float, accountant: str) -> Epsilon:
    """The largest epsilon of several compositions. Those that a quick bound excludes are not looked at closely."""
    worst = Epsilon(-math.inf, "none")
    bounds = renyi_bounds(possible, delta)
    for bound, way in sorted(zip(bounds, possible, strict=True), key=lambda pair: -pair[0]):
        if bound <= worst.value:
            break
        if quick_epsilon(way, delta) > worst.value:
            worst = max(worst, account(way, delta, accountant), key=lambda epsilon: epsilon.value)
    return worst


@functools.lru_cache(maxsize=4096)  # a run asks for the same composition when it plans, charges and reports
def _account(items: frozenset[tuple[Single, int]], delta: float, name: str) -> Epsilon:
    events: dict[Event, int] = {event: count for event, count in items if not isinstance(event, NonPrivate)}
    if len(events) < len(items):
        return Epsilon(math.inf, "none")
    if name != "auto":
        (named,) = [accountant for accountant in ACCOUNTANTS if accountant.name == name]
        _check_accepted(named, events)
        return Epsilon(named.epsilon(events, delta), named.name)
    able = [accountant for accountant in ACCOUNTANTS if all(map(accountant.accepts, events))]
    if able[:1] == [ACCOUNTANTS[0]]:
        able = able[:1]  # exact: no other one is smaller
    if able:
        found = [Epsilon(accountant.epsilon(events, delta), accountant.name) for accountant in able]
        return min(found, key=lambda epsilon: epsilon.value)
    # Local reports beside noised sums: each has an accountant of its own, they share delta, and epsilons add up.
    local, others = _split_local_reports(items)
    return _add(account(local, delta / 2), account(others, delta / 2))


def _split_local_reports(items: frozenset[tuple[Single, int]]) -> tuple[dict[Event, int], dict[Event, int]]:
    """Local reports, and everything else."""
    local: dict[Event, int] = {event: count for event, count in items if isinstance(event, LocalReports)}
    return local, {event: count for event, count in items if event not in local}


def _add(one: Epsilon, other: Epsilon) -> Epsilon:
    return Epsilon(one.value + other.value, f"{one.accountant} and {other.accountant}")


def _check_accepted(accountant: Accountant, events: Composition) -> None:
    for event in events:
        if not accountant.accepts(event):
            able = ", ".join(other.name for other in ACCOUNTANTS if other.accepts(event))
            raise ConfigError(
                f"{accountant.name} cannot interpret {event}; these can: {able}",
                location="privacy.accountant",
                value=accountant.name,
            )


def account_replace_one(composition: Composition, delta: float) -> Epsilon:
    """The epsilon if a user's records are replaced by others, instead of left out. Of two proofs, the better one.

    *Without sampling* the sum moves by twice as much as when the user leaves, so every release is a Gaussian with half
    its noise: exact for unsampled events, a bound for sampled ones, whose sampling it ignores.

    *Two hops*: the user leaves, then comes back with other records. The Renyi divergences of both hops, of orders a and
    b, add up by Mironov's weak triangle inequality (CSF 2017, Proposition 11), here with p = 1 + (a - 1) / b::

        D_alpha <= b / (b - 1) D_a(leaves) + D_b(comes),   alpha = a b / (a + b - 1)

    For Gaussians nothing is lost (b = a + 1 gives four times the divergence of one hop, as it must be). It holds for a
    group at its exact size, and is smaller than Lemma 5 at 2k, the pencil version of the same argument.
    """
    check_delta(delta)
    return _account_replace_one(frozenset(flatten(composition).items()), delta)


@functools.lru_cache(maxsize=1024)
def _account_replace_one(items: frozenset[tuple[Single, int]], delta: float) -> Epsilon:
    if any(isinstance(event, NonPrivate) for event, _ in items):
        return Epsilon(math.inf, "none")
    local, others = _split_local_reports(items)
    if local:  # local DP is about replaced data from the start
        return (
            account(local, delta)
            if not others
            else _add(account(local, delta / 2), account_replace_one(others, delta / 2))
        )
    events = frozenset((event, count) for event, count in items if isinstance(event, NoisedSum))
    analytic = AnalyticGaussian()
    unsampled = Epsilon(gaussian_epsilon(2 * unsampled_mu(dict(events)), delta), analytic.name)
    if all(analytic.accepts(event) for event, _ in events):
        return unsampled
    left, came = renyi_curves(events)
    a, b = ORDERS[:, None], ORDERS[None, :]
    bounds = convert_rdp(b / (b - 1) * left[:, None] + came[None, :], a * b / (a + b - 1), delta)
    two_hops = Epsilon(max(0.0, float(np.min(bounds))), "rdp, two hops")
    return min(unsampled, two_hops, key=lambda epsilon: epsilon.value)


def compose(*events: Event) -> Composition:
    """Events merged and counted."""
    return Counter(events)
