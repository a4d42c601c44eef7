"""Dates in the cells of a table, read by public formats."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from typing import Final

from uldp.data.values import canonical
from uldp.errors import ConfigError

DIRECTIVES: Final = frozenset("YymdHMSj")
"""What a format may contain: numbers only, which read alike under every locale."""
_SPECIMENS: Final = (date(2001, 2, 3), date(2004, 12, 11))


def read_date(cell: object, formats: Sequence[str]) -> date | None:
    """The date in a cell, by the first format that fits; without formats as ISO 8601 writes it. None if it is none.

    >>> read_date("2024-02-29 08:15", ()), read_date("29.2.2024", ["%d.%m.%Y"]), read_date("30.2.2024", ["%d.%m.%Y"])
    (datetime.date(2024, 2, 29), datetime.date(2024, 2, 29), None)
    """
    if isinstance(cell, datetime):
        return cell.date()
    if isinstance(cell, date):
        return cell
    text = canonical(cell).strip() if not isinstance(cell, str) else cell.strip()
    if not formats:
        return _iso(text)
    for pattern in formats:
        try:
            return datetime.strptime(text, pattern).date()
        except ValueError:
            continue
    return None


def check_formats(formats: Sequence[str], location: str) -> None:
    """Refuse formats that do not say a day, or of which two read one text as different days."""
    for pattern in formats:
        directives = {pattern[i + 1 : i + 2] for i, sign in enumerate(pattern) if sign == "%"}
        whole = {"d", "m"} <= directives or "j" in directives
        if not directives <= DIRECTIVES or not whole or not directives & {"Y", "y"}:
            reason = f"{pattern!r} is not a format of days in numbers, such as '%d.%m.%Y' or '%Y-%m-%d'"
            raise ConfigError(reason, location=location, value=pattern)
    for pattern in formats:
        for other in formats:
            if any(read_date(day.strftime(pattern), [other]) not in (None, day) for day in _SPECIMENS):
                reason = f"{pattern!r} and {other!r} read the same text as different days; keep one of them"
                raise ConfigError(reason, location=location, value=list(formats))


def _iso(text: str) -> date | None:
    try:
        return datetime.fromisoformat(text).date()
    except ValueError:
        return None
