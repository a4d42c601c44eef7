"""How the silos' vectors become one total: a separate axis from methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Final, Protocol

from uldp.aggregation.plain import Plain
from uldp.errors import ConfigError
from uldp.vectors import Words


class Aggregation(Protocol):
    """What sessions ask of an aggregation."""

    name: ClassVar[str]
    server_sees_each_silo: ClassVar[bool]

    def protect(self, words: Words, silo: int, round_: int) -> Words: ...

    def combine(self, protected: Iterable[Words], dimension: int) -> Words: ...


AGGREGATIONS: Final[Mapping[str, type[Plain]]] = {Plain.name: Plain}


def aggregation(name: str) -> Aggregation:
    """The aggregation called ``name``."""
    if name not in AGGREGATIONS:
        raise ConfigError(
            f"unknown aggregation {name!r}. Known: {', '.join(AGGREGATIONS)}",
            place="aggregation.name",
            value=name,
        )
    return AGGREGATIONS[name]()


__all__ = ["AGGREGATIONS", "Aggregation", "Plain", "aggregation"]
