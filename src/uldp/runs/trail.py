"""The audit trail of a party: an append-only, signed list of what it released.

One line of JSON per entry. Every entry holds the digest of the one before it and is signed by the party's key, so that
nobody else can write one, and none can be changed or taken out of the middle. What a chain cannot show by itself is
that its end was cut off, as when an older copy of the folder is put back. So the *head*, the number and the digest of
the last entry, is kept apart: beside the keys, and wherever else somebody noted it.

An entry also holds the ledger's length and digest. So the check of the trail is one of the ledger, too::

    head that was noted  <=  trail  <=  ledger         each is a beginning of the next

for the ledger is written first, then the trail, then the head, and a process may be killed in between.

Times are in whole minutes: how long a silo computed would say something about its records.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from uldp.crypto.keys import SigningKey, verify
from uldp.errors import ConfigError, MessageRefused, RunError
from uldp.runs.files import append_line, read_lines, replace_file, report_disk_errors
from uldp.trees import json_tree

TRAIL: Final = "trail.jsonl"
HEAD: Final = "trail.head"
ROTATED: Final = "keys rotated"
"""The kind of the entry after which another key signs."""
_CONTEXT: Final = "uldp audit trail"


@dataclass(frozen=True)
class Head:
    """Where a trail ends: the number of its last entry, and that entry's digest."""

    number: int
    digest: str

    def __str__(self) -> str:
        return f"{self.number}:{self.digest}"

    @classmethod
    def parse(cls, text: str, location: str) -> Head:
        """From ``NUMBER:DIGEST``.

        >>> Head.parse("3:" + 64 * "a", "--head").number
        3
        """
        number, _, digest = text.strip().partition(":")
        plain = number.isascii() and number.isdecimal() and len(number) < 16
        if not plain or len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
            why = "a head as `uldp trail` prints it, NUMBER:DIGEST with 64 digits of hexadecimal"
            raise ConfigError(why, location=location, value=text[:80])
        return cls(int(number), digest)


@dataclass(frozen=True)
class TrailEntry:
    """One entry: what was done when, after which entry, signed by whom."""

    number: int
    time: str
    kind: str
    about: Mapping[str, Any]
    before: str
    key: str
    signature: str = ""

    def to_json(self) -> dict[str, Any]:
        about = {"number": self.number, "time": self.time, "kind": self.kind, "about": dict(self.about)}
        return {**about, "before": self.before, "key": self.key, "signature": self.signature}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any], location: str) -> TrailEntry:
        texts = [tree.get(name) for name in ("time", "kind", "before", "key", "signature")]
        number, about = tree.get("number"), tree.get("about")
        if type(number) is not int or not isinstance(about, dict) or not all(isinstance(one, str) for one in texts):
            raise RunError("is damaged: an entry lacks a field", location=location)
        time, kind, before, key, signature = map(str, texts)
        return cls(number, time, kind, about, before, key, signature)

    @property
    def head(self) -> Head:
        return Head(self.number, hashlib.sha256(_canonical(self.to_json())).hexdigest())

    @property
    def signed_content(self) -> bytes:
        tree = self.to_json()
        del tree["signature"]
        return _canonical(tree)


def _canonical(tree: Mapping[str, Any]) -> bytes:
    """The one way in which an entry is written for digests and signatures."""
    return json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()


def read_trail(file: Path, key: str = "") -> tuple[TrailEntry, ...]:
    """All entries of a file, checked; ``key`` is who must have signed the first one."""
    return check_entries(read_lines(file), str(file), key)


def check_entries(lines: Iterable[Mapping[str, Any]], location: str, key: str = "") -> tuple[TrailEntry, ...]:
    """The entries in ``lines``, checked: their numbers, the chain, the signatures."""
    entries: list[TrailEntry] = []
    signer, before = key, ""
    for number, line in enumerate(lines, start=1):
        where = f"{location}, entry {number}"
        entry = TrailEntry.from_json(line, where)
        if (entry.number, entry.before) != (number, before):
            raise RunError("does not follow the entry before it: entries were changed or removed", location=where)
        if signer not in ("", entry.key):
            raise RunError("is signed by another key than expected", location=where, value=entry.key)
        try:
            verify(bytes.fromhex(entry.key), bytes.fromhex(entry.signature), (_CONTEXT, entry.signed_content), where)
        except (MessageRefused, ValueError):
            raise RunError("its signature does not fit: the entry was changed", location=where) from None
        signer = str(entry.about.get("identity", "")) if entry.kind == ROTATED else entry.key
        before = entry.head.digest
        entries.append(entry)
    return tuple(entries)


@dataclass(frozen=True)
class LedgerMark:
    """How long a ledger is, and the digest of its lines."""

    lines: int
    digest: str

    @classmethod
    def of(cls, lines: Iterable[Mapping[str, Any]]) -> LedgerMark:
        """Of a ledger's lines."""
        there = [json.dumps(line, sort_keys=True) for line in lines]
        return cls(len(there), hashlib.sha256("\n".join(there).encode()).hexdigest())


def check_head(entries: Sequence[TrailEntry], head: Head, location: str) -> None:
    """Refuse a trail that ended with ``head`` once, and does not hold it any more."""
    if head.number > len(entries):
        missing = head.number - len(entries)
        raise RunError(
            f"rolled back: it has {len(entries)} entries, and its head was number {head.number} before; the last "
            f"{missing} are missing. Restore the newest copy of the folder",
            location=location,
            value=len(entries),
        )
    if head.number and entries[head.number - 1].head != head:
        why = f"was replaced: entry {head.number} is another one than that whose head was kept"
        raise RunError(why, location=location, value=head.number)


def check_ledger(entries: Sequence[TrailEntry], ledger: Sequence[Mapping[str, Any]], location: str) -> None:
    """Refuse a ledger, with these lines at ``location``, that does not begin with what its trail says of it."""
    marks = [entry.about["ledger"] for entry in entries if isinstance(entry.about.get("ledger"), dict)]
    if not marks:
        return
    try:
        mark = LedgerMark(int(marks[-1]["lines"]), str(marks[-1]["digest"]))
    except (KeyError, TypeError, ValueError) as error:
        raise RunError("is damaged: an entry does not say how long the ledger was", location=location) from error
    if LedgerMark.of(ledger[: mark.lines]) != mark:
        raise RunError(
            f"rolled back or changed: the audit trail says that it had {mark.lines} lines with other content; restore "
            "the newest copy of both: without it nobody knows what was spent",
            location=location,
        )


def read_head(file: Path) -> Head | None:
    """The head that was kept apart in ``file``; None if there is none."""
    with report_disk_errors(file):
        if not file.exists():
            return None
        text = file.read_text(errors="replace")
    try:
        return Head.parse(text, str(file))
    except ConfigError as error:
        raise RunError(f"is damaged: {error.message}", location=str(file)) from error


OnAppend = Callable[[TrailEntry], None]


class Trail:
    """A trail that its owner appends to; checked when it is opened, begun with its first entry.

    Args:
        file: Where the trail lies.
        ledger: The ledger whose length every entry notes.
        key: Who signs.
        head: The file in which the head is kept apart.
        on_append: Called with every new entry, once it is on disk.
    """

    def __init__(
        self,
        file: Path,
        ledger: Path,
        key: SigningKey,
        head: Path | None = None,
        on_append: OnAppend = lambda entry: None,
    ) -> None:
        self._file, self._ledger, self._key, self._head_file = file, ledger, key, head
        self._on_append = on_append
        self.entries = list(read_trail(file))
        known = None if head is None else read_head(head)
        if known is not None:
            check_head(self.entries, known, str(file))
        check_ledger(self.entries, list(read_lines(ledger)), str(ledger))
        self._check_key()

    def _check_key(self) -> None:
        """A trail goes on with the key that signed it last, or that was named as the next."""
        if not self.entries:
            return
        last = self.entries[-1]
        expected = str(last.about.get("identity", "")) if last.kind == ROTATED else last.key
        if expected != self._key.public.hex():
            why = "goes on with another key than that which is here; give that one, or finish `uldp keys rotate`"
            raise RunError(why, location=str(self._file), value=expected)

    @property
    def head(self) -> Head:
        return self.entries[-1].head if self.entries else Head(0, "")

    def append(self, kind: str, about: Mapping[str, Any]) -> TrailEntry:
        """One more entry; it, and then the head, are on disk when this returns."""
        if not self.entries:
            self._write("begun", {})
        return self._write(kind, about)

    def _write(self, kind: str, about: Mapping[str, Any]) -> TrailEntry:
        mark = LedgerMark.of(read_lines(self._ledger))
        noted = {**about, "ledger": {"lines": mark.lines, "digest": mark.digest}}
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ")
        # As a reader finds it: what JSON cannot tell apart must not make two digests.
        noted = json_tree(json.dumps(noted).encode())
        open_ = TrailEntry(len(self.entries) + 1, now, kind, noted, self.head.digest, self._key.public.hex())
        signature = self._key.sign(_CONTEXT, open_.signed_content).hex()
        entry = TrailEntry(open_.number, now, kind, noted, open_.before, open_.key, signature)
        append_line(self._file, entry.to_json(), mode=0o600)
        self.entries.append(entry)
        if self._head_file is not None:
            replace_file(self._head_file, f"{entry.head}\n".encode())
        self._on_append(entry)
        return entry
