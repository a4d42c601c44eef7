"""The example's tables: three hospitals with common patients, and something to learn."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from uldp.data.draft import draft_schema
from uldp.data.files import read_table
from uldp.data.roster import HashedIds
from uldp.data.schema import Schema
from uldp.data.tables import load_tables
from uldp.rng import Secrets, Streams

SCRIPT = Path(__file__).parents[2] / "examples" / "hospitals" / "make_data.py"
HOSPITALS = ("harbour", "north", "university")


def make(folder):
    subprocess.run([sys.executable, str(SCRIPT), "--out", str(folder)], check=True)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("hospitals")
    make(path)
    return path


def test_it_writes_four_tables_and_always_the_same(folder, tmp_path):
    assert make(tmp_path / "new") == {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {path.name for path in folder.iterdir()} == {f"{name}.csv" for name in (*HOSPITALS, "holdout")}


def test_patients_overlap_but_not_with_the_holdout(folder):
    ids = {path.stem: set(pd.read_csv(path)["patient_id"]) for path in folder.iterdir()}
    shared = [a & b for a in map(ids.get, HOSPITALS) for b in map(ids.get, HOSPITALS) if a is not b]
    assert all(len(both) > 30 for both in shared)
    everybody = set.union(*(ids[name] for name in HOSPITALS))
    assert 250 <= len(everybody) <= 300
    assert not everybody & ids["holdout"]


def test_from_a_draft_to_a_learnable_federation(folder):
    paths = [folder / f"{name}.csv" for name in HOSPITALS]
    frame = pd.concat([read_table(path, "data.silos") for path in [*paths, folder / "holdout.csv"]])
    draft = draft_schema(frame, "patient_id", "outcome", from_data=True)
    assert not draft.left_out
    schema = Schema.from_dict(draft.tree, label="outcome", user="patient_id")
    index = HashedIds.from_secrets(1000, Secrets.simulated_from_seed(0))
    streams = Streams.from_seed(0)
    options = {"user": "patient_id", "test": folder / "holdout.csv"}
    federation = load_tables(paths, schema, index, streams, **options)
    assert tuple(silo.name for silo in federation) == HOSPITALS
    assert 1300 < sum(map(len, federation)) < 1700
    features = np.concatenate([silo.features for silo in federation])
    labels = np.concatenate([silo.labels for silo in federation])
    model = LogisticRegression().fit(features, labels)
    assert model.score(federation.test.features, federation.test.labels) > 0.75
