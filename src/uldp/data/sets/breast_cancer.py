"""Breast Cancer Wisconsin (diagnostic), as it comes with scikit-learn."""

from __future__ import annotations

from typing import Final

import numpy as np

from uldp.data.columns import NumberColumn
from uldp.data.federation import Records
from uldp.data.labels import ClassLabel
from uldp.data.schema import Schema
from uldp.data.sets.base import SPLIT_OPTIONS, DatasetInfo, Options, Pool, PooledDataset, split
from uldp.data.sets.files import load_numbers
from uldp.data.store import Located
from uldp.rng import Streams

# "Summary Statistics" of the data set's published description. They are rounded there: the records that lie a
# little outside are clipped.
_MEASUREMENTS: Final = {  # each has a mean, a standard error and a worst value
    "radius": ((6.981, 28.11), (0.112, 2.873), (7.93, 36.04)),
    "texture": ((9.71, 39.28), (0.36, 4.885), (12.02, 49.54)),
    "perimeter": ((43.79, 188.5), (0.757, 21.98), (50.41, 251.2)),
    "area": ((143.5, 2501.0), (6.802, 542.2), (185.2, 4254.0)),
    "smoothness": ((0.053, 0.163), (0.002, 0.031), (0.071, 0.223)),
    "compactness": ((0.019, 0.345), (0.002, 0.135), (0.027, 1.058)),
    "concavity": ((0.0, 0.427), (0.0, 0.396), (0.0, 1.252)),
    "concave points": ((0.0, 0.201), (0.0, 0.053), (0.0, 0.291)),
    "symmetry": ((0.106, 0.304), (0.008, 0.079), (0.156, 0.664)),
    "fractal dimension": ((0.05, 0.097), (0.001, 0.03), (0.055, 0.208)),
}
RANGES: Final = {
    kind.format(name): ranges[place]
    for place, kind in enumerate(("mean {}", "{} error", "worst {}"))
    for name, ranges in _MEASUREMENTS.items()
}

SCHEMA: Final = Schema(
    tuple(NumberColumn(name, low, high) for name, (low, high) in RANGES.items()),
    ClassLabel("diagnosis", ("malignant", "benign")),
    outside="clip",
)


def _read(found: Located, streams: Streams, options: Options) -> Pool:
    import pandas as pd

    rows = load_numbers("breast_cancer.csv", skip=1)
    diagnoses = np.array(["malignant", "benign"])[rows[:, -1].astype(np.int64)]
    frame = pd.DataFrame(rows[:, :-1], columns=list(RANGES)).assign(diagnosis=diagnoses)
    records = Records(SCHEMA.features(frame, "breast-cancer"), SCHEMA.labels(frame, "breast-cancer"))
    return Pool(*split(records, options["test_fraction"], streams, stratify=True), SCHEMA.label.task, SCHEMA)


DATASET: Final = PooledDataset(
    DatasetInfo(
        name="breast-cancer",
        description="is a breast mass malignant or benign? 30 measurements of cell nuclei",
        source="Wolberg, Street, Mangasarian 1995, UCI; comes with scikit-learn",
        licence="CC BY 4.0",
        records=569,
        features=(30,),
        classes=2,
    ),
    _read,
    SPLIT_OPTIONS,
)
