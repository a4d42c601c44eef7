"""Which release types are ours, and how a plan takes one over from a method that may not be."""

from __future__ import annotations

from dataclasses import fields
from numbers import Integral, Real
from typing import Any, Final

from uldp.errors import ConfigError
from uldp.mechanisms.local_registry import LOCAL_MECHANISMS
from uldp.privacy.releases.base import PublicFacts, Release, Unprotected
from uldp.privacy.releases.clipped_silo import ClippedSilo
from uldp.privacy.releases.gaussian_sum import GaussianSum
from uldp.privacy.releases.local_perturbation import Layer, LocalPerturbation
from uldp.privacy.releases.noised_model import NoisedModel
from uldp.privacy.releases.sampling import Participation, SiloSampling, UserSampling

OWN_RELEASES: Final[frozenset[type[Release]]] = frozenset(
    {ClippedSilo, GaussianSum, LocalPerturbation, NoisedModel, Unprotected}
)
"""The release types whose events are proven here. Whoever brings another one asserts its event."""

_PARTS: Final = frozenset({Participation, PublicFacts, SiloSampling, UserSampling, Layer, *LOCAL_MECHANISMS.values()})


def sealed(release: Release) -> Release:
    """``release``, made again of plain numbers and parts of ours.

    The method that made it may keep it and change it, or have hung an event of its own onto it; who draws the noise and
    who accounts for it then would not read the same. A type that is not ours is left as it is.

    >>> sum_ = GaussianSum(facts=PublicFacts(100, 5, 10), clip=1.0, noise_multiplier=5.0)
    >>> sealed(sum_) == sum_, sealed(sum_) is sum_
    (True, False)
    """
    return _made_again(release) if type(release) in OWN_RELEASES else release


def _made_again(value: Any) -> Any:
    return type(value)(**{item.name: _plain(item.name, getattr(value, item.name)) for item in fields(value)})


def _plain(name: str, value: Any) -> Any:
    """The value of a field, as nothing but what it stands for."""
    match value:
        case None | bool():
            return value
        case str():
            return "".join(value)  # a subclass may write itself otherwise
        case Integral():
            return int(value)
        case Real():
            return float(value)
        case tuple():
            return tuple(_plain(name, one) for one in value)
    if type(value) in _PARTS:
        return _made_again(value)
    raise ConfigError(f"{name} of its release is a {type(value).__name__}, not one of ours", location="method")
