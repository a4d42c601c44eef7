"""Names of the local mechanisms. A name is looked up once, at the rim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, Final

from uldp.errors import ConfigError, did_you_mean
from uldp.mechanisms.hybrid import Hybrid
from uldp.mechanisms.local_mechanism import LocalMechanism
from uldp.mechanisms.piecewise import Piecewise
from uldp.mechanisms.response import RandomizedResponse
from uldp.mechanisms.staircase import StaircaseResponse
from uldp.mechanisms.two_point import TwoPoint

LOCAL_MECHANISMS: Final[Mapping[str, type[LocalMechanism]]] = MappingProxyType(
    {mechanism.name: mechanism for mechanism in (StaircaseResponse, TwoPoint, RandomizedResponse, Piecewise, Hybrid)}
)


def local_mechanism(name: str, **settings: Any) -> LocalMechanism:
    """The mechanism called ``name`` with these settings.

    >>> local_mechanism("srr", epsilon=3.0, groups=2).name
    'srr'
    """
    if name not in LOCAL_MECHANISMS:
        known = ", ".join(LOCAL_MECHANISMS) + did_you_mean(str(name), LOCAL_MECHANISMS)
        unknown = f"unknown local mechanism {name!r}. Known: {known}"
        raise ConfigError(unknown, location="method.mechanism", value=name)
    mechanism = LOCAL_MECHANISMS[name]
    known_settings = [field.name for field in fields(mechanism)]
    for key in settings:
        if key not in known_settings:
            unknown = f"{name!r} has no setting {key!r}. Its settings: {', '.join(known_settings)}"
            raise ConfigError(unknown, location=f"method.{key}", value=key)
    if "epsilon" not in settings:
        raise ConfigError("give the epsilon of one weight, such as 3", location="method.epsilon_weight")
    return mechanism(**settings)
