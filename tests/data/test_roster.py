"""A person has one index in every silo, and it depends on that person's id alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uldp.data.roster import HashedIds, Roster, select_test_rows
from uldp.errors import ConfigError, DataError
from uldp.rng import Secrets, Streams

HASHED = HashedIds(1000, bytes(range(32)))
STREAMS = Streams.from_seed(5)
ids = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=20)


@given(ids)
def test_an_index_depends_on_its_id_alone(some):
    together = HASHED.indices(some, "a.csv")
    assert together.tolist() == [int(HASHED.indices([user], "b.csv")[0]) for user in some]
    assert together.min() >= 0
    assert together.max() < 1000


def test_indices_fill_the_buckets_evenly():
    users = [str(number) for number in range(100_000)]
    counts = np.bincount(HashedIds(100_000, bytes(32)).indices(users, "x") % 10, minlength=10)
    assert counts == pytest.approx(np.full(10, 10_000), rel=0.05)


def test_another_key_gives_other_indices():
    users = [str(number) for number in range(100)]
    one, two = (HashedIds(1000, bytes([key]) * 32).indices(users, "x") for key in (1, 2))
    assert not np.array_equal(one, two)


def test_the_key_of_a_simulation_comes_from_its_secrets_and_is_not_shown():
    index = HashedIds.from_secrets(10, Secrets.simulated_from_seed(0))
    assert index == HashedIds.from_secrets(10, Secrets.simulated_from_seed(0))
    assert index != HashedIds.from_secrets(10, Secrets.simulated_from_seed(1))
    assert "key" not in repr(index)


def test_more_ids_than_buckets():
    with pytest.raises(DataError) as error:
        HashedIds(3, bytes(32)).indices(["a", "b", "c", "d", "a"], "a.csv")
    assert "|U| is smaller than the ids seen: data.users = 3, but there are 4 user ids" in str(error.value)
    assert "raise data.users to at least 4" in str(error.value)


@pytest.mark.parametrize("users", [1, 0, -5, True, 2.5])
def test_bad_numbers_of_users(users):
    with pytest.raises(ConfigError, match=r"data\.users: a whole number from 2 up"):
        HashedIds(users, bytes(32))


def test_key_files(tmp_path):
    path = tmp_path / "id.key"
    path.write_text("ab" * 32 + "\n")
    assert HashedIds.with_key_file(9, path) == HashedIds(9, b"\xab" * 32)
    for bad in ("ab" * 16, "my secret", ""):
        path.write_text(bad)
        with pytest.raises(DataError, match="not a key of 64 hexadecimal digits") as error:
            HashedIds.with_key_file(9, path)
        assert not bad or bad not in str(error.value)
    with pytest.raises(DataError, match=r"data\.id_key: cannot read"):
        HashedIds.with_key_file(9, tmp_path / "none.key")


def test_rosters_from_text_and_tables(tmp_path):
    (tmp_path / "r.txt").write_text("\ufeffp1\n 07 \n\np3\n", encoding="utf-8")
    (tmp_path / "one.csv").write_text("who\np1\n7\np3\n")
    (tmp_path / "two.csv").write_text("pid,ward\np1,x\n7.0,x\np3,y\n")
    for name in ("r.txt", "one.csv", "two.csv"):
        roster = Roster.from_file(tmp_path / name, user="pid")
        assert roster.users == 3
        assert roster.indices(["p3", "7", "p1", "p3"], "a.csv").tolist() == [2, 1, 0, 2]


def test_strangers_and_doubles():
    roster = Roster(("a", "b"), location="r.txt")
    with pytest.raises(DataError, match=r"a\.csv: 2 user ids \(3 rows\) are not on the roster r\.txt; add them"):
        roster.indices(["a", "x", "x", "y"], "a.csv")
    with pytest.raises(DataError, match=r"r\.txt: 1 ids occur more than once"):
        Roster(("a", "b", "a"), location="r.txt")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "0 ids: a roster lists everybody"),
        (b"\n \n", "0 ids: a roster lists everybody"),
        (b"u1\n", "1 ids: a roster lists everybody"),
        ("u1\nu2\n".encode("utf-16"), "not UTF-8 text; save it as UTF-8"),
        ("u1\nu2\n".encode("utf-16-le"), "not UTF-8 text; save it as UTF-8"),
        ("u1\nm\u00fcller\n".encode("latin-1"), "not UTF-8 text; save it as UTF-8"),
        (b"A1\na1\nu2\n", "1 ids occur more than once (7 and 007, or A1 and a1, are one id)"),
        (b"u1\nNA\n", "1 rows have no user id in the roster (first: row 2)"),
        (b"u1\n1.2E+11\n", "1 ids in exponent notation have lost digits in the roster (first: row 2)"),
    ],
)
def test_bad_rosters(tmp_path, content, says):
    (tmp_path / "r.txt").write_bytes(content)
    with pytest.raises(DataError) as error:
        Roster.from_file(tmp_path / "r.txt")
    assert f"r.txt: {says}" in str(error.value)


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "gone.txt"])
def test_rosters_that_cannot_be_read(tmp_path, name):
    with pytest.raises(DataError, match=r"data\.roster: cannot read"):
        Roster.from_file(tmp_path / name)


@given(ids, st.floats(0.01, 0.99))
def test_who_is_held_out_depends_on_the_own_id_alone(some, fraction):
    together = select_test_rows(some, fraction, STREAMS)
    assert together.tolist() == [bool(select_test_rows([user], fraction, STREAMS)[0]) for user in some]


def test_about_the_asked_share_is_held_out():
    users = [str(number) for number in range(10_000)]
    assert select_test_rows(users, 0.3, STREAMS).mean() == pytest.approx(0.3, abs=0.02)
    assert not np.array_equal(select_test_rows(users, 0.3, STREAMS), select_test_rows(users, 0.3, Streams.from_seed(6)))
