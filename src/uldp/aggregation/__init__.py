"""How the silos' vectors become one total: a separate axis from methods."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from uldp.aggregation.base import Aggregation
from uldp.aggregation.lattice import LatticeWeighting
from uldp.aggregation.masked import Masked
from uldp.aggregation.paillier import PaillierWeighting
from uldp.aggregation.plain import Plain
from uldp.aggregation.shuffled import Shuffled
from uldp.errors import ConfigError, did_you_mean, format_value
from uldp.plugins import is_one_of, named_class

AGGREGATIONS: Final[Mapping[str, type[Aggregation]]] = MappingProxyType(
    {kind.name: kind for kind in (Plain, Masked, LatticeWeighting, PaillierWeighting, Shuffled)}
)


def is_builtin(aggregation: Aggregation) -> bool:
    """Whether the aggregation's code is ours."""
    return is_one_of(aggregation, AGGREGATIONS.values())


def lookup_aggregation(name: str) -> type[Aggregation]:
    """The aggregation called ``name``: one of ours, or ``package.module:Class`` for anyone's."""
    if name in AGGREGATIONS:
        return AGGREGATIONS[name]
    if ":" in name:
        found: type[Aggregation] = named_class(name, Aggregation, "aggregation.name")
        return found
    raise ConfigError(
        f"unknown aggregation {format_value(name)}. Known: {', '.join(AGGREGATIONS)}; your own: 'package.module:Class'"
        + did_you_mean(name, AGGREGATIONS),
        location="aggregation.name",
        value=name,
    )


__all__ = ["AGGREGATIONS", "Aggregation", "is_builtin", "lookup_aggregation"]
