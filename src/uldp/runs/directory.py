"""A run is a directory. What may be shown lies at its top; what must not lies in ``private``.

::

    experiment.json     all settings, and the folder that relative paths start from
    versions.json       package versions
    ledger.jsonl        one line per release, written before the model changes
    metrics.jsonl       one line per round
    statement.json      for whom which epsilon holds; statement.txt for people
    result.json         the JSON document of ``uldp run``
    model.npz           the final parameters; schema.json: how a table becomes features
    private/            for the owner only: checkpoint, transcripts, how long each round took (one user with many
                        records is visible in times, so no file above holds any), keyed digests of who took part and,
                        with secrets from the OS, their key until the run is over

Files are replaced in one step, so a crash leaves the old one or the new one, never half of one. ``experiment.json`` is
the last file of a new directory: one without it was cut short while it was made, and may be made again.
"""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from uldp.encoding import encode
from uldp.errors import ConfigError, DataError, ModelError, RunError, first_line
from uldp.experiment.config import Experiment, without_moved_keys
from uldp.privacy.ledger import Entry
from uldp.rng import Secrets
from uldp.runs.files import append_line, locked, read_lines, replace_file, reported, seal, unsealed
from uldp.trees import json_tree
from uldp.vectors import Vector

CARRIER: Final = "flower"
"""The folder in ``private`` of what carries messages between machines."""

_MAGIC = b"uldp-checkpoint-1\n"
_READ_ONLY: Final = (errno.EROFS, errno.EACCES, errno.EPERM)


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


class RunDirectory:
    """Reads and writes the files of one run."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._held = False
        self._new: tuple[Path, ...] = ()
        """The folders that were made for this run, innermost first."""

    @classmethod
    def create(cls, path: Path | str, experiment: Experiment) -> RunDirectory:
        """A new directory; one that exists and is not empty is refused."""
        cls.check_free(path)
        run = cls(path)
        run.make()
        with reported(run.path):
            run._private.mkdir(exist_ok=True)
            run._private.chmod(0o700)
        run.write_json("versions.json", versions())
        about = {"name": experiment.name, "base": str(experiment.base.resolve())}
        run.write_json("experiment.json", {**about, **experiment.to_tree()})
        return run

    @staticmethod
    def check_free(path: Path | str) -> None:
        """Refuse a directory that exists and is not empty, but for what a creation that was cut short leaves."""
        path = Path(path)
        with reported(path):
            taken = path.exists() and (not path.is_dir() or not all(map(_left_behind, path.iterdir())))
        if taken:
            raise RunError(
                "exists already; choose another directory, or continue it with `uldp resume`",
                place=str(path),
                value=str(path),
            )

    @staticmethod
    def next_free(parent: Path, name: str) -> Path:
        """The first of ``name-1``, ``name-2``, ... that does not exist."""
        number = 1
        with reported(parent):
            while (parent / f"{name}-{number}").exists():
                number += 1
        return parent / f"{name}-{number}"

    @classmethod
    def open(cls, path: Path | str) -> RunDirectory:
        run = cls(path)
        if not run.begun:
            raise RunError("is not a run directory: it has no experiment.json", place=str(path), value=str(path))
        return run

    @property
    def _private(self) -> Path:
        return self.path / "private"

    @property
    def checkpoint_file(self) -> Path:
        return self._private / "checkpoint.bin"

    @property
    def people_file(self) -> Path:
        """Keyed digests of whose records the run uses, see :mod:`uldp.runs.people`."""
        return self._private / "people.bin"

    def make(self) -> None:
        """The directory itself, if it is not there yet."""
        with reported(self.path):
            new = tuple(folder for folder in (self.path, *self.path.parents) if not folder.exists())
            self.path.mkdir(parents=True, exist_ok=True)
            self._new = new

    @contextmanager
    def discarded_unless_begun(self) -> Iterator[None]:
        """A directory that was made for this run goes again if the run fails before its first checkpoint.

        Or, if it would fail again, before it has released anything: what was asked for cannot be done here.
        """
        try:
            yield
        except BaseException as error:
            hopeless = isinstance(error, ConfigError | DataError | ModelError | MemoryError)
            last = self.path / "ledger.jsonl" if hopeless else self.checkpoint_file
            if self._new and not last.exists():
                shutil.rmtree(self.path, ignore_errors=True)
                for folder in self._new[1:]:
                    with suppress(OSError):  # somebody put something there
                        folder.rmdir()
            raise

    def has(self, name: str) -> bool:
        """Whether there is a file of this name."""
        with reported(self.path):
            return (self.path / name).is_file()

    @property
    def begun(self) -> bool:
        """Whether the directory was made to the end."""
        return self.has("experiment.json")

    @property
    def served(self) -> bool:
        """Whether its silos are elsewhere: then ``private`` has a folder of what carries messages to them."""
        return (self.path / "private" / CARRIER).is_dir()

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end and said so."""
        return self.has("result.json")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from working on this run at the same time. Who has it locked may lock it again."""
        if self._held:
            yield
            return
        with self._lock():
            self._held = True
            try:
                yield
            finally:
                self._held = False

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with ExitStack() as held:
            try:
                taken = "another process is working on this run"
                held.enter_context(locked(self._private / "lock", taken, str(self.path), self.path))
            except RunError as error:
                # A finished run is only read, also from a disk that cannot be written.
                unwritable = isinstance(error.__cause__, OSError) and error.__cause__.errno in _READ_ONLY
                if not (unwritable and self.finished):
                    raise
            yield

    def experiment(self) -> Experiment:
        """The experiment that this run belongs to."""
        tree = self.read_json("experiment.json")
        name, base = tree.pop("name", ""), tree.pop("base", ".")
        if not isinstance(name, str) or not isinstance(base, str):
            raise RunError("is damaged: name and base are text", place=str(self.path / "experiment.json"))
        return Experiment.from_tree(without_moved_keys(tree), base, name)

    def secrets(self, experiment: Experiment) -> Secrets:
        """The run's secrets: from the seed and marked simulated, or a key from the OS that is kept until the end."""
        if experiment.run.secrets == "simulated":
            return Secrets.simulated_from_seed(experiment.run.seed)
        key = self._private / "secrets.key"
        if not key.exists():
            if self.finished:
                return Secrets.from_os()  # for show: a finished run releases nothing more
            if self.checkpoint_file.exists():
                raise RunError("the key of the run's secrets is gone; start a new run", place=str(key))
            replace_file(key, os.urandom(32))
        with reported(key):
            return Secrets.from_key(key.read_bytes())

    def forget_secrets(self) -> None:
        """Remove the key: nobody can compute the noise of a finished run any more."""
        (self._private / "secrets.key").unlink(missing_ok=True)

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        replace_file(self.checkpoint_file, seal(_MAGIC, encode(checkpoint)))

    def load_checkpoint(self) -> Checkpoint | None:
        """The last checkpoint, None if there is none yet; a damaged one is an error, never a fresh start."""
        file = self.checkpoint_file
        with reported(file):
            if not file.exists():
                return None
            body = unsealed(_MAGIC, file.read_bytes())
        if body is None:
            raise RunError(
                "the checkpoint is damaged (its checksum does not fit); restore it from a backup, or start a new run",
                place=str(file),
            )
        try:
            return msgspec.msgpack.decode(body, type=Checkpoint)
        except msgspec.DecodeError as error:
            raise RunError(f"the checkpoint is of another version: {error}", place=str(file)) from error

    def append_ledger(self, entry: Entry) -> None:
        """One more release, safely on disk before this returns."""
        append_line(self.path / "ledger.jsonl", entry.to_json())

    def ledger_entries(self) -> tuple[Entry, ...]:
        return tuple(Entry.from_json(line) for line in read_lines(self.path / "ledger.jsonl"))

    def append_time(self, round_: int, seconds: float) -> None:
        """How long a round took: for the owner only, because one user with many records is visible in it."""
        append_line(self._private / "times.jsonl", {"round": round_, "seconds": round(seconds, 6)}, mode=0o600)

    def times(self) -> dict[int, float]:
        """Seconds of the rounds, as far as they are known."""
        file = self._private / "times.jsonl"
        try:
            return {int(line["round"]): float(line["seconds"]) for line in read_lines(file)}
        except (KeyError, TypeError, ValueError) as error:
            raise RunError("is damaged; delete it, the times are not needed", place=str(file)) from error

    def append_metrics(self, line: dict[str, Any]) -> None:
        append_line(self.path / "metrics.jsonl", line)

    def amend_metrics(self, line: dict[str, Any]) -> None:
        """Write the last round's line again."""
        text = "".join(json.dumps(one) + "\n" for one in [*self.metrics()[:-1], line])
        replace_file(self.path / "metrics.jsonl", text.encode(), mode=0o644)

    def metrics(self) -> list[dict[str, Any]]:
        return list(read_lines(self.path / "metrics.jsonl"))

    def keep_metrics(self, rounds: int) -> list[dict[str, Any]]:
        """The metric lines of rounds 1 to ``rounds``. Later ones are dropped: they will be written again."""
        lines = self.metrics()
        kept = [line for line in lines if isinstance(line.get("round"), int) and line["round"] <= rounds]
        if [line["round"] for line in kept] != list(range(1, rounds + 1)):
            raise RunError(
                f"does not hold the metrics of rounds 1 to {rounds}; restore it, or start a new run",
                place=str(self.path / "metrics.jsonl"),
            )
        if kept != lines:
            text = "".join(json.dumps(line) + "\n" for line in kept)
            replace_file(self.path / "metrics.jsonl", text.encode(), mode=0o644)
        return kept

    def save_model(self, x: Vector, schema: dict[str, Any] | None) -> None:
        """The trained parameters, with what is needed to apply them to a table. What is there already stays."""
        if self.finished and self._holds(x, schema):
            return
        archive = io.BytesIO()
        np.savez(archive, x=x)
        replace_file(self.path / "model.npz", archive.getvalue(), mode=0o644)
        if schema is not None:
            self.write_json("schema.json", schema)

    def _holds(self, x: Vector, schema: dict[str, Any] | None) -> bool:
        """Whether this model lies there already."""
        try:
            same = np.array_equal(self.load_model(), x)
            return same and (schema is None or self.read_json("schema.json") == json.loads(json.dumps(schema)))
        except RunError:
            return False

    def load_model(self) -> Vector:
        file = self.path / "model.npz"
        if not file.exists():
            raise RunError("has no trained model yet; finish it with `uldp resume`", place=str(self.path))
        try:
            with np.load(file) as arrays:
                return np.asarray(arrays["x"], dtype=np.float64)
        except Exception as error:  # whatever a damaged archive makes of the library
            raise RunError(f"cannot be read ({first_line(error)})", place=str(file)) from error

    def write_json(self, name: str, tree: Any) -> None:
        replace_file(self.path / name, (json.dumps(tree, indent=2) + "\n").encode(), mode=0o644)

    def write_text(self, name: str, text: str) -> None:
        replace_file(self.path / name, text.encode(), mode=0o644)

    def read_json(self, name: str) -> dict[str, Any]:
        file = self.path / name
        try:
            tree = json_tree(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise RunError(f"cannot be read: {error.strerror}", place=str(file)) from error
        except ValueError as error:
            raise RunError(f"is damaged: {error}", place=str(file)) from error
        if not isinstance(tree, dict):
            raise RunError("is damaged: it holds no settings", place=str(file))
        return tree

    def append_private(self, name: str, tree: dict[str, Any]) -> None:
        """One more line of a file that is for the owner only."""
        file = self._private / name
        with reported(file):
            number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(number, "ab") as out:
                out.write((json.dumps(tree) + "\n").encode())


def _left_behind(entry: Path) -> bool:
    """Whether this is what a process leaves that is killed while it makes a directory."""
    if entry.name == "private":
        return entry.is_dir() and not any(entry.iterdir())
    return entry.name == "versions.json" or (entry.name.startswith(".") and entry.name.endswith(".partial"))


def versions() -> dict[str, str]:
    """The versions that a result depends on."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for name in ("uldp", "torch", "numpy", "scipy", "cryptography", "msgspec"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found
