"""What a method releases, as data. A method states events; only an accountant makes an epsilon of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from uldp.errors import ConfigError


@dataclass(frozen=True)
class Gaussian:
    """A sum with sensitivity 1 and Gaussian noise of standard deviation ``noise_multiplier``."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        if not 0 < self.noise_multiplier < math.inf:
            raise ConfigError(
                f"a positive number, not {self.noise_multiplier}",
                place="noise_multiplier",
                value=self.noise_multiplier,
            )


@dataclass(frozen=True)
class PoissonSampled:
    """``event`` on a sample that takes every user independently with probability ``sample_rate``."""

    sample_rate: float
    event: Gaussian

    def __post_init__(self) -> None:
        if not 0 < self.sample_rate <= 1:
            raise ConfigError(
                f"a probability above 0 and at most 1, not {self.sample_rate}",
                place="sample_rate",
                value=self.sample_rate,
            )


@dataclass(frozen=True)
class NonPrivate:
    """A release without any bound."""


Event = Gaussian | PoissonSampled | NonPrivate


def sampled_gaussian(noise_multiplier: float, sample_rate: float = 1.0) -> Event:
    """The event of a noised sum; no noise is no privacy."""
    if noise_multiplier == 0:
        return NonPrivate()
    event = Gaussian(noise_multiplier)
    return event if sample_rate == 1 else PoissonSampled(sample_rate, event)


def event_to_json(event: Event) -> dict[str, Any]:
    match event:
        case Gaussian(noise_multiplier):
            return {"event": "gaussian", "noise_multiplier": noise_multiplier}
        case PoissonSampled(sample_rate, inner):
            return {"event": "poisson-sampled", "sample_rate": sample_rate, "of": event_to_json(inner)}
        case NonPrivate():
            return {"event": "non-private"}


def event_from_json(tree: dict[str, Any]) -> Event:
    match tree:
        case {"event": "gaussian", "noise_multiplier": float(noise_multiplier)}:
            return Gaussian(noise_multiplier)
        case {"event": "poisson-sampled", "sample_rate": float(sample_rate), "of": dict(inner)}:
            event = event_from_json(inner)
            if isinstance(event, Gaussian):
                return PoissonSampled(sample_rate, event)
        case {"event": "non-private"}:
            return NonPrivate()
    raise ConfigError(f"unknown privacy event {tree!r}", place="ledger", value=repr(tree))
