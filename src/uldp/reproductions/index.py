"""``docs/reproductions.md``: what came of every figure, made from the summaries in ``docs/reproductions``.

python -m uldp.reproductions.index docs reproductions

takes every ``summary.json`` below ``reproductions`` into ``docs/reproductions`` and writes the page anew; without a
second argument it writes the page only.
"""

from __future__ import annotations

import json
import math
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from uldp.reproductions.figure import MODES, names
from uldp.reproductions.page import show, table
from uldp.reproductions.rows import MeasuredRow
from uldp.reproductions.verdicts import VERDICTS
from uldp.runs.files import replace_file

PAGE: Final = "reproductions.md"
FOLDER: Final = "reproductions"
_HEAD: Final = """\
# Reproductions

<!-- made by python -m uldp.reproductions.index; do not edit -->

What came of each figure and table, in the longest mode that was run to its end. A verdict of
QUICK or MEDIUM is about that shorter training, not about the paper; [reproduce.md](reproduce.md)
says how a verdict is reached. Every line of the first table leads to the page's numbers, settings
and curves. The noise of all runs was generated from their seeds; epsilons are what the same runs
would guarantee with secret noise. Times are those of a shared machine."""


def summary(document: Mapping[str, Any]) -> dict[str, Any]:
    """A reproduction's document with rounded numbers, and with curves of what the picture shows only."""
    shown = set(document["picture"].get("metrics", ["score"]))
    return {**_rounded(document), "panels": [_panel(panel, shown) for panel in _rounded(document["panels"])]}


def _panel(panel: Mapping[str, Any], shown: set[str]) -> dict[str, Any]:
    return {**panel, "rows": [_row(row, shown) for row in panel["rows"]]}


def _row(row: Mapping[str, Any], shown: set[str]) -> dict[str, Any]:
    score = msgspec.convert(row, type=MeasuredRow).score
    curves = {key: curve for key, curve in row["curves"].items() if key in shown or ("score" in shown and key == score)}
    return {**row, "curves": curves}


def _rounded(value: Any) -> Any:
    """All fractions with five digits."""
    if isinstance(value, Mapping):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    return float(f"{value:.5g}") if isinstance(value, float) and math.isfinite(value) else value


def write_json(file: Path, one: Mapping[str, Any]) -> None:
    """Write a summary, a line for each row of a panel."""
    text = json.dumps({**one, "panels": [{**panel, "rows": []} for panel in one["panels"]]}, indent=1)
    for panel in one["panels"]:
        lines = ",\n    ".join(json.dumps(row, separators=(",", ":")) for row in panel["rows"])
        text = text.replace('"rows": []', f'"rows": [\n    {lines}\n   ]', 1)
    replace_file(file, (text + "\n").encode(), 0o644)


def index(summaries: Sequence[Mapping[str, Any]]) -> str:
    """The page: a table of all reproductions, then each figure in its longest mode."""
    known = [one for name in names() for mode in MODES for one in summaries if _key(one) == (name, mode)]
    longest = {one["figure"]: one for one in known}
    overview = table(("figure", "mode", *VERDICTS), map(_line, known))
    missing = [f"`{name}`" for name in names() if name not in longest]
    left = (
        [textwrap.fill(f"Without results on this version: {', '.join(missing)}.", 98, break_on_hyphens=False)]
        if missing
        else []
    )
    return "\n\n".join([_HEAD, overview, *left, *(part for one in longest.values() for part in _section(one))]) + "\n"


def _key(one: Mapping[str, Any]) -> tuple[str, str]:
    return one["figure"], one["mode"]


def file_name(one: Mapping[str, Any]) -> str:
    """What a summary is called in the folder."""
    return "-".join(_key(one))


def _line(one: Mapping[str, Any]) -> tuple[str, ...]:
    verdicts = [claim["verdict"] for claim in one["claims"]]
    counts = [str(verdicts.count(verdict) or "") for verdict in VERDICTS]
    return name_of(one), f"[{one['mode']}]({FOLDER}/{file_name(one)}.json)", *counts


def name_of(one: Mapping[str, Any]) -> str:
    """The paper and the title."""
    return f"{one['paper'].partition(' (')[0]}, {one['title']}"


def _section(one: Mapping[str, Any]) -> list[str]:
    about = " ".join([f"`{one['command']}`, {one['seconds']:,.0f} s.", *one["notes"]])
    parts = [f"## {name_of(one)}"]
    parts.append(textwrap.fill(about, 98, break_long_words=False, break_on_hyphens=False))
    if one["claims"]:
        parts.append(table(("the paper says", "verdict", "numbers"), map(_claim, one["claims"])))
    if one["published"]:
        parts.append(table(("", "published", "ours"), map(_number, one["published"])))
    return parts


def _claim(claim: Mapping[str, Any]) -> tuple[str, str, str]:
    several = len(claim["decisions"]) > 1
    numbers = [
        (f"{one['panel']}: " if several else "") + f"{show(one['left'])} and {show(one['right'])}"
        for one in claim["decisions"]
    ]
    return claim["text"], ", ".join(filter(None, (claim["verdict"], claim["reason"]))), "; ".join(numbers)


def _number(one: Mapping[str, Any]) -> tuple[str, str, str]:
    name = ", ".join(filter(None, (one["panel"], one["row"], one["metric"].replace("_", " "))))
    return name, show(one["published"]), "not measured" if one["ours"] is None else show(one["ours"])


def read(docs: Path) -> list[dict[str, Any]]:
    """The summaries that the page is made from."""
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted((docs / FOLDER).glob("*.json"))]


def main(arguments: Sequence[str]) -> None:
    """Take summaries below the folders that are named after the first into it, and write its page."""
    docs, *folders = map(Path, arguments)
    (docs / FOLDER).mkdir(exist_ok=True)
    for file in (found for folder in folders for found in sorted(folder.rglob("summary.json"))):
        one = json.loads(file.read_text(encoding="utf-8"))
        write_json(docs / FOLDER / f"{file_name(one)}.json", one)
    (docs / PAGE).write_text(index(read(docs)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
