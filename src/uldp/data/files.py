"""Reading tables: CSV (also gzipped) and Parquet, without guessing at types."""

from __future__ import annotations

import warnings
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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
    from pyarrow import ArrowException

    path = Path(path)
    if not path.name.lower().endswith(TABLE_ENDINGS):
        raise DataError(
            f"{str(path)!r} is no table that can be read here; use {', '.join(TABLE_ENDINGS)}",
            place=place,
            value=str(path),
        )
    try:
        if not path.is_file():
            hint = "; paths are relative to the experiment file" if place.startswith("data") else ""
            raise DataError(f"no file {str(path)!r}{hint}", place=place, value=str(path))
        return _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path)
    except UnicodeDecodeError:
        reason = "it is not UTF-8 text; save it as UTF-8"
    # The errors of pandas are subclasses of these.
    except (OSError, EOFError, zlib.error, ValueError, NotImplementedError, ArrowException, Warning) as error:
        reason = " ".join(str(error).split())
    raise DataError(f"cannot read {str(path)!r}: {reason}", place=place, value=str(path))


def _read_csv(path: Path) -> pd.DataFrame:
    import pandas as pd

    with warnings.catch_warnings():
        # A row with more fields than the header would otherwise lose them with a mere warning.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        header = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False, encoding="utf-8-sig")
        _check_one_line_each(header, "header row")
        names = [str(name).strip() for name in header.iloc[0]]
        _check_names(names)
        frame = pd.read_csv(
            path, header=0, names=names, index_col=False, dtype=str, na_filter=False, encoding="utf-8-sig"
        )
    _check_one_line_each(frame, "row")
    return frame


def _check_one_line_each(frame: pd.DataFrame, what: str) -> None:
    """An unbalanced quote mark makes one person's cell swallow other people's rows, and always a line break."""
    for name in frame.columns:
        broken = frame[name].str.contains("[\r\n]", regex=True).to_numpy(dtype=bool)
        if broken.any():
            raise ValueError(
                f"a cell spans lines ({what} {int(broken.argmax()) + 1}): is a quote mark unbalanced? Every record must"
                ' be one line, so mend the quotes (a quote mark inside a cell is written "") or take the line break out'
            )


def _check_names(names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice == [""]:
        raise ValueError(f"{names.count('')} columns have no name; name them or take them out")
    if twice:
        raise ValueError(f"the column {twice[-1]!r} occurs twice")
    if len(names) == 1 and any(mark in names[0] for mark in ";\t"):
        raise ValueError("its fields are not separated by commas")


def _read_parquet(path: Path) -> pd.DataFrame:
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        table = file.read()
    plain = [field.with_type(_plain_type(field.type)) for field in table.schema]
    table = table.cast(pa.schema(plain, metadata=table.schema.metadata))
    # Arrow types keep whole numbers whole where values are missing; plain pandas would turn them into floats.
    frame: pd.DataFrame = table.to_pandas(types_mapper=pd.ArrowDtype)
    frame = frame if frame.index.names == [None] else frame.reset_index()
    frame.columns = [str(name) for name in frame.columns]
    _check_names(list(frame.columns))
    return frame


def _plain_type(kind: Any) -> Any:
    """The Arrow type of the same values that pandas knows how to handle."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    return {"string_view": pa.large_string(), "binary_view": pa.large_binary()}.get(str(kind), kind)
