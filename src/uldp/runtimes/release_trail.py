"""The audit trail of a server, and the check of any party's trail from outside."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from uldp.crypto.keys import SigningKey
from uldp.errors import ConfigError, RunError
from uldp.rng import Secrets
from uldp.runs.directory import RunDirectory
from uldp.runs.files import read_lines, report_disk_errors, stored_key
from uldp.runs.trail import (
    HEAD,
    TRAIL,
    Head,
    OnAppend,
    Trail,
    TrailEntry,
    check_head,
    check_ledger,
    read_head,
    read_trail,
)
from uldp.runtimes.silo_state import TRAIL_KEY

RELEASED: Final = "released"
"""The kind of the entries about a round's total."""
_PLACES: Final = (("", "ledger.jsonl"), ("rehearsal-", "rehearsal-ledger.jsonl"))


class ReleaseTrail:
    """What a server released, in the run's private folder: an entry for every line of the run's ledger.

    It is signed by a key that the run makes for itself, for a server has no key that silos know it by but that of its
    certificate. So keep the trail's head, or its key's public half, where nobody of this machine can change it.
    """

    def __init__(self, directory: RunDirectory, on_append: OnAppend = lambda entry: None) -> None:
        self._directory = directory
        key = SigningKey(Secrets.from_key(stored_key(directory.private / TRAIL_KEY)))
        file, ledger = directory.private / TRAIL, directory.path / "ledger.jsonl"
        self._trail = Trail(file, ledger, key, on_append=on_append)

    @property
    def head(self) -> Head:
        """Where the trail ends."""
        return self._trail.head

    def catch_up(self) -> None:
        """Note what the ledger has and the trail has not: a process may be killed between the two."""
        noted = sum(entry.kind == RELEASED for entry in self._trail.entries)
        for entry in self._directory.log.ledger_entries()[noted:]:
            self._trail.append(RELEASED, entry.to_json())


@dataclass(frozen=True)
class CheckedTrail:
    """A trail that was found whole: its file, its entries, and whether its end was compared with a head kept apart."""

    file: Path
    entries: tuple[TrailEntry, ...]
    head_compared: bool

    @property
    def head(self) -> Head:
        return self.entries[-1].head

    @property
    def sentence(self) -> str:
        """Whether its end is known."""
        if self.head_compared:
            return "It ends where, or after, its head says."
        return "Nothing was given to show that its end was not cut off: compare the head with one that was noted."

    def rows(self) -> list[tuple[str, str, str, str]]:
        """The entries for people."""
        about = ("experiment", "round", "message", "bytes", "sha256", "content", "identity")
        return [
            (
                str(entry.number),
                entry.time,
                entry.kind,
                ", ".join(f"{name} {str(entry.about[name])[:16]}" for name in about if entry.about.get(name)),
            )
            for entry in self.entries
        ]

    def to_json(self) -> dict[str, Any]:
        keys = list(dict.fromkeys(entry.key for entry in self.entries))
        about = {"trail": str(self.file), "entries": len(self.entries), "head": str(self.head), "keys": keys}
        return {**about, "head_compared": self.head_compared, "list": [entry.to_json() for entry in self.entries]}


def check_trails(folder: Path, *, key: str = "", heads: Path | None = None, head: str = "") -> list[CheckedTrail]:
    """Check the trails in a silo's folder of state, or of a run: chain, signatures, ledger, and head if there is one.

    Args:
        folder: The silo's folder of state, or a run directory.
        key: The public key, in hexadecimal, that must have signed the first entry.
        heads: The folder in which the silo keeps its heads: that of its keys.
        head: A head that somebody noted, NUMBER:DIGEST; of the real trail, not of the rehearsals'.

    Raises:
        ConfigError: There is no trail in the folder.
        RunError: Something was changed, removed or rolled back.
    """
    noted = Head.parse(head, "--head") if head else None
    found = []
    for prefix, ledger in _PLACES:
        file = _trail_file(folder, prefix)
        apart = None if heads is None else read_head(heads / f"{prefix}{HEAD}")
        if file is None and apart is None and (noted is None or prefix):
            continue
        file = file or folder / f"{prefix}{TRAIL}"
        entries = read_trail(file, key)
        for one in (apart, None if prefix else noted):
            if one is not None:
                check_head(entries, one, str(file))
        check_ledger(entries, list(read_lines(folder / ledger)), str(folder / ledger))
        if entries:
            found.append(CheckedTrail(file, entries, apart is not None or (noted is not None and not prefix)))
    if not found:
        why = "there is no audit trail; give a silo's folder of state, or the run directory of `uldp serve`"
        raise ConfigError(why, location=str(folder), value=str(folder))
    return found


def _trail_file(folder: Path, prefix: str) -> Path | None:
    """A silo's trail lies in its folder, a server's in the private one."""
    places = [folder / f"{prefix}{TRAIL}", *([] if prefix else [folder / "private" / TRAIL])]
    with report_disk_errors(folder):
        there = [file for file in places if file.is_file()]
    if len(there) > 1:
        raise RunError(
            "there are two trails, of a silo and of a server; give a folder of one party", location=str(folder)
        )
    return there[0] if there else None
