"""Plain trees (from TOML, JSON or ``--set``) to frozen dataclasses and back, with errors that name the place."""

from __future__ import annotations

import dataclasses
import math
import tomllib
import types
import typing
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from uldp.errors import ConfigError, check_keys, format_value
from uldp.trees import MAX_DEPTH, toml_tree

T = TypeVar("T")
Tree = dict[str, Any]


def read_section(cls: type[T], tree: Any, location: str, *, known: Collection[str] | None = None) -> T:
    """An instance of the dataclass ``cls`` from ``tree``; keys other than ``known`` (all fields) are errors."""
    check_section(tree, location)
    hints = typing.get_type_hints(cls)
    fields = [item.name for item in dataclasses.fields(cls)]  # type: ignore[arg-type]
    check_keys(tree, sorted(fields if known is None else known), location)
    return cls(**{key: _convert(value, hints[key], f"{location}.{key}") for key, value in tree.items()})


def check_section(tree: Any, location: str) -> None:
    """Refuse anything but a section."""
    if not isinstance(tree, Mapping):
        raise ConfigError(f"a section with keys, not {format_value(tree)}", location=location, value=format_value(tree))


def write_section(section: Any) -> Tree:
    """The dataclass as a tree, without keys that are None or empty."""
    tree: Tree = {}
    for item in dataclasses.fields(section):
        value = getattr(section, item.name)
        if value is None or value == {} or value == ():
            continue
        if isinstance(value, Mapping):
            value = dict(value)
        tree[item.name] = list(value) if isinstance(value, tuple) else value
    return tree


def with_override(tree: Tree, assignment: str) -> Tree:
    """A copy of ``tree`` with one ``section.key=value`` set; the value is TOML, or else taken as text."""
    path, equals, text = assignment.partition("=")
    parts = [part.strip() for part in path.split(".")]
    if not equals or len(parts) < 2 or not all(parts):
        raise ConfigError("write section.key=value, for instance method.clip=0.2", location="--set", value=assignment)
    if len(parts) > MAX_DEPTH:
        raise ConfigError(f"nested more than {MAX_DEPTH} deep", location="--set", value=assignment)
    if is_removal(assignment):
        below = tree.get(parts[0], {})
        rest = {key: value for key, value in below.items() if key != parts[1]} if isinstance(below, dict) else below
        return {**tree, parts[0]: rest}
    return with_value(tree, parts, parse_value(text.strip()))


def is_removal(assignment: str) -> bool:
    """Whether it is ``privacy.key=none``: the key is left out, as if it were not in the file."""
    path, _, text = assignment.partition("=")
    parts = [part.strip() for part in path.split(".")]
    return len(parts) == 2 and parts[0] == "privacy" and text.strip() == "none"


def parse_value(text: str) -> Any:
    """``text`` as a TOML value; what is not TOML is text."""
    try:
        return toml_tree(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    except ValueError as error:
        raise ConfigError(f"{format_value(text)}: {error}", location="--set", value=text) from error


def with_value(tree: Tree, path: list[str], value: Any) -> Tree:
    """A copy of ``tree`` in which the setting at ``path`` has this value."""
    key, *rest = path
    if not rest:
        return {**tree, key: value}
    below = tree.get(key, {})
    return {**tree, key: with_value(below if isinstance(below, dict) else {}, rest, value)}


def _convert(value: Any, hint: Any, location: str) -> Any:
    """``value`` as the type ``hint``; whole numbers pass for floats, nothing else is converted silently."""
    # By hand: msgspec.convert refuses a sweep's np.float64, which is a float, and its messages lack the value.
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        origin = typing.get_origin(option) or option
        if option is float and isinstance(value, int | float) and not isinstance(value, bool):
            if math.isnan(value):
                raise ConfigError("a finite number, not nan", location=location, value="nan")
            return float(value)
        if option is int and isinstance(value, int) and not isinstance(value, bool):
            return value
        if option in (str, bool) and isinstance(value, option):
            return value
        if origin is tuple and isinstance(value, list | tuple):
            inner = typing.get_args(option)[0]
            return tuple(_convert(part, inner, f"{location}, entry {at}") for at, part in enumerate(value, start=1))
        if origin is Mapping and isinstance(value, Mapping):
            return dict(value)
        if option is type(None) and value is None:
            return None
    wanted = " or ".join(_NAMES.get(option, "a list") for option in options if option is not type(None))
    raise ConfigError(f"{wanted}, not {format_value(value)}", location=location, value=format_value(value))


_NAMES: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    Mapping[str, Any]: "a section with keys",
}
