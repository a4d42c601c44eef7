"""Where the real files are at hand: the published counts. Nothing else needs them."""

import shutil

import numpy as np
import pytest
from tests.data_sets.small_files import REAL

from uldp.data import store
from uldp.data.builtin import datasets, load_builtin
from uldp.rng import Streams

pytestmark = pytest.mark.skipif(REAL is None, reason="the real files are not here")

COUNTS = {
    "heart-disease": ((199, 172, 30, 85), 254),
    "tcga-brca": ((248, 156, 164, 129, 129, 40), 222),
}


def load(name, data_dir=REAL, **options):
    found = datasets()[name].files
    if not any((REAL / found.folder / file.name).exists() for way in found.ways for file in way):
        pytest.skip(f"{name} is not here")
    return load_builtin(name, None, None, None, Streams.from_seed(0), data_dir, options)


@pytest.mark.parametrize("name", COUNTS)
def test_published_counts_of_given_silos(name):
    federation = load(name)
    assert (tuple(map(len, federation)), len(federation.test)) == COUNTS[name]
    counts = federation.counts()
    assert federation.users == 200
    assert counts.sum(axis=0).min() >= 1
    assert counts[counts > 0].min() >= (2 if name == "tcga-brca" else 1)


def test_heart_disease_labels_and_the_computed_split(tmp_path):
    federation = load("heart-disease")
    assert [int(silo.labels.sum()) for silo in federation] == [91, 65, 30, 66]
    (tmp_path / "heart_disease").mkdir()
    for path in (REAL / "heart_disease").glob("*.data"):
        shutil.copy(path, tmp_path / "heart_disease")
    computed = load("heart-disease", tmp_path)
    assert [silo.digest() for silo in federation] == [silo.digest() for silo in computed]
    assert np.array_equal(federation.test.features, computed.test.features)


def test_heart_disease_can_be_learned():
    from sklearn.linear_model import LogisticRegression

    federation = load("heart-disease")
    model = LogisticRegression(max_iter=1000).fit(
        np.concatenate([silo.features for silo in federation]), np.concatenate([silo.labels for silo in federation])
    )
    assert model.score(federation.test.features, federation.test.labels) > 0.77


def test_tcga_events():
    federation = load("tcga-brca")
    assert [int((silo.labels > 0).sum()) for silo in federation] == [45, 35, 14, 16, 7, 2]
    assert int((federation.test.labels > 0).sum()) == 32


def test_creditcard():
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    federation = load("creditcard")
    features, labels = (np.concatenate([getattr(silo, part) for silo in federation]) for part in ("features", "labels"))
    if len(labels) + len(federation.test) == 18_169:
        assert (len(labels), int(labels.sum())) == (15_443, 418)
        assert sum(map(len, load("creditcard", extra=True))) == 18_822
    else:
        assert len(labels) == 24_584
    scores = LogisticRegression(max_iter=500).fit(features, labels).predict_proba(federation.test.features)
    assert roc_auc_score(federation.test.labels, scores[:, 1]) > 0.95


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sizes"), [("mnist", (60_000, 10_000)), ("medical-mnist", (9000, 1800))])
def test_counts_of_images(name, sizes):
    federation = load(name)
    assert (sum(map(len, federation)), len(federation.test)) == sizes


@pytest.mark.parametrize("name", [name for name, dataset in datasets().items() if dataset.files is not None])
def test_the_files_are_the_known_ones(name):
    found = datasets()[name].files
    if not (REAL / found.folder).is_dir():
        pytest.skip(f"{name} is not here")
    assert {report.state for report in store.check(found, REAL)} <= {store.OK, store.UNKNOWN}
