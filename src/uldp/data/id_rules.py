"""``[data.ids]``: public rules by which ids that silos write in their own ways are one id, and a silo's links.

The rules work on one id at a time, after :mod:`uldp.data.ids` has brought it into one spelling. Links, where no rule
makes ids alike, are a file in each silo that ``uldp link accept`` writes: whose id is which person of the roster.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Final

from uldp.data.ids import Problem, canonical_id, folded, number_id
from uldp.errors import ConfigError, DataError, require

KEEP: Final[Mapping[str, Callable[[str], bool]]] = {
    "all": lambda sign: True,
    "letters and digits": str.isalnum,
    "digits": str.isdecimal,
}
HEADER: Final = ("id", "person")
"""The columns of a file of links."""
ROSTER: Final = "roster.txt"

NOTHING_LEFT: Final = Problem(
    "ids have nothing left after the rules of data.ids", "agree on prefixes and keep that leave something of every id"
)
UNLINKED: Final = Problem(
    "ids are not in this silo's file of links (data.ids.links)",
    "link the table anew (`uldp link`), or leave these rows out",
)
ReadId = Callable[[str], str | Problem]


@dataclass(frozen=True, kw_only=True)
class IdRules:
    """How an id in one spelling becomes the id that counts.

    Args:
        keep: Which signs count: ``all``, ``letters and digits`` or ``digits``.
        prefixes: Beginnings that are no part of an id; of several that fit the longest is taken off.
        links: A folder with a file ``SILO.csv`` for each silo, of which a party needs its own.

    Example:
        >>> rules = IdRules(keep="letters and digits", prefixes=("P-", "pat "))
        >>> [rules.apply(user) for user in ("p-0012", "pat 12", "12", "ab-12")]
        ['12', '12', '12', 'ab12']
    """

    keep: str = "all"
    prefixes: tuple[str, ...] = ()
    links: str | None = None

    def __post_init__(self) -> None:
        require(self.keep in KEEP, "data.ids.keep", self.keep, f"one of {', '.join(map(repr, KEEP))}")
        for prefix in self.prefixes:
            require(bool(folded(prefix)), "data.ids.prefixes", prefix, "beginnings of ids, none of them empty")
        if self.links is not None and not self.links.strip():
            raise ConfigError("the folder of `uldp link accept`, or nothing", location="data.ids.links", value="")

    def apply(self, user: str) -> str | Problem:
        """The id that counts, of an id in one spelling."""
        fitting = (start for start in map(folded, self.prefixes) if user.startswith(start))
        rest = user[len(max(fitting, key=len, default="")) :].strip()
        counts = KEEP[self.keep]
        left = rest if self.keep == "all" else "".join(sign for sign in rest if counts(sign))
        if not left:
            return NOTHING_LEFT
        return number_id(left) if left.isdecimal() and left != user else left

    def reader(self, silo: str, base: Path) -> ReadId:
        """How ``silo`` reads its ids; ``base`` is the folder of the experiment file."""
        if self.links is None:
            return self.apply
        return partial(_linked, self, read_links(base / self.links / f"{silo}.csv"))


def _linked(rules: IdRules, persons: Mapping[str, str], user: str) -> str | Problem:
    found = rules.apply(user)
    return found if isinstance(found, Problem) else persons.get(found, UNLINKED)


def read_links(file: Path) -> dict[str, str]:
    """Ids and persons of a file of links."""
    try:
        text = file.read_text(encoding="utf-8-sig")
        rows = list(csv.reader(StringIO(text), strict=True))
    except FileNotFoundError:
        reason = f"no file {str(file)!r}; `uldp link accept` writes it"
        raise DataError(reason, location="data.ids.links", value=str(file)) from None
    except (OSError, ValueError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or "it is no CSV file in UTF-8"
        raise DataError(f"cannot be read: {reason}", location=str(file), value=str(file)) from None
    if not rows or tuple(rows[0]) != HEADER:
        raise DataError(f"the first line must be {','.join(HEADER)}", location=str(file))
    found: dict[str, str] = {}
    for number, row in enumerate(rows[1:], start=2):
        person = canonical_id(row[1]) if len(row) == len(HEADER) else None
        if not isinstance(person, str) or not row[0] or found.setdefault(row[0], person) != person:
            reason = f"line {number} is not an id and a person, or its id has another person too"
            raise DataError(reason, location=str(file), value=number)
    return found


PLAIN: Final = IdRules()
