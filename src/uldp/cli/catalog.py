"""``uldp methods`` and ``uldp datasets``: what there is."""

from __future__ import annotations

from dataclasses import MISSING
from typing import TYPE_CHECKING, Any

from uldp.cli import options as opt
from uldp.cli.output import print_json, print_table, report_errors

if TYPE_CHECKING:
    from uldp.methods.registry import NamedMethod


@report_errors
def methods(as_json: opt.Json = False) -> None:
    """List the methods: what each does, whom it protects, what it costs."""
    from uldp.methods.registry import METHODS

    found: list[dict[str, Any]] = [
        {
            "name": name,
            "summary": named.summary,
            "protects": named.with_defaults.privacy_unit,
            "paper": named.method.paper,
            "settings": _settings(named),
        }
        for name, named in METHODS.items()
    ]
    if as_json:
        print_json(found)
        return
    rows = [(one["name"], f"one {one['protects']}" if one["protects"] else "nobody", one["summary"]) for one in found]
    print_table(("method", "protects", "what it does"), rows)


def _settings(named: NamedMethod) -> dict[str, Any]:
    """The defaults of ``[method]``; a name may set other values than its method's."""
    from uldp.methods.base import settings

    known = {name: field.default for name, field in settings(named.method).items()}
    return {**{key: None if value is MISSING else value for key, value in known.items()}, **named.fixed}


@report_errors
def datasets(as_json: opt.Json = False) -> None:
    """List the built-in data sets."""
    from uldp.data.builtin import datasets as known

    infos = [dataset.info for dataset in known().values()]
    if as_json:
        print_json([{**info.to_json(), "options": dict(known()[info.name].options)} for info in infos])
        return
    rows = [
        (
            info.name,
            str(info.records),
            "x".join(map(str, info.features)),
            str(info.classes or ("survival" if info.survival else "number")),
            f"{info.users} / {info.silos}",
            info.description,
        )
        for info in infos
    ]
    print_table(("data set", "records", "features", "classes", "users / silos", "what it is"), rows)
