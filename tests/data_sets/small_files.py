"""Small files in the formats of the public ones."""

import gzip
import os
import tarfile
from io import BytesIO
from pathlib import Path

import numpy as np

HEART = {"cleveland": (60, 0.5), "hungarian": (50, 0.5), "switzerland": (20, 0.95), "va": (30, 0.7)}
TCGA = (40, 30, 31, 20, 21, 11)  # training rows per region; three test rows each


def real_data() -> Path | None:
    """Where the real files are, if they are anywhere: they check counts, and nothing needs them."""
    named = os.environ.get("ULDP_DATA")
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    return next((path for path in (Path(named) if named else None, beside) if path and path.is_dir()), None)


REAL = real_data()


def _heart(root):
    generator = np.random.default_rng(0)
    folder = root / "heart_disease"
    folder.mkdir()
    for centre, (rows, sick) in HEART.items():
        lines = []
        for row in range(rows):
            # Two rows of Cleveland lie beyond every range; every tenth row elsewhere misses a value.
            chol = "0" if centre == "switzerland" else str(generator.integers(150, 350))
            rate = "?" if centre != "cleveland" and row % 10 == 9 else str(generator.integers(90, 190))
            age = 200 if centre == "cleveland" and row == 0 else int(generator.integers(35, 75))
            cells = (age, row % 2, 1 + row % 4, 120 + row % 30, chol, 0, row % 3, rate, 0, ".7", "?", "?", "?")
            lines.append(",".join(map(str, (*cells, int(generator.random() < sick)))))
        (folder / f"processed.{centre}.data").write_text("\n".join(lines) + "\n")


def _tcga(root):
    generator = np.random.default_rng(1)
    folder = root / "tcga_brca"
    folder.mkdir()
    names = ["age_at_index", *(f"input {number}" for number in range(38))]
    table, folds = ["pid," + ",".join(names) + ",E,T"], ["pid,fold,fold2"]
    for region, train in enumerate(TCGA):
        for row in range(train + 3):
            pid = f"TCGA-{region}-{row}"
            inputs = [int(generator.integers(30, 90)), *generator.integers(2, size=38).tolist()]
            time = 0 if row == 0 else int(generator.integers(1, 4000))
            table.append(",".join(map(str, (pid, *inputs, float(row % 3 == 0), float(time)))))
            fold = "train" if row < train else "test"
            folds.append(f"{pid},{fold},{fold}_{region}")
    table.append(",".join(map(str, ("TCGA-9-9", 50, *[0] * 38, 0.0, 10.0))))  # in no fold
    (folder / "brca.csv").write_text("\n".join(table) + "\n")
    (folder / "train_test_split.csv").write_text("\n".join(folds) + "\n")


def card_rows(genuine, frauds, seed=2):
    """A creditcard file as text."""
    generator = np.random.default_rng(seed)
    names = ["Time", *(f"V{number}" for number in range(1, 29)), "Amount", "Class"]
    lines = [",".join(f'"{name}"' for name in names)]
    for row in range(genuine + frauds):
        values = generator.normal(size=28) * (1 if row < genuine else 40)
        cells = (row, *values, round(float(generator.exponential(90)), 2), int(row >= genuine))
        lines.append(",".join(map(str, cells)))
    return "\n".join(lines) + "\n"


def _creditcard(root):
    folder = root / "creditcard"
    folder.mkdir()
    (folder / "creditcard_subset.csv.gz").write_bytes(gzip.compress(card_rows(400, 40).encode()))
    (folder / "creditcard_extra_genuine.csv.gz").write_bytes(gzip.compress(card_rows(100, 0, 3).encode()))


def images(records, shape, classes, seed):
    generator = np.random.default_rng(seed)
    return generator.integers(256, size=(records, *shape), dtype=np.uint8), (np.arange(records) % classes).astype("u1")


def _save(path, shape, classes):
    path.parent.mkdir(exist_ok=True)
    x_train, y_train = images(120, shape, classes, 4)
    x_test, y_test = images(30, shape, classes, 5)
    np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)


def _mnist(root):
    _save(root / "mnist" / "mnist.npz", (28, 28), 10)


def _cifar10(root):
    _save(root / "cifar10" / "cifar10_20k_5k.npz", (32, 32, 3), 10)


def _medical(root):
    _save(root / "medical_mnist" / "medical_mnist_64.npz", (64, 64), 6)


def idx(array):
    header = b"\0\0\x08" + bytes([array.ndim]) + np.array(array.shape, dtype=">i4").tobytes()
    return header + array.tobytes()


def cifar_archive(path, x_train, y_train, x_test, y_test):
    """The binary version: images as (records, 3, 32, 32), in five training batches and one of test."""
    with tarfile.open(path, "w:gz") as archive:
        batches = [*zip(np.array_split(x_train, 5), np.array_split(y_train, 5), strict=True), (x_test, y_test)]
        names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
        for name, (x, y) in zip(names, batches, strict=True):
            data = np.concatenate([y[:, None], x.reshape(len(x), -1)], axis=1).tobytes()
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(data)
            archive.addfile(member, BytesIO(data))


def write_all(root):
    for write in (_heart, _tcga, _creditcard, _mnist, _cifar10, _medical):
        write(root)
