"""Built-in data: real, scaled by public constants, learnable, and the same from the same seed."""

import subprocess
import sys

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LinearRegression, LogisticRegression

from uldp.data.builtin import datasets, load_builtin
from uldp.errors import ConfigError
from uldp.rng import Streams

STREAMS = Streams.from_seed(0)


def load(name, seed=0, users=None, silos=None, allocation=None, **options):
    return load_builtin(name, users, silos, allocation, Streams.from_seed(seed), options=options)


def training(federation):
    features = np.concatenate([silo.features.reshape(len(silo), -1) for silo in federation])
    return features, np.concatenate([silo.labels for silo in federation])


BUILT_IN = [name for name, dataset in datasets().items() if dataset.files is None]


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_data_set_is_what_its_description_says(name):
    info = datasets()[name].info
    federation = load(name)
    assert federation.name == info.name == name
    assert sum(map(len, federation)) + len(federation.test) == info.records
    assert federation.feature_shape == info.features
    assert federation.task.classes == info.classes
    assert (federation.users, len(federation.silos)) == (info.users, info.silos)
    assert all(len(silo) for silo in federation)
    assert all(info.to_json()[key] for key in ("description", "source", "licence"))


@pytest.mark.parametrize("name", BUILT_IN)
def test_features_lie_within_the_public_scale(name):
    features, _ = training(load(name))
    assert features.dtype == np.float32
    assert -1 <= features.min() < -0.9
    assert 0.9 < features.max() <= 1


@pytest.mark.parametrize("name", BUILT_IN)
def test_one_seed_gives_one_federation(name):
    one, same, other = load(name), load(name), load(name, seed=1)
    for a, b in zip(one, same, strict=True):
        assert np.array_equal(a.features, b.features)
        assert np.array_equal(a.users, b.users)
    assert not np.array_equal(one.counts(), other.counts())
    assert not np.array_equal(one.test.features, other.test.features)


@pytest.mark.parametrize(("name", "least"), [("breast-cancer", 0.93), ("digits", 0.93), ("synthetic", 0.85)])
def test_there_is_something_to_learn(name, least):
    federation = load(name)
    model = LogisticRegression(max_iter=2000).fit(*training(federation))
    test = federation.test
    assert model.score(test.features.reshape(len(test), -1), test.labels) > least


def test_the_test_set_has_each_class_by_its_share():
    federation = load("digits", test_fraction=0.25)
    _, labels = training(federation)
    assert np.bincount(federation.test.labels) == pytest.approx(np.bincount(labels) / 3, abs=2)


def test_synthetic_of_another_shape():
    federation = load("synthetic", records=3000, features=7, classes=4, users=10, silos=2, allocation="non-iid")
    assert federation.feature_shape == (7,)
    assert sum(map(len, federation)) + len(federation.test) == 3000
    assert set(federation.test.labels) == {0, 1, 2, 3}


def test_synthetic_regression():
    federation = load("synthetic", classes=0)
    assert federation.task.kind == "regression"
    assert federation.test.labels.dtype == np.float32
    model = LinearRegression().fit(*training(federation))
    assert model.score(federation.test.features, federation.test.labels) > 0.7


def test_breast_cancer_has_a_schema_for_new_tables():
    federation = load("breast-cancer")
    frame = load_breast_cancer(as_frame=True).data
    features = federation.schema.features(frame, "new.csv")
    known = {row.tobytes() for row in features}
    assert all(row.tobytes() in known for row in federation.test.features)
    assert federation.schema.label.classes == ("malignant", "benign")


def test_digits_are_those_of_scikit_learn():
    known = {(image.tobytes(), label) for image, label in zip(load_digits().images, load_digits().target, strict=True)}
    test = load("digits").test
    images = (test.features[:, 0].astype(np.float64) + 1) * 8
    assert all((image.tobytes(), label) in known for image, label in zip(images, test.labels, strict=True))


def test_breast_cancer_ranges_are_those_of_the_published_description():
    from uldp.data.sets.breast_cancer import RANGES

    data = load_breast_cancer()
    assert list(RANGES) == list(data.feature_names)
    lines = [line for line in data.DESCR.splitlines() if line.endswith(tuple("0123456789")) and "): " in line]
    assert [tuple(map(float, line.split()[-2:])) for line in lines] == list(RANGES.values())


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"name": "iris"}, "data.dataset: unknown data set 'iris'. Known: breast-cancer, digits, synthetic"),
        (
            {"name": "digits", "records": 5},
            "data.options: unknown key 'records' for digits. Known keys: silo_exponent",
        ),
        (
            {"name": "synthetic", "classes": 1},
            "data.options.classes: a whole number 0 (a numeric label) or from 2 up",
        ),
        ({"name": "synthetic", "features": 0}, "data.options.features: a whole number from 1 up, not 0"),
        ({"name": "synthetic", "records": 1e4}, "data.options.records: a whole number from 10 up"),
        ({"name": "digits", "test_fraction": 1}, "data.options.test_fraction: a number between 0 and 1"),
        ({"name": "digits", "test_fraction": "0.2"}, "data.options.test_fraction: a number, not '0.2'"),
        ({"name": "digits", "test_fracton": 0.1}, "Did you mean 'test_fraction'?"),
        ({"name": "synthetic", "records": 10**15}, "data.options.records: 1000000000000000 records of 20 features"),
        ({"name": "synthetic", "features": 10**9}, "are more than 100000000 numbers"),
        ({"name": "digits", "users": 10**12}, "data.users: a whole number from 2 to 10,000,000, not 1000000000000"),
        ({"name": "digits", "users": 1}, "data.users: a whole number from 2 to 10,000,000, not 1"),
        ({"name": "digits", "silos": 0}, "data.silos: a whole number from 1 to 10,000, not 0"),
        ({"name": "digits", "allocation": "as-is"}, "data.allocation: 'as-is' needs data that says"),
    ],
)
def test_bad_requests(given, text):
    with pytest.raises(ConfigError) as error:
        load(**given)
    assert text in str(error.value)


@pytest.mark.parametrize("key", ["name", "users", "silos", "allocation", "streams", "data_dir", "options"])
def test_an_option_that_is_called_like_an_argument_is_an_unknown_one(key):
    with pytest.raises(ConfigError, match=f"data.options: unknown key '{key}' for digits. Known keys: silo_exponent"):
        load_builtin("digits", None, None, None, STREAMS, None, {key: 3})


def test_importing_the_data_package_is_cheap():
    modules = ("allocate", "builtin", "draft", "federation", "files", "roster", "schema", "tables")
    imports = "; ".join(f"import uldp.data.{module}" for module in modules)
    heavy = "sorted({'pandas', 'pyarrow', 'sklearn', 'scipy', 'torch'} & set(sys.modules))"
    code = f"import sys; {imports}; print({heavy})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
