"""Arrays and columns as scikit-learn's callers pass them, read without ever showing a cell of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.utils.validation import column_or_1d

from uldp.errors import ConfigError, DataError, InputError, format_value, warn_caller

Range = tuple[npt.ArrayLike, npt.ArrayLike]
Floats = npt.NDArray[np.float64]

# Beginnings of texts of scikit-learn that hold shapes, types and names, but never a cell. Any other is replaced: "could
# not convert string to float: 'smith'" is one of them.
_WITHOUT_CELLS: Final = re.compile(
    r"Found array with |Input X contains |X has \d+ features|The feature names should|Sparse data was passed"
    r"|y should be a 1d array|Unknown label type: [a-z-]+\. |float\(\) argument must be|Complex data not supported$"
)


class PrivacyWarning(UserWarning):
    """Something that the guarantee depends on was assumed, or the same people were trained on before."""


class EstimatorError(InputError, ValueError):
    """An :class:`uldp.InputError` that scikit-learn's tools know as a ValueError."""


@contextmanager
def without_cells(location: str) -> Iterator[None]:
    """Errors of scikit-learn and of uldp become a ValueError or a TypeError with nobody's cells in it or behind it.

    >>> with without_cells("fit"):
    ...     float("smith")
    Traceback (most recent call last):
    uldp.library.cells.EstimatorError: fit: cells are not finite numbers, or labels are of mixed types (ValueError)
    """
    raised: type[Exception]
    try:
        yield
        return
    except InputError as error:
        raised, text, where, value = type(error), error.message, error.location, error.value
    except (ValueError, TypeError, OverflowError) as error:
        raised, where, value = type(error), location, None
        text = next(iter(str(error).strip().splitlines()), "")
        if text.startswith("Expected 2D array"):
            text = "Expected 2D array. Reshape your data: a row for each record, a column for each feature"
        elif text.startswith("The feature names should"):
            text = " ".join(str(error).split())  # the names follow, a line each
        elif text == "Input X contains NaN.":
            text += " Leave these rows out, or give a schema with an agreed replacement (missing=...) for the column"
        elif not _WITHOUT_CELLS.match(text):
            text = f"cells are not finite numbers, or labels are of mixed types ({type(error).__name__})"
    # The error behind it may quote a cell, so Python must not print that.
    if issubclass(raised, TypeError):
        raise TypeError(f"{where}: {text}") from None
    raise EstimatorError(text, location=where, value=value) from None


def warn(text: str) -> None:
    """Say what was assumed, where the caller called ``fit``."""
    warn_caller(text, PrivacyWarning)


def one_dimensional(values: Any, name: str, rows: int | None = None) -> npt.NDArray[Any]:
    """A value for each row, none of them missing."""
    if values is None:
        raise DataError(f"requires {name} to be passed, but the target {name} is None", location=name)
    found: npt.NDArray[Any] = column_or_1d(values, warn=True)
    if np.iscomplexobj(found):
        raise DataError("Complex data not supported", location=name)
    if rows is not None and len(found) != rows:
        raise DataError(f"one value for each row is needed: {rows} rows, {len(found)} values", location=name)
    missing = pd.isna(found) if found.dtype.kind != "f" else ~np.isfinite(found)
    if missing.any():
        kind = "NaN or infinity" if found.dtype.kind == "f" else "missing values (NaN or None)"
        raise DataError(f"contains {kind} (first: row {int(np.argmax(missing))})", location=name)
    return found


def text_columns(frame: pd.DataFrame) -> list[str]:
    """The names of up to five columns whose cells are not all numbers or missing.

    >>> text_columns(pd.DataFrame({"age": [40, 50], "sex": ["f", "m"]}))
    ['sex']
    """
    found = []
    for position, name in enumerate(frame.columns):
        column = frame.iloc[:, position]
        if pd.api.types.is_numeric_dtype(column):
            continue
        if (pd.to_numeric(column, errors="coerce").isna() & ~column.isna()).any():
            found.append(str(name))
    return found[:5]


def number_range(limits: object, columns: int, location: str) -> tuple[Floats, Floats]:
    """The lowest and highest value of each column, from one pair for all or a pair of lists."""
    try:
        low, high = (np.broadcast_to(np.asarray(limit, dtype=np.float64), (columns,)) for limit in limits)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        reason = f"(lowest, highest): two numbers, or two lists of {columns}, not {format_value(limits)}"
    else:
        with np.errstate(all="ignore"):
            if (low < high).all() and np.isfinite(high - low).all():
                return low, high
        reason = f"finite numbers, the lowest first, not {format_value(limits)}"
    raise ConfigError(f"{reason}; they must be public, and not come from the data", location=location)


def clip_to_range(values: Floats, low: Floats, high: Floats, name: str, parameter: str) -> Floats:
    """The values within their range; how many were not is for whoever holds the data."""
    outside = int(((values < low) | (values > high)).sum())
    if outside:
        warn(f"{outside} of {values.size} values of {name} lie outside {parameter} and were clipped")
    return np.clip(values, low, high)
