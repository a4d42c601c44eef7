"""Who is who in several silos whose ids have nothing in common: by keyed hashes of other columns.

Three steps (``docs/linkage.md`` says what each party learns). *Prepare*, in every silo: for each rule, such as
surname + birth date, a hash of a person's values under a key that the silos share. *Match*, at a party without the key:
people of different silos with a hash in common get one number. *Accept*, in every silo: a file of its ids' numbers.

>>> rule = LinkRule.parse("surname+born:date")
>>> rule.kinds, rule.values({"surname": " O'Neill ", "born": "1960-02-01"}, ()) == ("oneill", "1960-02-01")
('text+date', True)
"""

from __future__ import annotations

import hmac
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from uldp.data import values
from uldp.data.dates import read_date
from uldp.data.files import column_names
from uldp.data.ids import folded
from uldp.errors import ConfigError, DataError, did_you_mean, format_value
from uldp.rng import PathPart, Secrets, path_bytes

if TYPE_CHECKING:
    import pandas as pd

HASH_BYTES: Final = 16


def _text(cell: object) -> str:
    """Letters and digits, without accents, of whatever case: "O'Neill" is "oneill"."""
    parts = unicodedata.normalize("NFKD", folded(values.canonical(cell)))
    return "".join(sign for sign in parts if sign.isalnum())


def _digits(cell: object) -> str:
    """Digits, without leading zeros, which spreadsheets lose."""
    return re.sub(r"[^0-9]", "", folded(values.canonical(cell))).lstrip("0")


KINDS: Final[Mapping[str, Callable[[object], str]]] = {"text": _text, "digits": _digits}
"""How the cells of a column are compared; ``date`` besides, which needs formats."""
DATE: Final = "date"


@dataclass(frozen=True)
class LinkRule:
    """Columns, and how their cells are compared: people who agree in all of them are taken for one."""

    columns: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, text: str) -> LinkRule:
        """From ``COLUMN[:KIND]+COLUMN[:KIND]+...``, as on the command line; a column is ``text`` unless it says so."""
        columns = []
        for part in text.split("+"):
            name, colon, kind = part.rpartition(":") if ":" in part else (part, "", "text")
            if not name.strip() or (colon and kind not in (*KINDS, DATE)):
                known = ", ".join((*KINDS, DATE))
                reason = f"COLUMN[:KIND] joined by +, with the kinds {known}; not {format_value(text)}"
                raise ConfigError(reason, location="--on", value=text)
            columns.append((name.strip(), kind))
        if len({name for name, _ in columns}) < len(columns):
            raise ConfigError(f"{format_value(text)} names a column twice", location="--on", value=text)
        return cls(tuple(columns))

    @property
    def kinds(self) -> str:
        """What all silos must have in common: their columns may have other names."""
        return "+".join(kind for _, kind in self.columns)

    def values(self, row: Mapping[str, object], formats: Sequence[str]) -> tuple[str, ...] | None:
        """What is compared of a row; None where a cell is empty, or no date."""
        found = tuple(_value(row[name], kind, formats) for name, kind in self.columns)
        return found if all(found) else None


def _value(cell: object, kind: str, formats: Sequence[str]) -> str:
    if values.is_missing(cell):
        return ""
    if kind == DATE:
        day = read_date(cell, formats)
        return "" if day is None else day.isoformat()
    return KINDS[kind](cell)


@dataclass(frozen=True)
class HashedPeople:
    """A silo's people under hashes, as it goes to whoever matches: no id, no value, no order of the table.

    Args:
        silo: Its name.
        kinds: Of each rule.
        key: A digest of the key: two silos with different keys have no hash in common.
        people: For each person's handle the hashes by each rule.
    """

    silo: str
    kinds: tuple[str, ...]
    key: str
    people: Mapping[str, tuple[tuple[str, ...], ...]]

    @property
    def doubles(self) -> tuple[int, ...]:
        """For each rule, how many hashes are those of several ids of this silo."""
        return tuple(
            sum(len(found) > 1 for found in _holders([self], rule).values()) for rule in range(len(self.kinds))
        )

    @property
    def without(self) -> tuple[int, ...]:
        """For each rule, how many people it says nothing about: a cell is empty, or no date."""
        return tuple(sum(not hashes[rule] for hashes in self.people.values()) for rule in range(len(self.kinds)))


def key_digest(key: bytes) -> str:
    """What shows that two silos have the same key."""
    return _hash(key, "key")


def handle(key: bytes, silo: str, user: str) -> str:
    """What an id of a silo is called in files that others see."""
    return _hash(key, "id", silo, user)


def _hash(key: bytes, *parts: PathPart) -> str:
    return hmac.digest(key, path_bytes(("uldp link", *parts)), "sha256")[:HASH_BYTES].hex()


def prepare(
    frame: pd.DataFrame,
    ids: Sequence[str],
    silo: str,
    rules: Sequence[LinkRule],
    key: bytes,
    formats: Sequence[str] = (),
) -> HashedPeople:
    """A silo's people under hashes.

    Args:
        frame: The table.
        ids: The id of each of its rows, as the experiment reads it.
        silo: The silo's name.
        rules: By which people are compared, the surest first.
        key: What the silos share and the matching party does not have.
        formats: Of dates in this table; ISO 8601 without.
    """
    named = [name for rule in rules for name, _ in rule.columns]
    for name in named:
        if name not in frame.columns:
            known = column_names(frame)
            reason = f"no column {name!r}; the table has: {', '.join(known)}{did_you_mean(name, known)}"
            raise DataError(reason, location="--on", value=name)
    columns = {name: values.cells(frame[name]) for name in named}
    hashes: dict[str, list[set[str]]] = {user: [set() for _ in rules] for user in ids}
    for row, user in enumerate(ids):
        cells = {name: column[row] for name, column in columns.items()}
        for number, rule in enumerate(rules):
            if (found := rule.values(cells, formats)) is not None:
                hashes[user][number].add(_hash(key, "values", number, rule.kinds, *found))
    people = {handle(key, silo, user): tuple(tuple(sorted(each)) for each in found) for user, found in hashes.items()}
    return HashedPeople(silo, tuple(rule.kinds for rule in rules), key_digest(key), dict(sorted(people.items())))


Person = tuple[str, str]
"""A silo and a handle."""


@dataclass(frozen=True)
class LinkProposal:
    """Who is one person.

    Args:
        numbers: For each silo the person's number of each handle; 1 to ``persons``.
        persons: How many people there are in all.
        found: For each rule and pair of silos how many people they were found to share, by this rule first.
        ambiguous: For each rule how many hashes were left alone: they are those of several ids of one silo, or would
            have made two ids of a silo one person.
    """

    numbers: Mapping[str, Mapping[str, int]]
    persons: int
    found: Mapping[tuple[int, str, str], int]
    ambiguous: tuple[int, ...]


def match(parts: Sequence[HashedPeople], secrets: Secrets) -> LinkProposal:
    """People of different silos with a hash in common, rule by rule; nobody is one with another of the same silo.

    Args:
        parts: What each silo prepared.
        secrets: The order of the people's numbers, which would tell a silo otherwise whom others know too.
    """
    _check_parts(parts)
    groups: dict[Person, dict[str, str]] = {(part.silo, one): {part.silo: one} for part in parts for one in part.people}
    found: dict[tuple[int, str, str], int] = defaultdict(int)
    ambiguous = []
    for rule in range(len(parts[0].kinds)):
        left = 0
        for _, holders in sorted(_holders(parts, rule).items()):
            left += not _join(groups, holders, partial(_count, found, rule))
        ambiguous.append(left)
    people = list({id(group): group for group in groups.values()}.values())
    numbers: dict[str, dict[str, int]] = {part.silo: {} for part in parts}
    for number, index in enumerate(np.argsort(secrets.stream().words(len(people)), kind="stable"), start=1):
        for silo, one in people[index].items():
            numbers[silo][one] = number
    return LinkProposal(numbers, len(people), dict(found), tuple(ambiguous))


def _count(found: dict[tuple[int, str, str], int], rule: int, one: Iterable[str], other: Iterable[str]) -> None:
    for a in one:
        for b in other:
            found[rule, min(a, b), max(a, b)] += 1


def _holders(parts: Sequence[HashedPeople], rule: int) -> dict[str, list[Person]]:
    holders: dict[str, list[Person]] = defaultdict(list)
    for part in parts:
        for one, hashes in part.people.items():
            for found in hashes[rule]:
                holders[found].append((part.silo, one))
    return holders


def _join(
    groups: dict[Person, dict[str, str]],
    holders: Sequence[Person],
    joined: Callable[[Iterable[str], Iterable[str]], None],
) -> bool:
    """Make the holders of a hash one person; False, and nothing is changed, if two of them are of one silo."""
    distinct = list({id(groups[one]): groups[one] for one in holders}.values())
    if len(distinct) == 1:
        return True
    if len({silo for group in distinct for silo in group}) < sum(map(len, distinct)):
        return False
    first = distinct[0]
    for other in distinct[1:]:
        joined(first, other)
        first.update(other)
        for person in other.items():
            groups[person] = first
    return True


def _check_parts(parts: Sequence[HashedPeople]) -> None:
    if len(parts) < 2:
        raise ConfigError("files of at least two silos are needed", location="FILES", value=len(parts))
    first = parts[0]
    for number, part in enumerate(parts[1:], start=1):
        if part.silo in (other.silo for other in parts[:number]):
            raise ConfigError(f"two files are of silo {part.silo!r}", location="FILES", value=part.silo)
        if part.key != first.key:
            reason = f"silos {first.silo} and {part.silo} used different keys: compare the files given as --key"
            raise ConfigError(reason, location="FILES", value=part.silo)
        if part.kinds != first.kinds:
            reason = (
                f"silos {first.silo} and {part.silo} compared by other rules ({', '.join(first.kinds)} and "
                f"{', '.join(part.kinds)}): give --on in the same order, with the same kinds"
            )
            raise ConfigError(reason, location="FILES", value=part.silo)


def links_of(ids: Iterable[str], silo: str, key: bytes, numbers: Mapping[str, int]) -> dict[str, int]:
    """Whose id is which person; refused where the table has people of whom the proposal knows nothing."""
    handles = {user: handle(key, silo, user) for user in sorted(set(ids))}
    strangers = sum(one not in numbers for one in handles.values())
    if strangers:
        reason = (
            f"{strangers} of {len(handles)} ids are not in the proposal for silo {silo}: prepare and match the table "
            "as it is now, with the same silo's name and key"
        )
        raise DataError(reason, location="PROPOSAL", value=strangers)
    return {user: numbers[one] for user, one in handles.items()}
