"""Import third-party code that an experiment names as ``package.module:Name``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from uldp.errors import ConfigError, did_you_mean, format_value, user_code


def import_user_module(module: str) -> ModuleType:
    """``module``, which may lie in the current folder.

    That folder comes last on the path, and only here: a file in a folder from another party that is named like an
    installed package must not run unless the experiment names it.
    """
    if "" not in sys.path:
        sys.path.append("")
    importlib.invalidate_caches()
    return importlib.import_module(module)


def is_one_of(value: object, kinds: Iterable[type]) -> bool:
    """Whether the class of ``value`` is one of ``kinds``, by identity: a metaclass may call its classes equal to ours.

    >>> is_one_of(1, [int]), is_one_of(True, [int])
    (True, False)
    """
    return any(type(value) is kind for kind in kinds)


def named_object(name: str, location: str) -> Any:
    """What ``package.module:Name`` stands for; ``location`` is the setting that names it.

    >>> named_object("math:pi", "model.name") > 3
    True
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ConfigError(f"write package.module:Name, not {format_value(name)}", location=location, value=name)
    there = _is_findable(module.partition(".")[0])
    why = "failed while it was imported" if there else "is neither in the current folder nor on PYTHONPATH"
    with user_code(ConfigError, f"cannot import {name!r}: {module} {why}", location):
        imported = import_user_module(module)
    if not hasattr(imported, attribute):
        raise ConfigError(
            f"cannot import {name!r}: {module} has no {attribute!r}{did_you_mean(attribute, dir(imported))}",
            location=location,
            value=name,
        )
    return getattr(imported, attribute)


def _is_findable(module: str) -> bool:
    try:
        return Path(f"{module}.py").is_file() or Path(module).is_dir() or importlib.util.find_spec(module) is not None
    except (ImportError, ValueError, OSError):
        return False


def named_class(name: str, base: type, location: str) -> Any:
    """The subclass of ``base`` that ``package.module:Class`` stands for, with nothing left abstract."""
    found = named_object(name, location)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(f"{name!r} is not a subclass of uldp's {base.__name__}", location=location, value=name)
    if missing := ", ".join(sorted(getattr(found, "__abstractmethods__", ()))):
        raise ConfigError(f"{name!r} lacks {missing}", location=location, value=name)
    return found
