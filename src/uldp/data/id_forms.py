"""Whether silos write user ids in different forms, so that nobody can be recognised in two of them.

Ids of another form (7 and P-007, AB12 and AB-12) are other people, and nothing fails: somebody whom both silos know is
two users then, each with the whole clip. Only the forms are compared and shown, never an id.

>>> id_form("AB-0012"), id_form("ab0012"), id_form("12")
('letters-digits', 'letters and digits', 'digits')
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from itertools import islice
from typing import Final

_IDS: Final = 10_000
_RARE: Final = 0.01
_PART: Final = re.compile(r"[^\W_]+")


def id_form(user: str) -> str:
    """What an id is made of: its runs of letters and digits, with the signs between them."""
    return _PART.sub(_kind, user)


def _kind(part: re.Match[str]) -> str:
    if part[0].isdigit():
        return "digits"
    return "letters" if part[0].isalpha() else "letters and digits"


def different_forms(silos: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    """A note where some silos have no form of ids in common with others, or all ids of each begin with other letters.

    Args:
        silos: The normalised ids of each silo, by its name.

    Example:
        >>> different_forms({"north": ["1", "2"], "south": ["3", "1"]})
        ()
        >>> different_forms({"north": ["1", "2"], "south": ["p1", "p2"]})[0][:71]
        'data.user: ids have another form in north (digits) than in south (lette'
    """
    forms = {silo: _frequent(Counter(map(id_form, islice(ids, _IDS)))) for silo, ids in silos.items() if ids}
    groups = _groups({silo: found for silo, found in forms.items() if found})
    if len(groups) > 1:
        described = " than in ".join(f"{_names(names)} ({', '.join(sorted(found)[:2])})" for names, found in groups[:2])
        return (_note(f"ids have another form in {described}"),)
    prefixes = {silo: _common_letters(ids) for silo, ids in silos.items() if ids}
    if all(prefixes.values()) and len(set(prefixes.values())) > 1:
        return (
            _note(f"all ids of a silo begin with the same letters, but not with those of others ({_names(silos)})"),
        )
    return ()


def _note(what: str) -> str:
    return (
        f"data.user: {what}, so nobody counts as the same person there. If they share people, write ids in one form "
        "([data.ids] has rules, `uldp link` finds who is who): a person with two ids is two users, and the guarantee "
        "then holds for each of them by itself only"
    )


def _frequent(forms: Counter[str]) -> frozenset[str]:
    """A few mistyped ids do not make two silos alike, and no few ids a form."""
    total = sum(forms.values())
    return frozenset(form for form, count in forms.items() if count >= _RARE * total)


def _groups(forms: Mapping[str, frozenset[str]]) -> list[tuple[list[str], frozenset[str]]]:
    """Silos that hang together by forms that they share."""
    groups: list[tuple[list[str], frozenset[str]]] = []
    for silo, found in forms.items():
        joined = [group for group in groups if group[1] & found]
        names = [*(name for group in joined for name in group[0]), silo]
        merged = found.union(*(group[1] for group in joined))
        groups = [*(group for group in groups if group not in joined), (names, merged)]
    return groups


def _common_letters(ids: Collection[str]) -> str:
    """The letters with which all ids begin, if digits or signs follow in all; empty where they differ."""
    starts = {_leading_letters(user) for user in islice(ids, _IDS)}
    return starts.pop() if len(starts) == 1 else ""


def _leading_letters(user: str) -> str:
    letters = re.match(r"[^\W\d_]+", user)
    return "" if letters is None or letters[0] == user else letters[0]


def _names(silos: Collection[str]) -> str:
    shown = list(silos)[:3]
    return ", ".join(shown) + (f" and {len(silos) - 3} more" if len(silos) > 3 else "")
