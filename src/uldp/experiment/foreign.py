"""Third-party code that an experiment names: ``package.module:Name`` as a method, a model and so on.

Loading an experiment imports these modules, and so runs them. An experiment file may come from another party: what it
would run is known from its tree, before anything is imported.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uldp.methods.registry import is_builtin

if TYPE_CHECKING:
    from uldp.experiment.config import Experiment

SETTINGS = (("method", "name"), ("model", "name"), ("aggregation", "name"), ("data", "dataset"))
"""Settings that may name such code."""


@dataclass(frozen=True)
class ForeignCode:
    """One such name, and the setting that names it."""

    setting: str
    name: str

    def __str__(self) -> str:
        return f"{self.setting} = {self.name!r}"


Admit = Callable[[Any], None]
"""Called with an experiment's tree before anything that it names is imported; raises to refuse it."""


def third_party_names(experiments: Iterable[Experiment]) -> tuple[str, ...]:
    """Third-party code on which these experiments' epsilons rest: methods, aggregations and data sets.

    They make the rows, add the noise, and say to whom a record belongs.
    """
    found: dict[str, None] = {}
    for one in experiments:
        if not is_builtin(one.method):
            found[qualified_name(type(one.method))] = None
        names = (one.method_name, one.aggregation.name, one.data.dataset or "")
        found |= {name: None for name in names if ":" in name}
    return tuple(found)


def qualified_name(kind: type) -> str:
    """The class as an experiment would name it: ``package.module:Name``."""
    return f"{kind.__module__}:{kind.__qualname__}"


def code_digests(modules: Iterable[str]) -> list[str]:
    """Fingerprints of the files of third-party modules: a run is resumed only with the code that started it."""
    found = []
    for name in sorted({name for name in modules if name.partition(".")[0] != "uldp"}):
        file = getattr(sys.modules.get(name), "__file__", None)
        text = Path(file).read_bytes() if file and Path(file).is_file() else b""
        found.append(f"{name} {hashlib.sha256(text).hexdigest()}")
    return found


def foreign_code(tree: Any) -> tuple[ForeignCode, ...]:
    """What the experiment of this tree would run.

    >>> [str(code) for code in foreign_code({"method": {"name": "uldp-avg"}, "model": {"name": "ward.nets:small"}})]
    ["model.name = 'ward.nets:small'"]
    """
    names = {f"{section}.{key}": read_name(tree, section, key) for section, key in SETTINGS}
    return tuple(ForeignCode(setting, name) for setting, name in names.items() if ":" in name)


def read_name(tree: Any, section: str, key: str = "name") -> str:
    """The name in a section; empty where there is none. A malformed tree is reported where it is parsed."""
    inside = tree.get(section) if isinstance(tree, Mapping) else None
    name = inside.get(key) if isinstance(inside, Mapping) else None
    return name if isinstance(name, str) else ""
