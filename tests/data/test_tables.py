"""Own tables: what the loader promises to privacy, and what it refuses."""

import gzip

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uldp.data.federation import Records
from uldp.data.files import read_table
from uldp.data.roster import HashedIds, Roster, select_test_rows
from uldp.data.schema import Schema
from uldp.data.tables import load_tables, silo_files
from uldp.errors import ConfigError, DataError
from uldp.rng import Streams

STREAMS = Streams.from_seed(0)
INDEX = HashedIds(5000, bytes(32))
COLUMNS = ["pid", "age", "dose", "ward", "out", "name"]
USERS = [f"u{number}" for number in range(8)]
HELD_OUT = 0.4


def schema(**changes):
    tree = {
        "label": {"kind": "class", "classes": [0, 1]},
        "columns": {
            "age": {"kind": "number", "range": [0, 100]},
            "dose": {"kind": "number", "range": [-1, 1], "missing": 0.25},
            "ward": {"kind": "category", "categories": ["a", "b", 3]},
        },
    }
    return Schema.from_dict(tree | changes, label="out", user="pid")


def frame(*rows):
    return pd.DataFrame(list(rows), columns=COLUMNS)


ROWS = [
    ("u1", 50, "0.5", "a", 1, "x"),
    ("u2", 7.25, "", "b", 0, "x"),
    ("u3", 100, "-1", "3", 1, "x"),
    ("u5", 0, "1", "a", 0, "x"),
]


def write(folder, *tables):
    paths = []
    for number, table in enumerate(tables):
        paths.append(folder / f"silo{number}.csv")
        table.to_csv(paths[-1], index=False)
    return paths


def load(paths, *, schema=schema(), index=INDEX, **options):  # noqa: B008 - a frozen schema
    options = {"test_fraction": HELD_OUT} | options
    return load_tables(paths, schema, index, STREAMS, user="pid", **options)


# The guarantee: one user's rows change nothing but that user's rows.

cell_rows = st.tuples(
    st.sampled_from(USERS),
    st.floats(-50, 200) | st.integers(-50, 200),  # some are clipped
    st.sampled_from(["", "NA", "0.5", "-1", "1e-3", "0.1"]),
    st.sampled_from(["a", "b", "3", 3, "3.0", "elsewhere"]),
    st.sampled_from([0, 1, "1", "0.0"]),
    st.text("xyz,\"' ", max_size=5),
)
# u1 (training) and u7 (held out) are in every silo, so that no neighbour is an error.
STAYING = [("u1", 1, "0", "a", 0, ""), ("u7", 2, "0", "b", 1, "")]
silo_tables = st.lists(
    st.lists(cell_rows, max_size=12).map(lambda rows: frame(*STAYING, *rows)), min_size=1, max_size=3
)


def index_of(user):
    return int(INDEX.indices([user], "x")[0])


def in_test(table):
    """Which rows of a raw table belong to the test set."""
    return select_test_rows(list(table["pid"]), HELD_OUT, STREAMS)


def as_bytes(records):
    """All that is kept of a silo or a test set, rows in order."""
    arrays = [records.features, records.labels, getattr(records, "users", np.empty(0))]
    return [array.tobytes() for array in arrays]


@settings(max_examples=60, deadline=None)
@given(tables=silo_tables, user=st.sampled_from([user for user in USERS if user not in ("u1", "u7")]))
def test_removing_a_user_leaves_all_other_records_bit_identical(tmp_path_factory, tables, user):
    folder = tmp_path_factory.mktemp("tables")
    clip = schema(outside="clip")
    whole = load(write(folder, *tables), schema=clip)
    neighbour = load(write(folder, *(table[table["pid"] != user] for table in tables)), schema=clip)
    for before, after in zip(whole.without(index_of(user)), neighbour, strict=True):
        assert as_bytes(before) == as_bytes(after)
    others = np.concatenate([(table["pid"] != user)[in_test(table)] for table in tables]).astype(bool)
    assert as_bytes(Records(whole.test.features[others], whole.test.labels[others])) == as_bytes(neighbour.test)


def test_the_users_of_the_property_test_are_apart_and_in_both_parts():
    parts = in_test(pd.DataFrame({"pid": USERS}))
    assert not parts[1]
    assert parts[7]
    assert 3 <= parts.sum() <= 5
    assert len(set(INDEX.indices(USERS, "x"))) == len(USERS)


def test_standardising_by_silo_lets_one_user_move_the_others(tmp_path):
    own = schema(standardise="silo")
    extreme = frame(*ROWS, *[("u6", 100, "1", "b", 1, "")] * 30)
    options = {"schema": own, "test": tmp_path / "silo0.csv", "test_fraction": None}
    whole = load(write(tmp_path, extreme), **options)
    neighbour = load(write(tmp_path, frame(*ROWS)), **options)
    moved = np.abs(whole.without(index_of("u6")).silos[0].features - neighbour.silos[0].features).max()
    assert moved > 1
    assert "user-level DP does not hold" in whole.no_guarantee


def test_standardising_by_silo_uses_pooled_statistics_for_test_and_new_data(tmp_path):
    tables = write(tmp_path, frame(*ROWS), frame(*ROWS[:2], ("u6", 90, "1", "b", 1, "")))
    held = tmp_path / "test.csv"
    frame(*ROWS).to_csv(held, index=False)
    federation = load(tables, schema=schema(standardise="silo"), test=held, test_fraction=None)
    for silo in federation:
        assert silo.features[:, :2].mean(axis=0) == pytest.approx(np.zeros(2), abs=1e-6)
        assert silo.features[:, :2].std(axis=0) == pytest.approx(np.ones(2), abs=1e-6)
    plain = load(tables, test=held, test_fraction=None)
    pooled = np.concatenate([silo.features for silo in plain])[:, :2]
    expected = (plain.test.features[:, :2] - pooled.mean(0)) / pooled.std(0)
    assert federation.test.features[:, :2] == pytest.approx(expected, abs=1e-5)
    again = Schema.from_dict(federation.schema.to_dict())
    assert np.array_equal(again.features(read_table(held, "x"), "x"), federation.test.features)


# Files and formats.


def test_csv_gzip_and_parquet_give_the_same_arrays(tmp_path):
    typed = pd.DataFrame(
        {
            "pid": pd.array([7, 8, 9, 11], dtype="Int64"),
            "age": [50, 0.1 + 0.2, 1 / 3, 99.99999999],
            "dose": [0.5, np.nan, -1, 1e-5],
            "ward": pd.Categorical(["a", "b", "3", "a"]),
            "out": [1, 0, 1, 0],
        }
    )
    typed.to_csv(tmp_path / "a.csv", index=False)
    with gzip.open(tmp_path / "b.csv.gz", "wt") as file:
        file.write((tmp_path / "a.csv").read_text())
    typed.to_parquet(tmp_path / "c.parquet")
    typed.set_index("pid").to_parquet(tmp_path / "d.parquet")
    names = ("a.csv", "b.csv.gz", "c.parquet", "d.parquet")
    silos = load([tmp_path / name for name in names], test=tmp_path / "c.parquet", test_fraction=None).silos
    assert [silo.name for silo in silos] == ["a", "b", "c", "d"]
    assert all(as_bytes(silo) == as_bytes(silos[0]) for silo in silos)


def test_names_of_silos():
    assert list(silo_files(["x/a.csv", "y/a.parquet", "z/a.csv.gz", "b.csv"])) == ["a", "a-2", "a-3", "b"]
    assert list(silo_files({"north": "x/a.csv"})) == ["north"]
    assert list(silo_files(["a.csv", "a-2.csv", "x/a.csv"])) == ["a", "a-2", "a-3"]
    with pytest.raises(ConfigError, match=r"data\.silos: at least one file"):
        silo_files([])


def test_a_roster_gives_the_number_of_users(tmp_path):
    roster = Roster(("u5", "u3", "u2", "u1", "u0"))
    federation = load(write(tmp_path, frame(*ROWS)), index=roster, test=tmp_path / "silo0.csv", test_fraction=None)
    assert federation.users == 5
    assert federation.silos[0].users.tolist() == [3, 2, 1, 0]
    assert federation.notes == ()


def test_ids_that_were_written_in_several_ways_are_noted_and_may_be_two_people(tmp_path):
    (tmp_path / "r.txt").write_text("007\n8\nu1\n")
    roster = Roster.from_file(tmp_path / "r.txt")
    one, other = frame(("7", *ROWS[0][1:]), ROWS[0]), frame(("007", *ROWS[1][1:]), ("8", *ROWS[0][1:]))
    options = {"index": roster, "test": tmp_path / "silo0.csv", "test_fraction": None}
    federation = load(write(tmp_path, one, other), **options)
    assert [silo.users.tolist() for silo in federation] == [[0, 2], [0, 1]]
    assert "1 user ids are written in several ways (such as 7 and 007, or A1 and a1)" in federation.notes[0]


def test_one_file_for_two_silos_is_noted(tmp_path):
    path = write(tmp_path, frame(*ROWS))[0]
    federation = load([path, path.parent / ".." / path.parent.name / path.name], test=path, test_fraction=None)
    assert federation.notes == ("data.silos: silo0.csv is the table of 2 silos (silo0, silo0-2); is that meant?",)


def test_columns_with_numbers_for_names(tmp_path):
    pd.DataFrame({0: [1], 1: [2]}).to_parquet(tmp_path / "a.parquet")
    assert list(read_table(tmp_path / "a.parquet", "x").columns) == ["0", "1"]


def test_held_out_users_are_in_the_test_set_only(tmp_path):
    paths = write(tmp_path, frame(*[(user, 1, "0", "a", 1, "") for user in USERS for _ in range(3)]))
    federation = load(paths)
    out = set(INDEX.indices(USERS, "x")[in_test(pd.DataFrame({"pid": USERS}))].tolist())
    assert not out & set(federation.silos[0].users.tolist())
    assert len(federation.test) == 3 * len(out)
    assert len(federation.silos[0]) == 3 * (len(USERS) - len(out))


def test_collisions_and_clipping_are_noted(tmp_path):
    many = frame(*[(f"p{number}", 200, "0", "a", 1, "") for number in range(20)])
    federation = load(write(tmp_path, many), schema=schema(outside="clip"), index=HashedIds(20, bytes(32)))
    assert "clipped 20 outside the agreed range [0, 100] in column 'age'" in federation.notes[0]
    assert "20 user ids fall on" in federation.notes[1]


# What is refused. Each error is one sentence with place and remedy.


def broken(tmp_path, name):
    """Paths and options of a bad request, by name."""
    good = write(tmp_path, frame(*ROWS))[0]
    bad = tmp_path / "bad.csv"
    text = {
        "empty file": "",
        "no rows": ",".join(COLUMNS) + "\n",
        "no user column": frame(*ROWS).drop(columns="pid").to_csv(index=False),
        "no label column": frame(*ROWS).drop(columns="out").to_csv(index=False),
        "one user": frame(*[ROWS[0]] * 3).to_csv(index=False),
        "semicolons": frame(*ROWS).to_csv(index=False, sep=";"),
        "too many fields": "pid,age\nu1,2,3\nu2,3,4\n",
        "one long row": "pid,age\nu1,2\nu2,3,4\n",
        "column twice": "pid,age,age\nu1,2,3\n",
        "no names": ",,age\n1,2,3\n",
        "one stray quote": 'pid,age,out,note\nu1,50,1,"inch\nu2,60,0,x\nu3,70,1,5"\nu4,70,1,z\n',
        "backslash quote": 'pid,age,out,note\nu1,50,1,"5\\""\nu2,60,0,"ok"\nu3,70,1,"fine"\n',
        "quote in the header": 'pid,age,out,"note\nu1,50,1,x"\nu2,60,0,x\n',
        "missing id": frame(*ROWS, ("", 1, "0", "a", 1, "")).to_csv(index=False),
    }
    if name in text:
        bad.write_text(text[name])
        return [bad], {}
    if name == "not utf-8":
        bad.write_bytes(b"pid,age\nu1,\xff\xfe\n")
        return [bad], {}
    if name == "utf-16":
        bad.write_bytes("pid,age\nu1,2\n".encode("utf-16"))
        return [bad], {}
    if name == "long path":
        return [good, tmp_path / f"{'x' * 300}.csv"], {}
    if name == "broken gzip":
        (tmp_path / "bad.csv.gz").write_bytes(b"no gzip")
        return [tmp_path / "bad.csv.gz"], {}
    if name == "broken parquet":
        (tmp_path / "bad.parquet").write_bytes(b"no parquet")
        return [tmp_path / "bad.parquet"], {}
    if name == "not a table":
        return [tmp_path / "bad.xlsx"], {}
    if name == "no file":
        return [good, tmp_path / "gone.csv"], {}
    if name == "no test file":
        return [good], {"test": tmp_path / "gone.csv", "test_fraction": None}
    if name == "test file without label":
        bad.write_text(frame(*ROWS).drop(columns="out").to_csv(index=False))
        return [good], {"test": bad, "test_fraction": None}
    if name == "small |U|":
        return [good], {"index": HashedIds(3, bytes(32))}
    if name == "small |U| across silos":
        other = write(tmp_path, frame(*ROWS), frame(("v1", 1, "0", "a", 1, ""), ("v2", 1, "0", "a", 1, "")))
        return other, {"index": HashedIds(5, bytes(32))}
    if name == "not on the roster":
        return [good], {"index": Roster(("u1", "u2"))}
    if name == "nobody held out":
        return [good], {"test_fraction": 1e-9}
    return [good], {"bad fraction": {"test_fraction": 1.5}, "no test": {"test_fraction": None}}[name]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("empty file", "data.silos: cannot read"),
        ("no rows", "bad.csv: the table has no rows"),
        ("no user column", "bad.csv: no user column 'pid'; the table has: age"),
        ("no label column", "bad.csv: no column 'out'; the table has: pid"),
        ("one user", "data.user: there is one user only"),
        ("semicolons", "its fields are not separated by commas"),
        ("too many fields", "data.silos: cannot read"),
        ("one long row", "data.silos: cannot read"),
        ("column twice", "the column 'age' occurs twice"),
        ("missing id", "bad.csv: 1 rows have no user id in column 'pid' (first: row 5)"),
        ("no names", "2 columns have no name; name them or take them out"),
        ("one stray quote", "a cell spans lines (row 1): is a quote mark unbalanced?"),
        ("backslash quote", "row 1 cannot be read (',' expected after '\"'): is a quote mark unbalanced?"),
        ("quote in the header", "a cell spans lines (header row 1): is a quote mark unbalanced?"),
        ("not utf-8", "it is not UTF-8 text; save it as UTF-8"),
        ("utf-16", "it is not UTF-8 text; save it as UTF-8"),
        ("long path", "data.silos: cannot read"),
        ("broken gzip", "data.silos: cannot read"),
        ("broken parquet", "data.silos: cannot read"),
        ("not a table", "use .csv, .csv.gz, .parquet"),
        ("no file", "data.silos: no file"),
        ("no test file", "data.test: no file"),
        ("test file without label", "bad.csv: no column 'out'"),
        ("small |U|", "|U| is smaller than the ids seen: data.users = 3, but there are 4 user ids"),
        (
            "small |U| across silos",
            "data.users: |U| is smaller than the ids seen: data.users = 5, but there are 6",
        ),
        ("not on the roster", "2 user ids (2 rows) are not on the roster"),
        ("nobody held out", "data.test_fraction: no user fell into the test set"),
        ("bad fraction", "data.test_fraction: a number between 0 and 1 (0: no test set), not 1.5"),
        ("no test", "data.test: give exactly one of test (a table) and test_fraction"),
    ],
)
def test_bad_requests(tmp_path, name, text):
    paths, options = broken(tmp_path, name)
    with pytest.raises((DataError, ConfigError)) as error:
        load(paths, **options)
    assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_the_user_id_is_never_a_feature(tmp_path):
    with pytest.raises(ConfigError, match="'age' is the user id and cannot be a feature"):
        load_tables(write(tmp_path, frame(*ROWS)), schema(), INDEX, STREAMS, user="age", test_fraction=0.5)
