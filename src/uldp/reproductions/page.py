"""A reproduction as Markdown: verdicts, published numbers beside ours, tables, settings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from uldp.runtimes.result import metric_names

_HIDDEN = ("mean_",)


def page(document: Mapping[str, Any]) -> str:
    """The page of a reproduction's document."""
    parts = [
        f"# {document['title']}",
        f"{document['paper']}. {document['about']}",
        f"`{document['command']}`, {document['seconds']:.0f} s.",
        *(f"- {note}" for note in document["notes"]),
        "![](figure.svg)",
    ]
    if document["claims"]:
        parts += ["## What the paper says", _claims(document["claims"])]
    if document["published"]:
        parts += ["## Published numbers", _published(document["published"])]
    for panel in document["panels"]:
        where = f" on {panel['dataset']}" if panel["dataset"] else ""
        parts += [f"## {panel['name']}{where}", *(panel["notes"]), _rows(panel["rows"])]
    settings = json.dumps(document["settings"], indent=1)
    parts += ["## Settings", f"```json\n{settings}\n```", f"Versions: {_versions(document['versions'])}."]
    return "\n\n".join(parts) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def show(value: float | None) -> str:
    """A number for people; None is infinite."""
    if value is None:
        return "infinite"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _claims(claims: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for claim in claims:
        numbers = "; ".join(
            f"{one['panel']}: {show(one['left'])} and {show(one['right'])}" for one in claim["decisions"]
        )
        verdict = f"**{claim['verdict']}**" + (f", {claim['reason']}" if claim["reason"] else "")
        rows.append((f"{claim['text']} {claim['where']}".strip(), verdict, numbers))
    return table(("claim", "verdict", "the numbers that decide"), rows)


def _published(numbers: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for one in numbers:
        row = ", ".join(filter(None, (one["panel"], one["row"])))
        ours = "not measured" if one["ours"] is None else show(one["ours"])
        rows.append((row, one["metric"], show(one["published"]), ours, one["where"]))
    return table(("", "metric", "published", "ours", "where"), rows)


def _rows(rows: Sequence[Mapping[str, Any]]) -> str:
    every = {key: 0 for row in rows for key in row["metrics"] if not key.startswith(_HIDDEN)}
    names = [name for name in metric_names(every) if name not in ("epsilon", "server_epsilon")]
    names += [name for name in ("epsilon",) if name in every]
    lines = []
    for row in rows:
        cells = []
        for name in names:
            if name not in row["metrics"]:
                cells.append("")
                continue
            deviation = row["deviations"].get(name)
            cells.append(show(row["metrics"][name]) + ("" if deviation is None else f" ± {deviation:.2g}"))
        lines.append((row["name"], *cells))
    return table(("", *(name.replace("_", " ") for name in names)), lines)


def _versions(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items())
