"""Names for people. A name is looked up once, at the rim; a variant is a field of its method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from uldp.errors import ConfigError, did_you_mean, own_code, shown
from uldp.methods.base import Method
from uldp.methods.central_sub_dp import CentralSubDp
from uldp.methods.fedavg import FedAvg
from uldp.methods.ldp_fedavg import LdpFedAvg
from uldp.methods.local_sub_dp import LocalSubDp
from uldp.methods.record_dp import RecordDp
from uldp.methods.uldp_avg import UldpAvg
from uldp.methods.uldp_group import UldpGroup
from uldp.methods.uldp_naive import UldpNaive
from uldp.methods.uldp_sgd import UldpSgd
from uldp.plugins import import_own


@dataclass(frozen=True)
class Named:
    """A method under a name, with the fields that the name fixes."""

    method: type[Method]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    instead: str = ""
    """A summary of its own, where the method's does not fit."""

    @property
    def summary(self) -> str:
        return self.instead or self.method.summary + (f"; {self.note}" if self.note else "")

    @property
    def protects(self) -> str | None:
        """The unit that is protected."""
        return None if self.fixed.get("mode") == "published" else self.method.unit


METHODS: Final[Mapping[str, Named]] = {
    "default": Named(FedAvg),
    "ldp-fedavg": Named(LdpFedAvg),
    "srr-fl": Named(LdpFedAvg, {"mechanism": "srr", "sends": "weights"}, "staircase randomized response, as published"),
    "ldp-fl": Named(LdpFedAvg, {"mechanism": "two-point", "sends": "weights"}, "two outputs per weight"),
    "central-sub-dp": Named(CentralSubDp),
    "central-sub-dp-published": Named(
        CentralSubDp, {"mode": "published"}, instead="as printed: batches of items, noise that follows from them"
    ),
    "local-sub-dp": Named(LocalSubDp),
    "local-sub-dp-published": Named(
        LocalSubDp, {"mode": "published"}, instead="as printed: DP-SGD with noise that follows from the batches"
    ),
    "record-dp": Named(RecordDp),
    "uldp-naive": Named(UldpNaive),
    "uldp-group": Named(UldpGroup),
    "uldp-group-2": Named(UldpGroup, {"group_size": 2}, "k = 2"),
    "uldp-group-8": Named(UldpGroup, {"group_size": 8}, "k = 8"),
    "uldp-group-median": Named(UldpGroup, {"group_size": "median"}, "k read from the data"),
    "uldp-group-max": Named(UldpGroup, {"group_size": "max"}, "k read from the data, nothing is dropped"),
    "uldp-sgd": Named(UldpSgd),
    "uldp-sgd-w": Named(UldpSgd, {"weighting": "records"}, "silos weigh by record counts"),
    "uldp-avg": Named(UldpAvg),
    "uldp-avg-w": Named(UldpAvg, {"weighting": "records"}, "silos weigh by record counts"),
}


def lookup(name: str) -> Named:
    """The method called ``name``: one of ours, or ``package.module:Class`` for anyone's."""
    if name in METHODS:
        return METHODS[name]
    if ":" not in name:
        raise ConfigError(
            f"unknown method {shown(name)}. Known methods: {', '.join(METHODS)}; your own: 'package.module:Class'"
            + did_you_mean(name, METHODS),
            place="method.name",
            value=name,
        )
    module, _, attribute = name.partition(":")
    with own_code(
        ConfigError, f"cannot import {name!r}; its folder must be the current one or on PYTHONPATH", "method.name"
    ):
        found = getattr(import_own(module), attribute)
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise ConfigError(f"{name!r} is not a subclass of uldp.Method", place="method.name", value=name)
    if missing := ", ".join(sorted(found.__abstractmethods__)):
        raise ConfigError(f"{name!r} lacks {missing}; see docs/add-a-method.md", place="method.name", value=name)
    return Named(found)
