"""The promise, from raw tables to integers: leaving one person out of all files moves the sum by at most the clip.

Everything is included: reading, imputation, scaling, categories, hashing of ids, training with shuffled batches and
dropout, clipping, weighting, encoding. Distances are taken over the integers, without a tolerance.
"""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import build, moved, noiseless_total

from uldp.experiment.build import build_learner
from uldp.experiment.config import Experiment
from uldp.experiment.loading import load_federation
from uldp.methods.registry import METHODS
from uldp.methods.user_sum import UserSum
from uldp.privacy.releases import PublicFacts
from uldp.rng import Streams

PRIVATE = [name for name, named in METHODS.items() if issubclass(named.method, UserSum)]
MODELS = [{"name": "logistic"}, {"name": "mlp", "hidden": [6], "dropout": 0.3}]

people = st.sampled_from([f"p{i}" for i in range(8)])
rows = st.lists(
    st.tuples(
        people,
        st.one_of(st.none(), st.floats(0, 100, width=32)),
        st.sampled_from(["a", "b", None]),
        st.sampled_from([0, 1]),
    ),
    min_size=4,
    max_size=25,
)


def tree(files, standardise="none", model=MODELS[0], ids=None):
    return {
        "data": {
            "silos": files,
            "user": "id",
            "label": "y",
            **(ids or {"roster": "roster.txt"}),
            "test": "test.csv",
            "schema": {
                "standardise": standardise,
                "label": {"kind": "class", "classes": [0, 1]},
                "columns": {
                    "age": {"kind": "number", "range": [0, 100], "missing": 50},
                    "ward": {"kind": "category", "categories": ["a", "b", "none"], "missing": "none"},
                },
            },
        },
        "model": model,
        "method": {"name": "uldp-avg"},
        "privacy": {"noise_multiplier": 0.0},
    }


def write(folder, tables):
    columns = ["id", "age", "ward", "y"]
    for name, table in tables.items():
        pd.DataFrame(table, columns=columns).to_csv(folder / name, index=False)
    (folder / "roster.txt").write_text("\n".join([f"p{i}" for i in range(40)] + ["x"]))
    pd.DataFrame([("t", 1, "a", 0), ("t", 2, "b", 1)], columns=columns).to_csv(folder / "test.csv", index=False)


def load(folder, tables, **options):
    write(folder, tables)
    experiment = Experiment.from_tree(tree(list(tables), **options), folder)
    federation = load_federation(experiment)
    return federation, build_learner(experiment, federation.feature_shape, federation.task)


@pytest.mark.parametrize("name", PRIVATE)
@given(
    silos=st.lists(rows, min_size=2, max_size=3),
    who=people,
    model=st.sampled_from(MODELS),
    batch_size=st.sampled_from([2, 64]),
    optimizer=st.sampled_from(["sgd", "adam"]),
    sampled=st.booleans(),
    seed=st.integers(0, 100),
)
@settings(max_examples=25)
def test_leaving_one_person_out_of_all_files(
    tmp_path_factory, name, silos, who, model, batch_size, optimizer, sampled, seed
):
    everybody = [("p8", 1.0, "a", 0), ("p9", 99.0, "b", 1)]  # so that no file is empty without ``who``
    tables = {f"s{i}.csv": [*table, *everybody] for i, table in enumerate(silos)}
    without = {file: [row for row in table if row[0] != who] for file, table in tables.items()}
    folder = tmp_path_factory.mktemp("tables")
    options = {"local_epochs": 3, "local_lr": 0.7, "batch_size": batch_size, "optimizer": optimizer}
    method = build(name, clip=0.05, **(options if "avg" in name else {}))
    federation, learner = load(folder, tables, model=model)
    x = learner.initial(Streams.from_seed(seed)) * 3
    sample = np.random.default_rng(seed).random(federation.users) < 0.6 if sampled else None
    whole = noiseless_total(method, federation, learner, x, sample)
    left, learner = load(folder, without, model=model)
    distance = moved(whole, noiseless_total(method, left, learner, x, sample))
    release = method.release(PublicFacts(federation.users, len(federation.silos), len(x)))
    assert distance <= (release.sensitivity * release.encoding.integer_limit) ** 2


def test_standardising_by_silo_breaks_the_promise_so_the_warning_is_real(tmp_path):
    """One person with an extreme value moves everybody's features, and with them the sum by more than the clip."""
    generator = np.random.default_rng(0)
    table = [(f"p{i}", float(generator.uniform(49, 51)), "a", i % 2) for i in range(40) for _ in range(2)]
    extreme = [("x", 100.0, "b", 1)]
    method = build("uldp-sgd", clip=0.05)
    distances = {}
    for standardise in ("none", "silo"):
        whole, learner = load(tmp_path, {"a.csv": table + extreme, "b.csv": table}, standardise=standardise)
        x = np.array([2.0, 0.0, 0.0, 0.0, 0.1])
        before = noiseless_total(method, whole, learner, x)
        without, learner = load(tmp_path, {"a.csv": table, "b.csv": table}, standardise=standardise)
        distances[standardise] = moved(before, noiseless_total(method, without, learner, x))
        assert bool(whole.no_guarantee) == (standardise == "silo")
    limit = method.release(PublicFacts(30, 2, 5)).encoding.integer_limit ** 2
    assert distances["none"] <= limit
    assert distances["silo"] > 4 * limit


def test_two_people_in_one_hashed_bucket_are_covered_by_twice_the_clip_and_no_less(tmp_path):
    """A person who shares a bucket is not left out but exchanged for the other one: the statement must say so."""
    method = build("uldp-sgd", clip=0.05)
    ids = [f"p{i}" for i in range(30)]
    hashed = {"ids": {"users": 30}}
    federation, _ = load(tmp_path, {"a.csv": [(who, 50.0, "a", 1) for who in ids]}, **hashed)
    buckets = federation.silos[0].users.tolist()
    one, other = next((a, b) for a in ids for b in ids if a < b and buckets[ids.index(a)] == buckets[ids.index(b)])
    # The two pull the model in opposite directions, and ``one`` has most of the records of their bucket.
    rows = [(one, 100.0, "a", 1)] * 9 + [(other, 100.0, "a", 0)] + [("p_else", 50.0, "b", 1)]
    whole, learner = load(tmp_path, {"a.csv": rows, "b.csv": rows}, **hashed)
    kept = [row for row in rows if row[0] != one]
    left, _ = load(tmp_path, {"a.csv": kept, "b.csv": kept}, **hashed)
    x = np.zeros(5)
    distance = moved(*(noiseless_total(method, f, learner, x) for f in (whole, left)))
    limit = method.release(PublicFacts(30, 2, 5)).encoding.integer_limit ** 2
    assert whole.hashed_ids
    assert 3.9 * limit < distance <= 4 * limit  # squared distances
