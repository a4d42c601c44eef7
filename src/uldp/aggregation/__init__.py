"""How the silos' vectors become one total: a separate axis from methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from uldp.aggregation.base import Aggregation
from uldp.aggregation.masked import Masked
from uldp.aggregation.paillier import PaillierWeighting
from uldp.aggregation.plain import Plain
from uldp.aggregation.shuffled import Shuffled
from uldp.errors import ConfigError, did_you_mean

AGGREGATIONS: Final[Mapping[str, type[Aggregation]]] = {
    kind.name: kind for kind in (Plain, Masked, PaillierWeighting, Shuffled)
}


def lookup_aggregation(name: str) -> type[Aggregation]:
    """The aggregation called ``name``."""
    if name not in AGGREGATIONS:
        raise ConfigError(
            f"unknown aggregation {name!r}. Known: {', '.join(AGGREGATIONS)}{did_you_mean(name, AGGREGATIONS)}",
            place="aggregation.name",
            value=name,
        )
    return AGGREGATIONS[name]


__all__ = ["AGGREGATIONS", "Aggregation", "lookup_aggregation"]
