"""Reading the keys of one column from an experiment file.

Trees are read by hand: msgspec.convert would name neither the value nor what the parties have to agree on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from uldp.data.cells import OUTSIDE_RULES, CellRules, factors_for
from uldp.data.values import Value
from uldp.errors import ConfigError, format_value, require
from uldp.limits import MAX_FEATURES

Tree = Mapping[str, Any]


def read_kind(tree: Any, known: Sequence[str], location: str) -> str:
    """Which kind of column a tree describes."""
    kind = tree.get("kind") if isinstance(tree, Mapping) else None
    choices = ", ".join(f'"{name}"' for name in known[:-1])
    require(kind in known, location, kind, f'kind = {choices} or "{known[-1]}" is needed')
    return str(kind)


def check_filled_in(schema: Tree, location: str) -> None:
    """Name all values of a draft that are still empty, if there are several: one of them has an error of its own."""
    columns = schema.get("columns")
    parts = {"label": schema.get("label")}
    parts |= {f"columns.{name}": part for name, part in columns.items()} if isinstance(columns, Mapping) else {}
    still_empty = [
        f"{name}.{key}"
        for name, part in parts.items()
        for key in ("classes", "categories", "range", "since", "norm", "size", "channels", "missing")
        if isinstance(part, Mapping) and part.get(key) in ([], "")
    ]
    if len(still_empty) > 1:
        reason = (
            f"{len(still_empty)} values are still empty; fill in what the parties agree on: {', '.join(still_empty)}"
        )
        raise ConfigError(reason, location=location, value=len(still_empty))


def is_number(value: Any) -> bool:
    """Whether this is a finite number, and not true or false."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond any float
        return False


def read_range(tree: Tree, location: str) -> tuple[float, float]:
    """``range = [lowest, highest]``."""
    location = f"{location}.range"
    limits = tree.get("range", [])
    if limits in ([], ()):
        reason = "still empty; write the lowest and highest value the parties agree on, e.g. range = [0, 100]"
        raise ConfigError(reason, location=location, value=limits)
    two_numbers = isinstance(limits, list | tuple) and len(limits) == 2 and all(map(is_number, limits))
    require(two_numbers, location, limits, "two finite numbers [lowest, highest]")
    low, high = float(limits[0]), float(limits[1])
    require(low < high and math.isfinite(high - low), location, limits, "the lowest value comes first")
    return low, high


def read_missing_number(tree: Tree, low: float, high: float, location: str) -> float | None:
    """``missing``, a number within the range."""
    missing = tree.get("missing")
    if missing == []:
        reason = "still empty; write the number that a missing value counts as, or remove the key"
        raise ConfigError(reason, location=f"{location}.missing", value=missing)
    within = missing is None or (is_number(missing) and low <= missing <= high)
    require(within, f"{location}.missing", missing, f"a number within the range [{low:g}, {high:g}]")
    return None if missing is None else float(missing)


def read_list(tree: Tree, key: str, location: str, rules: CellRules) -> tuple[Value, ...]:
    """``categories`` or ``classes``, each of another spelling."""
    location = f"{location}.{key}"
    listed = tree.get(key, [])
    if listed in ([], ()):
        reason = f'still empty; list the {key} that the parties agree on, e.g. {key} = ["no", "yes"]'
        raise ConfigError(reason, location=location, value=listed)
    plain = read_values(listed, location)
    if len(plain) > MAX_FEATURES:
        raise ConfigError(f"at most {MAX_FEATURES:,} {key}, not {len(plain):,}", location=location, value=len(plain))
    if len({rules.spell(value) for value in plain}) < len(plain):
        raise ConfigError(f"two entries mean the same in {format_value(listed)}", location=location, value=listed)
    return plain


def read_values(listed: Any, location: str) -> tuple[Value, ...]:
    """A list of plain values."""
    plain = isinstance(listed, list | tuple) and all(isinstance(value, Value) for value in listed)
    require(plain, location, listed, "a list of texts, numbers or true/false")
    return tuple(listed)


def read_listed_value(tree: Tree, key: str, listed: tuple[Value, ...], rules: CellRules, location: str) -> Value | None:
    """``missing`` or ``other``: one of the categories."""
    value = tree.get(key)
    if value == []:
        reason = "still empty; name the category that a missing value counts as, or remove the key"
        raise ConfigError(reason, location=f"{location}.{key}", value=value)
    if value is not None and rules.spell(value) not in {rules.spell(one) for one in listed}:
        reason = f"{format_value(value)} is not among the categories; name one of them or add it"
        raise ConfigError(reason, location=f"{location}.{key}", value=value)
    return value if isinstance(value, Value) else None


def read_rules(tree: Tree, keys: Sequence[str], location: str) -> CellRules:
    """The rules of a column of which its kind allows ``keys``; ``check_spellings`` checks them against a list."""
    fold_case = tree.get("fold_case", False)
    require(isinstance(fold_case, bool), f"{location}.fold_case", fold_case, "true or false")
    outside = tree.get("outside", "")
    known = "outside" not in tree or outside in OUTSIDE_RULES
    require(known, f"{location}.outside", outside, f"one of {', '.join(OUTSIDE_RULES)}")
    other = tree.get("other") if "other" in keys else None
    return CellRules(
        missing_codes=read_values(tree.get("missing_codes", []), f"{location}.missing_codes"),
        outside=str(outside),
        aliases=_aliases(tree.get("aliases", {}), f"{location}.aliases"),
        fold_case=fold_case,
        other=other if isinstance(other, Value) else None,
        factor=_factors(tree.get("factor", {}), f"{location}.factor"),
    )


def check_spellings(rules: CellRules, listed: tuple[Value, ...], location: str) -> None:
    """Refuse a spelling that would mean two things."""
    known = {rules.spell(value): value for value in listed}
    for code in rules.missing_codes:
        if rules.spell(code) in known:
            reason = f"{format_value(code)} is on the list and cannot mean that a value is missing too"
            raise ConfigError(reason, location=f"{location}.missing_codes", value=code)
    taken = set(known) | {rules.spell(code) for code in rules.missing_codes}
    for name, spellings in rules.aliases:
        if rules.spell(name) not in known:
            reason = f"{format_value(name)} is not on the list; an alias is a spelling of a listed value"
            raise ConfigError(reason, location=f"{location}.aliases", value=name)
        for spelling in spellings:
            if rules.spell(spelling) in taken:
                reason = f"{format_value(spelling)} is known already (perhaps because of fold_case); keep one of them"
                raise ConfigError(reason, location=f"{location}.aliases", value=spelling)
            taken.add(rules.spell(spelling))


def _aliases(tree: Any, location: str) -> tuple[tuple[Value, tuple[Value, ...]], ...]:
    wanted = 'a list of spellings for each listed value, e.g. aliases = { yes = ["y", "ja"] }'
    require(isinstance(tree, Mapping), location, tree, wanted)
    return tuple((str(name), read_values(spellings, f"{location}.{name}")) for name, spellings in tree.items())


def _factors(tree: Any, location: str) -> tuple[tuple[str, float], ...]:
    wanted = "a number for a silo by its name, e.g. factor = { harbour = 38.67 }"
    require(isinstance(tree, Mapping), location, tree, wanted)
    for silo, factor in tree.items():
        require(is_number(factor) and factor != 0, f"{location}.{silo}", factor, "a finite number other than 0")
    return factors_for(tree)
