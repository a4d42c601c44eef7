"""Columns of codes: categories by number, for an Embedding that kernels train."""

import warnings

import numpy as np
import pandas as pd
import pytest
from torch import nn

import uldp
from uldp.data.contrasts import contrasts
from uldp.data.schema import Schema, code_columns, feature_norm, number_positions
from uldp.data.tallies import tally_schema
from uldp.errors import ConfigError, DataError
from uldp.learners.blocks import Embedding

WARDS = ["heart", "lung", "other"]


def schema(**changes):
    agreed = Schema.classes("y", [0, 1]).category("ward", WARDS, kind="code", **changes)
    return agreed.category("code", ["I21", "I50"], kind="code", first=3).numeric("age", 0, 100)


def table(wards, codes=None, ages=None):
    count = len(wards)
    return pd.DataFrame({"ward": wards, "code": codes or ["I50"] * count, "age": ages or [50] * count})


def test_a_category_becomes_its_number_and_what_is_unknown_minus_one():
    found = schema(outside="clip").features(table(["other", "heart", "skin"], ["I21", "I50", "I21"], [0, 50, 100]), "t")
    assert found.tolist() == [[2, 3, -1], [0, 4, 0], [-1, 3, 1]]
    assert schema(other="other").features(table(["skin"]), "t").tolist() == [[2, 4, 0]]
    assert schema(missing="lung").features(table([None]), "t").tolist() == [[1, 4, 0]]
    assert schema(fold_case=True).features(table(["LUNG"]), "t").tolist() == [[1, 4, 0]]
    with pytest.raises(DataError, match=r"1 not among the agreed categories in column 'ward' \(first: row 1\)"):
        schema().features(table(["skin"]), "t")
    for refused in (2**24, -1, 1.5):
        with pytest.raises(ConfigError, match=r"first"):
            Schema.classes("y", [0, 1]).category("ward", WARDS, kind="code", first=refused)


def test_codes_are_never_sizes():
    assert Schema.from_dict(schema().to_dict(), label="y") == schema()
    assert schema().feature_names() == ("ward:code", "code:code", "age")
    assert code_columns(schema()) == ("ward", "code") and feature_norm(schema()) == float("inf")
    assert number_positions(schema().columns) == (2,)
    assert [one.name for one in contrasts(schema())] == ["age"]
    assert [len(column.bins) for column in tally_schema(schema(), 5).columns[:2]] == [5, 4]


def embedded(shape, task):
    return nn.Sequential(Embedding(5, 3, columns=2), nn.Linear(6 + shape[0] - 2, task.classes))


def test_a_model_with_an_embedding_learns_from_codes_on_kernels_and_others_refuse():
    draw = np.random.default_rng(0)
    silos = {}
    for silo in ("north", "south"):
        frame = table(draw.choice(WARDS, 90).tolist(), draw.choice(["I21", "I50"], 90).tolist())
        ill = (frame["ward"] == "lung") | ((frame["ward"] == "other") & (frame["code"] == "I21"))
        silos[silo] = frame.assign(pid=[f"{silo}{n}" for n in range(90)], y=ill * 1)
    about = {"user": "pid", "label": "y", "schema": schema(), "test_fraction": 0.3, "secrets": "simulated"}
    plain = {"method": "fedavg", "epsilon": None, "rounds": 30, "options": {"method.local_lr": 0.3}}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*no kernel.*")
        result = uldp.train(silos, model=embedded, **about, **plain)
    assert result.metrics["accuracy"] > 0.9
    with pytest.raises(ConfigError, match="'logistic' would take the codes of 'ward' for sizes"):
        uldp.train(silos, model="logistic", **about, **plain)
