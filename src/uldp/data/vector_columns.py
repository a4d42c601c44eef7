"""Columns of vectors: embeddings of a text or an image by any frozen encoder, a list of numbers in every cell."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from uldp.data import values
from uldp.data.cells import NO_RULES, CellRules
from uldp.data.findings import ABSENT, CLIPPED, OUTSIDE, REPLACED, UNREADABLE, CellProblem, Matrix, find
from uldp.elementary import row_sums

if TYPE_CHECKING:
    import pandas as pd

ZERO: Final = "zero"
"""What a missing vector can count as."""
_ROUNDED: Final = 1 + 2.0**-20
"""Features are stored in single precision, which may make a vector of norm 1 a little longer."""


@dataclass(frozen=True)
class VectorColumn:
    """Lists of ``length`` numbers, divided by an agreed bound of their Euclidean norm.

    Args:
        name: The column.
        length: How many numbers every list has.
        limit: The bound.
        missing: ``"zero"`` if a missing vector counts as zeros.
        rules: What happens to a longer vector.
    """

    name: str
    length: int
    limit: float
    missing: str | None = None
    rules: CellRules = NO_RULES

    @property
    def norm(self) -> float:
        return _ROUNDED

    def feature_names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}[{place}]" for place in range(self.length))

    def encode(self, column: pd.Series, outside: str = "error", silo: str = "") -> tuple[Matrix, list[CellProblem]]:
        """(rows, length), each of norm 1 at most, and what was wrong. A clipped vector keeps its direction."""
        matrix = np.zeros((len(column), self.length))
        missing, unreadable = (np.zeros(len(column), dtype=np.bool_) for _ in range(2))
        for row, cell in enumerate(values.cells(column)):
            vector = None if _is_missing(cell) else self.read(cell)
            if vector is not None:
                matrix[row] = vector
            elif _is_missing(cell):
                missing[row] = True
            else:
                unreadable[row] = True
        largest = np.abs(matrix).max(axis=1, initial=0.0)
        scale = np.where(largest > 0, largest, 1.0)  # squares of what is scaled to 1 neither overflow nor vanish
        norms = scale * np.sqrt(row_sums(np.square(matrix / scale[:, None])))
        long = norms > self.limit
        what, bound = f"no list of {self.length} finite numbers", f"of a norm above {self.limit:g}"
        if outside == "missing":
            findings = find(REPLACED, column, long | unreadable, f"{bound} or {what}")
            missing |= long | unreadable
            matrix[missing] = 0.0
        else:
            findings = find(UNREADABLE, column, unreadable, what)
            findings += find(CLIPPED if outside == "clip" else OUTSIDE, column, long, bound)
        findings += [] if self.missing == ZERO else find(ABSENT, column, missing, "missing")
        return matrix / np.maximum(norms, self.limit)[:, None], findings

    def read(self, cell: object) -> npt.NDArray[np.float64] | None:
        """The numbers of a cell; None if it holds another number of them, or anything else."""
        if isinstance(cell, str):  # a CSV file's cell
            try:
                cell = json.loads(cell)
            except (ValueError, RecursionError):
                return None
        if not isinstance(cell, list | tuple | np.ndarray) or len(cell) != self.length:
            return None
        try:
            found = np.asarray(cell)
        except ValueError:  # lists of several lengths within
            return None
        numbers = found.ndim == 1 and found.dtype.kind in "iuf"
        return found.astype(np.float64) if numbers and np.isfinite(found).all() else None

    def to_dict(self) -> dict[str, Any]:
        missing = {} if self.missing is None else {"missing": self.missing}
        return {"kind": "vector", "length": self.length, "norm": self.limit} | missing | self.rules.to_dict()


def propose_vector(column: pd.Series, *, from_data: bool, partial: bool) -> dict[str, Any] | None:
    """What a draft says of a column of vectors; nothing of other lists; None if it holds no lists.

    Args:
        column: The cells of all tables.
        from_data: Whether a bound of their norm is proposed: the largest, rounded up to one digit.
        partial: Whether some tables do not have the column.
    """
    cells = values.cells(column)
    found = [cell for cell in cells if not _is_missing(cell)]
    lengths = {len(cell) for cell in found if isinstance(cell, list | tuple | np.ndarray)}
    if not lengths:
        return None
    column_of_it = VectorColumn(str(column.name), max(lengths), 1.0)
    vectors = [column_of_it.read(cell) for cell in found]
    if not column_of_it.length or any(vector is None for vector in vectors):
        return {}
    largest = max(float(np.linalg.norm(vector)) for vector in vectors if vector is not None)
    digit = 10.0 ** math.floor(math.log10(largest)) if largest > 0 else 1.0
    norm: Any = float(f"{math.ceil(largest / digit) * digit or 1.0:.6g}") if from_data else []
    missing = {"missing": ZERO} if partial or len(found) < len(cells) else {}
    return {"kind": "vector", "length": column_of_it.length, "norm": norm} | missing


def _is_missing(cell: object) -> bool:
    return cell is None or (isinstance(cell, str | float) and values.is_missing(cell))
