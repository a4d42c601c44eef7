"""uldp link: who agrees in a rule is one person, nobody else is, and files say no more than the page claims."""

import json
import random

import pandas as pd
import pytest

from uldp.data.link_files import read_prepared, read_proposal, write_links, write_prepared, write_proposals
from uldp.data.linkage import LinkRule, links_of, match, prepare
from uldp.errors import ConfigError, DataError
from uldp.rng import Secrets

KEY, SECRETS = b"k" * 32, Secrets.from_key(b"s" * 32)
NAME, NUMBER = LinkRule.parse("name+born:date"), LinkRule.parse("number:digits")


def frame(*rows):
    return pd.DataFrame(rows, columns=["id", "name", "born", "number"], dtype="object")


def prepared(silo, *rows, key=KEY, rules=(NUMBER, NAME), formats=()):
    table = frame(*rows)
    return prepare(table, [str(user) for user in table["id"]], silo, rules, key, formats)


def person_of(proposal, silo, *ids, key=KEY):
    links = links_of(ids, silo, key, proposal.numbers[silo])
    return [links[user] for user in ids]


NORTH = prepared(
    "north",
    ("a", "O'Neill", "1960-02-01", None),
    ("b", "Müller", "1970-04-03", "0012-3"),
    ("b", "Mueller", "1970-04-03", "0012-3"),
    ("c", "Doe", None, None),
    ("d", "Roe", "1990-01-01", "555"),
)
HARBOUR = prepared(
    "harbour",
    ("1", "ONEILL ", "01.02.1960", ""),
    ("2", "Someone", "11.11.1911", 123),
    ("3", "Doe", "", "nan"),
    ("4", "Roe", "02.01.1990", "556"),
    formats=("%d.%m.%Y",),
)


def test_people_who_agree_in_a_rule_are_one_and_nobody_else_is():
    proposal = match([NORTH, HARBOUR], SECRETS)
    a, b, c, d = person_of(proposal, "north", "a", "b", "c", "d")
    assert person_of(proposal, "harbour", "1", "2") == [a, b]
    assert len({a, b, c, d, *person_of(proposal, "harbour", "3", "4")}) == proposal.persons == 6
    assert proposal.found == {(0, "harbour", "north"): 1, (1, "harbour", "north"): 1}
    assert NORTH.without == (2, 1) and HARBOUR.without == (2, 1)


def test_people_are_found_over_a_third_silo():
    west = prepared("west", ("w", "O Neill", "1960-02-01", "77"))
    south = prepared("south", ("s", "Neill", "1960-02-01", "77"))
    proposal = match([NORTH, west, south], SECRETS)
    assert len({*person_of(proposal, "north", "a"), *person_of(proposal, "west", "w")}) == 1
    assert person_of(proposal, "south", "s") == person_of(proposal, "west", "w")


def test_two_ids_of_one_silo_are_never_joined():
    """Neither by a hash of both, nor by two rules that lead to both."""
    twins = prepared("twins", ("t1", "Doe", "1960-01-01", None), ("t2", "Doe", "1960-01-01", None))
    other = prepared("other", ("o", "Doe", "1960-01-01", None))
    proposal = match([twins, other], SECRETS)
    assert proposal.persons == 3 and proposal.ambiguous == (0, 1) and proposal.found == {}
    assert twins.doubles == (0, 1)
    both = prepared("both", ("x", "Doe", "1960-01-01", "1"), ("y", "Roe", "1970-01-01", "2"))
    torn = prepared("torn", ("z", "Roe", "1970-01-01", "1"))
    proposal = match([both, torn], SECRETS)
    assert person_of(proposal, "torn", "z") == person_of(proposal, "both", "x")
    assert proposal.persons == 2 and proposal.ambiguous == (0, 1)


def test_random_federations_are_linked_as_by_comparing_values():
    generator = random.Random(3)
    for _ in range(30):
        tables = {
            silo: [
                (f"{silo}{n}", generator.choice("abcde"), "2000-01-01", None) for n in range(generator.randint(1, 5))
            ]
            for silo in ("north", "south", "west")
        }
        proposal = match([prepared(silo, *rows) for silo, rows in tables.items()], SECRETS)
        numbers = {}
        for silo, rows in tables.items():
            names = [row[1] for row in rows]
            for user, name, *_ in rows:
                (number,) = person_of(proposal, silo, user)
                alone = any([row[1] for row in others].count(name) > 1 for others in tables.values())
                assert numbers.setdefault((name, user if alone or names.count(name) > 1 else ""), number) == number
        assert len(set(numbers.values())) == len(numbers) == proposal.persons


def test_files_that_are_sent_hold_hashes_only_and_a_silos_proposal_nobody_elses(tmp_path):
    write_prepared(NORTH, tmp_path / "n.json")
    text = (tmp_path / "n.json").read_text().casefold()
    assert not [one for one in ("neill", "ller", "doe", "roe", "1960-02-01", "0012-3", KEY.hex()) if one in text]
    content = json.loads(text)
    assert list(content["people"]) == sorted(content["people"]) and len(content["people"]) == 4
    assert read_prepared(tmp_path / "n.json") == NORTH
    proposal = match([NORTH, HARBOUR], SECRETS)
    files = write_proposals(proposal, tmp_path / "p")
    silo, persons, numbers = read_proposal(files[0])
    assert (silo, persons, numbers) == ("north", 6, proposal.numbers["north"])
    assert not set(proposal.numbers["harbour"]) & set(numbers)


def test_numbers_are_drawn_and_do_not_say_whom_others_know():
    """In the order of the hashes, whoever is in two silos would have a smaller number than the own hash has."""
    north = prepared("north", *((f"n{n}", f"name{n}", "2000-01-01", None) for n in range(400)))
    south = prepared("south", *((f"s{n}", f"name{n}", "2000-01-01", None) for n in range(200)))
    proposal = match([north, south], SECRETS)
    ranks = [person_of(proposal, "north", f"n{n}")[0] for n in range(400)]
    assert abs(sum(ranks[:200]) - sum(ranks[200:])) / 200 < 4 * 400 * (2 / 12 / 200) ** 0.5
    assert match([north, south], Secrets.from_key(b"t" * 32)).numbers != proposal.numbers


def test_without_the_key_equal_values_have_other_hashes():
    other = prepared("north", ("a", "O'Neill", "1960-02-01", None), key=b"o" * 32)
    mine = {one for hashes in NORTH.people.values() for each in hashes for one in each}
    assert not mine & {one for hashes in other.people.values() for each in hashes for one in each}
    with pytest.raises(ConfigError, match="silos north and harbour used different keys"):
        match([other, HARBOUR], SECRETS)


def test_links_and_roster(tmp_path):
    proposal = match([NORTH, HARBOUR], SECRETS)
    links = links_of(["d", "a", "a"], "north", KEY, proposal.numbers["north"])
    file, roster = write_links(links, proposal.persons, "north", tmp_path / "links")
    assert file.read_text().splitlines()[0] == "id,person" and file.stat().st_mode & 0o777 == 0o600
    assert roster.read_text().split() == ["1", "2", "3", "4", "5", "6"]
    with pytest.raises(ConfigError, match="exists already"):
        write_links(links, proposal.persons, "north", tmp_path / "links")
    with pytest.raises(ConfigError, match="is another roster"):
        write_links(links, 7, "harbour", tmp_path / "links")
    with pytest.raises(DataError, match="1 of 2 ids are not in the proposal for silo north") as refused:
        links_of(["a", "unheard"], "north", KEY, proposal.numbers["north"])
    assert "unheard" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "+", "a+", "a:b", ":text", "a+a", "a:text:odd"])
def test_what_is_no_rule_is_refused(text):
    with pytest.raises(ConfigError, match="--on"):
        LinkRule.parse(text)


def test_parts_that_do_not_fit_together_are_refused():
    with pytest.raises(ConfigError, match="at least two silos"):
        match([NORTH], SECRETS)
    with pytest.raises(ConfigError, match="two files are of silo 'north'"):
        match([NORTH, HARBOUR, NORTH], SECRETS)
    with pytest.raises(ConfigError, match=r"by other rules \(digits, text\+date and text\+date\)"):
        match([NORTH, prepared("x", ("1", "a", "b", "c"), rules=(NAME,))], SECRETS)
    with pytest.raises(
        DataError, match=r"no column 'nam'; the table has: id, name, born, number\. Did you mean 'name'"
    ):
        prepared("x", ("1", "a", "b", "c"), rules=(LinkRule.parse("nam"),))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 10**5,
        b'{"uldp_link":"proposal 1","silo":"a","persons":1,"numbers":{}}',
        b'{"uldp_link":"prepared 1","silo":"a","kinds":["text"],"key":"","people":{"zz":[[]]}}',
        b'{"uldp_link":"prepared 1","silo":"a","kinds":["text"],"key":"","people":{}}',
        b'{"uldp_link":"prepared 1","silo":"../a","kinds":["text"],"key":"","people":{"%s":[[]]}}' % (b"0" * 32),
        b'{"uldp_link":"prepared 1","silo":"a","kinds":["text"],"key":"","people":{"%s":[]}}' % (b"0" * 32),
    ],
)
def test_damaged_files_are_refused(tmp_path, content):
    (tmp_path / "f.json").write_bytes(content)
    with pytest.raises(
        (DataError, ConfigError), match=r"f\.json: is no file of `uldp link prepare`|--silo: a silo's name"
    ):
        read_prepared(tmp_path / "f.json")


@pytest.mark.parametrize(("persons", "numbers"), [(1, [1, 2]), (2, [1, 1]), (2, [0, 1])])
def test_damaged_proposals_are_refused(tmp_path, persons, numbers):
    content = {
        "uldp_link": "proposal 1",
        "silo": "a",
        "persons": persons,
        "numbers": dict(zip("ab", numbers, strict=True)),
    }
    (tmp_path / "p.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="is no file of `uldp link match`"):
        read_proposal(tmp_path / "p.json")
