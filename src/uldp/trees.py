"""Text of somebody else's as a tree of plain values: TOML and JSON, with bounds on what a tree may be.

Whatever is wrong is a ValueError of one line. Below these bounds no later step has to fear a tree: it can be walked
by recursion and written down again, and every whole number in it has a float.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from datetime import date, time
from typing import Any, Final

from uldp.errors import format_value

_PLAIN: Final = (Mapping, list, tuple, str, int, float, type(None), date, time)
MAX_DEPTH: Final = 32
MAX_DIGITS: Final = 300


def toml_tree(text: str) -> dict[str, Any]:
    """The tree of a TOML document.

    >>> toml_tree("a.b = [1, 2]")
    {'a': {'b': [1, 2]}}
    >>> toml_tree("a = " + 100 * "[" + 100 * "]")
    Traceback (most recent call last):
    ValueError: nested more than 32 deep
    """
    try:
        tree = tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"nested more than {MAX_DEPTH} deep") from None
    check_tree(tree)
    return tree


def json_tree(text: str | bytes) -> Any:
    """The tree of a JSON document."""
    try:
        tree = json.loads(text)
    except RecursionError:
        raise ValueError(f"nested more than {MAX_DEPTH} deep") from None
    check_tree(tree)
    return tree


def check_tree(tree: Any) -> None:
    """Refuse a tree that is nested too deep, or holds anything but plain values and numbers of ordinary length.

    >>> check_tree({"data": {"silos": [object()]}})
    Traceback (most recent call last):
    ValueError: data.silos: text, a number, true or false, a list or a section, not a object
    """
    level: list[tuple[str, Any]] = [("", tree)]
    for _ in range(MAX_DEPTH + 1):
        for path, value in level:
            _check_value(path, value)
        level = [below for path, value in level for below in _children(path, value)]
    if level:
        raise ValueError(f"nested more than {MAX_DEPTH} deep")


def _check_value(path: str, value: Any) -> None:
    where = f"{path}: " if path else ""
    if isinstance(value, int) and abs(value) >= 10**MAX_DIGITS:
        raise ValueError(f"{where}a whole number of at most {MAX_DIGITS} digits, not {format_value(value)}")
    if not isinstance(value, _PLAIN):
        raise ValueError(f"{where}text, a number, true or false, a list or a section, not {format_value(value)}")


def _children(path: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(f"{path}.{key}" if path else str(key), below) for key, below in value.items()]
    return [(path, below) for below in value] if isinstance(value, list | tuple) else []
