"""Credit card fraud (ULB and Worldline): 30 inputs of card payments, is one a fraud?

Reads the canonical ``creditcard.csv``, of whose genuine payments a tenth is used as in the ULDP-FL experiments, or the
file ``creditcard_subset.csv.gz``, which is already cut and is never cut again.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from uldp.data.federation import FloatArray, IntArray, Records, Task
from uldp.data.sets.base import DatasetInfo, Options, Pool, PooledDataset, split
from uldp.data.sets.files import integers, read_csv
from uldp.data.store import DataFile, DataFiles, Located, unreadable
from uldp.elementary import log1p
from uldp.errors import DataError
from uldp.rng import Streams

if TYPE_CHECKING:
    import pandas as pd

CANONICAL: Final = "creditcard.csv"
SUBSET: Final = "creditcard_subset.csv.gz"
EXTRA: Final = "creditcard_extra_genuine.csv.gz"
GENUINE_SHARE: Final = 0.1  # of the genuine payments of the canonical file

# V1 .. V28 are principal components, centred by their publisher. The constants are their standard deviations as printed
# in public descriptions of the canonical file, to two digits.
DEVIATIONS: Final = (
    2.0, 1.7, 1.5, 1.4, 1.4, 1.3, 1.2, 1.2, 1.1, 1.1, 1.0, 1.0, 1.0, 0.96, 0.92, 0.88, 0.85, 0.84, 0.81, 0.77, 0.73,
    0.73, 0.62, 0.61, 0.52, 0.48, 0.40, 0.33,
)  # fmt: skip
FARTHEST: Final = 10.0  # deviations; what lies beyond is cut
LAST_SECOND: Final = 172_800.0  # the payments of two days: [0, two days] becomes [-1, 1]
MAX_AMOUNT: Final = 30_000.0  # log(1 + amount) of [0, this] becomes [-1, 1]

COMPONENTS: Final = tuple(f"V{number}" for number in range(1, 29))
COLUMNS: Final = ("Time", *COMPONENTS, "Amount", "Class")
OPTIONS: Final = {"test_fraction": 0.15, "extra": False}

FILES: Final = DataFiles(
    "creditcard",
    "creditcard",
    (
        (
            DataFile(
                CANONICAL,
                # The copy that the TensorFlow tutorial on imbalanced data reads; the checksum says that it is the file.
                "https://storage.googleapis.com/download.tensorflow.org/data/creditcard.csv",
                ("76274b691b16a6c49d3f159c883398e03ccd6d1ee12d9d8ee38f4b4b98551a89",),
            ),
        ),
        (DataFile(SUBSET, "", ("234b8d20ae49825e88a7210ea862dd8e5d6c57fde479f4336c25b85606c88a70",)),),
    ),
    (DataFile(EXTRA, "", ("439945fea38430a5616d2cdca0293a946ba3f326a7936e202a7a267c61acb637",)),),
    by_hand=f"download {CANONICAL} by hand from the Kaggle page mlg-ulb/creditcardfraud",
)


def _read(found: Located, streams: Streams, options: Options) -> Pool:
    records = cut_genuine(_records(found[CANONICAL]), streams) if CANONICAL in found else _records(found[SUBSET])
    if options["extra"]:
        records = Records.joined([records, _records(_extra_file(found))])
    return Pool(*split(records, options["test_fraction"], streams, stratify=True), Task(classes=2))


def _records(path: Path) -> Records:
    frame = read_csv(path, usecols=list(COLUMNS))
    return Records(_features(path, frame), integers(path, frame["Class"], 0, 1))


def _features(path: Path, frame: pd.DataFrame) -> FloatArray:
    try:
        values = frame[list(COLUMNS[:-1])].to_numpy(dtype=np.float64)
    except ValueError as error:
        raise unreadable(path, error) from None
    if not np.isfinite(values).all():
        raise unreadable(path, "a value is missing")
    time, amount = values[:, :1], values[:, -1:]
    components = np.clip(values[:, 1:-1] / np.array(DEVIATIONS), -FARTHEST, FARTHEST)
    scaled_time = 2 * np.clip(time / LAST_SECOND, 0, 1) - 1
    scaled_amount = 2 * log1p(np.clip(amount, 0, MAX_AMOUNT)) / log1p(MAX_AMOUNT) - 1
    return np.concatenate([scaled_time, components, scaled_amount], axis=1).astype(np.float32)


def cut_genuine(records: Records, streams: Streams) -> Records:
    """All frauds and a random tenth of the genuine payments."""
    genuine: IntArray = np.flatnonzero(records.labels == 0)
    sampled = streams.child("cut").generator().permutation(genuine)[: int(GENUINE_SHARE * len(genuine))]
    return records.take(np.sort(np.concatenate([sampled, np.flatnonzero(records.labels == 1)])))


def _extra_file(found: Located) -> Path:
    if CANONICAL in found:
        reason = f"the canonical {CANONICAL} holds these rows already; leave extra out"
        raise DataError(reason, location="data.options.extra", value=True)
    if EXTRA not in found:
        raise DataError(f"no {EXTRA} in {found[SUBSET].parent}", location="data.options.extra", value=True)
    return found[EXTRA]


DATASET: Final = PooledDataset(
    DatasetInfo(
        name="creditcard",
        description="is a card payment a fraud? 30 inputs, few frauds",
        source="Machine Learning Group, ULB, with Worldline 2013; Kaggle mlg-ulb/creditcardfraud",
        licence="Open Database Licence, contents under the Database Contents Licence (as listed by Kaggle)",
        records=28_923,
        features=(30,),
        classes=2,
        users=1000,
        labels=("genuine", "fraud"),
        scaling="V1-V28 by their published deviations (cut at 10 of them), Time by two days, log(1 + Amount) by 30,000",
        quirks=(
            "the canonical file has 284,807 payments with 492 frauds; a tenth of the genuine ones is used, so frauds "
            "are 1.7 % instead of 0.17 % and metrics that depend on the base rate are not those of the full file",
            "creditcard_subset.csv.gz holds all frauds and 17,677 genuine payments (2.7 % frauds), gathered from "
            "partial copies; it is not cut again; extra = true adds 3,975 genuine payments, nearly all of the first "
            "two hours",
            "19 of the 492 frauds are exact copies of others: a copy may be in training and in test",
            "the published deviations are statistics of the canonical file, taken as given public constants",
        ),
    ),
    _read,
    OPTIONS,
    files=FILES,
)
