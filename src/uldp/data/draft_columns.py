"""What a draft proposes for one column, and remarks on it: rounded ranges, codes, spellings, rare values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from uldp.data.dates import read_date
from uldp.data.values import Value, canonical, distinct, is_missing, number

if TYPE_CHECKING:
    import pandas as pd

FEW_NUMBERS: Final = 6  # a feature of at most so many whole numbers is taken for a category
MANY_CLASSES: Final = 20  # a numeric label of more values than this is a number to predict
COUNTS: Final = 8  # a label of so many whole numbers may be a count
RARE_ROWS: Final = 10  # a class or category of fewer rows is remarked on
OFTEN: Final = 3  # rows that a code for "no value" has at least: what fewer rows say is not written down
MANY_ROWS: Final = 100  # from so many rows up it is told where nearly all values lie
NEARLY_ALL: Final = 0.98
WIDE: Final = 3  # times the range of nearly all values: what is wider is remarked on
IMPUTED: Final = "missing"
OTHER: Final = "other"
READ: Final = "read from the files and rounded: agree on what the values can be"

_NINES: Final = tuple(float(10**digits - 1) for digits in range(1, 6))
_CODES: Final = frozenset((*_NINES, *(-nines for nines in _NINES), -1.0, -7.0, -8.0, 777.0, 888.0, 7777.0, 8888.0))
_YES_NO: Final = {"no": ("n", "false", 0, "nein", "non"), "yes": ("y", "true", 1, "ja", "oui")}
_FORMATS: Final = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%Y/%m/%d")
_MOSTLY: Final = 0.9


@dataclass(frozen=True)
class ColumnValues:
    """What a column holds: how many rows each value has, by canonical spelling, and how many rows have none."""

    counts: Counter[str]
    missing: bool
    numbers: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, column: pd.Series) -> ColumnValues:
        cells, rows = distinct(column)
        per_cell = np.bincount(rows, minlength=len(cells)).tolist()
        counts: Counter[str] = Counter()
        for cell, count in zip(cells, per_cell, strict=True):
            if not is_missing(cell):
                counts[canonical(cell)] += count
        # Asked of the canonical texts: True is a number to Python, "true" is none.
        numbers = {value: one for value in counts if math.isfinite(one := number(value))}
        return cls(counts, sum(counts.values()) < len(column), numbers)

    @property
    def rows(self) -> int:
        return sum(self.counts.values())

    @property
    def numeric(self) -> bool:
        """Whether nearly all rows are numbers, the others being words of their own."""
        if not self.numbers:
            return False
        share = sum(self.counts[value] for value in self.numbers) / self.rows
        return share == 1 or (share >= _MOSTLY and len(self.numbers) > FEW_NUMBERS)

    @property
    def whole(self) -> bool:
        """Whether all values are whole numbers."""
        return len(self.numbers) == len(self.counts) > 0 and all(value.lstrip("-").isdigit() for value in self.counts)

    @property
    def few(self) -> bool:
        """Whether these are so few whole numbers that they are rather names."""
        return self.whole and len(self.counts) <= FEW_NUMBERS and 3 * len(self.counts) <= self.rows

    def formats(self) -> tuple[str, ...] | None:
        """How the dates of this column are written, in the fewest formats; None if it holds no dates."""
        left = [value for value in self.counts if value not in self.numbers]
        if len(left) < _MOSTLY * len(self.counts) or not left:
            return None
        found, total = [], len(left)
        if any(read_date(value, ()) for value in left):
            left = [value for value in left if not read_date(value, ())]
            found.append("%Y-%m-%d")
        while left:
            fits = {one: sum(read_date(value, [one]) is not None for value in left) for one in _FORMATS}
            best = max(_FORMATS, key=fits.__getitem__)
            if not fits[best]:
                break
            left = [value for value in left if read_date(value, [best]) is None]
            found.append(best)
        return tuple(found) if found and len(left) <= (1 - _MOSTLY) * total else None


@dataclass(frozen=True)
class Proposal:
    """A column's part of a schema, and remarks for whoever checks it."""

    tree: dict[str, Any]
    remarks: tuple[str, ...] = ()


def propose_column(seen: ColumnValues, *, from_data: bool, partial: bool) -> Proposal:
    """A feature column; ``partial`` says that some tables do not have it."""
    if (formats := seen.formats()) is not None:
        return _date(seen, formats, from_data, partial)
    if seen.numeric and not seen.few:
        return _number(seen, from_data, partial)
    missing = seen.missing or partial
    if not from_data:
        odd = ("some values are written in several ways: see fold_case and aliases",) if _spellings(seen)[1] else ()
        return Proposal({"kind": "category", "categories": []} | ({"missing": []} if missing else {}), odd)
    return _category(seen, missing)


def propose_label(seen: ColumnValues, *, from_data: bool) -> Proposal:
    """The label."""
    if seen.numeric and not (seen.whole and len(seen.counts) <= MANY_CLASSES):
        tree: dict[str, Any] = {"kind": "number", "range": []}
        if from_data:
            codes, within = _split_codes(seen)
            tree |= {"range": round_range(within)} | ({"missing_codes": codes} if codes else {})
    else:
        listed, rules, remarks = _spellings(seen)
        tree = {"kind": "class", "classes": []}
        if from_data:
            tree |= {"classes": listed, **rules}
        elif rules:
            remarks = ["some classes are written in several ways, such as yes and Yes: see fold_case and aliases"]
        rare = sum(count < RARE_ROWS for count in seen.counts.values())
        many = f"{rare} of the" if from_data else "some"
        rare_text = f"{many} classes (or spellings) have fewer than {RARE_ROWS} rows: is each of them meant?"
        tree |= {"missing": "drop"} if seen.missing else {}
        count = seen.numeric and seen.whole and len(seen.counts) >= COUNTS
        as_count = [f"{COUNTS} whole numbers or more: is it a count? Then kind = 'number' with a range is better"]
        return Proposal(tree, (*remarks, *([rare_text] if rare else []), *(as_count if count else [])))
    tree |= {"missing": "drop"} if seen.missing else {}
    wide = _narrower(seen, within, tree["range"]) if from_data else []
    return Proposal(tree, (READ, *wide) if tree["range"] else ())


def _number(seen: ColumnValues, from_data: bool, partial: bool) -> Proposal:
    codes, within = _split_codes(seen)
    words = [value for value in seen.counts if value not in seen.numbers]
    known = [word for word in words if seen.counts[word] >= OFTEN]
    remarks = []
    if words:
        many = sum(seen.counts[word] for word in words) if from_data else "some"
        remarks.append(f"{many} cells are words, not numbers: is that a code for no value?")
    missing = seen.missing or partial or bool(words) or bool(codes)
    tree: dict[str, Any] = {"kind": "number", "range": []}
    if not from_data:
        remarks += ["the extreme values look like codes for no value: see missing_codes"] if codes else []
        return Proposal(tree | ({"missing": []} if missing else {}), tuple(remarks))
    if codes:
        remarks.append(f"{', '.join(map(str, codes))}: taken for a code for no value, lying far from all others")
    tree["range"] = limits = round_range(within)
    remarks += _narrower(seen, within, limits)
    tree |= {"missing": sum(limits) / 2} if missing and limits else {}
    tree |= {"missing_codes": [*codes, *known]} if codes or known else {}
    tree |= {"outside": "missing"} if len(known) < len(words) and limits else {}
    return Proposal(tree, (READ, *remarks) if limits else tuple(remarks))


def _narrower(seen: ColumnValues, within: Sequence[float], limits: Sequence[float]) -> list[str]:
    """A remark where a few values make the range several times wider than nearly all others need."""
    allowed = set(within)
    counts = sorted((one, seen.counts[value]) for value, one in seen.numbers.items() if one in allowed)
    values = np.repeat([one for one, _ in counts], [count for _, count in counts])
    if len(values) < MANY_ROWS or not limits:
        return []
    outer = math.floor(len(values) * (1 - NEARLY_ALL) / 2)
    narrow = round_range(sorted(set(values[outer : len(values) - outer].tolist())))
    if not narrow or WIDE * (narrow[1] - narrow[0]) >= limits[1] - limits[0]:
        return []
    where = f"[{narrow[0]:g}, {narrow[1]:g}]"
    return [f"nearly all values lie within {where}: a narrower range, with outside = 'clip', makes a better model"]


def _category(seen: ColumnValues, missing: bool) -> Proposal:
    listed, rules, remarks = _spellings(seen)
    tree: dict[str, Any] = {"kind": "category", "categories": listed, **rules}
    folded = _fold(seen)
    rare = [value for value in listed if not rules.get("aliases") and folded[str(canonical(value)).casefold()] < OFTEN]
    if rare and seen.rows >= 10 * RARE_ROWS:  # what so few rows say is not written down
        tree["categories"] = [value for value in listed if value not in rare and value != OTHER] + [OTHER]
        tree["other"] = OTHER
        remarks.append(f"not listed, and counted as {OTHER!r}: {len(rare)} with fewer than {OFTEN} rows each")
    if missing:
        spelled = {str(canonical(value)).casefold() for value in tree["categories"]}
        tree["categories"] = tree["categories"] + ([] if IMPUTED in spelled else [IMPUTED])
        tree["missing"] = IMPUTED
    return Proposal(tree, ("read from the files: agree on what the values can be", *remarks))


def _date(seen: ColumnValues, formats: tuple[str, ...], from_data: bool, partial: bool) -> Proposal:
    tree: dict[str, Any] = {"kind": "date", "part": "days", "since": "", "range": []}
    written = () if formats == ("%Y-%m-%d",) else formats
    days = [day for value in seen.counts if (day := read_date(value, written)) is not None]
    if from_data and days:
        since = min(days).replace(month=1, day=1)
        last = max(days).replace(month=12, day=31)
        tree |= {"since": since.isoformat(), "range": [0, (last - since).days]}
    missing = seen.missing or partial or len(days) < len(seen.counts)
    tree |= {"formats": list(written)} if written else {}
    if missing:
        tree["missing"] = sum(tree["range"]) / 2 if tree["range"] else []
    ambiguous = "%d/%m/%Y" in written and all(read_date(value, ["%m/%d/%Y"]) for value in seen.counts)
    return Proposal(tree, ("the first two numbers may be month and day",) if ambiguous else ())


def _split_codes(seen: ColumnValues) -> tuple[list[Value], list[float]]:
    """Values that look like codes for "no value", such as 9999 or -1, and all others."""
    within = sorted(seen.numbers.values())
    codes: list[Value] = []
    for end in (-1, 0):
        while len(within) > 2 and _is_code(seen, within, end):
            code = within.pop(end)
            codes.append(int(code))
    return codes, within


def _is_code(seen: ColumnValues, within: Sequence[float], end: int) -> bool:
    """Whether the largest (smallest) value is round in a code's way, frequent, and far from all others."""
    value = within[end]
    rows = sum(seen.counts[text] for text, one in seen.numbers.items() if one == value)
    if value not in _CODES or rows < OFTEN:
        return False
    rest = within[:-1] if end else within[1:]
    if value < 0 <= rest[0]:
        return True
    gap = value - rest[-1] if end else rest[0] - value
    return gap > rest[-1] - rest[0]


def round_range(values: Sequence[float]) -> list[float]:
    """A range beyond the values, rounded to two digits and further to the size of their spread; from 0 where it fits.

    That hides little: a range taken from the data stays one, and the draft says so. Empty if no float is beyond.

    >>> round_range([18.0, 44.0, 97.0]), round_range([5.5, 5.5]), round_range([-0.4, 0.31])
    ([0.0, 100.0], [5.4, 5.6], [-0.5, 0.4])
    """
    if not values:
        return []
    lowest, highest = min(values), max(values)
    largest = Decimal(repr(max(abs(lowest), abs(highest))))
    step = Decimal(1).scaleb(max(largest.adjusted() - 1, -300) if largest else 0)
    spread = Decimal(repr(highest)) - Decimal(repr(lowest))
    if spread:
        step = max(step, Decimal(1).scaleb(spread.adjusted()))
    below = (Decimal(repr(lowest)) / step).to_integral_value(ROUND_CEILING) - 1
    above = (Decimal(repr(highest)) / step).to_integral_value(ROUND_FLOOR) + 1
    if below > 0 and 2 * below <= above and spread:
        below = Decimal(0)
    low, high = float(below * step), float(above * step)
    return [low, high] if math.isfinite(high - low) else []


def _fold(seen: ColumnValues) -> Counter[str]:
    folded: Counter[str] = Counter()
    for value, count in seen.counts.items():
        folded[value.casefold()] += count
    return folded


def _spellings(seen: ColumnValues) -> tuple[list[Any], dict[str, Any], list[str]]:
    """The values as a person would list them; rules where one is written in several ways; and what was seen."""
    folded = _fold(seen)
    words = {name: {name, *(str(canonical(one)) for one in others)} for name, others in _YES_NO.items()}
    if len(folded) > 2 and all(any(one in names for names in words.values()) for one in folded):
        aliases = {name: list(others) for name, others in _YES_NO.items()}
        remark = f"{len(seen.counts)} spellings of yes and no"
        return list(_YES_NO), {"fold_case": True, "aliases": aliases}, [remark]
    if len(folded) < len(seen.counts):
        usual = {value.casefold(): value for value, _ in reversed(seen.counts.most_common())}
        remark = f"{len(seen.counts)} spellings of {len(folded)} values: capital letters make no difference"
        return sorted(usual.values()), {"fold_case": True}, [remark]
    return _list_values(seen), {}, []


def _list_values(seen: ColumnValues) -> list[Any]:
    """The distinct values as a person would write them in TOML."""
    if len(seen.numbers) == len(seen.counts):
        ordered = sorted(seen.counts, key=seen.numbers.__getitem__)
        return [int(value) for value in ordered] if seen.whole else ordered
    if set(seen.counts) <= {"true", "false"}:
        return [value == "true" for value in sorted(seen.counts)]
    return sorted(seen.counts)
