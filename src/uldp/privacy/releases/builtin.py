"""The release types of uldp, and how a plan takes one from a method that may be third-party code."""

from __future__ import annotations

from dataclasses import fields
from numbers import Integral, Real
from typing import Any, Final

from uldp.errors import ConfigError
from uldp.mechanisms.local_registry import LOCAL_MECHANISMS
from uldp.plugins import is_one_of
from uldp.privacy.releases.base import PublicFacts, Release, Unprotected
from uldp.privacy.releases.clipped_silo import ClippedSilo
from uldp.privacy.releases.gaussian_sum import GaussianSum
from uldp.privacy.releases.local_perturbation import Layer, LocalPerturbation
from uldp.privacy.releases.noised_model import NoisedModel
from uldp.privacy.releases.sampling import Participation, SiloSampling, UserSampling

BUILTIN_RELEASES: Final[frozenset[type[Release]]] = frozenset(
    {ClippedSilo, GaussianSum, LocalPerturbation, NoisedModel, Unprotected}
)
"""The release types whose events are proven here. The event of any other type is its author's assertion."""

_PARTS: Final = frozenset({Participation, PublicFacts, SiloSampling, UserSampling, Layer, *LOCAL_MECHANISMS.values()})


def rebuild_release(release: Release) -> Release:
    """A copy of a built-in ``release``, made of plain numbers and built-in parts; any other type is returned as it is.

    The method that made the release could change it afterwards, or could have replaced its ``event``: the noise that is
    drawn and the noise that is accounted for would then differ.

    >>> sum_ = GaussianSum(facts=PublicFacts(100, 5, 10), clip=1.0, noise_multiplier=5.0)
    >>> rebuild_release(sum_) == sum_, rebuild_release(sum_) is sum_
    (True, False)
    """
    return _rebuild(release) if is_one_of(release, BUILTIN_RELEASES) else release


def _rebuild(value: Any) -> Any:
    """A copy of a dataclass of uldp, made of its fields alone: what was hung onto the instance is not in it."""
    return type(value)(**{item.name: _plain(item.name, getattr(value, item.name)) for item in fields(value)})


def _plain(name: str, value: Any) -> Any:
    """The value of a field, as a plain number or string, or rebuilt."""
    if value is None or value is True or value is False:  # an object may say of itself that it is a bool
        return value
    match value:
        case str():
            return "".join(value)  # a subclass may write itself otherwise
        case Integral():
            return int(value)
        case Real():
            return float(value)
        case tuple():
            return tuple(_plain(name, one) for one in value)
    if is_one_of(value, _PARTS):
        return _rebuild(value)
    raise ConfigError(f"{name} is a {type(value).__name__}, which is not part of uldp", location="method")
