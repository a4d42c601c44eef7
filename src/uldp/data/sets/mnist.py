"""MNIST: handwritten digits of 28 x 28 pixels, from the original idx files or from mnist.npz."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import Final

import numpy as np

from uldp.data.sets.base import DatasetInfo, Options, Pool, PooledDataset
from uldp.data.sets.files import LARGEST, Bytes, check_images, image_pool, read_images
from uldp.data.store import DataFile, DataFiles, Located, unreadable
from uldp.rng import Streams

MEAN: Final = (0.1307,)  # of the training pixels, the constants that everybody uses
DEVIATION: Final = (0.3081,)
SHAPE: Final = (28, 28)
CLASSES: Final = tuple("0123456789")

_MIRROR: Final = "https://storage.googleapis.com/cvdf-datasets/mnist/"
_IDX: Final = {
    "train-images-idx3-ubyte": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
_NPZ: Final = (
    "06af5dfe73b70e3bc1c36439982b18a8d76803db9b544f6fdf838a37fbb01b64",  # repacked from the idx files
    "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1",  # as Keras distributes it
)
FILES: Final = DataFiles(
    "mnist",
    "mnist",
    (
        (DataFile("mnist.npz", "", _NPZ),),
        tuple(DataFile(f"{name}.gz", f"{_MIRROR}{name}.gz", (checksum,)) for name, checksum in _IDX.items()),
        tuple(DataFile(name) for name in _IDX),
    ),
)


def _read(found: Located, streams: Streams, options: Options) -> Pool:
    if "mnist.npz" in found:
        arrays = read_images(found["mnist.npz"], SHAPE, len(CLASSES))
    else:
        train_images, train_labels, test_images, test_labels = found.values()
        arrays = (*read_pair(train_images, train_labels), *read_pair(test_images, test_labels))
    return image_pool(arrays, MEAN, DEVIATION, len(CLASSES))


def read_pair(images: Path, labels: Path) -> tuple[Bytes, Bytes]:
    """Images and their labels, from an idx file each."""
    x, y = read_idx(images, SHAPE), read_idx(labels, ())
    check_images(labels, x, y, SHAPE, len(CLASSES))
    return x, y


def read_idx(path: Path, shape: tuple[int, ...]) -> Bytes:
    """Records of ``shape`` from an idx file of unsigned bytes.

    Such a file is two zeros, the type (8), the number of dimensions, the dimensions and the data.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            data = stream.read(LARGEST)
    except (OSError, EOFError, MemoryError, zlib.error) as error:
        raise unreadable(path, error) from None
    start = 4 + 4 * data[3] if len(data) > 3 else 4
    found = tuple(np.frombuffer(data[4:start], dtype=">u4").tolist()) if len(data) >= start else ()
    if data[:3] != b"\0\0\x08" or not found or math.prod(found) != len(data) - start:
        raise unreadable(path, "not an idx file of unsigned bytes")
    if found[1:] != shape:
        raise unreadable(path, f"records of shape {found[1:]} instead of {shape}")
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(found)


DATASET: Final = PooledDataset(
    DatasetInfo(
        name="mnist",
        description="which digit was written? images of 28 x 28 pixels",
        source="LeCun, Cortes, Burges 1998",
        licence="CC BY-SA 3.0 (as commonly given)",
        records=70_000,
        features=(1, 28, 28),
        classes=len(CLASSES),
        labels=CLASSES,
        scaling="pixels to [0, 1], then mean 0.1307 and deviation 0.3081, the published constants",
        quirks=(
            "the records are digits, not writers: users are made up by the allocation",
            "mean and deviation are published statistics of the training images, taken as given public constants",
        ),
    ),
    _read,
    files=FILES,
)
