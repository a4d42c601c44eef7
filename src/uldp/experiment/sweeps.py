"""Settings that are varied in a comparison: which combinations there are, and what each is called."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

from uldp.errors import ConfigError, check_keys, format_value
from uldp.experiment.sections import Tree, parse_value, with_value
from uldp.experiment.variants import one_kind_of_noise
from uldp.limits import MAX_CURVE
from uldp.methods.base import settings
from uldp.methods.registry import lookup

Vary = Mapping[str, Sequence[Any]]
"""Values by ``section.key``."""

_ELSEWHERE: Final = {
    "method.name": "name the methods in --methods",
    "run.seed": "--repeats takes several seeds",
    "data.given": "it marks data from Python",
}
_OPEN, _CLOSE, _QUOTES = "[{(", ")}]", "\"'"


def parse_vary(assignments: Sequence[str]) -> dict[str, list[Any]]:
    """The values of every ``section.key=a,b,c``; a value may be a list in brackets or a text in quotes.

    >>> parse_vary(["method.sample_rate=0.1,0.5", "model.hidden=[8,4],[16]"])
    {'method.sample_rate': [0.1, 0.5], 'model.hidden': [[8, 4], [16]]}
    """
    found: dict[str, list[Any]] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        key = ".".join(part.strip() for part in key.split("."))
        if not equals or "." not in key or not text.strip():
            example = "write section.key=a,b,c, for instance method.sample_rate=0.1,0.5,1"
            raise ConfigError(example, location="--vary", value=assignment)
        if key in found:
            raise ConfigError(f"{key} is there twice; list its values once", location="--vary", value=assignment)
        found[key] = [parse_value(part.strip()) for part in split_values(text)]
        if "" in found[key]:
            raise ConfigError(f"{assignment!r} has an empty value", location="--vary", value=assignment)
    return found


def split_values(text: str) -> list[str]:
    """``text`` at its commas, but not inside brackets or quotes.

    >>> split_values("[1, 2], 'a,b', 3")
    ['[1, 2]', " 'a,b'", ' 3']
    """
    parts, depth, quote = [""], 0, ""
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in _QUOTES:
            quote = sign
        else:
            depth += (sign in _OPEN) - (sign in _CLOSE)
        if sign == "," and depth <= 0 and not quote:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def check_vary(vary: object, methods: Sequence[str]) -> Vary:
    """``vary`` if it is a mapping from settings to lists of values, within the limits."""
    if not isinstance(vary, Mapping):
        raise ConfigError(f"lists of values by section.key, not {format_value(vary)}", location="vary")
    runs = 1
    for key, values in vary.items():
        section, _, name = str(key).partition(".")
        if not section or not name:
            raise ConfigError(f"{key!r} is no setting; write section.key", location="vary", value=key)
        if reason := _ELSEWHERE.get(key):
            raise ConfigError(f"{key} cannot be varied: {reason}", location="vary", value=key)
        if isinstance(values, str | bytes) or not isinstance(values, Sequence) or not values:
            wanted = f"a list with at least one value, not {format_value(values)}"
            raise ConfigError(wanted, location=f"vary {key}", value=format_value(values))
        if len({repr(value) for value in values}) < len(values):
            raise ConfigError("a value is there twice", location=f"vary {key}", value=format_value(values))
        runs *= len(values)
    if runs > MAX_CURVE:
        raise ConfigError(f"at most {MAX_CURVE:,} combinations, not {runs:,}", location="vary", value=runs)
    everywhere = set().union(*(settings(lookup(name).method) for name in methods))
    own = [key.partition(".")[2] for key in vary if key.startswith("method.")]
    check_keys(dict.fromkeys(own), sorted(everywhere), "method")
    return vary


def grid(vary: Vary, method: str) -> dict[str, dict[str, Any]]:
    """All combinations by what they are called; a key of ``[method]`` that this method does not have is left out.

    >>> grid({"method.clip": [0.1, 1.0], "data.silos": [5]}, "uldp-avg")
    {'clip=0.1 silos=5': {'method.clip': 0.1, 'data.silos': 5}, 'clip=1 silos=5': {'method.clip': 1.0, 'data.silos': 5}}
    >>> grid({"method.clip": [0.1, 1.0]}, "fedavg")
    {'': {}}
    """
    known = settings(lookup(method).method)
    keys = [key for key in vary if not key.startswith("method.") or key.partition(".")[2] in known]
    names = [key.rpartition(".")[2] for key in keys]
    shown = [name if names.count(name) == 1 else key for name, key in zip(names, keys, strict=True)]
    found = {}
    for values in itertools.product(*(vary[key] for key in keys)):
        label = " ".join(f"{name}={show_value(value)}" for name, value in zip(shown, values, strict=True))
        found[label] = dict(zip(keys, values, strict=True))
    return found


def show_value(value: Any) -> str:
    """A value in a label."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:g}" if isinstance(value, float) else str(value)
    return str(value).replace(" ", "")


def with_values(tree: Tree, values: Mapping[str, Any]) -> Tree:
    """``tree`` with these settings. Of epsilon and noise_multiplier, the one that is set takes the other's place."""
    tree = one_kind_of_noise(tree, [key.partition(".")[2] for key in values if key.startswith("privacy.")])
    for key, value in values.items():
        tree = with_value(tree, key.split("."), value)
    return tree
