"""Reading the containers in which data sets lie: npz archives and csv tables, with errors that name the file."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from uldp.data.federation import FloatArray, IntArray, Records
from uldp.data.store import unreadable

if TYPE_CHECKING:
    import pandas as pd

Bytes = npt.NDArray[np.uint8]


def read_npz(path: Path, *names: str) -> tuple[Bytes, ...]:
    """Arrays of an npz archive, which must hold unsigned bytes. Nothing pickled is ever loaded."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = tuple(archive[name] for name in names)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise unreadable(path, error) from None
    for name, array in zip(names, arrays, strict=True):
        if array.dtype != np.uint8:
            raise unreadable(path, f"{name} has the type {array.dtype} instead of uint8")
    return arrays


def read_images(path: Path, shape: tuple[int, ...]) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """x_train, y_train, x_test, y_test of an npz archive with images of ``shape``."""
    x_train, y_train, x_test, y_test = read_npz(path, "x_train", "y_train", "x_test", "y_test")
    for images, labels in ((x_train, y_train), (x_test, y_test)):
        if images.shape != (len(labels), *shape) or labels.ndim != 1:
            raise unreadable(path, f"images of shape {images.shape} with labels of shape {labels.shape}")
    return x_train, y_train, x_test, y_test


def image_records(images: Bytes, labels: Bytes, mean: Sequence[float], deviation: Sequence[float]) -> Records:
    """Images of shape (records, channels, height, width), from 0 .. 255 to [0, 1] to (x - mean) / deviation."""
    features: FloatArray = images.astype(np.float32)
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
        raise unreadable(path, f"{column[wrong].iloc[0]!r} in column {column.name!r}")
    return column.to_numpy(dtype=np.int64)
