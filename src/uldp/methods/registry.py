"""Names for people. A name is looked up once, at the rim; a variant is a field of its method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Final

from uldp.errors import ConfigError, did_you_mean, format_value, user_code
from uldp.methods.auto import Auto
from uldp.methods.base import PLACEHOLDER_FACTS, Method
from uldp.methods.central_sub_dp import CentralSubDp
from uldp.methods.describe import Describe
from uldp.methods.fedavg import FedAvg
from uldp.methods.ldp_fedavg import LdpFedAvg
from uldp.methods.local_sub_dp import LocalSubDp
from uldp.methods.newton import NewtonSteps
from uldp.methods.record_dp import RecordDp
from uldp.methods.standardized_sgd import StandardizedSgd
from uldp.methods.uldp_avg import UldpAvg
from uldp.methods.uldp_avg_adjusted import UldpAvgAdjusted
from uldp.methods.uldp_group import UldpGroup
from uldp.methods.uldp_naive import UldpNaive
from uldp.methods.uldp_sgd import UldpSgd
from uldp.plugins import is_one_of, named_class
from uldp.privacy.releases import Release


@dataclass(frozen=True)
class NamedMethod:
    """A method under a name, with the fields that the name fixes."""

    method: type[Method]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    @property
    def summary(self) -> str:
        return self.method.summary + (f"; {self.note}" if self.note else "")

    @property
    def with_defaults(self) -> Method:
        """The method with its default settings."""
        with user_code(ConfigError, f"{self.method.__qualname__} cannot be made of its defaults alone", "method"):
            return self.method(**self.fixed)

    @property
    def nominal(self) -> Release | None:
        """What it releases with its default settings; None for a method that needs some to be made."""
        try:
            return self.with_defaults.release(PLACEHOLDER_FACTS)
        except ConfigError:
            return None

    @property
    def local(self) -> bool:
        """Whether clients perturb by themselves, as far as the name alone says."""
        return self.nominal is not None and self.nominal.local


METHODS: Final[Mapping[str, NamedMethod]] = MappingProxyType(
    {
        "auto": NamedMethod(Auto),
        "fedavg": NamedMethod(FedAvg),
        "ldp-fedavg": NamedMethod(LdpFedAvg),
        "srr-fl": NamedMethod(
            LdpFedAvg, {"mechanism": "srr", "sends": "weights"}, "staircase randomized response, as published"
        ),
        "ldp-fl": NamedMethod(LdpFedAvg, {"mechanism": "two-point", "sends": "weights"}, "two outputs per weight"),
        "central-sub-dp": NamedMethod(CentralSubDp),
        "local-sub-dp": NamedMethod(LocalSubDp),
        "record-dp": NamedMethod(RecordDp),
        "uldp-naive": NamedMethod(UldpNaive),
        "uldp-group": NamedMethod(UldpGroup),
        "uldp-group-2": NamedMethod(UldpGroup, {"group_size": 2}, "k = 2"),
        "uldp-group-8": NamedMethod(UldpGroup, {"group_size": 8}, "k = 8"),
        "uldp-group-median": NamedMethod(UldpGroup, {"group_size": "median"}, "k read from the data"),
        "uldp-group-max": NamedMethod(UldpGroup, {"group_size": "max"}, "k read from the data, nothing is dropped"),
        "uldp-sgd": NamedMethod(UldpSgd),
        "uldp-sgd-w": NamedMethod(UldpSgd, {"weighting": "records"}, "silos weigh by record counts"),
        "uldp-avg": NamedMethod(UldpAvg),
        "uldp-avg-w": NamedMethod(UldpAvg, {"weighting": "records"}, "silos weigh by record counts"),
        "uldp-avg-adjusted": NamedMethod(UldpAvgAdjusted),
    }
)
"""Read-only: a class in it counts as ours."""

DESCRIBE: Final = "describe"
"""The method behind ``uldp describe``. It trains nothing, so it is not listed among those that do."""

COEFFICIENTS: Final = "coefficients"
"""The method behind ``uldp coefficients``, which is not listed either: it wants a trained model."""
_UNLISTED: Final[Mapping[str, NamedMethod]] = MappingProxyType(
    {DESCRIBE: NamedMethod(Describe), COEFFICIENTS: NamedMethod(NewtonSteps)}
)

RENAMED: Final = {"default": "fedavg"}
"""Names of earlier versions, and what they are called now."""
AS_PRINTED: Final = {f"{name}-published": name for name in ("central-sub-dp", "local-sub-dp")}
"""Names of earlier versions that kept no guarantee, and the algorithms."""


_STAND_INS: Final = (StandardizedSgd,)
"""What methods of the registry turn into where facts say so; nobody names them."""


def is_builtin(method: Method) -> bool:
    """Whether the method's code is ours: what it asserts about its rows was proven here, not by somebody else."""
    named = (named.method for named in (*METHODS.values(), *_UNLISTED.values()))
    return is_one_of(method, (*named, *_STAND_INS))


def rebuild_method(method: Method) -> Method:
    """A copy of a built-in ``method``, made of its settings alone; any other method is returned as it is.

    Whoever hung a function of their own onto the instance would otherwise make its rows without being named.
    """
    if not is_builtin(method):
        return method
    return type(method)(**{item.name: getattr(method, item.name) for item in fields(method)})


def lookup(name: str) -> NamedMethod:
    """The method called ``name``: one of ours, or ``package.module:Class`` for anyone's."""
    if name in METHODS:
        return METHODS[name]
    if name in _UNLISTED:
        return _UNLISTED[name]
    if name in RENAMED:
        raise ConfigError(f"{name!r} is called {RENAMED[name]!r} now", location="method.name", value=name)
    if name in AS_PRINTED:
        raise ConfigError(
            f"{name!r} keeps no guarantee and is no method any more; `uldp published {AS_PRINTED[name]}` trains it as "
            "printed",
            location="method.name",
            value=name,
        )
    if ":" not in name:
        raise ConfigError(
            f"unknown method {format_value(name)}. Known methods: {', '.join(METHODS)}; your own: "
            "'package.module:Class'" + did_you_mean(name, METHODS),
            location="method.name",
            value=name,
        )
    found = named_class(name, Method, "method.name")
    known = {item.name for item in fields(found)}
    hints = vars(found).get("__annotations__", {})
    if odd := [key for key, hint in hints.items() if key not in known and "ClassVar" not in str(hint)]:
        raise ConfigError(
            f"{name!r} has {odd[0]} as an annotation and not as a setting; put @dataclass(frozen=True, kw_only=True) "
            "above the class",
            location="method.name",
            value=name,
        )
    return NamedMethod(found)
