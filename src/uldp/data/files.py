"""Reading tables: CSV (also gzipped) and Parquet, without guessing at types."""

from __future__ import annotations

import warnings
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from uldp.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

TABLE_ENDINGS: Final = (".csv", ".csv.gz", ".parquet")


def table_stem(path: Path) -> str:
    """The file's name without a table's ending: a silo's name unless one is given."""
    for ending in sorted(TABLE_ENDINGS, key=len, reverse=True):
        if path.name.lower().endswith(ending):
            return path.name[: -len(ending)]
    return path.stem


def read_table(path: Path | str, place: str) -> pd.DataFrame:
    """The table in a file. CSV cells stay text: a type inferred from all rows is any row's to change."""
    path = Path(path)
    if not path.name.lower().endswith(TABLE_ENDINGS):
        raise DataError(
            f"{str(path)!r} is no table that can be read here; use {', '.join(TABLE_ENDINGS)}",
            place=place,
            value=str(path),
        )
    if not path.is_file():
        raise DataError(
            f"no file {str(path)!r}; paths are relative to the experiment file", place=place, value=str(path)
        )
    try:
        frame = _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path)
    # The errors of pandas and Arrow are subclasses of these.
    except (OSError, EOFError, zlib.error, ValueError, Warning) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"cannot read {str(path)!r}: {reason}", place=place, value=str(path)) from None
    return frame


def _read_csv(path: Path) -> pd.DataFrame:
    import pandas as pd

    with warnings.catch_warnings():
        # A row with more fields than the header would otherwise lose them with a mere warning.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        header = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False, encoding="utf-8-sig")
        names = [str(name).strip() for name in header.iloc[0]]
        _check_names(names)
        return pd.read_csv(
            path, header=0, names=names, index_col=False, dtype=str, na_filter=False, encoding="utf-8-sig"
        )


def _check_names(names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1 and name})
    if twice:
        raise ValueError(f"the column {twice[0]!r} occurs twice")
    if len(names) == 1 and any(mark in names[0] for mark in ";\t"):
        raise ValueError("its fields are not separated by commas")


def _read_parquet(path: Path) -> pd.DataFrame:
    import pandas as pd

    # Arrow types keep whole numbers whole where values are missing; plain pandas would turn them into floats.
    frame = pd.read_parquet(path, dtype_backend="pyarrow")
    _check_names([str(name) for name in frame.columns])
    return frame if frame.index.names == [None] else frame.reset_index()
