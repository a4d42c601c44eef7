"""Back-up and restore of a silo's ledger: what its people were exposed to must survive its disk.

A copy holds the ledger, the audit trail and the owner's policy. It holds no keys and no session: whoever had a copy of
an unfinished session could take the silo's noise off, and a session that is put back could answer a round again with
other noise. So an experiment that was under way ends with the folder that is lost; what was spent in it stays spent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from uldp.errors import ConfigError, RunError, first_line
from uldp.runs.files import (
    lock,
    parse_lines,
    private_folder,
    read_lines,
    replace_file,
    report_disk_errors,
    seal,
    unseal,
)
from uldp.runs.trail import HEAD, TRAIL, Head, TrailEntry, check_entries, check_head, check_ledger, read_head
from uldp.runtimes.policy import KNOWN, POLICY, Charge
from uldp.runtimes.silo_state import ledger_name
from uldp.trees import json_tree

_MAGIC: Final = b"uldp-ledger-copy-1\n"
_LEDGER: Final = ledger_name(rehearsal=False)
OLD_TRAIL: Final = "old-trail.jsonl"
"""Where a trail goes that was put back without its head; a new one begins."""
STATE_ID: Final = "state.id"
"""What ties a silo's keys to this folder (``uldp.runtimes.flower.credentials``)."""
_FILES: Final = (TRAIL, _LEDGER, POLICY, KNOWN, STATE_ID)
"""In the order in which they are read: a silo that is running writes its ledger before its trail."""
_TAKEN: Final = "a process of this silo is running; stop it first"


@dataclass(frozen=True)
class LedgerCopy:
    """The files of a copy, found whole: ledger and trail fit together."""

    files: Mapping[str, bytes]
    entries: tuple[TrailEntry, ...]

    @classmethod
    def of(cls, files: Mapping[str, bytes], location: str) -> LedgerCopy:
        """Check them as a silo checks its own."""
        ledger = list(parse_lines(files[_LEDGER], f"{location}: {_LEDGER}"))
        for line in ledger:
            Charge.from_json(line, f"{location}: {_LEDGER}")
        entries = check_entries(parse_lines(files.get(TRAIL, b""), location), f"{location}: {TRAIL}")
        check_ledger(entries, ledger, f"{location}: {_LEDGER}")
        return cls(files, entries)

    @property
    def head(self) -> Head:
        return self.entries[-1].head if self.entries else Head(0, "")

    @property
    def charges(self) -> int:
        """Lines of the ledger."""
        return len(self.lines(_LEDGER))

    def lines(self, name: str) -> list[dict[str, Any]]:
        return list(parse_lines(self.files.get(name, b""), name))


def back_up(state: Path, out: Path) -> LedgerCopy:
    """Write a copy of the ledger in ``state``, its trail and the policy to ``out``; the silo may be running.

    Raises:
        ConfigError: There is no ledger, or ``out`` exists already.
        RunError: Ledger and trail do not fit together.
    """
    with report_disk_errors(state):
        there = {name: (state / name).read_bytes() for name in _FILES if (state / name).is_file()}
    if _LEDGER not in there:
        why = "there is no ledger to copy; give the folder of state of a silo that has released something"
        raise ConfigError(why, location=str(state), value=str(state))
    copy = LedgerCopy.of(there, str(state))
    with report_disk_errors(out):
        taken = out.exists()
    if taken:
        raise ConfigError("is there already and is never overwritten", location="--out", value=str(out))
    tree = {name: data.hex() for name, data in there.items()}
    replace_file(out, seal(_MAGIC, json.dumps(tree, sort_keys=True).encode()))
    return copy


def read_copy(file: Path) -> LedgerCopy:
    """What :func:`back_up` wrote, checked.

    Raises:
        ConfigError: It is no copy.
        RunError: It is damaged, or ledger and trail do not fit together.
    """
    with report_disk_errors(file):
        if not file.is_file():
            raise ConfigError("is not there; give a file of `uldp backup`", location=str(file), value=str(file))
        data = file.read_bytes()
    if not data.startswith(_MAGIC):
        raise ConfigError("is no copy of a ledger; give a file of `uldp backup`", location=str(file), value=str(file))
    body = unseal(_MAGIC, data)
    if body is None:
        raise RunError("the copy is damaged (its checksum does not fit); take another one", location=str(file))
    try:
        there = {str(name): bytes.fromhex(text) for name, text in json_tree(body).items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise RunError(f"the copy is damaged ({first_line(error)}); take another one", location=str(file)) from error
    if not set(there) <= set(_FILES) or _LEDGER not in there:
        raise RunError("the copy is of another version of uldp", location=str(file))
    return LedgerCopy.of(there, str(file))


def restore(
    file: Path, state: Path, *, keys: Path | None = None, head: str = "", unchecked: bool = False
) -> LedgerCopy:
    """Put a copy back into ``state``, unless that would take a release back.

    Args:
        file: What :func:`back_up` wrote.
        state: A new folder, or one whose ledger is a beginning of the copy's.
        keys: The folder of the silo's keys, in which the head of its trail is kept.
        head: A head that was noted elsewhere, NUMBER:DIGEST.
        unchecked: Without either: nobody knows whether the copy is the newest, and a new trail begins.

    Raises:
        ConfigError: It is no copy, or nothing says how far the silo's trail went.
        RunError: The copy is damaged, or older than what is known of the silo.
    """
    copy = read_copy(file)
    known = [Head.parse(head, "--head")] if head else []
    apart = None if keys is None else read_head(keys / HEAD)
    known += [] if apart is None else [apart]
    for one in known:
        check_head(copy.entries, one, f"{file}: {TRAIL}")
    if not known and not unchecked:
        raise ConfigError(
            "give the folder of the silo's keys, which has the head of its audit trail, or --head as somebody noted "
            "it; with --unchecked nothing shows that this copy is the newest",
            location="--keys",
        )
    private_folder(state)
    private_folder(state / "experiments")  # by which a silo's folder is known
    with lock(state / "lock", _TAKEN, str(state)):
        _check_goes_on(copy, state)
        _write(copy, state, trail=TRAIL if known else OLD_TRAIL)
    return copy


def _check_goes_on(copy: LedgerCopy, state: Path) -> None:
    """Refuse to replace files by a copy that does not go on from them."""
    for name in (_LEDGER, TRAIL):
        here, copied = list(read_lines(state / name)), copy.lines(name)
        if here != copied[: len(here)]:
            raise RunError(
                f"holds {len(here)} lines that the copy ({len(copied)} lines) does not begin with: to put it back "
                "would take releases back. Keep what is here, or take a newer copy",
                location=str(state / name),
            )
    with report_disk_errors(state):
        own = state / STATE_ID
        if own.is_file() and own.read_bytes() != copy.files.get(STATE_ID):
            raise RunError("the copy is of another folder than this one", location=str(state), value=str(state))


def _write(copy: LedgerCopy, state: Path, trail: str) -> None:
    # The ledger before the trail: a process that is killed in between leaves a trail that is a beginning of it.
    places = {_LEDGER: _LEDGER, TRAIL: trail, KNOWN: KNOWN, STATE_ID: STATE_ID}
    for name, place in places.items():
        if name in copy.files:
            replace_file(state / place, copy.files[name])
    if POLICY in copy.files and not (state / POLICY).exists():
        replace_file(state / POLICY, copy.files[POLICY])
