"""Accountants: interpret events, refuse what they cannot interpret, and give the smallest epsilon they can prove.

Two are here. *Analytic Gaussian* (Balle and Wang, ICML 2018) is exact for compositions of unsampled Gaussians, which
are one Gaussian: mu^2 = sum of 1/sigma^2. *PLD* composes privacy loss distributions numerically (Google's
dp-accounting, pessimistic rounding) and handles Poisson sampling. The neighbouring relation of both is add/remove.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from uldp.errors import ConfigError
from uldp.privacy.events import Event, Gaussian, NonPrivate, PoissonSampled

Composition = Mapping[Event, int]
"""Events and how often each happened; equal events are merged before anything is computed."""


@dataclass(frozen=True)
class Epsilon:
    """An epsilon, and who computed it."""

    value: float
    accountant: str


class Accountant(Protocol):
    """One way to turn a composition into an epsilon."""

    name: str

    def accepts(self, event: Event) -> bool: ...

    def epsilon(self, composition: Composition, delta: float) -> float: ...


def check_delta(delta: float) -> float:
    """``delta`` if it is a probability strictly between 0 and 1."""
    if not 0 < delta < 1:
        raise ConfigError(f"a number between 0 and 1, not {delta}", place="privacy.delta", value=delta)
    return delta


def gaussian_delta(epsilon: float, mu: float) -> float:
    """delta(epsilon) of a Gaussian with sensitivity/deviation ``mu``: Balle and Wang, Theorem 8."""
    from scipy.special import log_ndtr

    first = log_ndtr(-epsilon / mu + mu / 2)
    second = epsilon + log_ndtr(-epsilon / mu - mu / 2)
    if second >= first:  # equal up to rounding: the difference is below what float64 shows
        return 0.0
    return float(math.exp(first) * -math.expm1(second - first))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The epsilon of a Gaussian with sensitivity/deviation ``mu``, bisected from the safe side.

    >>> round(gaussian_epsilon(math.sqrt(100) / 5, 1e-5), 3)
    9.997
    """
    if mu == 0 or gaussian_delta(0.0, mu) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(high, mu) > delta:
        high *= 2
    low = 0.0
    while high - low > 1e-12 * max(1.0, high):
        middle = (low + high) / 2
        if gaussian_delta(middle, mu) > delta:
            low = middle
        else:
            high = middle
    return high


class AnalyticGaussian:
    """Exact for unsampled Gaussians."""

    name = "analytic-gaussian"

    def accepts(self, event: Event) -> bool:
        return isinstance(event, Gaussian)

    def epsilon(self, composition: Composition, delta: float) -> float:
        squares = (
            count / event.noise_multiplier**2 for event, count in composition.items() if isinstance(event, Gaussian)
        )
        return gaussian_epsilon(math.sqrt(sum(squares)), check_delta(delta))


class Pld:
    """Privacy loss distributions: tight up to a pessimistic grid, for Poisson-sampled Gaussians too."""

    name = "pld"

    def accepts(self, event: Event) -> bool:
        return isinstance(event, Gaussian | PoissonSampled)

    def epsilon(self, composition: Composition, delta: float) -> float:
        check_delta(delta)
        total: Any = None
        for event, count in composition.items():
            single = _single_pld(event)
            composed = single.self_compose(count) if count > 1 else single
            total = composed if total is None else total.compose(composed)
        return 0.0 if total is None else float(total.get_epsilon_for_delta(delta))


@functools.lru_cache(maxsize=64)
def _single_pld(event: Event) -> Any:
    from dp_accounting.pld import privacy_loss_distribution

    if isinstance(event, PoissonSampled):
        noise_multiplier, sample_rate = event.event.noise_multiplier, event.sample_rate
    elif isinstance(event, Gaussian):
        noise_multiplier, sample_rate = event.noise_multiplier, 1.0
    else:
        raise ConfigError(f"PLD cannot interpret {event}", place="privacy")
    # The loss of one step grows as 1/sigma^2: the grid grows with it, or little noise would take minutes.
    interval = 3e-4 * max(1.0, noise_multiplier**-2)
    with np.errstate(all="ignore"):
        return privacy_loss_distribution.from_gaussian_mechanism(
            noise_multiplier, sampling_prob=sample_rate, value_discretization_interval=interval
        )


ACCOUNTANTS: tuple[Accountant, ...] = (AnalyticGaussian(), Pld())


def account(composition: Composition, delta: float) -> Epsilon:
    """The epsilon of ``composition`` by the first accountant that can interpret all of its events."""
    check_delta(delta)
    return _account(frozenset((event, count) for event, count in composition.items() if count > 0), delta)


@functools.lru_cache(maxsize=4096)  # a run asks for the same composition when it plans, charges and reports
def _account(items: frozenset[tuple[Event, int]], delta: float) -> Epsilon:
    merged = dict(items)
    if any(isinstance(event, NonPrivate) for event in merged):
        return Epsilon(math.inf, "none")
    for accountant in ACCOUNTANTS:
        if all(accountant.accepts(event) for event in merged):
            return Epsilon(accountant.epsilon(merged, delta), accountant.name)
    kinds = sorted({type(event).__name__ for event in merged})
    raise ConfigError(f"no accountant interprets {', '.join(kinds)}", place="privacy")


def compose(*events: Event) -> Composition:
    """Events merged and counted."""
    return Counter(events)
