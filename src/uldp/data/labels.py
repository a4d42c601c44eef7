"""The label of a schema: a class of an agreed list, or a number in an agreed range."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

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


Label = ClassLabel | NumberLabel


def label_from_dict(name: str, tree: Any, location: str) -> Label:
    """The label that ``[data.schema.label]`` describes."""
    kind = read_kind(tree, ("class", "number"), location)
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
