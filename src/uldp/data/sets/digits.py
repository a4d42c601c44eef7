"""Handwritten digits of 8 x 8 pixels, as they come with scikit-learn."""

from __future__ import annotations

from typing import Final

import numpy as np

from uldp.data.federation import Records, Task
from uldp.data.sets.base import SPLIT_OPTIONS, DatasetInfo, Options, Pool, PooledDataset, split
from uldp.data.sets.files import load_numbers
from uldp.data.store import Located
from uldp.rng import Streams

PIXEL_RANGE: Final = (0.0, 16.0)  # by the format: each pixel counts the black points of a 4 x 4 square


def _read(found: Located, streams: Streams, options: Options) -> Pool:
    rows = load_numbers("digits.csv.gz")
    low, high = PIXEL_RANGE
    images = (2 * (rows[:, :-1].reshape(-1, 8, 8) - low) / (high - low) - 1).astype(np.float32)[:, None]
    records = Records(images, rows[:, -1].astype(np.int64))
    return Pool(*split(records, options["test_fraction"], streams, stratify=True), Task(classes=10))


DATASET: Final = PooledDataset(
    DatasetInfo(
        name="digits",
        description="which digit was written? images of 8 x 8 pixels",
        source="Alpaydin, Kaynak 1998, UCI; comes with scikit-learn",
        licence="CC BY 4.0",
        records=1797,
        features=(1, 8, 8),
        classes=10,
        users=200,
    ),
    _read,
    SPLIT_OPTIONS,
)
