"""The label of a schema: a class of an agreed list, or a number in an agreed range."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from uldp.data.cells import NO_RULES, CellRules, Limits
from uldp.data.column_keys import Tree, check_spellings, read_kind, read_list, read_range, read_rules
from uldp.data.federation import LabelArray, Task
from uldp.data.findings import ABSENT, LEFT_OUT, OUTSIDE, UNLABELLED, UNREADABLE, CellProblem, find
from uldp.data.values import MISSING, UNKNOWN, Value
from uldp.errors import ConfigError, check_keys, require

if TYPE_CHECKING:
    import pandas as pd

    from uldp.data.federation import IntArray

EncodedLabels = tuple[LabelArray, list[CellProblem]]


@dataclass(frozen=True)
class ClassLabel:
    """A label out of an agreed list of classes; it becomes its position on the list.

    ``drop`` says that records without a label are left out, one by one, instead of refused.
    """

    name: str
    classes: tuple[Value, ...]
    drop: bool = False
    rules: CellRules = NO_RULES

    @property
    def task(self) -> Task:
        return Task(classes=len(self.classes))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a table that say the label."""
        return (self.name,)

    def codes(self, column: pd.Series) -> IntArray:
        """The position of each cell's class, negative where there is none."""
        return self.rules.codes(column, self.classes)

    def encode(
        self, frame: pd.DataFrame, outside: str = "error", silo: str = ""
    ) -> tuple[LabelArray, list[CellProblem]]:
        """(records,) positions, and what was wrong."""
        column = frame[self.name]
        codes = self.codes(column)
        # Unlike a feature, a class has no neutral stand-in: an unknown one is unreadable, never clipped.
        unknown = find(UNREADABLE, column, codes == UNKNOWN, "not among the agreed classes")
        return codes, _dropped([*unknown, *find(ABSENT, column, codes == MISSING, "missing")], self.drop, outside)

    def to_dict(self) -> dict[str, Any]:
        tree = {"column": self.name, "kind": "class", "classes": list(self.classes)}
        return tree | _dropping(self.drop) | self.rules.to_dict()


@dataclass(frozen=True)
class NumberLabel:
    """A numeric label, scaled to [-1, 1] by an agreed range; the task remembers the original units."""

    name: str
    low: float
    high: float
    drop: bool = False
    rules: CellRules = NO_RULES

    @property
    def task(self) -> Task:
        return Task(0, label_scale=(self.high - self.low) / 2, label_offset=(self.high + self.low) / 2)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a table that say the label."""
        return (self.name,)

    def encode(
        self, frame: pd.DataFrame, outside: str = "error", silo: str = ""
    ) -> tuple[LabelArray, list[CellProblem]]:
        """(records,) numbers in [-1, 1], and what was wrong; in the units of ``silo``."""
        column = frame[self.name]
        rule = outside if outside == "clip" else "error"
        numbers, findings = Limits(self.low, self.high).apply(column, *self.rules.numbers(column, silo), rule)
        return numbers.astype(np.float32), _dropped(findings, self.drop, outside)

    def to_dict(self) -> dict[str, Any]:
        tree = {"column": self.name, "kind": "number", "range": [self.low, self.high]}
        return tree | _dropping(self.drop) | self.rules.to_dict()


@dataclass(frozen=True)
class SurvivalLabel:
    """A time and whether the event was observed then; otherwise observation ended then. The loss is Cox's.

    Args:
        name: The column of times, from when observation began.
        event: The column that says whether the event was observed.
        longest: The longest time that is agreed on; with ``outside = "clip"`` observation ends there.
        classes: What the column ``event`` says of a record whose observation ended, and of one with an event.
        drop: Whether records without a time or without an event's cell are left out instead of refused.
        rules: How the cells of ``event`` are read, and what happens to a time beyond the range.
    """

    name: str
    event: str
    longest: float
    classes: tuple[Value, ...] = (0, 1)
    drop: bool = False
    rules: CellRules = NO_RULES

    @property
    def task(self) -> Task:
        return Task(classes=0, label_scale=self.longest, survival=True)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a table that say the label."""
        return (self.name, self.event)

    @property
    def low(self) -> float:
        return 0.0

    @property
    def high(self) -> float:
        return self.longest

    def encode(self, frame: pd.DataFrame, outside: str = "error", silo: str = "") -> EncodedLabels:
        """(records,) times as shares of the longest one, negative where no event was observed; what was wrong."""
        times, events = frame[self.name], frame[self.event]
        rule = outside if outside == "clip" else "error"
        factors = CellRules(missing_codes=self.rules.missing_codes, factor=self.rules.factor)
        numbers, unreadable = factors.numbers(times, silo)
        scaled, findings = Limits(0.0, self.longest).apply(times, numbers, unreadable, rule)
        codes = self.rules.codes(events, self.classes)
        findings += find(UNREADABLE, events, codes == UNKNOWN, "neither an event nor none")
        findings += find(ABSENT, events, codes == MISSING, "missing")
        # A record that is observed for longer is censored at the end; one without any time keeps its sign.
        observed = (codes == 1) & (numbers <= self.longest)
        shares = np.maximum((scaled + 1) / 2, SHORTEST)
        return np.where(observed, shares, -shares).astype(np.float32), _dropped(findings, self.drop, outside)

    def to_dict(self) -> dict[str, Any]:
        tree = {"column": self.name, "kind": "survival", "event": self.event, "range": [0.0, self.longest]}
        return tree | {"classes": list(self.classes)} | _dropping(self.drop) | self.rules.to_dict()


@dataclass(frozen=True)
class NoLabel:
    """In place of a label, where nothing is predicted: every record counts, with a label or without one."""

    name: str
    drop: bool = False
    rules: CellRules = NO_RULES
    columns: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0

    @property
    def task(self) -> Task:
        return Task(classes=0)

    def encode(self, frame: pd.DataFrame, outside: str = "error", silo: str = "") -> EncodedLabels:
        """Zeros."""
        return np.zeros(len(frame), dtype=np.float32), []

    def to_dict(self) -> dict[str, Any]:
        return {"column": self.name, "kind": "none"}


SHORTEST: Final = 2.0**-20
"""A time of 0, as a share of the longest one: a label's sign says whether the event was observed."""

Label = ClassLabel | NumberLabel | SurvivalLabel | NoLabel


def label_from_dict(name: str, tree: Any, location: str) -> Label:
    """The label that ``[data.schema.label]`` describes."""
    kind = read_kind(tree, ("class", "number", "survival"), location)
    if kind == "survival":
        return _survival_label(name, tree, location)
    if kind == "number":
        keys = ("missing_codes", "outside", "factor")
        check_keys(tree, ("column", "kind", "range", "missing", *keys), location)
        rules = read_rules(tree, keys, location)
        return NumberLabel(name, *read_range(tree, location), drop=_drop(tree, location), rules=rules)
    listed_keys = ("missing_codes", "outside", "aliases", "fold_case")
    check_keys(tree, ("column", "kind", "classes", "missing", *listed_keys), location)
    rules = read_rules(tree, listed_keys, location)
    classes = read_list(tree, "classes", location, rules)
    check_spellings(rules, classes, location)
    if len(classes) < 2:
        raise ConfigError("at least two classes are needed", location=f"{location}.classes", value=list(classes))
    return ClassLabel(name, classes, _drop(tree, location), rules)


def _survival_label(name: str, tree: Tree, location: str) -> SurvivalLabel:
    keys = ("missing_codes", "outside", "aliases", "fold_case", "factor")
    check_keys(tree, ("column", "kind", "event", "range", "classes", "missing", *keys), location)
    event = tree.get("event")
    other = isinstance(event, str) and event not in ("", name)
    require(other, f"{location}.event", event, "the column that says whether the event was observed")
    rules = read_rules(tree, keys, location)
    classes = read_list({"classes": [0, 1], **tree}, "classes", location, rules)
    two = "two values: that observation ended without an event, and that there was one"
    require(len(classes) == 2, f"{location}.classes", list(classes), two)
    check_spellings(rules, classes, location)
    low, longest = read_range(tree, location)
    require(low == 0, f"{location}.range", [low, longest], "from 0, when observation begins, to the longest time")
    return SurvivalLabel(name, str(event), longest, classes, _drop(tree, location), rules)


def _drop(tree: Tree, location: str) -> bool:
    wanted = 'missing = "drop" leaves records without a label out, without it they are refused; nothing else fits'
    require(tree.get("missing", "drop") == "drop", f"{location}.missing", tree.get("missing"), wanted)
    return "missing" in tree


def _dropping(drop: bool) -> dict[str, Any]:
    return {"missing": "drop"} if drop else {}


def _dropped(findings: list[CellProblem], drop: bool, outside: str) -> list[CellProblem]:
    """The findings, as notes on records that are left out where that was agreed on."""
    named = [replace(one, kind=UNLABELLED) if one.kind == ABSENT else one for one in findings]
    left_out = (UNLABELLED, UNREADABLE, OUTSIDE) if outside == "missing" else (UNLABELLED,)
    return [replace(one, kind=LEFT_OUT) if drop and one.kind in left_out else one for one in named]
