"""Breast Cancer Wisconsin (diagnostic), as it comes with scikit-learn."""

from __future__ import annotations

from typing import Final

import numpy as np

from uldp.data.columns import ClassLabel, NumberColumn
from uldp.data.federation import Records
from uldp.data.schema import Schema
from uldp.data.sets.base import DatasetInfo, Options, Pool, PooledDataset, split
from uldp.data.sets.scikit import load_numbers
from uldp.rng import Streams

# "Summary Statistics" of the data set's published description. They are rounded there: the records that lie a
# little outside are clipped.
RANGES: Final = {
    "mean radius": (6.981, 28.11),
    "mean texture": (9.71, 39.28),
    "mean perimeter": (43.79, 188.5),
    "mean area": (143.5, 2501.0),
    "mean smoothness": (0.053, 0.163),
    "mean compactness": (0.019, 0.345),
    "mean concavity": (0.0, 0.427),
    "mean concave points": (0.0, 0.201),
    "mean symmetry": (0.106, 0.304),
    "mean fractal dimension": (0.05, 0.097),
    "radius error": (0.112, 2.873),
    "texture error": (0.36, 4.885),
    "perimeter error": (0.757, 21.98),
    "area error": (6.802, 542.2),
    "smoothness error": (0.002, 0.031),
    "compactness error": (0.002, 0.135),
    "concavity error": (0.0, 0.396),
    "concave points error": (0.0, 0.053),
    "symmetry error": (0.008, 0.079),
    "fractal dimension error": (0.001, 0.03),
    "worst radius": (7.93, 36.04),
    "worst texture": (12.02, 49.54),
    "worst perimeter": (50.41, 251.2),
    "worst area": (185.2, 4254.0),
    "worst smoothness": (0.071, 0.223),
    "worst compactness": (0.027, 1.058),
    "worst concavity": (0.0, 1.252),
    "worst concave points": (0.0, 0.291),
    "worst symmetry": (0.156, 0.664),
    "worst fractal dimension": (0.055, 0.208),
}

SCHEMA: Final = Schema(
    tuple(NumberColumn(name, low, high) for name, (low, high) in RANGES.items()),
    ClassLabel("diagnosis", ("malignant", "benign")),
    outside="clip",
)


def _read(streams: Streams, options: Options) -> Pool:
    import pandas as pd

    rows = load_numbers("breast_cancer.csv", skip=1)
    diagnoses = np.array(["malignant", "benign"])[rows[:, -1].astype(np.int64)]
    frame = pd.DataFrame(rows[:, :-1], columns=list(RANGES)).assign(diagnosis=diagnoses)
    records = Records(SCHEMA.features(frame, "breast-cancer"), SCHEMA.labels(frame, "breast-cancer"))
    train, test = split(records, options["test_fraction"], streams, stratify=True)
    return Pool(train, test, SCHEMA.task, SCHEMA)


DATASET: Final = PooledDataset(
    DatasetInfo(
        name="breast-cancer",
        description="is a breast mass malignant or benign? 30 measurements of cell nuclei",
        source="Wolberg, Street, Mangasarian 1995, UCI; comes with scikit-learn",
        licence="CC BY 4.0",
        records=569,
        features=(30,),
        classes=2,
        users=100,
        silos=5,
        allocation="zipf",
    ),
    _read,
)
