"""UCI Heart Disease: four centres, is there a disease of the coronary arteries? PreparedExperiment as in FLamby.

Columns slope, ca and thal are mostly missing outside Cleveland and are left out, then every row with a missing value.
cp and restecg are one-hot without their first level: 13 inputs. FLamby standardises by each centre's own mean and
deviation; that would let one patient move everybody's features, so public constants are used instead, the same for
training and test.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from uldp.data.federation import FloatArray, IntArray, Records, Task
from uldp.data.sets.base import Centres, DatasetInfo, SiloedDataset
from uldp.data.sets.files import integers, read_csv, words
from uldp.data.store import DataFile, DataFiles, Located, unreadable

if TYPE_CHECKING:
    import pandas as pd

CENTRES: Final = ("cleveland", "hungarian", "switzerland", "va")
COLUMNS: Final = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal",
    "num",
)  # fmt: skip
LEFT_OUT: Final = ("slope", "ca", "thal")
MAX_ROWS: Final = 100_000
SPLIT_FILE: Final = "flamby_train_test_split.csv"

# (lowest, highest, centre, scale): values are cut to the range, then (value - centre) / scale. Round numbers of general
# medical knowledge about adults examined for chest pain, not computed from these records.
NUMBERS: Final = {
    "age": (20.0, 100.0, 55.0, 10.0),  # years
    "trestbps": (60.0, 240.0, 130.0, 20.0),  # resting blood pressure, mm Hg
    "chol": (80.0, 640.0, 240.0, 60.0),  # serum cholesterol, mg/dl
    "thalach": (50.0, 220.0, 140.0, 25.0),  # highest heart rate reached, per minute
    "oldpeak": (-3.0, 8.0, 1.0, 1.0),  # ST depression by exercise, mm
}
ZERO_IS_MISSING: Final = ("trestbps", "chol")  # no living patient has 0; the centre is imputed, so the feature is 0
FLAGS: Final = ("sex", "fbs", "exang")  # 0 / 1 becomes -1 / 1
LEVELS: Final = {"cp": (2, 3, 4), "restecg": (1, 2)}  # without the first level (cp 1, restecg 0); 0 / 1

# FLamby's rule for the split (commit edacf54d5211), with scikit-learn's train_test_split.
SPLIT_SEED: Final = 43
TEST_SHARE: Final = 0.34

_UCI: Final = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/"
_SHA256: Final = {
    "cleveland": "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
    "hungarian": "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
    "switzerland": "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
    "va": "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
}


_NAMES: Final = {centre: f"processed.{centre}.data" for centre in CENTRES}
FILES: Final = DataFiles(
    "heart-disease",
    "heart_disease",
    (tuple(DataFile(name, _UCI + name, (_SHA256[centre],)) for centre, name in _NAMES.items()),),
    (DataFile(SPLIT_FILE, "", ("4dcf2544d7e5ad1e5d5beeb085f6308a4a5ea97495d1cc00cbde3d7115d9d964",)),),
)


def _read(found: Located) -> Centres:
    split = _split_table(found[SPLIT_FILE]) if SPLIT_FILE in found else None
    train, test = {}, []
    for centre in CENTRES:
        path = found[_NAMES[centre]]
        frame = _table(path).drop(columns=list(LEFT_OUT)).dropna()
        if frame.empty:
            raise unreadable(path, "no row without a missing value")
        labels = (integers(path, frame["num"], 0, 4) > 0).astype(np.int64)
        records = Records(_features(path, frame), labels)
        in_test = _computed_split(path, labels) if split is None else _given_split(path, frame, split, centre)
        train[centre] = records.take(~in_test)
        test.append(records.take(in_test))
    return Centres(train, Records.joined(test), Task(classes=2))


def _table(path: Path) -> pd.DataFrame:
    """The rows of a centre. A row with more or fewer fields is refused: its values would be other columns'."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from None
    for number, line in enumerate(text.splitlines(), start=1):
        fields = [field.strip() for field in line.split(",")]
        if line.strip() and (len(fields) != len(COLUMNS) or "" in fields):
            found = f"{len(fields)} fields" if len(fields) != len(COLUMNS) else "an empty field"
            raise unreadable(path, f"line {number} has {found}, not {len(COLUMNS)} values or request marks")
    fields_as_they_are = {"keep_default_na": False, "quoting": csv.QUOTE_NONE, "index_col": False}
    return read_csv(path, header=None, names=list(COLUMNS), na_values="?", **fields_as_they_are)


def _features(path: Path, frame: pd.DataFrame) -> FloatArray:
    """(rows, 13): age, sex, trestbps, chol, fbs, thalach, exang, oldpeak, cp 2-4, restecg 1-2."""
    parts: list[npt.NDArray[np.float64]] = []
    for name in ("age", "sex", "trestbps", "chol", "fbs", "thalach", "exang", "oldpeak"):
        if name in FLAGS:
            parts.append(2 * integers(path, frame[name], 0, 1).astype(np.float64) - 1)
        else:
            parts.append(_number(path, frame[name], name))
    for name, levels in LEVELS.items():
        code = integers(path, frame[name], levels[0] - 1, levels[-1])
        parts += [(code == level).astype(np.float64) for level in levels]
    return np.stack(parts, axis=1).astype(np.float32)


def _number(path: Path, column: pd.Series, name: str) -> npt.NDArray[np.float64]:
    low, high, centre, scale = NUMBERS[name]
    try:
        values = column.to_numpy(dtype=np.float64)
    except ValueError as error:
        raise unreadable(path, error) from None
    if name in ZERO_IS_MISSING:
        values = np.where(values == 0, centre, values)
    scaled: npt.NDArray[np.float64] = (np.clip(values, low, high) - centre) / scale
    return scaled


def _split_table(path: Path) -> dict[tuple[str, int], bool]:
    frame = read_csv(path, usecols=["centre", "row", "set"])
    centres = words(path, frame["centre"], CENTRES)
    rows = integers(path, frame["row"], 0, MAX_ROWS)
    parts = words(path, frame["set"], ("train", "test"))
    split: dict[tuple[str, int], bool] = {}
    for centre, row, part in zip(centres, rows.tolist(), parts, strict=True):
        if (centre, row) in split:
            raise unreadable(path, f"row {row} of {centre} occurs twice")
        split[centre, row] = part == "test"
    return split


def _given_split(
    path: Path, frame: pd.DataFrame, split: dict[tuple[str, int], bool], centre: str
) -> npt.NDArray[np.bool_]:
    """``row`` of the split table is the line number in the centre's file, from 0. It names all usable rows."""
    usable, named = set(frame.index), {row for where, row in split if where == centre}
    if usable - named:
        raise unreadable(path, f"row {min(usable - named)} is not in {SPLIT_FILE}")
    if named - usable:
        raise unreadable(path, f"row {min(named - usable)} of {SPLIT_FILE} is missing or misses a value")
    return np.array([split[centre, row] for row in frame.index], dtype=np.bool_)


def _computed_split(path: Path, labels: IntArray) -> npt.NDArray[np.bool_]:
    """FLamby's rule: 66 / 34 with a fixed seed, stratified where both labels occur more than twice."""
    from sklearn.model_selection import train_test_split

    counts = np.bincount(labels, minlength=2)
    try:
        _, test = train_test_split(
            np.arange(len(labels)),
            train_size=1 - TEST_SHARE,
            test_size=TEST_SHARE,
            shuffle=True,
            random_state=SPLIT_SEED,
            stratify=labels if (counts > 2).all() else None,
        )
    except ValueError:
        raise unreadable(path, f"{len(labels)} usable row(s), too few for a training and a test set") from None
    in_test = np.zeros(len(labels), dtype=np.bool_)
    in_test[test] = True
    return in_test


DATASET: Final = SiloedDataset(
    DatasetInfo(
        name="heart-disease",
        description="is a coronary artery narrowed? 13 inputs of patients of four hospitals",
        source="Janosi, Steinbrunn, Pfisterer, Detrano 1988, UCI; split and inputs as in FLamby",
        licence="CC BY 4.0",
        records=740,
        features=(13,),
        classes=2,
        users=200,
        silos=4,
        labels=("no disease", "disease"),
        scaling="centres, scales and ranges from general medical knowledge, declared in the loader; 0/1 becomes -1/1",
        quirks=(
            "cholesterol 0 means missing (all of Switzerland, a quarter of VA), and so does a blood pressure of 0: the "
            "public centre (240 mg/dl, 130 mm Hg) is imputed, which is a feature of 0",
            "slope, ca and thal are left out, then rows with a missing value: 180 of 920",
            "Switzerland has 1 healthy patient among 46, and none in training",
            "FLamby and the ULDP-FL experiments standardise by statistics of the data; here public constants do it, "
            "the same for training and test",
        ),
    ),
    FILES,
    _read,
)
