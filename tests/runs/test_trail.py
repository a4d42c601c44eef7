"""The audit trail: nothing in it can be changed, taken out or cut off without a check that says so."""

import json

import pytest

from uldp.crypto.keys import SigningKey
from uldp.errors import ConfigError, RunError
from uldp.rng import Secrets
from uldp.runs.files import append_line, read_lines
from uldp.runs.trail import ROTATED, Head, Trail, check_head, check_ledger, read_head, read_trail


def key(number=1):
    return SigningKey(Secrets.simulated_from_seed(number))


@pytest.fixture
def made(tmp_path):
    """A folder with a ledger of three charges and the trail of them; its head is kept elsewhere."""
    (tmp_path / "apart").mkdir()
    trail = opened(tmp_path)
    for number in (1, 2, 3):
        append_line(tmp_path / "ledger.jsonl", {"round": number})
        trail.append("charged", {"round": number})
    return tmp_path


def opened(folder, by=None):
    return Trail(folder / "trail.jsonl", folder / "ledger.jsonl", by or key(), folder / "apart" / "trail.head")


def rewrite(file, change):
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(line) + "\n" for line in change(lines)))


def test_a_trail_goes_on_where_it_was_and_its_head_is_kept_apart(made):
    trail = opened(made)
    assert [entry.kind for entry in trail.entries] == ["begun", "charged", "charged", "charged"]
    trail.append("sent", {"sha256": "f"})
    assert len(read_trail(made / "trail.jsonl", key().public.hex())) == 5
    assert read_head(made / "apart" / "trail.head") == opened(made).head == trail.head
    assert (made / "trail.jsonl").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda lines: [*lines[:1], *lines[2:]], "does not follow"),
        (lambda lines: lines[1:], "does not follow"),
        (lambda lines: [lines[0], lines[2], lines[1], lines[3]], "does not follow"),
        (lambda lines: [*lines, lines[-1]], "does not follow"),
        (lambda lines: [*lines[:3], {**lines[3], "about": {"round": 2}}], "signature does not fit"),
        (lambda lines: [*lines[:3], {**lines[3], "time": "2020-01-01T00:00Z"}], "signature does not fit"),
        (lambda lines: [*lines[:3], {**lines[3], "key": key(2).public.hex()}], "another key"),
        (lambda lines: [*lines[:3], {**lines[3], "signature": "no"}], "signature does not fit"),
        (lambda lines: [*lines[:3], {"number": 4}], "lacks a field"),
        (lambda lines: [*lines[:3], {**lines[3], "number": True}], "lacks a field"),
        (lambda lines: lines[:2], "rolled back: it has 2 entries, and its head was number 4"),
        (lambda lines: [], "rolled back: it has 0 entries"),
    ],
)
def test_whatever_is_changed_is_noticed(made, change, reason):
    rewrite(made / "trail.jsonl", change)
    with pytest.raises(RunError, match=reason):
        opened(made)


def test_a_trail_that_somebody_else_wrote_anew_is_refused(made):
    (made / "trail.jsonl").unlink()
    Trail(made / "trail.jsonl", made / "ledger.jsonl", key(2)).append("charged", {"round": 1})
    with pytest.raises(RunError, match="rolled back: it has 2"):
        opened(made, key(2))
    with pytest.raises(RunError, match="signed by another key"):
        read_trail(made / "trail.jsonl", key().public.hex())
    for number in (2, 3):
        Trail(made / "trail.jsonl", made / "ledger.jsonl", key(2)).append("charged", {"round": number})
    with pytest.raises(RunError, match="was replaced: entry 4"):
        opened(made, key(2))


@pytest.mark.parametrize("change", [lambda lines: lines[:2], lambda lines: [*lines[:2], {"round": 9}]])
def test_a_ledger_that_was_rolled_back_or_changed_is_noticed(made, change):
    rewrite(made / "ledger.jsonl", change)
    with pytest.raises(RunError, match=r"ledger.jsonl: rolled back or changed"):
        opened(made)


def test_a_ledger_may_be_one_write_ahead_as_after_a_crash(made):
    append_line(made / "ledger.jsonl", {"round": 4})
    assert len(opened(made).entries) == 4
    with (made / "trail.jsonl").open("a") as out:
        out.write('{"number": 5, "ki')
    opened(made).append("charged", {"round": 4})
    assert len(opened(made).entries) == 5


def test_a_trail_may_be_one_write_ahead_of_its_head(made):
    before = (made / "apart" / "trail.head").read_bytes()
    opened(made).append("charged", {"round": 4})
    (made / "apart" / "trail.head").write_bytes(before)
    assert len(opened(made).entries) == 5


def test_after_a_rotation_the_next_key_signs_and_no_other(made):
    opened(made).append(ROTATED, {"identity": key(2).public.hex()})
    with pytest.raises(RunError, match="goes on with another key"):
        opened(made)
    opened(made, key(2)).append("charged", {"round": 4})
    entries = read_trail(made / "trail.jsonl", key().public.hex())
    assert [entry.key for entry in entries[-2:]] == [key().public.hex(), key(2).public.hex()]
    rewrite(made / "trail.jsonl", lambda lines: [line for line in lines if line["kind"] != ROTATED])
    with pytest.raises(RunError, match="does not follow"):
        read_trail(made / "trail.jsonl")


def test_a_head_is_read_as_it_is_printed(made):
    entries = read_trail(made / "trail.jsonl")
    for entry in entries:
        check_head(entries, Head.parse(str(entry.head), "--head"), "here")
    check_ledger(entries, list(read_lines(made / "ledger.jsonl")), "here")
    for text in ("", "3", "3:ab", "x:" + 64 * "a", "-1:" + 64 * "a", "1:" + 64 * "G"):
        with pytest.raises(ConfigError, match="--head"):
            Head.parse(text, "--head")
    (made / "apart" / "trail.head").write_text("torn")
    with pytest.raises(RunError, match="is damaged"):
        opened(made)


def test_no_entry_says_when_to_the_second(made):
    assert all(len(entry.time) == len("2026-01-01T00:00Z") for entry in read_trail(made / "trail.jsonl"))
