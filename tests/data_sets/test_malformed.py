"""Malformed files: refused in one sentence that names the file, never trained on, whatever is wrong with them."""

import gzip
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from tests.data_sets.small_files import HEART, cifar_archive, idx, images

from uldp.data.builtin import load_builtin
from uldp.errors import DataError
from uldp.rng import Streams

USERS = {"heart-disease": 30, "tcga-brca": 20}
IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def load(name, data_dir):
    return load_builtin(name, USERS.get(name, 10), None, None, Streams.from_seed(0), data_dir)


def refuse(name, root, file, reason):
    with pytest.raises(DataError) as error:
        load(name, root)
    text = str(error.value)
    assert text.startswith(f"{root / file}: cannot be read ("), text
    assert reason in text
    assert "\n" not in text


def copied(small, folder, root) -> Path:
    """A copy of a set's small files that may be spoilt."""
    (root / folder).mkdir(parents=True)
    for file in (small / folder).iterdir():
        (root / folder / file.name).write_bytes(file.read_bytes())
    return root / folder


def edit(path, change):
    """Spoil the lines of a text file."""
    lines = change(path.read_text().splitlines())
    path.write_text("\n".join(lines) + "\n")


def arrays(shape=(28, 28), classes=10):
    x_train, y_train = images(20, shape, classes, 0)
    x_test, y_test = images(10, shape, classes, 1)
    return {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test}


@pytest.mark.parametrize("part", ["y_train", "y_test"])
@pytest.mark.parametrize(
    ("name", "file", "shape", "classes"),
    [
        ("mnist", "mnist/mnist.npz", (28, 28), 10),
        ("cifar10", "cifar10/cifar10_20k_5k.npz", (32, 32, 3), 10),
        ("medical-mnist", "medical_mnist/medical_mnist_64.npz", (64, 64), 6),
    ],
)
def test_labels_of_no_class(name, file, shape, classes, part, tmp_path):
    spoilt = arrays(shape, classes)
    spoilt[part][3] = classes
    (tmp_path / file).parent.mkdir()
    np.savez(tmp_path / file, **spoilt)
    refuse(name, tmp_path, file, f"a label {classes}, where the classes are 0 to {classes - 1}")


def npz(**members):
    """An archive with these members, as bytes or as arrays."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, member in {**arrays(), **members}.items():
            if not isinstance(member, bytes):
                buffer = io.BytesIO()
                np.save(buffer, member)
                member = buffer.getvalue()
            archive.writestr(f"{name}.npy", member)
    return stream.getvalue()


def header(shape):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return stream.getvalue() + b"x" * 10


def only_an_array():
    stream = io.BytesIO()
    np.save(stream, np.zeros(5, np.uint8))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (only_an_array(), "not a zip file"),
        (npz(x_train=b"hello"), "magic string"),
        (npz(x_train=header((10**14,))), "x_train has 10 bytes for the shape (100000000000000,)"),
        (npz(x_train=header((-2, -5))), "reshape"),
        (npz(x_train=header((10,))[:40]), "header"),
        (npz(y_test=np.uint8(3)), "labels of shape ()"),
        (npz(y_train=arrays()["y_train"][1:]), "labels of shape (19,)"),
        (npz(y_train=arrays()["y_train"].astype(float)), "y_train has the type float64 instead of uint8"),
        (npz(x_test=np.zeros((0, 28, 28), np.uint8), y_test=np.zeros(0, np.uint8)), "images of shape (0, 28, 28)"),
    ],
)
def test_npz(data, reason, tmp_path):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "mnist.npz").write_bytes(data)
    refuse("mnist", tmp_path, "mnist/mnist.npz", reason)


def test_an_npz_that_unpacks_to_far_too_much(tmp_path, monkeypatch):
    monkeypatch.setattr("uldp.data.sets.files.LARGEST", 10_000)
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "mnist.npz").write_bytes(npz())
    refuse("mnist", tmp_path, "mnist/mnist.npz", "x_train has 15808 bytes")


def with_shape(array, *shape):
    """The bytes of an idx file with this shape in its header."""
    return b"\0\0\x08" + bytes([len(shape)]) + np.array(shape, dtype=">i4").tobytes() + array.tobytes()


@pytest.mark.parametrize(
    ("file", "data", "reason"),
    [
        (0, idx(np.zeros((20, 14, 56), np.uint8)), "records of shape (14, 56) instead of (28, 28)"),
        (0, idx(np.zeros(20, np.uint8)), "records of shape () instead of (28, 28)"),
        (1, idx(np.zeros((20, 3), np.uint8)), "records of shape (3,) instead of ()"),
        (1, idx(np.zeros(19, np.uint8)), "images of shape (20, 28, 28) with labels of shape (19,)"),
        (1, with_shape(np.zeros(20, np.uint8), -4, -5), "not an idx file"),
        (1, with_shape(np.zeros(20, np.uint8), 2**31 - 1), "not an idx file"),
        (3, idx(np.full(10, 10, np.uint8)), "a label 10, where the classes are 0 to 9"),
    ],
)
def test_idx(file, data, reason, tmp_path):
    (tmp_path / "mnist").mkdir()
    for name, array in zip(IDX, arrays().values(), strict=True):
        (tmp_path / "mnist" / name).write_bytes(idx(array))
    load("mnist", tmp_path)
    (tmp_path / "mnist" / IDX[file]).write_bytes(data)
    refuse("mnist", tmp_path, f"mnist/{IDX[file]}", reason)


def test_the_cifar_archive_is_read_to_its_checksum(tmp_path):
    file = tmp_path / "cifar10" / "cifar-10-binary.tar.gz"
    file.parent.mkdir()
    good = list(arrays((3, 32, 32)).values())
    cifar_archive(file, *good)
    load("cifar10", tmp_path)
    tar = bytearray(gzip.decompress(file.read_bytes()))
    packed = bytearray(gzip.compress(bytes(tar)))
    packed[-8] ^= 1  # the first byte of the checksum, behind the end of the tar archive
    file.write_bytes(packed)
    refuse("cifar10", tmp_path, "cifar10/cifar-10-binary.tar.gz", "CRC check failed")
    good[1] = good[1] + 10
    cifar_archive(file, *good)
    refuse("cifar10", tmp_path, "cifar10/cifar-10-binary.tar.gz", "a label 19, where the classes are 0 to 9")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda lines: [line.rpartition(",")[0] for line in lines], "line 1 has 13 fields"),
        (lambda lines: [*lines[:3], "63," + lines[3], *lines[4:]], "line 4 has 15 fields"),
        (lambda lines: [line.replace(",", ";") for line in lines], "line 1 has 1 fields"),
        (lambda lines: [lines[0].replace(",", ",,", 1).rpartition(",")[0], *lines[1:]], "line 1 has an empty field"),
        (lambda lines: lines[:1], "1 usable row(s), too few for a training and a test set"),
        (lambda lines: [",".join(["?"] * 14)], "no row without a missing value"),
        (lambda lines: [], ""),
    ],
)
def test_heart_disease_rows(change, reason, small, tmp_path):
    folder = copied(small, "heart_disease", tmp_path)
    edit(folder / "processed.cleveland.data", change)
    refuse("heart-disease", tmp_path, "heart_disease/processed.cleveland.data", reason)


def test_a_blank_line_is_no_row(small, tmp_path):
    folder = copied(small, "heart_disease", tmp_path)
    edit(folder / "processed.cleveland.data", lambda lines: [lines[0], "", *lines[1:], ""])
    assert [s.digest() for s in load("heart-disease", tmp_path)] == [s.digest() for s in load("heart-disease", small)]


def test_heart_disease_of_one_class_in_a_centre(small, tmp_path):
    folder = copied(small, "heart_disease", tmp_path)
    edit(folder / "processed.va.data", lambda lines: [line[:-1] + "1" for line in lines])
    assert load("heart-disease", tmp_path).users == 30


def split_table(folder):
    """The table of the split that goes with the small files."""
    lines = ["centre,row,set"]
    for centre, (rows, _) in HEART.items():
        usable = (row for row in range(rows) if centre == "cleveland" or row % 10 != 9)
        lines += [f"{centre},{row},{'test' if row < 5 else 'train'}" for row in usable]
    path = folder / "flamby_train_test_split.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda lines: [line.replace(",test", ",Test") for line in lines], "'Test' in column 'set'"),
        (lambda lines: [lines[0], "cleveland,,train", *lines[2:]], "nan in column 'row'"),
        (lambda lines: [lines[0], "cleveland,0.5,train", *lines[2:]], "0.5 in column 'row'"),
        (lambda lines: [*lines, lines[1]], "row 0 of cleveland occurs twice"),
        (lambda lines: [*lines, "basel,0,train"], "'basel' in column 'centre'"),
    ],
)
def test_heart_disease_split(change, reason, small, tmp_path):
    path = split_table(copied(small, "heart_disease", tmp_path))
    load("heart-disease", tmp_path)
    edit(path, change)
    refuse("heart-disease", tmp_path, "heart_disease/flamby_train_test_split.csv", reason)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda lines: lines[:40], "row 40 of flamby_train_test_split.csv is missing or misses a value"),
        (
            lambda lines: ["?," + lines[0].partition(",")[2], *lines[1:]],
            "row 0 of flamby_train_test_split.csv is missing or misses",
        ),
        (lambda lines: [*lines, lines[0]], "row 60 is not in flamby_train_test_split.csv"),
    ],
)
def test_heart_disease_has_the_rows_of_its_split(change, reason, small, tmp_path):
    folder = copied(small, "heart_disease", tmp_path)
    split_table(folder)
    edit(folder / "processed.cleveland.data", change)
    refuse("heart-disease", tmp_path, "heart_disease/processed.cleveland.data", reason)


@pytest.mark.parametrize(
    ("file", "change", "reason"),
    [
        ("brca.csv", lambda lines: [*lines, lines[1]], "'TCGA-0-0' occurs twice in column 'pid'"),
        ("brca.csv", lambda lines: lines[:50], "of train_test_split.csv is not in it"),
        (
            "brca.csv",
            lambda lines: [lines[0], "," + lines[1].partition(",")[2], *lines[2:]],
            "of column 'pid' is missing",
        ),
        ("train_test_split.csv", lambda lines: [*lines, lines[1]], "'TCGA-0-0' occurs twice in column 'pid'"),
        ("train_test_split.csv", lambda lines: [line.replace("test_0", "test_9") for line in lines], "'test_9' in"),
        ("train_test_split.csv", lambda lines: lines[:50], "nobody in test_1"),
    ],
)
def test_tcga(file, change, reason, small, tmp_path):
    folder = copied(small, "tcga_brca", tmp_path)
    edit(folder / file, change)
    refuse("tcga-brca", tmp_path, f"tcga_brca/{file}", reason)


def test_tcga_with_numbers_for_patients(small, tmp_path):
    folder = copied(small, "tcga_brca", tmp_path)
    folds = [f"{part}_{number}" for part in ("train", "test") for number in range(6)]
    edit(folder / "train_test_split.csv", lambda lines: ["pid,fold2", *(f"{i},{fold}" for i, fold in enumerate(folds))])
    refuse("tcga-brca", tmp_path, "tcga_brca/brca.csv", "'0' of train_test_split.csv is not in it")


@pytest.mark.parametrize(("size", "reason"), [((64, 65), "64 x 65"), ((350, 350), "limit"), ((600, 600), "limit")])
def test_a_jpeg_that_unpacks_to_far_too_much(size, reason, tmp_path, monkeypatch):
    from PIL import Image

    from uldp.data.sets.medical_mnist import CLASSES

    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100_000)
    for name in CLASSES:
        (tmp_path / "medical_mnist" / name).mkdir(parents=True)
        for number in range(2):
            Image.new("L", (64, 64)).save(tmp_path / "medical_mnist" / name / f"{number}.jpeg")
    Image.new("L", size).save(tmp_path / "medical_mnist" / "CXR" / "0.jpeg")
    refuse("medical-mnist", tmp_path, "medical_mnist/CXR/0.jpeg", reason)
