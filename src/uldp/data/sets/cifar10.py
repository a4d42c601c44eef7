"""CIFAR-10: colour images of 32 x 32 pixels, from the author's binary version or from a class-balanced subset."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path
from typing import Final

import numpy as np

from uldp.data.sets.base import DatasetInfo, Options, Pool, PooledDataset
from uldp.data.sets.files import LARGEST, Bytes, check_images, image_pool, read_images
from uldp.data.store import DataFile, DataFiles, Located, unreadable
from uldp.rng import Streams

MEAN: Final = (0.4914, 0.4822, 0.4465)  # red, green, blue of the training pixels, the constants that everybody uses
DEVIATION: Final = (0.2470, 0.2435, 0.2616)
SHAPE: Final = (3, 32, 32)
CLASSES: Final = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

ARCHIVE: Final = "cifar-10-binary.tar.gz"
SUBSET: Final = "cifar10_20k_5k.npz"
TRAIN_BATCHES: Final = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_BATCH: Final = "test_batch.bin"

FILES: Final = DataFiles(
    "cifar10",
    "cifar10",
    (
        (
            DataFile(
                ARCHIVE,
                f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}",
                ("c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",),
            ),
        ),
        (DataFile(SUBSET, "", ("bc3f115909d1b5c574ad5e316cdaed264d0d2b0e11b722a7ad2ab170805052ce",)),),
    ),
)


def _read(found: Located, streams: Streams, options: Options) -> Pool:
    if ARCHIVE in found:
        return image_pool(read_archive(found[ARCHIVE]), MEAN, DEVIATION, len(CLASSES))
    x_train, y_train, x_test, y_test = read_images(found[SUBSET], (*SHAPE[1:], SHAPE[0]), len(CLASSES))
    arrays = (np.moveaxis(x_train, 3, 1), y_train, np.moveaxis(x_test, 3, 1), y_test)
    return image_pool(arrays, MEAN, DEVIATION, len(CLASSES))


def read_archive(path: Path) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """Each record is a label byte and 3 x 32 x 32 bytes of red, green and blue."""
    try:
        with gzip.open(path) as stream:
            batches = _batches(stream)
            while stream.read(1 << 20):  # to the end: only there is the checksum compared
                pass
    except Exception as error:  # whatever a malformed archive makes of the libraries
        raise unreadable(path, error) from None
    missing = {*TRAIN_BATCHES, TEST_BATCH} - set(batches)
    if missing:
        raise unreadable(path, f"no {min(missing)} in it")
    x_train, y_train = _records(path, b"".join(batches[name] for name in TRAIN_BATCHES))
    return x_train, y_train, *_records(path, batches[TEST_BATCH])


def _batches(stream: gzip.GzipFile) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=stream, mode="r:") as archive:
        for member in archive:
            name = member.name.rpartition("/")[2]
            if member.isfile() and name in (*TRAIN_BATCHES, TEST_BATCH):
                if member.size > LARGEST:
                    raise ValueError(f"{name} has {member.size} bytes")
                data = archive.extractfile(member)
                found[name] = b"" if data is None else data.read()
    return found


def _records(path: Path, data: bytes) -> tuple[Bytes, Bytes]:
    width = 1 + int(np.prod(SHAPE))
    if len(data) % width or not data:
        raise unreadable(path, f"a batch of {len(data)} bytes")
    rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, width)
    images, labels = rows[:, 1:].reshape(-1, *SHAPE), rows[:, 0]
    check_images(path, images, labels, SHAPE, len(CLASSES))
    return images, labels


DATASET: Final = PooledDataset(
    DatasetInfo(
        name="cifar10",
        description="what is in a small colour photograph? ten classes",
        source="Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images",
        licence="no formal licence; free for research with citation",
        records=60_000,
        features=SHAPE,
        classes=10,
        allocation="uniform",
        labels=CLASSES,
        scaling="pixels to [0, 1], then the published mean and deviation of each colour",
        quirks=(
            "cifar10_20k_5k.npz is a class-balanced subset (20,000 training and 5,000 test images): results are not "
            "comparable with the full set",
            "mean and deviation are published statistics of the training images, taken as given public constants",
        ),
    ),
    _read,
    files=FILES,
)
