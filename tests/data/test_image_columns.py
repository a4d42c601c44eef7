"""Columns of images and folders of them: files that become images of an agreed size, one record at a time."""

import json
import os

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import uldp
from uldp.cli import main
from uldp.data.draft import draft_silos
from uldp.data.files import read_table
from uldp.data.image_columns import IMAGE_ENDINGS, open_image
from uldp.data.schema import Schema, feature_norm, feature_shape
from uldp.data.tallies import tally_schema
from uldp.errors import ConfigError, DataError
from uldp.experiment.config import Experiment
from uldp.library.synthetic_runs import PublicShape


def schema(channels="grey", size=(4, 6), **changes):
    return Schema.classes("label", ["bar", "line"]).image("file", size, channels, **changes)


def save(path, pixels, mode=None, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(np.asarray(pixels))
    (image if mode is None else image.convert(mode)).save(path, **options)
    return path


def features(files, **changes):
    return schema(**changes).features(pd.DataFrame({"file": list(map(str, files))}), "t")


def test_an_image_becomes_its_pixels_from_minus_one_to_one(tmp_path):
    pixels = np.arange(24, dtype=np.uint8).reshape(4, 6) * 11
    made = features([save(tmp_path / "a.png", pixels)])
    assert made.shape == (1, 1, 4, 6) == (1, *feature_shape(schema()))
    assert made[0, 0] == pytest.approx(pixels / 127.5 - 1, abs=1e-6)
    colours = np.stack([pixels, np.zeros_like(pixels), 255 - pixels], axis=-1)
    coloured = features([save(tmp_path / "c.png", colours)], channels="rgb")
    assert coloured[0] == pytest.approx(np.moveaxis(colours, -1, 0) / 127.5 - 1, abs=1e-6)
    assert len(schema("rgb").feature_names()) == 3 * 4 * 6 == len(set(schema("rgb").feature_names()))
    assert feature_norm(schema()) == float("inf")


def test_every_form_of_the_same_picture_becomes_the_same_image(tmp_path):
    pixels = np.repeat([[0, 255]], 4, axis=0).repeat(3, axis=1).astype(np.uint8)
    plain = features([save(tmp_path / "plain.png", pixels)])
    sixteen = Image.fromarray(pixels.astype(np.uint16) * 257)
    sixteen.save(tmp_path / "sixteen.png")
    clear = Image.fromarray(np.stack([np.full_like(pixels, 255)] * 3 + [pixels], axis=-1))  # white where it can be seen
    clear.save(tmp_path / "clear.png")
    turned = Image.fromarray(np.rot90(pixels))
    exif = turned.getexif()
    exif[0x0112] = 6  # to be turned by a quarter, clockwise
    turned.save(tmp_path / "turned.png", exif=exif)
    save(tmp_path / "palette.png", pixels, "P")
    save(tmp_path / "colour.tiff", pixels, "RGB")
    save(tmp_path / "bits.bmp", pixels, "1")
    names = ("sixteen.png", "clear.png", "turned.png", "palette.png", "colour.tiff", "bits.bmp")
    for name in names:
        assert features([tmp_path / name]).tobytes() == plain.tobytes(), name


def test_an_image_depends_on_its_own_file_only_and_is_resized(tmp_path):
    draw = np.random.default_rng(0)
    files = [save(tmp_path / f"{n}.jpg", draw.integers(0, 255, (9 + n, 30, 3), dtype=np.uint8)) for n in range(4)]
    together = features(files, channels="rgb")
    assert together.shape == (4, 3, 4, 6) and np.abs(together).max() <= 1
    for row, file in enumerate(files):
        assert features([file], channels="rgb").tobytes() == together[row].tobytes()
    half = np.full((8, 12), 0, np.uint8)
    half[:, 6:] = 200
    small = features([save(tmp_path / "half.png", half)])[0, 0]
    assert small[:, :2] == pytest.approx(-1) and small[:, 4:] == pytest.approx(200 / 127.5 - 1, abs=1e-6)


def spoiled(folder):
    """Files that are no images, by name."""
    folder.mkdir(exist_ok=True)
    good = save(folder / "good.png", np.zeros((4, 6), np.uint8)).read_bytes()
    huge = bytearray(good)
    huge[16:24] = (60_000).to_bytes(4, "big") * 2  # says that it has 3.6 thousand million pixels
    files = {
        "cut.png": good[:-20], "text.png": b"Mrs Example, 12 Hill Road", "empty.jpg": b"", "huge.png": bytes(huge),
        "vector.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 4\n", "moving.png": b"GIF89a" + bytes(50),
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_bytes(content)
    Image.fromarray(np.zeros((4, 6), np.float32)).save(folder / "float.tif")
    os.mkfifo(folder / "pipe.png")
    (folder / "folder.png").mkdir()
    return [*files, "float.tif", "pipe.png", "folder.png", "absent.png", "\0.png", "x" * 5000 + ".png"]


def test_what_is_no_image_is_refused_by_its_row_and_not_shown_or_counts_as_missing(tmp_path):
    names = spoiled(tmp_path)
    for name in names:
        files = [str(tmp_path / "good.png"), str(tmp_path / name)]
        with pytest.raises(DataError, match=r"1 no image file .* in column 'file' \(first: row 2\)") as refused:
            features(files)
        assert name not in str(refused.value) and "Example" not in str(refused.value)
        taken = features(files, missing="zero", outside="missing")
        assert taken[0].all() and not taken[1].any()
    with pytest.raises(DataError, match=r"1 missing in column 'file' \(first: row 1\)"):
        features([""])
    assert not features([""], missing="zero").any()
    assert open_image(7, tmp_path) is None


@pytest.mark.parametrize(
    ("changes", "location"),
    [
        ({"size": []}, "size: still empty"),
        ({"size": [28]}, r"size: two numbers of pixels \[height, width\]"),
        ({"size": [0, 28]}, "size"),
        ({"size": [28.5, 28]}, "size"),
        ({"size": [224, 224], "channels": "rgb"}, "size: at most 50,000 pixels"),
        ({"channels": "cmyk"}, "channels: 'grey' or 'rgb'"),
        ({"channels": ["grey"]}, "channels"),
        ({"missing": 0}, "missing"),
        ({"range": [0, 1]}, "unknown key 'range'"),
        ({"outside": "missing"}, "missing"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes, location):
    tree = {"kind": "image", "size": [4, 6], "channels": "grey", **changes}
    with pytest.raises(ConfigError, match=location):
        Schema.from_dict({"label": {"kind": "class", "classes": [0, 1], "column": "y"}, "columns": {"f": tree}})


def test_images_stand_alone_and_a_schema_of_them_can_be_written_and_read():
    with pytest.raises(ConfigError, match="must be the only feature column"):
        schema().numeric("age", 0, 100)
    kept = schema("rgb", missing="zero", outside="missing")
    assert Schema.from_dict(kept.to_dict(), label="label") == kept
    assert "4 x 6 pixels, rgb" in repr(kept)
    assert [column.name for column in tally_schema(kept, 5).columns] == ["label"]


def person(folder, silo, number, draw):
    """Two images of a person, in the folders of their classes."""
    for place in range(2):
        kind = ("bar", "line")[int(draw.integers(2))]
        pixels = draw.integers(0, 60, (8, 8)).astype(np.uint8)
        pixels[(slice(None), 3) if kind == "bar" else (4, slice(None))] = 230
        save(folder / silo / kind / f"{silo}{number}" / f"{place}.png", pixels)


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    """Two folders of images and a table of them."""
    folder, draw = tmp_path_factory.mktemp("images"), np.random.default_rng(3)
    for silo in ("north", "south", "east"):
        for number in range(25):
            person(folder, silo, number, draw)
    read_table(folder / "east", "t").assign(file=lambda table: "east/" + table["file"]).to_csv(
        folder / "east.csv", index=False
    )
    return folder


def test_folders_and_tables_of_the_same_images_are_the_same_table(hospitals, tmp_path):
    told = read_table(hospitals / "north", "t")
    assert list(told.columns) == ["file", "label", "user"] and len(told) == 50
    assert list(told["file"]) == sorted(told["file"]) and set(told["label"]) == {"bar", "line"}
    folder = tmp_path / "flat"
    for file, label, user in told.itertuples(index=False):
        (folder / label).mkdir(parents=True, exist_ok=True)
        os.link(hospitals / "north" / file, folder / label / f"{user}_{file[-5:]}")
    (folder / "bar" / "._n.png").write_bytes(b"of another system")
    (folder / "notes.txt").write_text("no image")
    flat = read_table(folder, "t", ("file", "label"))
    assert list(flat.columns) == ["file", "label"]  # who needs no users is not asked for them
    owners = flat.assign(user=flat["file"].str.extract(r"/(\w+)_")[0])
    owners[["file", "user"]].to_csv(folder / "users.csv", index=False)
    again = read_table(folder, "t")
    assert sorted(again["user"]) == sorted(told["user"])
    both = [schema(size=(8, 8)).features(table, "t") for table in (told, again)]
    assert sorted(row.tobytes() for row in both[0]) == sorted(row.tobytes() for row in both[1])


def test_a_folder_in_which_an_image_belongs_to_nobody_is_refused(hospitals, tmp_path):
    save(tmp_path / "bar" / "1.png", np.zeros((2, 2), np.uint8))
    with pytest.raises(DataError, match=r"1 of 1 images are not in folders CLASS/USER, and there is no users\.csv"):
        read_table(tmp_path, "t")
    users = tmp_path / "users.csv"
    users.write_text("file,user\nbar/1.png,p1\nbar/2.png,p2\n")
    with pytest.raises(DataError, match=r"users\.csv lacks 0 of the images and names 1 that are not there"):
        read_table(tmp_path, "t")
    users.write_text("file,user\nbar/3.png,p1\n")
    with pytest.raises(DataError, match=r"users\.csv lacks 1 of the images and names 1 that are not there"):
        read_table(tmp_path, "t")
    users.write_text("file,user\nbar/1.png,p1\n./bar/1.png,p2\n")
    with pytest.raises(DataError, match=r"users\.csv names an image twice"):
        read_table(tmp_path, "t")
    users.write_text("file,patient\nbar/1.png,p1\n")
    with pytest.raises(DataError, match=r"users\.csv needs the columns file and user"):
        read_table(tmp_path, "t")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="a folder without images") as refused:
        read_table(tmp_path / "empty", "t")
    assert all(ending in str(refused.value) for ending in IMAGE_ENDINGS)


def test_drafts_find_images_and_leave_all_else_out(hospitals):
    silos = {silo: read_table(hospitals / silo, "t") for silo in ("north", "east.csv")}
    silos = {silo: table.assign(age="50") for silo, table in silos.items()}
    drafted = draft_silos(silos, "user", "label", from_data=False)
    assert drafted.tree["columns"] == {"file": {"kind": "image", "size": [], "channels": ""}}
    assert drafted.left_out == {"age": "a model of images takes one column of them and no other"}
    assert "size = []  # fill in: [height, width] in pixels that the parties agree on" in drafted.to_toml()
    proposed = draft_silos(silos, "user", "label", from_data=True).tree["columns"]
    assert proposed == {"file": {"kind": "image", "size": [8, 8], "channels": "grey"}}


def test_from_folders_to_a_model_and_predictions(hospitals, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def uldp_command(*arguments):
        monkeypatch.setattr("sys.argv", ["uldp", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, capsys.readouterr()

    silos = [part for name in ("north", "south", "east.csv") for part in ("--silo", hospitals / name)]
    uldp_command("new", "scans", *silos, "--user", "user", "--label", "label", "--people", 75)
    code, said = uldp_command("plan", "scans.toml")
    assert code == 2 and "label.classes, columns.file.size, columns.file.channels" in said.err
    draft = (tmp_path / "scans.toml").read_text()
    for empty, agreed in (("classes = []", 'classes = ["bar", "line"]'), ("size = []", "size = [8, 8]")):
        draft = draft.replace(empty, agreed)
    (tmp_path / "scans.toml").write_text(draft.replace('channels = ""', 'channels = "grey"'))
    settings = ("method.rounds=15", "aggregation.name=masked", "privacy.epsilon=200", "run.secrets=simulated")
    changes = [part for setting in settings for part in ("--set", setting)]
    code, said = uldp_command("run", "scans.toml", *changes, "--out", "trained", "--json")
    assert code in (None, 0) and json.loads(said.out)["metrics"]["accuracy"] > 0.9
    assert uldp_command("predict", "trained", hospitals / "south", "--out", "p.csv")[0] in (None, 0)
    told = read_table(hospitals / "south", "t")["label"]
    assert (pd.read_csv("p.csv")["prediction"].to_numpy() == told.to_numpy()).mean() > 0.9
    with pytest.raises(ConfigError, match="images and codes cannot be made up"):
        PublicShape.of(Experiment.from_file(tmp_path / "scans.toml"))


def test_the_library_takes_folders_and_predicts_pixels(hospitals):
    result = uldp.train(
        {silo: hospitals / silo for silo in ("north", "south")}, user="user", label="label",
        schema=schema(size=(8, 8)), test_fraction=0.3, method="fedavg", epsilon=None, rounds=10,
        secrets="simulated", options={"method.local_lr": 0.3},
    )  # fmt: skip
    assert result.metrics["accuracy"] > 0.9
