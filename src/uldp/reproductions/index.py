"""The list of reproductions in ``docs/results.md``, made from their summaries in ``docs/reproductions``.

python -m uldp.reproductions.index docs/results.md docs/reproductions/*.json
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from uldp.reproductions.page import show, table

BEGIN: Final = "<!-- made by python -m uldp.reproductions.index; do not edit -->"
END: Final = "<!-- until here -->"
_KEPT: Final = ("figure", "title", "paper", "mode", "command", "notes", "published", "claims", "versions")


def summary(document: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a reproduction: commands, published numbers, claims and the numbers that decide."""
    return {key: document[key] for key in _KEPT}


def index(summaries: Sequence[Mapping[str, Any]]) -> str:
    """Markdown for all of them."""
    parts = [BEGIN]
    for one in summaries:
        parts.append(f"### {one['paper'].partition(' (')[0]}, {one['title']}")
        parts.append(textwrap.fill(" ".join([f"`{one['command']}`.", *one["notes"]]), 98, break_long_words=False))
        if one["claims"]:
            parts.append(table(("the paper says", "verdict", "numbers"), map(_claim, one["claims"])))
        if one["published"]:
            parts.append(table(("", "published", "ours"), map(_number, one["published"])))
    return "\n\n".join([*parts, END])


def _claim(claim: Mapping[str, Any]) -> tuple[str, str, str]:
    several = len(claim["decisions"]) > 1
    numbers = [
        (f"{one['panel']}: " if several else "") + f"{show(one['left'])}, {show(one['right'])}"
        for one in claim["decisions"]
    ]
    return claim["text"], ", ".join(filter(None, (claim["verdict"], claim["reason"]))), "; ".join(numbers)


def _number(one: Mapping[str, Any]) -> tuple[str, str, str]:
    name = ", ".join(filter(None, (one["panel"], one["row"], one["metric"].replace("_", " "))))
    return name, show(one["published"]), "not measured" if one["ours"] is None else show(one["ours"])


def with_index(text: str, summaries: Sequence[Mapping[str, Any]]) -> str:
    """A page with its list made anew."""
    before, _, rest = text.partition(BEGIN)
    return before + index(summaries) + rest.partition(END)[2]


def main(arguments: Sequence[str]) -> None:
    """Write the page that is named first, from the summaries that follow."""
    page, *files = map(Path, arguments)
    summaries = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    page.write_text(with_index(page.read_text(encoding="utf-8"), summaries), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
