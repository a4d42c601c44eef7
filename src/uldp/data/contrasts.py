"""Which features of a schema have a coefficient of their own, and what one unit of them is in a table's own units."""

from __future__ import annotations

from dataclasses import dataclass

from uldp.data.columns import CategoryColumn, DateColumn, NumberColumn, OrdinalColumn
from uldp.data.schema import Schema
from uldp.data.vector_columns import VectorColumn


@dataclass(frozen=True)
class Contrast:
    """A feature with a coefficient: feature = shift + scale * value in the column's own units.

    Args:
        feature: Its place among the schema's features.
        name: What its coefficient is called.
        scale: See above.
        shift: See above.
        reference: Of a category: the place of the category with which it is compared.
    """

    feature: int
    name: str
    scale: float = 1.0
    shift: float = 0.0
    reference: int | None = None


def contrasts(schema: Schema) -> tuple[Contrast, ...]:
    """A contrast for each number, and for each category but the first of its column.

    All categories of a column add up to 1, as the intercept does: only differences between them can be known.

    Args:
        schema: The agreed columns.

    Example:
        >>> schema = Schema.classes("ill", [0, 1]).numeric("age", 0, 100).category("sex", ["f", "m"])
        >>> [(one.name, one.feature, one.scale) for one in contrasts(schema)]
        [('age', 0, 0.02), ('sex=m (against f)', 2, 1.0)]
    """
    found: list[Contrast] = []
    start = 0
    for column in schema.columns:
        names = column.feature_names()
        if isinstance(column, CategoryColumn):
            against = f"(against {column.categories[0]})"
            found += [
                Contrast(start + place, f"{names[place]} {against}", reference=start) for place in range(1, len(names))
            ]
        elif isinstance(column, NumberColumn | DateColumn):
            width = column.high - column.low
            found.append(Contrast(start, names[0], 2 / width, -(column.high + column.low) / width))
        elif isinstance(column, OrdinalColumn):  # its values are 0, 1, 2 ... here: the levels in their order
            found.append(Contrast(start, f"{names[0]} (per level)", 2 / (len(column.categories) - 1), -1.0))
        elif isinstance(column, VectorColumn):
            found += [Contrast(start + place, name, 1 / column.limit) for place, name in enumerate(names)]
        start += len(names)
    return tuple(found)
