"""``uldp methods`` and ``uldp datasets``: what there is."""

from __future__ import annotations

from dataclasses import MISSING
from typing import TYPE_CHECKING, Any

from uldp.cli.output import Json, print_json, print_table, reporting

if TYPE_CHECKING:
    from uldp.methods.registry import Named


@reporting
def methods(as_json: Json = False) -> None:
    """List the methods: what each does, whom it protects, what it costs."""
    from uldp.methods.registry import METHODS

    protects = {name: named.with_defaults.unit for name, named in METHODS.items()}
    if as_json:
        print_json(
            [
                {
                    "name": name,
                    "summary": named.summary,
                    "protects": protects[name],
                    "paper": named.method.paper,
                    "settings": _settings(named),
                }
                for name, named in METHODS.items()
            ]
        )
        return
    rows = [
        (name, f"one {protects[name]}" if protects[name] else "nobody", named.summary)
        for name, named in METHODS.items()
    ]
    print_table(("method", "protects", "what it does"), rows)


def _settings(named: Named) -> dict[str, Any]:
    """What stands in ``[method]`` if nobody says anything; a name may mean other values than its method's."""
    from uldp.methods.base import settings

    known = {name: field.default for name, field in settings(named.method).items()}
    return {**{key: None if value is MISSING else value for key, value in known.items()}, **named.fixed}


@reporting
def datasets(as_json: Json = False) -> None:
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
