"""The agreed preprocessing of tables: public constants only.

A mean, a range or a list of categories taken from the data would let one person move everybody's features,
and the sensitivity bound would be gone. So the parties agree on a schema, write it into the experiment file,
and every cell becomes a number by that schema alone::

    [data.schema]
    outside = "error"        # a value outside its range or categories: "error", "clip" (and count), or "missing"
    standardise = "none"     # "silo" scales by the silo's own statistics: user-level DP does not hold then
    source = "public"        # "data" as long as the constants are only a proposal drawn from the data
    [data.schema.label]
    kind = "class"           # or "number" with a range, for regression
    classes = [0, 1]
    [data.schema.columns.age]
    kind = "number"
    range = [0, 120]
    missing = 50
    missing_codes = [9999]
    [data.schema.columns.sex]
    kind = "category"
    categories = ["f", "m"]
    aliases = { f = ["female", "w"] }

Columns of a table that the schema does not name are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from uldp.caveats import Caveat, Severity
from uldp.data.cells import OUTSIDE_RULES
from uldp.data.column_keys import Tree, check_filled_in
from uldp.data.columns import CategoryColumn, CodeColumn, Column, column_from_dict
from uldp.data.federation import FloatArray, LabelArray, Records
from uldp.data.files import column_names
from uldp.data.findings import LEFT_OUT, NOTES, CellProblem, Mask, judge, kept_rows
from uldp.data.image_columns import ImageColumn
from uldp.data.labels import Label, label_from_dict
from uldp.data.statistics import Statistics
from uldp.data.values import Value
from uldp.data.vector_columns import VectorColumn
from uldp.errors import ConfigError, DataError, check_keys, did_you_mean, require, warn_caller
from uldp.limits import MAX_FEATURES

if TYPE_CHECKING:
    import pandas as pd

RULES: Final = {"outside": OUTSIDE_RULES, "standardise": ("none", "silo"), "source": ("public", "data")}
"""Keys of a schema and what they may be; the first is the default."""

STANDARDISE_CAVEAT: Final = (
    'user-level DP does not hold: standardise = "silo" scales features by statistics of the data, so that '
    'one user moves the features of all others; the guarantee needs standardise = "none"'
)
SOURCE_CAVEAT: Final = Caveat(
    "schema-from-data",
    "The guarantee assumes public constants, but ranges and categories were proposed from the "
    'data (source = "data"); it holds once the parties agree on them and set source = "public".',
    Severity.WEAKENS,
)


class SchemaFromData(UserWarning):
    """A schema was read from the data, so its values are not public yet."""


@dataclass(frozen=True, repr=False)
class Schema:
    """How a table becomes numbers: feature columns, the label, and rules, all of them public constants.

    Args:
        columns: The feature columns; :meth:`numeric` and :meth:`category` add them.
        label: What is predicted; :meth:`classes` and :meth:`numbers` begin a schema with it.
        outside: What happens to a value outside its range or categories: ``"error"``; ``"clip"`` (and count); or
            ``"missing"``: it counts as missing, as does a cell that cannot be read.
        standardise: ``"silo"`` scales by the silo's own statistics: user-level DP does not hold then.
        source: ``"data"`` as long as some values are only a proposal drawn from the data.
        statistics: Set by a loader that standardises.
        drafted: The columns whose values were read from the data; not part of a schema's identity.

    Raises:
        ConfigError: A range or a list is wrong.

    Example:
        >>> schema = Schema.classes("ill", [0, 1]).numeric("age", 0, 110).category("sex", ["f", "m"])
        >>> schema.feature_names()
        ('age', 'sex=f', 'sex=m')
    """

    columns: tuple[Column, ...]
    label: Label
    outside: str = "error"
    standardise: str = "none"
    source: str = "public"
    statistics: Statistics | None = None
    drafted: frozenset[str] = field(default=frozenset(), compare=False)

    def __post_init__(self) -> None:
        if self.source == "data" and not self.drafted:  # a file does not say which of its values were confirmed
            object.__setattr__(self, "drafted", self.column_names())
        _check_replacements(self)
        _check_images(self)
        if self.statistics is None:
            return
        if self.standardise != "silo":  # else statistics could slip in without the caveat
            raise ConfigError('statistics need standardise = "silo"', location="data.schema.statistics")
        if not len(self.statistics.mean) == len(self.statistics.deviation) == len(number_positions(self.columns)):
            raise ConfigError("one mean and deviation for each number column", location="data.schema.statistics")

    @classmethod
    def classes(cls, label: str, classes: Sequence[Value], outside: str = "error") -> Schema:
        """A schema without features yet, to predict a class.

        Args:
            label: The column to predict.
            classes: What it may hold: texts, numbers or true/false.
            outside: What happens to values outside their range or categories: ``error``, ``clip`` or ``missing``.
        """
        tree = {"kind": "class", "classes": _as_list(classes)}
        return cls((), label_from_dict(label, tree, f"schema.{label}"), outside)

    @classmethod
    def numbers(cls, label: str, low: float, high: float, outside: str = "error") -> Schema:
        """A schema without features yet, to predict a number.

        Args:
            label: The column to predict.
            low: The smallest number that it may hold.
            high: The largest.
            outside: As for :meth:`classes`.
        """
        tree = {"kind": "number", "range": [low, high]}
        return cls((), label_from_dict(label, tree, f"schema.{label}"), outside)

    def numeric(self, name: str, low: float, high: float, missing: float | None = None, **rules: Any) -> Schema:
        """This schema with a column of numbers.

        Args:
            name: The column.
            low: The smallest number that it may hold.
            high: The largest.
            missing: The number to use for missing values; without one they are refused.
            rules: The other keys of a column in an experiment file, such as ``missing_codes=[9999]``.

        Example:
            >>> schema = Schema.classes("ill", [0, 1]).numeric("visit", 0, 3000, kind="date", since="2020-01-01")
            >>> schema.feature_names()
            ('visit:days',)
        """
        return self._with({"kind": "number", "range": [low, high], **rules}, name, missing)

    def category(self, name: str, categories: Sequence[Value], missing: Value | None = None, **rules: Any) -> Schema:
        """This schema with a column of categories.

        Args:
            name: The column.
            categories: What it may hold.
            missing: The category to use for missing values; without one they are refused.
            rules: The other keys of a column in an experiment file, such as ``kind="ordinal"`` or ``fold_case=True``.
        """
        return self._with({"kind": "category", "categories": _as_list(categories), **rules}, name, missing)

    def _with(self, tree: Tree, name: str, missing: Value | None) -> Schema:
        location = f"schema.{name}"
        if name in self.label.columns:
            raise ConfigError(f"{name!r} is the label and cannot be a feature", location=location, value=name)
        column = column_from_dict(name, tree if missing is None else {**tree, "missing": missing}, location)
        columns = {one.name: one for one in self.columns} | {name: column}
        drafted = self.drafted - {name}
        source = "data" if drafted else "public"
        return replace(self, columns=tuple(columns.values()), drafted=drafted, source=source, statistics=None)

    def image(
        self, name: str, size: tuple[int, int], channels: str, missing: str | None = None, **rules: Any
    ) -> Schema:
        """This schema with its only column: of image files.

        Args:
            name: The column; it holds paths.
            size: Height and width in pixels that every image gets.
            channels: ``"grey"`` or ``"rgb"``.
            missing: ``"zero"`` to take a missing image for an even grey; without it one is refused.
            rules: ``outside="missing"`` takes a file that is no image for a missing one.

        Example:
            >>> feature_shape(Schema.classes("finding", ["no", "yes"]).image("scan", (28, 28), "grey"))
            (1, 28, 28)
        """
        return self._with({"kind": "image", "size": _as_list(size), "channels": channels, **rules}, name, missing)

    def agreed(self) -> Schema:
        """This schema as one whose values the parties agree on: none is a secret of the data any more."""
        return replace(self, source="public", drafted=frozenset())

    @classmethod
    def draft(cls, silos: Mapping[str, pd.DataFrame], *, user: str, label: str) -> Schema:
        """Propose a schema for data frames, with a warning that names the columns whose values were read from them.

        Args:
            silos: A data frame per silo, by its name.
            user: The column of user ids.
            label: The column to predict.

        Returns:
            A schema with ``source = "data"``. Replace what was read from the data with public constants, column by
            column (:meth:`numeric`, :meth:`category`), or confirm all of it (:meth:`agreed`).

        Raises:
            DataError: A column is missing in a data frame, or none is left to learn from.
        """
        from uldp.data.draft import draft_silos
        from uldp.data.files import read_table

        frames = {name: read_table(frame, f"silo {name!r}") for name, frame in silos.items()}
        draft = draft_silos(frames, user, label, from_data=True)
        try:
            schema = cls.from_dict({**draft.tree, "source": "data"}, label=label, user=user, location="schema")
        except ConfigError as error:  # its value would be one of the data
            raise DataError(error.message.partition(", not ")[0], location=error.location) from None
        known = {name for name in schema.column_names() if all(_boolean(frame[name]) for frame in frames.values())}
        columns = [
            CategoryColumn(column.name, (False, True)) if column.name in known else column for column in schema.columns
        ]
        drafted = schema.drafted - known
        # Which columns are left out was read from the data as well.
        source = "data" if drafted or draft.left_out else "public"
        schema = replace(schema, columns=tuple(columns), drafted=drafted, source=source)
        left_out = "".join(f"; left out {name!r}: {why}" for name, why in draft.left_out.items())
        read = ", ".join(column.name for column in (*schema.columns, schema.label) if column.name in schema.drafted)
        if source == "data":
            text = (
                f"ranges and categories of {read} were read from the data, which the guarantee does not cover; replace "
                f"them by public constants (.numeric, .category), or confirm them (.agreed()){left_out}"
            )
            warn_caller(text, SchemaFromData)
        return schema

    def to_toml(self) -> str:
        """The schema as it stands in an experiment file."""
        from uldp.data.draft import schema_toml

        return schema_toml(self.to_dict())

    def __repr__(self) -> str:
        rows = self._rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)

    def _repr_html_(self) -> str:
        head, *body = (
            "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row)
            for tag, row in zip(("th", *("td" for _ in (*self.columns, self.label))), self._rows(), strict=True)
        )
        lines = "".join(f"<tr>{row}</tr>" for row in body)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"

    def _rows(self) -> list[tuple[str, ...]]:
        """The schema as a table for people, its header first."""
        rows: list[tuple[str, ...]] = [("column", "kind", "values", "missing", "source")]
        for column in (*self.columns, self.label):
            tree = column.to_dict()
            listed = tree.get("categories") or tree.get("classes")
            if isinstance(column, VectorColumn):
                shown = f"{column.length} numbers, norm up to {column.limit:g}"
            elif isinstance(column, ImageColumn):
                shown = f"{column.height} x {column.width} pixels, {column.channels}"
            elif "range" in tree or listed is None:
                shown = f"{column.low:g} to {column.high:g}"  # type: ignore[union-attr]
            else:
                shown = ", ".join(map(str, listed))
            kind = f"label, {tree['kind']}" if column is self.label else tree["kind"]
            source = "read from the data" if column.name in self.drafted else "public"
            rows.append((column.name, kind, shown, str(tree.get("missing", "")), source))
        return rows

    @classmethod
    def from_dict(
        cls, tree: Tree, *, label: str | None = None, user: str | None = None, location: str = "data.schema"
    ) -> Schema:
        """The schema in a tree that was read from an experiment file or a run directory.

        Args:
            tree: Section ``data.schema``.
            label: The label's column, needed where the tree does not name it itself.
            user: The column of user ids, which must not be a feature.
            location: What errors call the tree.

        Raises:
            ConfigError: A key is unknown or missing, or a value does not fit.
        """
        check_keys(tree, ("label", "columns", *RULES, "statistics"), location)
        check_filled_in(tree, location)
        target = _label(tree, label, location)
        columns = _columns(tree, target, user, location)
        statistics = tree.get("statistics")
        return cls(
            columns,
            target,
            outside=_choice(tree, "outside", location),
            standardise=_choice(tree, "standardise", location),
            source=_choice(tree, "source", location),
            statistics=None if statistics is None else Statistics.from_dict(statistics, f"{location}.statistics"),
        )

    def to_dict(self) -> dict[str, Any]:
        """A plain tree for TOML or JSON; ``from_dict`` reads it back to an equal schema."""
        tree: dict[str, Any] = {
            **{key: getattr(self, key) for key in RULES},
            "label": self.label.to_dict(),
            "columns": {column.name: column.to_dict() for column in self.columns},
        }
        return tree if self.statistics is None else tree | {"statistics": self.statistics.to_dict()}

    @property
    def caveats(self) -> tuple[Caveat, ...]:
        """What a privacy statement about data under this schema must say."""
        return (SOURCE_CAVEAT,) if self.source == "data" else ()

    def column_names(self) -> frozenset[str]:
        """The columns of a table that matter, the label's among them."""
        return frozenset({*self.label.columns, *(column.name for column in self.columns)})

    def feature_names(self) -> tuple[str, ...]:
        """Names of the features, in order: one for a column of numbers, one per value for categories."""
        return tuple(name for column in self.columns for name in column.feature_names())

    def features(self, frame: pd.DataFrame, location: str, silo: str = "") -> FloatArray:
        """(rows, features), or (rows, channels, height, width), each row from that row's cells alone.

        Args:
            frame: The table.
            location: What errors call it.
            silo: Whose units its numbers are in; without it they are in the agreed ones.

        Raises:
            DataError: A column is missing, or a cell is refused.
        """
        matrix, findings = self._features(frame, location, silo)
        judge(findings, location)
        return matrix

    def labels(self, frame: pd.DataFrame, location: str, silo: str = "") -> LabelArray:
        """Class positions, or numbers scaled to [-1, 1]. Records that are left out for want of a label have none.

        ``frame``, ``location`` and ``silo`` are those of :meth:`features`.
        """
        labels, findings = self._labels(frame, location, silo)
        judge(findings, location)
        return labels[kept_rows(findings, len(frame))]

    def _features(self, frame: pd.DataFrame, location: str, silo: str) -> tuple[FloatArray, list[CellProblem]]:
        if not self.columns:
            raise ConfigError("has no feature column; add some with .numeric or .category", location="schema")
        _need_columns(frame, _needed(self, frame), location)
        encoded = [column.encode(_cells(frame, column), self._rule(column), silo) for column in self.columns]
        matrix = np.concatenate([part for part, _ in encoded], axis=1)
        if self.statistics is not None:
            matrix = self.statistics.apply(matrix, number_positions(self.columns))
        shaped = matrix.astype(np.float32).reshape(len(frame), *feature_shape(self))
        return shaped, [finding for _, findings in encoded for finding in findings]

    def _labels(self, frame: pd.DataFrame, location: str, silo: str) -> tuple[LabelArray, list[CellProblem]]:
        _need_columns(frame, list(self.label.columns), location)
        return self.label.encode(frame, self._rule(self.label), silo)

    def _rule(self, column: Column | Label) -> str:
        return column.rules.outside or self.outside


@dataclass(frozen=True)
class EncodedTable:
    """A table as numbers: the records that have a label, which rows they are, and notes for who holds the table."""

    records: Records
    rows: Mask
    notes: tuple[str, ...]


def encode_table(schema: Schema, frame: pd.DataFrame, location: str, silo: str = "") -> EncodedTable:
    """The records of a table under a schema.

    Raises:
        DataError: A cell is refused; the message says how many, in which columns and in which row the first is.
    """
    labels, about_labels = schema._labels(frame, location, silo)
    rows = kept_rows(about_labels, len(frame))
    features, findings = schema._features(frame, location, silo)
    judge([*findings, *about_labels], location, rows)
    notes = [
        f"{location}: no column {column.name!r}; all of it is taken as missing"
        for column in schema.columns
        if column.name not in frame.columns
    ]
    found = [finding.among(rows) for finding in findings if finding.kind in NOTES]
    found += [finding for finding in about_labels if finding.kind in (*NOTES, LEFT_OUT)]
    notes += [f"{location}: {finding.kind} {finding.text}" for finding in found if finding.count]
    return EncodedTable(Records(features[rows], labels[rows]), rows, tuple(notes))


def notes_on(schema: Schema, frame: pd.DataFrame, location: str, silo: str = "") -> tuple[str, ...]:
    """What the schema changed in the features of a table without labels."""
    _, findings = schema._features(frame, location, silo)
    absent = [column.name for column in schema.columns if column.name not in frame.columns]
    notes = [f"{location}: no column {name!r}; all of it is taken as missing" for name in absent]
    return (*notes, *(f"{location}: {one.kind} {one.text}" for one in findings if one.kind in NOTES))


def feature_shape(schema: Schema) -> tuple[int, ...]:
    """Of one record: (channels, height, width) of images, else how many features there are."""
    images = [column.shape for column in schema.columns if isinstance(column, ImageColumn)]
    return images[0] if images else (len(schema.feature_names()),)


def code_columns(schema: Schema) -> tuple[str, ...]:
    """The columns whose features are codes, which only an ``Embedding`` can read."""
    return tuple(column.name for column in schema.columns if isinstance(column, CodeColumn))


def why_no_guarantee(schema: Schema) -> str:
    """Why no guarantee holds for data under this schema; empty where one does."""
    return STANDARDISE_CAVEAT if schema.standardise == "silo" else ""


def category_columns(schema: Schema) -> int:
    """How many columns are categories."""
    return sum(isinstance(column, CategoryColumn) for column in schema.columns)


def feature_norm(schema: Schema) -> float:
    """What no record's features exceed in L2 norm: numbers and vectors are scaled to 1, of categories one is 1.

    Infinite for images and codes.
    """
    squares = math.fsum(column.norm**2 for column in schema.columns)
    return math.sqrt(squares) if schema.standardise == "none" else math.inf


def number_positions(columns: Sequence[Column]) -> tuple[int, ...]:
    """Where the columns of one size lie among the features; these are what is standardised."""
    starts = accumulate((len(column.feature_names()) for column in columns), initial=0)
    others = (isinstance(column, CategoryColumn | CodeColumn | VectorColumn | ImageColumn) for column in columns)
    return tuple(start for other, start in zip(others, starts, strict=False) if not other)


def _as_list(values: Sequence[Value]) -> Any:
    """A list of plain values; anything else is for the reader of the tree to refuse."""
    listed = isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping)
    return [getattr(value, "item", lambda value=value: value)() for value in values] if listed else values


def _boolean(column: pd.Series) -> bool:
    """Whether a column's type alone says what its values can be: with other types some may be missing."""
    return str(column.dtype) == "bool"


def _label(tree: Tree, name: str | None, location: str) -> Label:
    if "label" not in tree:
        raise ConfigError('missing; say what the label is, e.g. kind = "class"', location=f"{location}.label")
    own = tree["label"].get("column") if isinstance(tree["label"], Mapping) else None
    if name is None and own is None:
        raise ConfigError("missing; name the label's column", location=f"{location}.label.column")
    if name is not None and own is not None and name != own:
        reason = f"{own!r}, but data.label is {name!r}; keep one of them"
        raise ConfigError(reason, location=f"{location}.label.column", value=own)
    return label_from_dict(str(name if own is None else own), tree["label"], f"{location}.label")


def _columns(tree: Tree, label: Label, user: str | None, location: str) -> tuple[Column, ...]:
    columns = tree.get("columns")
    if not isinstance(columns, Mapping) or not columns:
        reason = "at least one feature column is needed; `uldp new` drafts them from a table"
        raise ConfigError(reason, location=f"{location}.columns", value=columns)
    for name, what in (*((column, "the label") for column in label.columns), (user, "the user id")):
        if name in columns:
            reason = f"{name!r} is {what} and cannot be a feature; remove it"
            raise ConfigError(reason, location=f"{location}.columns", value=name)
    if len(columns) > MAX_FEATURES:
        reason = f"at most {MAX_FEATURES:,} columns, not {len(columns):,}"
        raise ConfigError(reason, location=f"{location}.columns", value=len(columns))
    return tuple(column_from_dict(name, part, f"{location}.columns.{name}") for name, part in columns.items())


def _choice(tree: Tree, key: str, location: str) -> str:
    value = tree.get(key, RULES[key][0])
    require(value in RULES[key], f"{location}.{key}", value, f"one of {', '.join(RULES[key])}")
    return str(value)


def _check_replacements(schema: Schema) -> None:
    """Where a value counts as missing, something must be agreed on for a missing value."""
    for column in schema.columns:
        if (
            column.missing is None
            and column.rules.other is None
            and (column.rules.outside or schema.outside) == "missing"
        ):
            reason = 'outside = "missing" needs a constant for missing values; add missing = ... to the column'
            raise ConfigError(reason, location=f"data.schema.columns.{column.name}.missing")


def _check_images(schema: Schema) -> None:
    """A record is an image or a row of numbers: no model here takes both."""
    images = [column.name for column in schema.columns if isinstance(column, ImageColumn)]
    if images and len(schema.columns) > 1:
        reason = "a column of images must be the only feature column; take out the others"
        raise ConfigError(reason, location=f"data.schema.columns.{images[0]}")


def check_silos(schema: Schema, silos: Iterable[str]) -> None:
    """Refuse a factor for a silo that does not exist: its numbers would stay in another unit."""
    names = list(silos)
    for column in (*schema.columns, schema.label):
        for silo, _ in column.rules.factor:
            if silo not in names:
                reason = f"there is no silo {silo!r}. The silos: {', '.join(names)}{did_you_mean(silo, names)}"
                raise ConfigError(reason, location=f"data.schema.columns.{column.name}.factor", value=silo)


def _needed(schema: Schema, frame: pd.DataFrame) -> list[str]:
    """The columns that must be in the table: those without a constant for missing values, or one of all."""
    if not any(column.name in frame.columns for column in schema.columns):
        return [column.name for column in schema.columns]
    return [column.name for column in schema.columns if column.missing is None]


def _cells(frame: pd.DataFrame, column: Column) -> pd.Series:
    """The column's cells; all of them missing where the table does not have it."""
    if column.name in frame.columns:
        return frame[column.name]
    import pandas as pd

    return pd.Series([None] * len(frame), index=frame.index, dtype="object", name=column.name)


def _need_columns(frame: pd.DataFrame, names: list[str], location: str) -> None:
    absent = [repr(name) for name in names if name not in frame.columns]
    if absent:
        there = ", ".join(column_names(frame))
        plural = "s" if len(absent) > 1 else ""
        missing = ", ".join(absent)
        reason = (
            f"no column{plural} {missing}; the table has: {there} (a column may be absent if it has a missing value)"
        )
        raise DataError(reason, location=location, value=missing)
