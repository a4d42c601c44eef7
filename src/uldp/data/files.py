"""Reading tables: CSV (also gzipped), Parquet and folders of images, without guessing at types."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from uldp.errors import DataError, format_value
from uldp.limits import MAX_COLUMNS

if TYPE_CHECKING:
    import pandas as pd

Table: TypeAlias = "Path | str | pd.DataFrame"
TABLE_ENDINGS: Final = (".csv", ".csv.gz", ".parquet")
HEADER: Final = "header"
"""The attribute of a table that names all of its columns, also those that were not read."""
FOLDER: Final = "folder"
"""The attribute of a table that was read from a file: where the relative paths in it begin."""


def table_stem(path: Path) -> str:
    """The file's name without a table's ending: a silo's name unless one is given."""
    for ending in sorted(TABLE_ENDINGS, key=len, reverse=True):
        if path.name.lower().endswith(ending):
            return path.name[: -len(ending)]
    return path.stem


def column_names(frame: pd.DataFrame) -> list[str]:
    """The columns of the file that a table was read from, for errors."""
    return list(map(str, frame.attrs.get(HEADER, frame.columns)))


def table_name(table: Table, otherwise: str) -> str:
    """What errors call a table: its path, or ``otherwise`` for a data frame."""
    return str(table) if isinstance(table, str | Path) else otherwise


def read_table(table: Table, location: str, columns: Collection[str] | None = None) -> pd.DataFrame:
    """A table in a file or a data frame, or those of ``columns`` that it has.

    CSV cells stay text: a type inferred from all rows is any row's to change.
    """
    if not isinstance(table, str | Path):
        return _normalise_frame(table, location, columns)
    from pyarrow import ArrowException

    path = Path(table)
    try:
        is_folder = path.is_dir()
        if not is_folder and not path.name.lower().endswith(TABLE_ENDINGS):
            why = f"{str(path)!r} is no table that can be read here; use {', '.join(TABLE_ENDINGS)}"
            raise DataError(why, location=location, value=str(path))
        if not is_folder and not path.is_file():
            hint = "; paths are relative to the experiment file" if location.startswith("data") else ""
            raise DataError(f"no file {str(path)!r}{hint}", location=location, value=str(path))
        frame = _read(path, columns)
        frame.attrs[FOLDER] = str(path if is_folder else path.parent)
        return frame
    except UnicodeDecodeError:
        reason = "it is not UTF-8 text; save it as UTF-8"
    # The errors of pandas are subclasses of these.
    except (OSError, EOFError, zlib.error, ValueError, NotImplementedError, ArrowException) as error:
        reason = " ".join(str(error).split())
    raise DataError(f"cannot read {str(path)!r}: {reason}", location=location, value=str(path))


def _read(path: Path, columns: Collection[str] | None) -> pd.DataFrame:
    if path.is_dir():
        from uldp.data.image_folders import read_image_folder

        return read_image_folder(path, columns)
    return _read_parquet(path, columns) if path.suffix.lower() == ".parquet" else _read_csv(path, columns)


def _normalise_frame(frame: object, location: str, wanted: Collection[str] | None) -> pd.DataFrame:
    """A data frame as if it had been read from a file."""
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        reason = f"a pandas DataFrame or the path of a table is needed, not {format_value(frame)}"
        raise DataError(reason, location=location, value=type(frame).__name__)
    names = list(map(str, frame.columns))
    try:
        _check_names(names)
        places = _places(names, wanted)
    except ValueError as error:
        raise DataError(str(error), location=location) from None
    chosen = frame.iloc[:, places].copy()
    chosen.columns = pd.Index([names[place] for place in places], dtype="object")
    chosen.attrs = {HEADER: names}
    return chosen


def _read_csv(path: Path, wanted: Collection[str] | None) -> pd.DataFrame:
    """Cell by cell, without a guess: ``csv`` keeps only the columns that are wanted, so that others cost no time."""
    import pandas as pd

    with (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rt", encoding="utf-8-sig", newline="") as text:
        records = _records(text)
        names = [name.strip() for name in next(records, [])]
        _check_names(names)
        places = _places(names, wanted)
        cells: list[list[str]] = [[] for _ in places]
        for row, record in enumerate(records, start=1):
            if len(record) > len(names):  # cells would move to other columns, or be lost
                raise ValueError(f"row {row} has {len(record)} cells, the header has {len(names)}")
            record += [""] * (len(names) - len(record))
            for column, location in zip(cells, places, strict=True):
                column.append(record[location])
    frame = pd.DataFrame({names[location]: column for location, column in zip(places, cells, strict=True)}, dtype="str")
    frame.attrs[HEADER] = names
    return frame


def _records(text: Iterable[str]) -> Iterator[list[str]]:
    """The records of a CSV file without empty lines, the header first.

    An unbalanced quote mark makes one person's cell swallow other people's rows, and always a line break.
    """
    reader, row, before = csv.reader(text, strict=True), 0, 0
    try:
        for record in reader:
            if reader.line_num > before + 1:
                raise ValueError(f"a cell spans lines ({_row(row)}): is a quote mark unbalanced? {_QUOTES}")
            before = reader.line_num
            if len(record) > 1 or (record and record[0].strip()):
                yield record
                row += 1
    except csv.Error as error:
        raise ValueError(f"{_row(row)} cannot be read ({error}): is a quote mark unbalanced? {_QUOTES}") from None
    if not row:
        raise ValueError("it is empty")


_QUOTES: Final = (
    'Every record must be one line, so mend the quotes (a quote mark inside a cell is written "") or take the line '
    "break out"
)


def _row(number: int) -> str:
    return f"row {number}" if number else "header row 1"


def _places(names: list[str], wanted: Collection[str] | None) -> list[int]:
    """Which columns to read."""
    if wanted is not None:
        return [location for location, name in enumerate(names) if name in wanted]
    if len(names) > MAX_COLUMNS:
        raise ValueError(f"it has {len(names):,} columns, at most {MAX_COLUMNS:,} can be looked through; take some out")
    return list(range(len(names)))


def _check_names(names: list[str]) -> None:
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice == [""]:
        raise ValueError(f"{names.count('')} columns have no name; name them or take them out")
    if twice:
        raise ValueError(f"the column {twice[-1]!r} occurs twice")
    if len(names) == 1 and any(mark in names[0] for mark in ";\t"):
        raise ValueError("its fields are not separated by commas")


def _read_parquet(path: Path, wanted: Collection[str] | None) -> pd.DataFrame:
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        names = [str(name) for name in file.schema_arrow.names]
        table = file.read([names[location] for location in _places(names, wanted)])
    plain = [field.with_type(_plain_type(field.type)) for field in table.schema]
    table = table.cast(pa.schema(plain, metadata=table.schema.metadata))
    # Arrow types keep whole numbers whole where values are missing; plain pandas would turn them into floats.
    frame: pd.DataFrame = table.to_pandas(types_mapper=pd.ArrowDtype)
    frame = frame if frame.index.names == [None] else frame.reset_index()
    frame.columns = [str(name) for name in frame.columns]
    _check_names(names)
    frame.attrs[HEADER] = names
    return frame


def _plain_type(kind: Any) -> Any:
    """The Arrow type of the same values that pandas knows how to handle."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    return {"string_view": pa.large_string(), "binary_view": pa.large_binary()}.get(str(kind), kind)
