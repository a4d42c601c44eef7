"""Several adversaries against several mechanisms, as ``uldp attack inference`` plays them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final

from uldp.attacks.estimators import ADVERSARIES, LocalAdversary
from uldp.attacks.inference import Outcome, Scene, attack
from uldp.errors import ConfigError, did_you_mean
from uldp.mechanisms.local_mechanism import LocalMechanism
from uldp.mechanisms.local_registry import LOCAL_MECHANISMS, local_mechanism
from uldp.mechanisms.staircase import StaircaseResponse, largest_delta
from uldp.rng import Secrets, Streams

_PUBLISHED: Final = (1501, 10, 20.0)
"""g, m and Delta(d) of the paper's experiments."""


def mechanisms_of(names: Sequence[str], epsilons: Sequence[float], settings: dict[str, Any]) -> list[LocalMechanism]:
    """Each mechanism with each epsilon; a setting goes to those that have it."""
    if not names:
        raise ConfigError("give at least one mechanism, such as srr", location="method.mechanism")
    built = []
    for name in names:
        known = {field.name for field in fields(LOCAL_MECHANISMS[name])} if name in LOCAL_MECHANISMS else set()
        own = {key: value for key, value in settings.items() if key in known}
        if "delta" in own and own["delta"] is None:
            own["delta"] = _published_delta(settings)
        built += [local_mechanism(name, epsilon=epsilon, **own) for epsilon in epsilons]
    return built


def _published_delta(settings: dict[str, Any]) -> float:
    """The paper's Delta(d), which is about 0.6 of the largest possible one, for another grid."""
    groups = settings["groups"]
    size = StaircaseResponse(**{**settings, "epsilon": 1.0, "delta": 0.0}).grid.size
    if groups == 1:
        return 0.0
    size_then, groups_then, delta = _PUBLISHED
    return delta * float(largest_delta(size, groups) / largest_delta(size_then, groups_then))


def chosen_adversaries(names: Sequence[str], mechanisms: Sequence[LocalMechanism]) -> list[LocalAdversary]:
    """The named ones, or all. One that fits none of the mechanisms is refused."""
    for name in names:
        if name not in ADVERSARIES:
            raise ConfigError(
                f"unknown adversary {name!r}. Known: {', '.join(ADVERSARIES)}" + did_you_mean(name, ADVERSARIES),
                location="adversary",
                value=name,
            )
        if not any(ADVERSARIES[name].fits(mechanism) for mechanism in mechanisms):
            reasons = misfits(ADVERSARIES[name], mechanisms)
            listed = "; ".join(f"{name!r} does not work on {on}: {why}" for on, why in reasons.items())
            raise ConfigError(listed, location="adversary", value=name)
    return [ADVERSARIES[name] for name in names or ADVERSARIES]


def misfits(adversary: LocalAdversary, mechanisms: Sequence[LocalMechanism]) -> dict[str, str]:
    """The mechanisms that an adversary cannot be used on, and why."""
    found = {mechanism.name: adversary.misfit(mechanism) for mechanism in mechanisms}
    return {name: why for name, why in found.items() if why}


def play(
    mechanisms: Sequence[LocalMechanism], adversaries: Sequence[LocalAdversary], scene: Scene, seed: int
) -> list[Outcome]:
    """The outcomes of every adversary against every mechanism that it fits."""
    streams, secrets = Streams.from_seed(seed), Secrets.simulated_from_seed(seed)
    outcomes: list[Outcome] = []
    for mechanism in mechanisms:
        path = ("attack", mechanism.name, repr(mechanism.epsilon))
        outcomes += attack(mechanism, adversaries, scene, streams.child(*path), secrets.child(*path))
    return outcomes
