"""Reading the files of data sets: npz archives and tables of text, with errors that name the file."""

from __future__ import annotations

import importlib.util
import io
import math
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from uldp.data.federation import FloatArray, IntArray, Records, Task
from uldp.data.sets.base import Pool
from uldp.data.store import unreadable
from uldp.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

Bytes = npt.NDArray[np.uint8]

LARGEST: Final = 1 << 30  # bytes of one array; ours have a fifth of it at most


def _array(archive: zipfile.ZipFile, name: str) -> Bytes:
    """One array, by its header; no more is read or made than the archive says and we allow."""
    member = archive.getinfo(f"{name}.npy")
    if member.file_size > LARGEST:
        raise ValueError(f"{name} has {member.file_size} bytes")
    stream = io.BytesIO(archive.read(member))
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError(f"{name} is of another version of the format")
    shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(stream)
    if dtype != np.uint8:
        raise ValueError(f"{name} has the type {dtype} instead of uint8")
    values = np.frombuffer(stream.read(), dtype=np.uint8)
    if math.prod(shape) != len(values):
        raise ValueError(f"{name} has {len(values)} bytes for the shape {shape}")
    return values.reshape(shape, order="F" if fortran_order else "C")


def read_images(path: Path, shape: tuple[int, ...], classes: int) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """x_train, y_train, x_test, y_test of an npz archive with images of ``shape``, in unsigned bytes.

    Nothing pickled is ever loaded.
    """
    names = ("x_train", "y_train", "x_test", "y_test")
    try:
        with zipfile.ZipFile(path) as archive:
            x_train, y_train, x_test, y_test = (_array(archive, name) for name in names)
    except Exception as error:  # whatever a malformed archive or header makes of the libraries
        raise unreadable(path, error) from None
    for images, labels in ((x_train, y_train), (x_test, y_test)):
        check_images(path, images, labels, shape, classes)
    return x_train, y_train, x_test, y_test


def check_images(path: Path, images: Bytes, labels: Bytes, shape: tuple[int, ...], classes: int) -> None:
    """Refuse images of another shape, labels that do not go with them or are of no class, and none at all."""
    if labels.ndim != 1 or images.shape != (len(labels), *shape) or not len(labels):
        raise unreadable(path, f"images of shape {images.shape} with labels of shape {labels.shape}")
    if labels.max() >= classes:
        raise unreadable(path, f"a label {labels.max()}, where the classes are 0 to {classes - 1}")


def image_pool(
    arrays: tuple[Bytes, Bytes, Bytes, Bytes], mean: Sequence[float], deviation: Sequence[float], classes: int
) -> Pool:
    """The records of x_train, y_train, x_test, y_test."""
    x_train, y_train, x_test, y_test = arrays
    train = image_records(x_train, y_train, mean, deviation)
    return Pool(train, image_records(x_test, y_test, mean, deviation), Task(classes))


def image_records(images: Bytes, labels: Bytes, mean: Sequence[float], deviation: Sequence[float]) -> Records:
    """Images of shape (records, channels, height, width), from 0 .. 255 to [0, 1] to (x - mean) / deviation.

    Images without channels get one.
    """
    features: FloatArray = (images[:, None] if images.ndim == 3 else images).astype(np.float32)
    for channel, (centre, scale) in enumerate(zip(mean, deviation, strict=True)):
        part = features[:, channel]
        part /= np.float32(255 * scale)
        part -= np.float32(centre / scale)
    return Records(features, labels.astype(np.int64))


def read_csv(path: Path, **settings: Any) -> pd.DataFrame:
    """A table with all the columns that are asked for by ``usecols`` or ``names``."""
    import pandas as pd

    try:
        frame: pd.DataFrame = pd.read_csv(path, **settings)
    except (OSError, ValueError, EOFError, zlib.error, pd.errors.ParserError) as error:
        raise unreadable(path, error) from None
    return frame


def integers(path: Path, column: pd.Series, low: int, high: int) -> IntArray:
    """A column of whole numbers from ``low`` to ``high``."""
    wrong = ~column.isin(range(low, high + 1))
    if wrong.any():
        raise unreadable(path, f"{column[wrong].tolist()[0]!r} in column {column.name!r}")
    return column.to_numpy(dtype=np.int64)


def words(path: Path, column: pd.Series, known: Sequence[str]) -> list[str]:
    """A column of words, each one of ``known``."""
    found: list[str] = column.tolist()
    for word in found:
        if word not in known:
            raise unreadable(path, f"{word!r} in column {column.name!r}")
    return found


def check_unique(path: Path, column: pd.Series) -> None:
    """Refuse a column in which a value occurs twice, or is missing."""
    if column.isna().any():
        raise unreadable(path, f"a value of column {column.name!r} is missing")
    again = column[column.duplicated()]
    if len(again):
        raise unreadable(path, f"{again.tolist()[0]!r} occurs twice in column {column.name!r}")


def load_numbers(name: str, skip: int = 0) -> npt.NDArray[np.float64]:
    """The rows of a table of numbers that comes with scikit-learn, without the first ``skip``.

    scikit-learn itself is not imported: that would take a second and a half.
    """
    spec = importlib.util.find_spec("sklearn")
    places = spec.submodule_search_locations if spec is not None else None
    path = Path(next(iter(places or [""]))) / "datasets" / "data" / name
    if not path.is_file():
        raise DataError(f"scikit-learn's file {name} is not there; install scikit-learn again", location=name)
    return np.loadtxt(path, delimiter=",", skiprows=skip)
