"""Write the tables of three made-up hospitals that share patients, and a holdout table.

    python make_data.py --out data

Some 300 patients visit the hospitals about 1500 times; many are known to more than one hospital. The outcome
depends on age, blood pressure, cholesterol and smoking, with chance: a good model is right in about four
cases of five.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

SEED = 2024
PATIENTS = 300
HOLDOUT_PATIENTS = 100
VISITS = 5.0
HOSPITALS = ("north", "harbour", "university")
WARDS = ("cardiology", "internal", "emergency")


def patients(count: int, first_id: int, random: np.random.Generator) -> pd.DataFrame:
    """People with what stays the same from visit to visit."""
    return pd.DataFrame(
        {
            "patient_id": [f"P{number:04d}" for number in range(first_id, first_id + count)],
            "age": random.normal(58, 14, count).clip(19, 95).round().astype(int),
            "sex": random.choice(["f", "m"], count),
            "smoker": random.choice(["no", "yes"], count, p=[0.7, 0.3]),
            "usual_pressure": random.normal(132, 15, count),
            "usual_cholesterol": random.normal(205, 35, count),
        }
    )


def visits(people: pd.DataFrame, random: np.random.Generator) -> pd.DataFrame:
    """One row per visit: today's measurements, and whether a heart event followed."""
    times = 1 + random.poisson(VISITS - 1, len(people))
    table = people.loc[people.index.repeat(times)].reset_index(drop=True)
    count = len(table)
    pressure = (table["usual_pressure"] + random.normal(0, 8, count)).clip(80, 220)
    cholesterol = (table["usual_cholesterol"] + random.normal(0, 15, count)).clip(100, 380)
    risk = (
        0.07 * (table["age"] - 58)
        + 0.06 * (pressure - 132)
        + 0.02 * (cholesterol - 205)
        + 1.4 * (table["smoker"] == "yes")
        + 0.5 * (table["sex"] == "m")
        - 0.7
    )
    return pd.DataFrame(
        {
            "patient_id": table["patient_id"],
            "age": table["age"],
            "sex": table["sex"],
            "blood_pressure": pressure.round().astype(int),
            # Not every visit takes a blood sample.
            "cholesterol": cholesterol.round().where(random.random(count) > 0.1).astype("Int64"),
            "smoker": table["smoker"],
            "ward": random.choice(WARDS, count, p=[0.4, 0.35, 0.25]),
            "outcome": (random.random(count) < 1 / (1 + np.exp(-1.3 * risk))).astype(int),
        }
    )


def hospital_of(table: pd.DataFrame, random: np.random.Generator) -> np.ndarray:
    """Most visits of a patient go to one hospital, the others anywhere."""
    people = table["patient_id"].unique()
    home = dict(zip(people, random.integers(len(HOSPITALS), size=len(people)), strict=True))
    anywhere = random.integers(len(HOSPITALS), size=len(table))
    return np.where(random.random(len(table)) < 0.7, table["patient_id"].map(home), anywhere)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the tables of three made-up hospitals.")
    parser.add_argument("--out", type=Path, default=Path("data"), help="folder for the CSV files")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(SEED)
    table = visits(patients(PATIENTS, 1, random), random)
    hospital = hospital_of(table, random)
    for index, name in enumerate(HOSPITALS):
        table[hospital == index].to_csv(out / f"{name}.csv", index=False)
    holdout = visits(patients(HOLDOUT_PATIENTS, PATIENTS + 1, random), random)
    holdout.to_csv(out / "holdout.csv", index=False)


if __name__ == "__main__":
    main()
