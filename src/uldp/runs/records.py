"""The files of a run by what they are for: documents, the log of rounds, and what a run continues from."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

import msgspec

from uldp.encoding import encode
from uldp.errors import RunError
from uldp.experiment.config import Experiment
from uldp.privacy.ledger import Entry
from uldp.rng import Secrets
from uldp.runs.files import Parts, append_line, read_lines, replace_file, report_disk_errors, seal, unseal
from uldp.trees import json_tree

_MAGIC: Final = b"uldp-checkpoint-1\n"


class Checkpoint(msgspec.Struct, forbid_unknown_fields=True):
    """Everything a run continues from, after ``round`` rounds. ``released`` is what the ledger must hold by then."""

    round: int
    digest: str
    data: str
    server: bytes
    silos: dict[str, bytes]
    released: list[tuple[int, str]]
    seconds: float
    left_out: int = 0


class RunFiles:
    """Documents in a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.private = path / "private"

    def has(self, name: str) -> bool:
        """Whether there is a file of this name."""
        with report_disk_errors(self.path):
            return (self.path / name).is_file()

    def write_text(self, name: str, text: str) -> None:
        replace_file(self.path / name, text.encode(), mode=0o644)

    def write_json(self, name: str, tree: Any) -> None:
        self.write_text(name, json.dumps(tree, indent=2) + "\n")

    def read_text(self, name: str) -> str:
        file = self.path / name
        try:
            return file.read_text(encoding="utf-8")
        except OSError as error:
            raise RunError(f"cannot be read: {error.strerror}", location=str(file)) from error

    def read_json(self, name: str) -> dict[str, Any]:
        file = self.path / name
        try:
            tree = json_tree(self.read_text(name))
        except ValueError as error:
            raise RunError(f"is damaged: {error}", location=str(file)) from error
        if not isinstance(tree, dict):
            raise RunError("is damaged: it holds no settings", location=str(file))
        return tree

    def append_private(self, name: str, tree: dict[str, Any]) -> None:
        """One more line of a file that is for the owner only."""
        with report_disk_errors(self.private / name):
            number = os.open(self.private / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(number, "ab") as out:
                out.write((json.dumps(tree) + "\n").encode())


class RunLog:
    """What a run writes round by round: the ledger before the model changes, metrics, and times for the owner."""

    def __init__(self, path: Path) -> None:
        self._ledger, self._metrics = path / "ledger.jsonl", path / "metrics.jsonl"
        self._times = path / "private" / "times.jsonl"

    def append_ledger(self, entry: Entry) -> None:
        """One more release, safely on disk before this returns."""
        append_line(self._ledger, entry.to_json())

    def ledger_entries(self) -> tuple[Entry, ...]:
        return tuple(Entry.from_json(line) for line in read_lines(self._ledger))

    def append_time(self, round_: int, seconds: float) -> None:
        """How long a round took: for the owner only, because one user with many records is visible in it."""
        append_line(self._times, {"round": round_, "seconds": round(seconds, 6)}, mode=0o600)

    def times(self) -> dict[int, float]:
        """Seconds of the rounds, as far as they are known."""
        try:
            return {int(line["round"]): float(line["seconds"]) for line in read_lines(self._times)}
        except (KeyError, TypeError, ValueError) as error:
            raise RunError("is damaged; delete it, the times are not needed", location=str(self._times)) from error

    def append_metrics(self, line: dict[str, Any]) -> None:
        append_line(self._metrics, line)

    def amend_metrics(self, line: dict[str, Any]) -> None:
        """Write the last round's line again."""
        self._write_metrics([*self.metrics()[:-1], line])

    def _write_metrics(self, lines: list[dict[str, Any]]) -> None:
        replace_file(self._metrics, "".join(json.dumps(line) + "\n" for line in lines).encode(), mode=0o644)

    def metrics(self) -> list[dict[str, Any]]:
        return list(read_lines(self._metrics))

    def cut_metrics(self, rounds: int) -> list[dict[str, Any]]:
        """The metric lines of rounds 1 to ``rounds``. Later ones are dropped: they will be written again."""
        lines = self.metrics()
        first = [line for line in lines if isinstance(line.get("round"), int) and line["round"] <= rounds]
        if [line["round"] for line in first] != list(range(1, rounds + 1)):
            why = f"does not hold the metrics of rounds 1 to {rounds}; restore it, or start a new run"
            raise RunError(why, location=str(self._metrics))
        if first != lines:
            self._write_metrics(first)
        return first


class RunState:
    """What a run continues from: its checkpoint, and its secrets until it is over."""

    def __init__(self, path: Path) -> None:
        self._result, self._key = path / "result.json", path / "private" / "secrets.key"
        self.checkpoint_file = path / "private" / "checkpoint.bin"
        self.parts = Parts(path / "private" / "parts")
        """What silos' sessions keep apart from the checkpoint."""

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        replace_file(self.checkpoint_file, seal(_MAGIC, encode(checkpoint)))

    def load_checkpoint(self) -> Checkpoint | None:
        """The last checkpoint, None if there is none yet; a damaged one is an error, never a fresh start."""
        file = self.checkpoint_file
        with report_disk_errors(file):
            if not file.exists():
                return None
            body = unseal(_MAGIC, file.read_bytes())
        if body is None:
            why = "the checkpoint is damaged (its checksum does not fit); restore it from a backup, or start a new run"
            raise RunError(why, location=str(file))
        try:
            return msgspec.msgpack.decode(body, type=Checkpoint)
        except msgspec.DecodeError as error:
            raise RunError(f"the checkpoint is of another version: {error}", location=str(file)) from error

    def secrets(self, experiment: Experiment) -> Secrets:
        """The run's secrets: from the seed and marked simulated, or a key from the OS that is stored until the end."""
        if experiment.run.secrets == "simulated":
            return Secrets.simulated_from_seed(experiment.run.seed)
        if not self._key.exists():
            if self._result.is_file():
                return Secrets.from_os()  # for show: a finished run releases nothing more
            if self.checkpoint_file.exists():
                raise RunError("the key of the run's secrets is gone; start a new run", location=str(self._key))
            replace_file(self._key, os.urandom(32))
        with report_disk_errors(self._key):
            return Secrets.from_key(self._key.read_bytes())

    def forget_secrets(self) -> None:
        """Remove the key: nobody can compute the noise of a finished run any more."""
        self._key.unlink(missing_ok=True)
        self.parts.remove()
