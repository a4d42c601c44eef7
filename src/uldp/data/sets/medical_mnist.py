"""Medical MNIST (MedNIST): grey images of 64 x 64 pixels, which of six examinations is it?

Reads the six folders of jpeg files as published, or ``medical_mnist_64.npz``, a class-balanced subset.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Final

import numpy as np

from uldp.data.federation import Task
from uldp.data.sets.base import DatasetInfo, Options, Pool, PooledDataset, check_fraction, split
from uldp.data.sets.files import Bytes, image_pool, image_records, read_images
from uldp.data.store import DataFile, DataFiles, Located, unreadable
from uldp.errors import ConfigError
from uldp.limits import check_whole
from uldp.rng import Streams

MEAN: Final = (0.5,)  # by the format, not the data: [0, 1] becomes [-1, 1]
DEVIATION: Final = (0.5,)
SHAPE: Final = (64, 64)
CLASSES: Final = ("AbdomenCT", "BreastMRI", "CXR", "ChestCT", "Hand", "HeadCT")
SUBSET: Final = "medical_mnist_64.npz"
OPTIONS: Final = {"per_class": 1800, "test_fraction": 1 / 6}

FILES: Final = DataFiles(
    "medical-mnist",
    "medical_mnist",
    (
        (DataFile(SUBSET, "", ("a4b61446de25cae643d97c2c0462cf9f1d14ed47470531f88e4fc7fa653ababd",)),),
        tuple(DataFile(name, folder=True) for name in CLASSES),
    ),
    by_hand="download Medical MNIST by hand from the Kaggle page andrewmvd/medical-mnist and unpack its six folders",
)


def _read(found: Located, streams: Streams, options: Options) -> Pool:
    _check_options(options, SUBSET in found)
    if SUBSET in found:
        return image_pool(read_images(found[SUBSET], SHAPE, len(CLASSES)), MEAN, DEVIATION, len(CLASSES))
    records = image_records(*_read_folders(found, options["per_class"], streams), MEAN, DEVIATION)
    return Pool(*split(records, options["test_fraction"], streams, stratify=True), Task(classes=len(CLASSES)))


def _check_options(options: Options, subset: bool) -> None:
    check_whole(options["per_class"], 2, None, "data.options.per_class")
    check_fraction(options["test_fraction"])
    for key, default in OPTIONS.items():
        if subset and options[key] != default:
            reason = f"is for the folders of jpeg files; {SUBSET} has a division of its own, leave {key} out"
            raise ConfigError(reason, location=f"data.options.{key}", value=options[key])


def _read_folders(found: Located, per_class: int, streams: Streams) -> tuple[Bytes, Bytes]:
    """At most ``per_class`` images of each class, drawn at random."""
    images: list[Bytes] = []
    labels: list[int] = []
    for label, name in enumerate(CLASSES):
        paths = sorted(found[name].glob("*.jp*g"))
        if not paths:
            raise unreadable(found[name], "no jpeg files in this folder")
        chosen = streams.child("images", name).generator().permutation(len(paths))[:per_class]
        images += [_read_image(paths[index]) for index in chosen]
        labels += [label] * len(chosen)
    return np.stack(images), np.array(labels, dtype=np.uint8)


def _read_image(path: Path) -> Bytes:
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as image:
                if image.size != SHAPE[::-1]:
                    raise ValueError(f"an image of {image.width} x {image.height} pixels")
                return np.asarray(image.convert("L"), dtype=np.uint8)
    except Exception as error:  # whatever a malformed image makes of the library
        raise unreadable(path, error) from None


DATASET: Final = PooledDataset(
    DatasetInfo(
        name="medical-mnist",
        description="which kind of medical image is it? six classes of 64 x 64 pixels",
        source="B. J. Erickson, Mayo Clinic (MedNIST), from TCIA, RSNA Bone Age and NIH Chest X-ray",
        licence="CC BY-SA 4.0 (as given elsewhere for MedNIST)",
        records=10_800,
        features=(1, *SHAPE),
        classes=len(CLASSES),
        allocation="uniform",
        labels=CLASSES,
        scaling="pixels 0 .. 255 to [-1, 1], by the format alone",
        quirks=(
            "1,800 images of each class (per_class) of 58,954; test_fraction and per_class apply to the folders of "
            "jpeg files, medical_mnist_64.npz has a division of its own",
            "there are no patient ids, so slices of one patient may be in training and in test",
            "the task is easy and close to saturated",
        ),
    ),
    _read,
    OPTIONS,
    files=FILES,
)
