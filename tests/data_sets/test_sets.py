"""The papers' data sets, read from small files in their formats: shapes, scales, labels, splits, refusals."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from tests.data_sets.small_files import HEART, TCGA, card_rows, cifar_archive, idx, images

from uldp.data.builtin import datasets, load_builtin
from uldp.data.federation import Task
from uldp.errors import ConfigError, DataError
from uldp.rng import Streams

NAMES = [name for name, dataset in datasets().items() if dataset.files is not None]
USERS = {"heart-disease": 30, "tcga-brca": 20}


def load(name, data_dir, seed=0, users=None, silos=None, allocation=None, **options):
    users = USERS.get(name, 10) if users is None else users
    return load_builtin(name, users, silos, allocation, Streams.from_seed(seed), data_dir, options)


@pytest.mark.parametrize("name", NAMES)
def test_a_federation_of_the_announced_shape(name, small):
    info, federation = datasets()[name].info, load(name, small)
    assert federation.name == name
    assert federation.feature_shape == info.features == federation.test.features.shape[1:]
    assert federation.task.classes == info.classes
    assert len(federation.silos) == info.silos
    for part in (*federation.silos, federation.test):
        assert part.features.dtype == np.float32
        assert np.isfinite(part.features).all()
        assert np.abs(part.features).max() <= 10
    assert info.scaling and info.quirks and info.licence and info.source
    assert len(info.labels) == info.classes


@pytest.mark.parametrize("name", NAMES)
def test_one_seed_gives_one_federation(name, small):
    one, same, other = load(name, small), load(name, small), load(name, small, seed=1)
    assert [silo.digest() for silo in one] == [silo.digest() for silo in same]
    assert [silo.digest() for silo in one] != [silo.digest() for silo in other]


@pytest.mark.parametrize("name", ["heart-disease", "tcga-brca", "mnist", "cifar10", "medical-mnist"])
def test_a_published_split_does_not_move_with_the_seed(name, small):
    one, other = load(name, small), load(name, small, seed=1)
    assert np.array_equal(one.test.features, other.test.features)


def test_no_other_record_moves_a_feature(tmp_path):
    """Scaling by public constants: a row's features are the same whatever else is in the file."""
    folder = tmp_path / "creditcard"
    folder.mkdir()
    lines = card_rows(60, 12).splitlines()
    (folder / "creditcard_subset.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    everyone = {row.tobytes() for row in _all(load("creditcard", tmp_path))}
    (folder / "creditcard_subset.csv.gz").write_bytes(gzip.compress("\n".join(lines[:1] + lines[5:]).encode()))
    assert {row.tobytes() for row in _all(load("creditcard", tmp_path))} < everyone


def _all(federation):
    return np.concatenate([*(silo.features for silo in federation), federation.test.features])


def test_heart_disease_features(small):
    federation = load("heart-disease", small)
    features = np.concatenate([silo.features for silo in federation])
    assert [silo.name for silo in federation] == list(HEART)
    usable = [rows - (0 if centre == "cleveland" else rows // 10) for centre, (rows, _) in HEART.items()]
    assert sum(usable) == len(features) + len(federation.test)
    everyone = _all(federation)
    assert set(np.unique(everyone[:, 1])) == {-1.0, 1.0}  # sex
    assert everyone[:, 0].max() == 4.5  # an age of 200 is cut to 100
    assert (federation.silos[2].features[:, 3] == 0).all()  # cholesterol 0 is missing
    assert (everyone[:, 8:11].sum(axis=1) <= 1).all() and set(np.unique(everyone[:, 8:])) == {0.0, 1.0}
    assert set(np.unique(federation.test.labels)) == {0, 1}


def test_heart_disease_by_a_table_of_the_split(small, tmp_path):
    folder = tmp_path / "heart_disease"
    folder.mkdir()
    lines = ["centre,row,set"]
    for centre, (rows, _) in HEART.items():
        (folder / f"processed.{centre}.data").write_bytes(
            (small / "heart_disease" / f"processed.{centre}.data").read_bytes()
        )
        usable = [row for row in range(rows) if centre == "cleveland" or row % 10 != 9]
        lines += [f"{centre},{row},{'test' if row < 5 else 'train'}" for row in usable]
    (folder / "flamby_train_test_split.csv").write_text("\n".join(lines))
    federation = load("heart-disease", tmp_path)
    assert [len(silo) for silo in federation] == [55, 40, 13, 22]
    assert len(federation.test) == 20
    (folder / "flamby_train_test_split.csv").write_text("\n".join(lines[:20]))
    with pytest.raises(DataError, match="row 19 is not in flamby_train_test_split"):
        load("heart-disease", tmp_path)


def test_tcga_labels_are_times_with_a_sign(small):
    federation = load("tcga-brca", small)
    assert federation.task == Task(classes=0, label_scale=365.25, survival=True)
    assert federation.task.kind == "survival"
    assert tuple(map(len, federation)) == TCGA
    assert len(federation.test) == 18
    for silo in federation:
        # Every third row has an event, among them the first, whose time is 0 days.
        assert (silo.labels > 0).sum() == -(-len(silo) // 3)
        assert (silo.labels != 0).all()
        assert np.abs(silo.labels).min() == np.float32(0.5 / 365.25)
        assert np.abs(silo.labels).max() < 11
    counts = federation.counts()
    assert counts[counts > 0].min() >= 2
    features = _all(federation)
    assert set(np.unique(features[:, 1:])) == {0.0, 1.0}
    assert -2 <= features[:, 0].min() < 0 < features[:, 0].max() <= 2


@pytest.mark.parametrize("name", ["heart-disease", "tcga-brca"])
def test_given_silos_are_what_they_are(name, small):
    with pytest.raises(ConfigError, match=r"data\.silos: .* silos of its own, not 3; leave data.silos out"):
        load(name, small, silos=3)
    with pytest.raises(ConfigError, match="'non-iid' is not for data whose silos are given"):
        load(name, small, allocation="non-iid")
    assert load(name, small, allocation="uniform").users == USERS[name]


def test_creditcard_subset_is_not_cut_again(small):
    federation = load("creditcard", small)
    assert sum(map(len, federation)) == 340 + 34
    assert np.bincount(federation.test.labels).tolist() == [60, 6]
    more = load("creditcard", small, extra=True)
    assert sum(map(len, more)) + len(more.test) == 540


def test_canonical_creditcard_is_cut_to_a_tenth(tmp_path):
    (tmp_path / "creditcard").mkdir()
    (tmp_path / "creditcard" / "creditcard.csv").write_text(card_rows(1000, 20))
    federation = load("creditcard", tmp_path)
    labels = np.concatenate([*(silo.labels for silo in federation), federation.test.labels])
    assert np.bincount(labels).tolist() == [100, 20]
    assert np.bincount(federation.test.labels).tolist() == [15, 3]
    with pytest.raises(DataError, match=r"data\.options\.extra: the canonical creditcard.csv holds these rows already"):
        load("creditcard", tmp_path, extra=True)


def test_creditcard_scale(small):
    features = _all(load("creditcard", small, extra=True))
    assert features.shape[1] == 30
    assert features[:, 0].min() >= -1 and features[:, 0].max() < -0.99  # seconds after the start of two days
    assert features[:, 29].min() >= -1 and features[:, 29].max() < 1
    assert np.abs(features[:, 1:29]).max() == 10


def test_mnist_from_idx_files_is_mnist_from_npz(small, tmp_path):
    with np.load(small / "mnist" / "mnist.npz") as archive:
        arrays = [archive[name] for name in ("x_train", "y_train", "x_test", "y_test")]
    names = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
    expected = load("mnist", small)
    for form in ("gz", "plain"):
        folder = tmp_path / form / "mnist"
        folder.mkdir(parents=True)
        for name, array in zip(names, arrays, strict=True):
            if form == "gz":
                (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
            else:
                (folder / name).write_bytes(idx(array))
        found = load("mnist", tmp_path / form)
        assert [silo.digest() for silo in found] == [silo.digest() for silo in expected]
    pixels = expected.test.features * 0.3081 + 0.1307
    assert pixels.min() == pytest.approx(0, abs=1e-6) and pixels.max() == pytest.approx(1, abs=1e-6)


def test_cifar10_from_the_binary_version_is_cifar10_from_npz(small, tmp_path):
    with np.load(small / "cifar10" / "cifar10_20k_5k.npz") as archive:
        x_train, y_train, x_test, y_test = (archive[name] for name in ("x_train", "y_train", "x_test", "y_test"))
    (tmp_path / "cifar10").mkdir()
    path = tmp_path / "cifar10" / "cifar-10-binary.tar.gz"
    cifar_archive(path, x_train.transpose(0, 3, 1, 2), y_train, x_test.transpose(0, 3, 1, 2), y_test)
    found, expected = load("cifar10", tmp_path), load("cifar10", small)
    assert [silo.digest() for silo in found] == [silo.digest() for silo in expected]
    green = (found.test.features[:, 1] * 0.2435 + 0.4822) * 255
    assert green == pytest.approx(x_test[:, :, :, 1], abs=1e-3)


def test_medical_mnist_from_folders(tmp_path):
    from PIL import Image

    from uldp.data.sets.medical_mnist import CLASSES

    for number, name in enumerate(CLASSES):
        folder = tmp_path / "medical_mnist" / name
        folder.mkdir(parents=True)
        for index, pixels in enumerate(images(8, (64, 64), 6, number)[0]):
            Image.fromarray(pixels).save(folder / f"{index:06}.jpeg")
    federation = load("medical-mnist", tmp_path, per_class=6)
    assert sum(map(len, federation)) == 30
    assert sorted(federation.test.labels) == list(range(6))
    Image.fromarray(np.zeros((10, 20), np.uint8)).save(tmp_path / "medical_mnist" / "Hand" / "000000.jpeg")
    with pytest.raises(DataError, match="an image of 20 x 10 pixels"):
        load("medical-mnist", tmp_path)
    with pytest.raises(ConfigError, match=r"data\.options\.per_class: a whole number from 2 up"):
        load("medical-mnist", tmp_path, per_class=1)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"per_class": 2.5}, "data.options.per_class: a whole number from 2 up, not 2.5"),
        ({"test_fraction": 1.5}, "data.options.test_fraction: a number between 0 and 1, not 1.5"),
        ({"per_class": 20}, "data.options.per_class: is for the folders of jpeg files"),
        ({"test_fraction": 0.5}, "data.options.test_fraction: is for the folders of jpeg files"),
    ],
)
def test_medical_mnist_refuses_options_that_would_do_nothing(options, text, small):
    with pytest.raises(ConfigError) as error:
        load("medical-mnist", small, **options)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("name", "file", "text", "reason"),
    [
        ("mnist", "mnist/mnist.npz", b"PK nonsense", "cannot be read"),
        ("cifar10", "cifar10/cifar-10-binary.tar.gz", b"nonsense", "cannot be read"),
        ("medical-mnist", "medical_mnist/medical_mnist_64.npz", b"", "cannot be read"),
        ("creditcard", "creditcard/creditcard_subset.csv.gz", b"not zipped", "cannot be read"),
        ("creditcard", "creditcard/creditcard.csv", b"Time,V1\n1,2\n", "cannot be read"),
        ("creditcard", "creditcard/creditcard.csv", card_rows(3, 1).replace(",1\n", ",7\n").encode(), "7"),
        ("tcga-brca", "tcga_brca/brca.csv", b"pid,E,T\nx,0,1\n", "3 columns instead of pid, 39 inputs, E and T"),
        ("heart-disease", "heart_disease/processed.va.data", b"60,1,9,1,1,0,0,100,0,1,1,1,1,0\n", "9"),
        ("heart-disease", "heart_disease/processed.va.data", b"old,1,1,1,1,0,0,100,0,1,1,1,1,0\n", "old"),
    ],
)
def test_a_spoilt_file_is_named(name, file, text, reason, small, tmp_path):
    folder = tmp_path / file.split("/")[0]
    folder.mkdir()
    for other in (small / folder.name).iterdir():
        (folder / other.name).write_bytes(other.read_bytes())
    (tmp_path / file).write_bytes(text)
    with pytest.raises(DataError) as error:
        load(name, tmp_path)
    assert str(error.value).startswith(f"{tmp_path / file}: cannot be read (")
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def test_a_pickle_is_never_loaded(tmp_path):
    (tmp_path / "mnist").mkdir()
    bad = np.array([{"a": 1}], dtype=object)
    np.savez(tmp_path / "mnist" / "mnist.npz", x_train=bad, y_train=bad, x_test=bad, y_test=bad)
    with pytest.raises(DataError, match="cannot be read"):
        load("mnist", tmp_path)


def test_every_option_is_documented():
    page = (Path(__file__).parents[2] / "docs" / "data-sets.md").read_text()
    options = page.partition("## Options")[2].partition("\n## ")[0]
    for dataset in datasets().values():
        assert [key for key in dataset.options if f"`{key}`" not in options] == []


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"name": "creditcard", "extra": 1}, "data.options.extra: true or false, not 1"),
        ({"name": "mnist", "test_fraction": 0.5}, "data.options: unknown key 'test_fraction' for mnist"),
        ({"name": "heart-disease", "silo_exponent": 1.0}, "Known keys: preferred_share, user_exponent"),
        ({"name": "tcga-brca", "users": 200}, "data.users: at most 75 users, so that each has a lot of 2 records"),
    ],
)
def test_bad_requests(given, text, small):
    with pytest.raises(ConfigError) as error:
        load(**given, data_dir=small)
    assert text in str(error.value)
