"""Write the tables of four made-up hospitals that write the same things in different ways, and a holdout table.

    python make_data.py --out data

The patients, their visits and what the outcome depends on are as in ``examples/hospitals``. The tables are not:

* ``north`` writes 9999 for a pressure that was not taken, and "not done" for a cholesterol;
* ``harbour`` writes weights in pounds, dates as day.month.year, and has no cholesterol at all;
* ``university`` says "Yes", "no", "Y" and 0 about smoking, and lacks some outcomes;
* ``valley`` has a ward that nobody else has, a pressure of 11 that slipped, stages in small letters;
* all of them have a record number, a note, the day of discharge, and whether the patient died.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

SEED = 2025
PATIENTS = 400
HOLDOUT_PATIENTS = 150
VISITS = 5.0
HOSPITALS = ("north", "harbour", "university", "valley")
WARDS = ("cardiology", "internal", "emergency")
STAGES = ("I", "II", "III", "IV")
POUNDS = 2.2046


def clean_visits(count: int, first_id: int, random: np.random.Generator) -> pd.DataFrame:
    """One row per visit, written in one way."""
    owner = np.repeat(np.arange(count), 1 + random.poisson(VISITS - 1, count))
    age = random.normal(58, 14, count).clip(19, 95).round().astype(int)[owner]
    smoker = (random.random(count) < 0.3)[owner]
    pressure = (random.normal(132, 15, count)[owner] + random.normal(0, 8, len(owner))).clip(80, 220)
    cholesterol = (random.normal(205, 35, count)[owner] + random.normal(0, 15, len(owner))).clip(100, 380)
    stage = random.integers(0, len(STAGES), count)[owner]
    risk = 0.07 * (age - 58) + 0.05 * (pressure - 132) + 0.015 * (cholesterol - 205) + 1.2 * smoker + 0.6 * stage - 1.5
    ill = random.random(len(owner)) < 1 / (1 + np.exp(-1.3 * risk))
    day = pd.Timestamp("2021-01-01") + pd.to_timedelta(random.integers(0, 1400, len(owner)), unit="D")
    return pd.DataFrame(
        {
            "patient": [f"P{first_id + number:04d}" for number in owner],
            "record_no": random.permutation(len(owner)) + 70_000,
            "age": age,
            "weight": random.normal(76, 14, count).clip(40, 160).round(1)[owner],
            "pressure": pressure.round().astype(int),
            "cholesterol": cholesterol.round().astype(int),
            "smoker": np.where(smoker, "yes", "no"),
            "stage": np.array(STAGES)[stage],
            "ward": random.choice(WARDS, len(owner), p=[0.4, 0.35, 0.25]),
            "note": [f"seen by doctor {number}" for number in random.integers(0, 400, len(owner))],
            "discharged": day.strftime("%Y-%m-%d"),
            "died": np.where(ill & (random.random(len(owner)) < 0.1), 1, 0),
            "heart_event": np.where(ill, "yes", "no"),
        }
    )


def north(table: pd.DataFrame, random: np.random.Generator) -> pd.DataFrame:
    some = random.random(len(table))
    return table.assign(
        pressure=table["pressure"].where(some > 0.06, 9999),
        cholesterol=table["cholesterol"].astype(str).where(some < 0.9, "not done"),
    )


def harbour(table: pd.DataFrame, random: np.random.Generator) -> pd.DataFrame:
    days = pd.to_datetime(table["discharged"]).dt.strftime("%d.%m.%Y")
    return table.assign(weight=(table["weight"] * POUNDS).round(), discharged=days).drop(columns="cholesterol")


def university(table: pd.DataFrame, random: np.random.Generator) -> pd.DataFrame:
    pick = random.integers(0, 2, len(table))
    written = {"yes": np.array(["Yes", "Y"]), "no": np.array(["no", "0"])}
    smoker = [written[value][one] for value, one in zip(table["smoker"], pick, strict=True)]
    lost = random.random(len(table)) < 0.04
    return table.assign(smoker=smoker, heart_event=table["heart_event"].str.upper().mask(lost, ""))


def valley(table: pd.DataFrame, random: np.random.Generator) -> pd.DataFrame:
    pressure, ward = table["pressure"].to_numpy().copy(), table["ward"].to_numpy().copy()
    pressure[7], ward[11] = 11, "helicopter"
    return table.assign(pressure=pressure, ward=ward, stage=table["stage"].str.lower())


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the messy tables of four made-up hospitals.")
    parser.add_argument("--out", type=Path, default=Path("data"), help="folder for the CSV files")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(SEED)
    table = clean_visits(PATIENTS, 1, random)
    home = dict(zip(table["patient"].unique(), random.integers(len(HOSPITALS), size=PATIENTS), strict=True))
    anywhere = random.integers(len(HOSPITALS), size=len(table))
    hospital = np.where(random.random(len(table)) < 0.7, table["patient"].map(home), anywhere)
    for index, (name, write) in enumerate(zip(HOSPITALS, (north, harbour, university, valley), strict=True)):
        write(table[hospital == index].reset_index(drop=True), random).to_csv(out / f"{name}.csv", index=False)
    clean_visits(HOLDOUT_PATIENTS, PATIENTS + 1, random).to_csv(out / "holdout.csv", index=False)


if __name__ == "__main__":
    main()
