"""TCGA-BRCA: survival of breast cancer patients of six regions. The table and the split are FLamby's.

A label is a time in years with a sign: positive if the patient died then, negative if observation ended then (the
patient was alive when last seen). A time of 0 days becomes half a day, so that the sign survives.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from uldp.data.federation import FloatArray, LabelArray, Records, Task
from uldp.data.sets.base import Centres, DatasetInfo, SiloedDataset
from uldp.data.sets.files import check_unique, integers, read_csv, words
from uldp.data.store import DataFile, DataFiles, Located, unreadable

if TYPE_CHECKING:
    import pandas as pd

REGIONS: Final = ("Northeast", "South", "West", "Midwest", "Europe", "Canada")
FOLDS: Final = tuple(f"{part}_{number}" for part in ("train", "test") for number in range(len(REGIONS)))
INPUTS: Final = 39
AGE: Final = "age_at_index"
# Public constants: years; a round middle and spread of the age at which breast cancer is found.
AGE_RANGE: Final = (18.0, 100.0)
AGE_CENTRE: Final = 60.0
AGE_SCALE: Final = 15.0
DAYS_PER_YEAR: Final = 365.25
SHORTEST: Final = 0.5  # days

_FLAMBY: Final = (
    "https://raw.githubusercontent.com/owkin/FLamby/edacf54d5211520583b0133d55ac39b6fda8324b/"
    "flamby/datasets/fed_tcga_brca/"
)
_TABLE_SHA256: Final = "07cb53423f7d579d33cfdbf2cba57b2aee75318b85866c68ce39a75b1f1ba020"
_SPLIT_SHA256: Final = "1249c6543a4060ff0fdaf8510fc37017755836db6c9fc5e6af96057c36510990"
FILES: Final = DataFiles(
    "tcga-brca",
    "tcga_brca",
    (
        (
            DataFile("brca.csv", _FLAMBY + "brca.csv", (_TABLE_SHA256,)),
            DataFile(
                "train_test_split.csv", _FLAMBY + "dataset_creation_scripts/train_test_split.csv", (_SPLIT_SHA256,)
            ),
        ),
    ),
)


def _read(found: Located) -> Centres:
    path = found["brca.csv"]
    table = read_csv(path, dtype={"pid": str})
    columns = [name for name in table.columns if name not in ("pid", "E", "T")]
    if len(columns) != INPUTS or not {"pid", "E", "T", AGE} <= set(table.columns):
        raise unreadable(path, f"{len(table.columns)} columns instead of pid, {INPUTS} inputs, E and T")
    folds = _folds(found["train_test_split.csv"])
    check_unique(path, table["pid"])
    missing = folds["pid"][~folds["pid"].isin(table["pid"])].tolist()
    if missing:
        raise unreadable(path, f"{missing[0]!r} of train_test_split.csv is not in it")
    table = table.merge(folds, on="pid", how="inner", validate="one_to_one")  # 8 patients are in no fold
    records = Records(_features(path, table[columns]), encode_survival(path, table))
    folded = {fold: records.take((table["fold2"] == fold).to_numpy()) for fold in FOLDS}
    train = {region: folded[f"train_{number}"] for number, region in enumerate(REGIONS)}
    test = Records.joined([folded[f"test_{number}"] for number in range(len(REGIONS))])
    return Centres(train, test, Task(classes=0, label_scale=DAYS_PER_YEAR, survival=True))


def _folds(path: Path) -> pd.DataFrame:
    folds = read_csv(path, usecols=["pid", "fold2"], dtype=str)
    check_unique(path, folds["pid"])
    if lacking := set(FOLDS) - set(words(path, folds["fold2"], FOLDS)):
        raise unreadable(path, f"nobody in {min(lacking)}")
    return folds


def _features(path: Path, frame: pd.DataFrame) -> FloatArray:
    columns = [integers(path, frame[name], 0, 130 if name == AGE else 1) for name in frame.columns]
    features = np.stack(columns, axis=1).astype(np.float64)
    age = list(frame.columns).index(AGE)
    features[:, age] = (np.clip(features[:, age], *AGE_RANGE) - AGE_CENTRE) / AGE_SCALE
    return features.astype(np.float32)


def encode_survival(path: Path, frame: pd.DataFrame) -> LabelArray:
    """Years with a sign: T if E is 1 (the event was observed), -T if E is 0 (censored)."""
    event = integers(path, frame["E"], 0, 1)
    days = integers(path, frame["T"], 0, 100_000)
    years = np.maximum(days, SHORTEST) / DAYS_PER_YEAR
    return np.where(event == 1, years, -years).astype(np.float32)


DATASET: Final = SiloedDataset(
    DatasetInfo(
        name="tcga-brca",
        description="how long does a breast cancer patient live? 39 clinical inputs, six regions",
        source="TCGA-BRCA (Liu et al. 2018, Andreux et al. 2020), the table of FLamby",
        licence="open-access TCGA data under the GDC policy (no attempt to identify anybody); FLamby's files: MIT",
        records=1088,
        features=(INPUTS,),
        classes=0,
        users=200,
        silos=6,
        survival=True,
        scaling="age (years - 60) / 15, round public numbers; all other inputs are 0/1; time in years of 365.25 days",
        quirks=(
            "151 deaths among 1,088 patients, in Canada 3 among 51: most labels are censored",
            "a label is a time in years, negative where observation ended without an event",
            "12 of them have a time of 0 days, which counts as half a day",
            "8 of the 1,096 patients are in no fold and are left out",
            "at least two records per user and region, because one record alone gives no Cox loss",
        ),
    ),
    FILES,
    _read,
    least=2,
)
