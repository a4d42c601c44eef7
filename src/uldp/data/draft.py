"""A first schema for tables, for people to correct and agree on.

A draft reads the data, so it is only a proposal. Without ``from_data`` it names the columns and their kinds
and leaves ranges and categories empty; a run refuses these until they are filled in. With ``from_data`` it
proposes what it saw, and marks the schema ``source = "data"`` until the parties confirm it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from uldp.data.draft_columns import ColumnValues, propose_column, propose_label
from uldp.data.draft_doubts import doubt_about
from uldp.data.image_columns import propose_image
from uldp.data.vector_columns import propose_vector
from uldp.errors import DataError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Draft:
    """A tree for ``[data.schema]``, perhaps with empty places; and the columns left out, with the reason.

    The label's column is not repeated here: it is ``label`` of ``[data]``. ``remarks`` are comments on columns, under
    ``""`` on the label; ``offers`` are parts for columns that are left out until somebody has thought about them.
    """

    tree: dict[str, Any]
    left_out: Mapping[str, str]
    remarks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    offers: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    def to_toml(self, location: str = "data.schema") -> str:
        """The draft as a commented part of an experiment file."""
        lines = ["# Kinds, and columns left out, are guesses from the files: check every one."]
        for name, why in self.left_out.items():
            lines.append(f"# left out: {toml_key(name)} ({why})")
            if name in self.offers:
                head = f"[{location}.columns.{toml_key(name)}]"
                lines += [f"# {line}" for line in ("To use it, uncomment:", head, *_toml_lines(self.offers[name]))]
        return schema_toml(self.tree, location, self.remarks) + "\n".join(lines) + "\n"


def schema_toml(
    tree: Mapping[str, Any], location: str = "data.schema", remarks: Mapping[str, Sequence[str]] | None = None
) -> str:
    """A schema's tree as a commented part of an experiment file."""
    said = {name: [f"# {one}" for one in about] for name, about in (remarks or {}).items()}
    top = {key: value for key, value in tree.items() if not isinstance(value, dict)}
    lines = [f"[{location}]", *_toml_lines(top), *said.get("", []), f"[{location}.label]", *_toml_lines(tree["label"])]
    for name, column in tree["columns"].items():
        lines += [*said.get(name, []), f"[{location}.columns.{toml_key(name)}]", *_toml_lines(column)]
    if "statistics" in tree:
        lines += [f"[{location}.statistics]", *_toml_lines(tree["statistics"])]
    return "\n".join(lines) + "\n"


def draft_silos(
    silos: Mapping[str, pd.DataFrame],
    user: str,
    label: str,
    *,
    from_data: bool,
    test: tuple[str, pd.DataFrame] | None = None,
) -> Draft:
    """Propose a schema for the silos' tables, by name, and the test table.

    A column must be in the test table and in more than half of the silos; where it is not, it counts as missing.
    """
    tables = dict([*silos.items(), *([test] if test else [])])
    for location, table in tables.items():
        for column in (user, label) if location in silos else (label,):
            _need_column(table, column, location)
    return _draft(silos, user, label, from_data, None if test is None else test[1])


def draft_schema(frame: pd.DataFrame, user: str, label: str, *, from_data: bool) -> Draft:
    """Propose a schema for one table."""
    _need_column(frame, user, "data.user")
    _need_column(frame, label, "data.label")
    return _draft({"": frame}, user, label, from_data, None)


def _draft(
    silos: Mapping[str, pd.DataFrame], user: str, label: str, from_data: bool, test: pd.DataFrame | None
) -> Draft:
    columns: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    remarks: dict[str, Sequence[str]] = {}
    offers: dict[str, dict[str, Any]] = {}
    tables = [*silos.values(), *([] if test is None else [test])]
    for name in dict.fromkeys(name for table in silos.values() for name in table.columns):
        if name in (user, label):
            continue
        lacking = [silo for silo, table in silos.items() if name not in table.columns]
        if 2 * len(lacking) >= len(silos) or (test is not None and name not in test.columns):
            left_out[name] = "is not in every table"
            continue
        having = [table for table in silos.values() if name in table.columns]
        if (image := propose_image([t[name] for t in having], from_data=from_data, partial=bool(lacking))) is not None:
            columns[name] = image
            continue
        column, people, labels = (_joined(having, one) for one in (name, user, label))
        if (vector := propose_vector(column, from_data=from_data, partial=bool(lacking))) is not None:
            columns |= {name: vector} if vector else {}
            left_out |= {} if vector else {name: "lists that are not numbers, or of several lengths"}
            continue
        # Of the test table too, so that a draft fits it; what is left out is decided without it.
        proposal = propose_column(
            ColumnValues.of(_joined([table for table in tables if name in table.columns], name)),
            from_data=from_data,
            partial=bool(lacking),
        )
        doubt = doubt_about(str(name), ColumnValues.of(column), column, people, labels)
        if doubt is not None:
            left_out[name] = doubt.reason
            offers |= {name: proposal.tree} if doubt.offer else {}
            continue
        columns[name] = proposal.tree
        absent = [f"not in {', '.join(lacking)}: all missing there"] if lacking else []
        remarks[name] = [*proposal.remarks, *absent]
    target = propose_label(ColumnValues.of(_joined(tables, label)), from_data=from_data)
    images = [name for name, column in columns.items() if column["kind"] == "image"]
    if images:  # the first of them and nothing else
        left_out |= dict.fromkeys(columns, "a model of images takes one column of them and no other")
        columns = {images[0]: columns[images[0]]}
        del left_out[images[0]]
    tree = {
        "outside": "error",
        "standardise": "none",
        "source": "data" if from_data else "public",
        "label": target.tree,
        "columns": columns,
    }
    about = {name: said for name, said in remarks.items() if name in columns}
    return Draft(tree, left_out, {**about, "": target.remarks}, offers)


def _joined(tables: Sequence[pd.DataFrame], name: str) -> pd.Series:
    import pandas as pd

    return pd.concat([table[name] for table in tables], ignore_index=True)


def _need_column(table: pd.DataFrame, column: str, location: str) -> None:
    if column not in table.columns:
        there = ", ".join(map(str, table.columns))
        raise DataError(f"no column {column!r}; the table has: {there}", location=location, value=column)


def _toml_lines(tree: Mapping[str, Any]) -> list[str]:
    return [f"{toml_key(key)} = {toml_value(value)}{_comment(key, value)}" for key, value in tree.items()]


def _comment(key: str, value: Any) -> str:
    if value in ([], "") and key != "formats":
        wanted = {
            "range": "[lowest, highest]",
            "missing": "what a missing value counts as,",
            "since": "the first day,",
            "norm": "the largest Euclidean norm",
            "size": "[height, width] in pixels",
            "channels": '"grey" or "rgb"',
        }
        return f"  # fill in: {wanted.get(key, f'the {key}')} that the parties agree on"
    comments = {
        "outside": 'a value outside its range or categories: "error", "clip" and count, or "missing"',
        "standardise": '"silo" scales by the data: user-level DP does not hold then',
        "source": '"data": proposed from the data; set "public" once the parties agree on every value',
    }
    return f"  # {comments[key]}" if key in comments else ""


def tree_toml(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> str:
    """A tree of settings as TOML.

    >>> print(tree_toml({"run": {"seed": 3}}).strip())
    [run]
    seed = 3
    """
    quoted = {key: toml_key(str(key)) for key in tree}
    values = [f"{quoted[key]} = {toml_value(value)}" for key, value in tree.items() if not isinstance(value, Mapping)]
    head = [f"[{'.'.join(path)}]"] if path and values else []
    below = [tree_toml(value, (*path, quoted[key])) for key, value in tree.items() if isinstance(value, Mapping)]
    return "\n".join([*head, *values, "", *below])


def toml_key(key: str) -> str:
    """A key of a TOML file, quoted where it must be; on one line whatever is in it."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else toml_value(key)


def toml_value(value: Any) -> str:
    """Texts, numbers, true/false and lists are written alike in JSON and TOML, but for the character DEL."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{toml_key(key)} = {toml_value(part)}' for key, part in value.items())} }}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
