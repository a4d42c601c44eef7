"""[data.ids]: rules that make ids of several forms one id, work on one id at a time, and leave other ids alone."""

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uldp.data.id_rules import NOTHING_LEFT, PLAIN, UNLINKED, IdRules, read_links
from uldp.data.ids import Problem, canonical_id, read_ids
from uldp.errors import ConfigError, DataError


def one_id(cell, rules):
    found = canonical_id(cell)
    return found if isinstance(found, Problem) else rules.apply(found)


@pytest.mark.parametrize(
    ("rules", "cells", "expected"),
    [
        (IdRules(prefixes=("P-",)), ["P-0012", "p-12", 12, "12.0", "\u200bP-12"], "12"),
        (IdRules(prefixes=("P", "P-")), ["P12", "p-12"], "12"),
        (IdRules(keep="letters and digits"), ["AB-12", "ab 12", "a.b/12", "\uff21\uff2212"], "ab12"),
        (IdRules(keep="digits"), ["AB-0012", "12", 12.0, "1-2", "१२"], "12"),
        (IdRules(keep="digits", prefixes=("H1:",)), ["H1:7", "7"], "7"),
        (IdRules(keep="letters and digits"), ["19 450 001-3", "194500013"], "194500013"),
    ],
)
def test_ids_of_several_forms_are_one(rules, cells, expected):
    assert {one_id(cell, rules) for cell in cells} == {expected}


@pytest.mark.parametrize(
    ("rules", "cell"),
    [(IdRules(keep="digits"), "unknown"), (IdRules(prefixes=("P",)), "p"), (IdRules(keep="letters and digits"), "§")],
)
def test_an_id_of_which_nothing_is_left_is_refused_by_its_row(rules, cell):
    assert one_id(cell, rules) is NOTHING_LEFT
    with pytest.raises(DataError, match=r"t\.csv: 1 ids have nothing left .* \(first: row 2\)"):
        read_ids(pd.Series(["7", cell], dtype="str"), "column 'id'", "t.csv", rules.apply)


def test_cells_that_are_no_ids_stay_refused():
    for cell in ("1e5", "1,234", None, "nan", 2.5):
        assert isinstance(one_id(cell, IdRules(keep="digits")), Problem)


@given(st.text(max_size=12))
def test_without_rules_ids_are_as_they_were_and_rules_applied_twice_change_nothing(text):
    user = canonical_id(text)
    if isinstance(user, Problem):
        return
    assert PLAIN.apply(user) == user
    for keep in ("letters and digits", "digits"):
        rules = IdRules(keep=keep)
        once = rules.apply(user)
        assert isinstance(once, Problem) or rules.apply(once) == once


@pytest.mark.parametrize(
    ("given", "location"),
    [({"keep": "vowels"}, "data.ids.keep"), ({"prefixes": ("P", " ")}, "data.ids.prefixes"), ({"links": ""}, "links")],
)
def test_what_is_no_rule_is_refused(given, location):
    with pytest.raises(ConfigError, match=location):
        IdRules(**given)


def test_links_make_ids_persons_and_an_id_without_a_link_is_refused(tmp_path):
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "north.csv").write_text("id,person\n12,3\n13,3\nx,007\n")
    read = IdRules(prefixes=("P-",), links="links").reader("north", tmp_path)
    assert [read(user) for user in ("p-12", "12", "13", "x")] == ["3", "3", "3", "7"]
    assert read("14") is UNLINKED
    with pytest.raises(DataError, match=r"1 ids are not in this silo's file of links"):
        read_ids(pd.Series(["12", "14"], dtype="str"), "column 'id'", "t.csv", read)
    with pytest.raises(DataError, match=r"no file .*harbour\.csv'; `uldp link accept` writes it"):
        IdRules(links="links").reader("harbour", tmp_path)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "first line"),
        (b"a,b\n", "first line"),
        (b"id,person\n12\n", "line 2"),
        (b"id,person\n12,\n", "line 2"),
        (b"id,person\n,3\n", "line 2"),
        (b"id,person\n12,3\n12,4\n", "line 3"),
        (b'id,person\n"12,3\n', "no CSV"),
        (b"\xff\xfe", "no CSV"),
    ],
)
def test_a_damaged_file_of_links_is_refused_without_an_id(tmp_path, content, what):
    (tmp_path / "n.csv").write_bytes(content)
    with pytest.raises(DataError, match=what) as refused:
        read_links(tmp_path / "n.csv")
    assert "12" not in str(refused.value).replace(str(tmp_path), "")
