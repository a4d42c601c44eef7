"""The same experiment with other settings: overrides as they are typed, another method, a data set's preset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from uldp.errors import ConfigError, check_keys
from uldp.experiment.config import AUTO
from uldp.experiment.presets import EPSILON
from uldp.experiment.sections import Tree, is_removal, with_override
from uldp.methods.base import settings
from uldp.methods.registry import lookup
from uldp.privacy.releases import GaussianSum

_NOISE: Final = ("epsilon", "noise_multiplier")


def assigned_key(assignment: str) -> str:
    """The ``section.key`` of ``section.key=value``."""
    return ".".join(part.strip() for part in assignment.partition("=")[0].split("."))


def with_overrides(tree: Tree, overrides: Sequence[str]) -> Tree:
    """``tree`` with every override. Of epsilon and noise_multiplier, one that is set takes the other's place."""
    keys = {assigned_key(assignment) for assignment in overrides if not is_removal(assignment)}
    tree = one_kind_of_noise(tree, [key for key in _NOISE if f"privacy.{key}" in keys])
    for assignment in overrides:
        tree = with_override(tree, assignment)
    return tree


def one_kind_of_noise(tree: Tree, chosen: Iterable[str]) -> Tree:
    """``tree`` without the other one of epsilon and noise_multiplier, if one of them is ``chosen``."""
    left = set(_NOISE) - set(chosen)
    if len(left) != 1 or not isinstance(tree.get("privacy"), Mapping):
        return tree
    return {**tree, "privacy": {key: value for key, value in tree["privacy"].items() if key not in left}}


def at_one_epsilon(overrides: Sequence[str], methods: Sequence[str], varied: Iterable[str] = ()) -> list[str]:
    """The overrides for a comparison: ``auto`` is made for an epsilon, and the others then meet the same one."""
    said = {*varied, *(assigned_key(assignment) for assignment in overrides)} & {f"privacy.{key}" for key in _NOISE}
    return [f"privacy.epsilon={EPSILON}", *overrides] if AUTO in methods and not said else list(overrides)


def of_one_method(assignment: str) -> str:
    """The METHOD of ``METHOD:section.key=value``; empty where it is for all of them."""
    path = assignment.partition("=")[0]
    return path.rpartition(":")[0].strip() if ":" in path else ""


def _for_all(assignment: str) -> str:
    named = of_one_method(assignment)
    return assignment[len(named) :].lstrip(" :") if named else assignment


def overrides_for(overrides: Sequence[str], method: str, methods: Sequence[str]) -> list[str]:
    """The overrides for one of several methods: what is for another one, or a key of ``[method]`` that only others of
    them have, is left out.

    >>> overrides_for(["uldp-avg:aggregation.name=plain", "fedavg:run.threads=1"], "fedavg", ["fedavg", "uldp-avg"])
    ['run.threads=1']

    Raises:
        ConfigError: A key of ``[method]`` that none of them has, or a method that is not among them.
    """
    for assignment in overrides:
        if (named := of_one_method(assignment)) and named not in methods:
            raise ConfigError(f"{named!r} is none of {', '.join(methods)}", location="--set", value=assignment)
    own = [_for_all(one) for one in overrides if of_one_method(one) in ("", method)]
    known = {name: set(settings(lookup(name).method)) for name in methods}
    everywhere = set().union(*known.values())
    keys = [key.partition(".")[2] for key in map(assigned_key, own) if key.startswith("method.")]
    check_keys({key: None for key in keys if key != "name"}, sorted(everywhere), "method")
    foreign = {f"method.{key}" for key in everywhere - known[method]}
    return [assignment for assignment in own if assigned_key(assignment) not in foreign]


def with_method(tree: Tree, name: str) -> tuple[Tree, Tree]:
    """``tree`` with another method, and the settings of ``[privacy]`` that were for another kind of noise.

    Clients that perturb by themselves spend epsilons of their own. Settings of ``[method]`` that only the method of
    before has are left behind.
    """
    section, privacy = tree.get("method"), tree.get("privacy")
    if not isinstance(section, Mapping) or not isinstance(section.get("name"), str):
        return {**tree, "method": {"name": name}}, {}
    before, after = lookup(section["name"]), lookup(name)
    left_behind = (settings(before.method).keys() - settings(after.method).keys()) | set(before.fixed)
    if isinstance(before.nominal, GaussianSum) != isinstance(after.nominal, GaussianSum):
        left_behind |= {"global_lr"}  # a sum over users and a mean over silos have steps of different size
    own: dict[str, Any] = {key: value for key, value in section.items() if key not in left_behind}
    tree = {**tree, "method": {**own, "name": name}}
    if before.local == after.local or not isinstance(privacy, Mapping):
        return tree, {}
    dropped = {key: privacy[key] for key in (*_NOISE, "dropout_tolerance") if key in privacy}
    return {**tree, "privacy": {key: value for key, value in privacy.items() if key not in dropped}}, dropped
