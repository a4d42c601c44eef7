"""A run is a directory. What may be shown lies at its top; what must not lies in ``private``.

::

    experiment.json     all settings, and the folder that relative paths start from
    versions.json       package versions
    ledger.jsonl        one line per release, written before the model changes
    metrics.jsonl       one line per round
    statement.json      for whom which epsilon holds; statement.txt for people
    result.json         the JSON document of ``uldp run``
    description.json    of a run that described data, which then has no model: counts, histograms, means
    coefficients.json   of a run of coefficients, likewise: estimates, standard errors
    model.npz           the final parameters; schema.json: how a table becomes features; task.json: what is predicted
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
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Final

import numpy as np

from uldp._version import __version__
from uldp.errors import ConfigError, DataError, ModelError, RunError, first_line
from uldp.experiment.config import Experiment, in_current_terms
from uldp.runs.files import lock, replace_file, report_disk_errors
from uldp.runs.records import RunFiles, RunLog, RunState
from uldp.vectors import Vector

TRANSPORT: Final = "flower"
"""The folder in ``private`` of what transports messages between machines."""

_READ_ONLY: Final = (errno.EROFS, errno.EACCES, errno.EPERM)


class RunDirectory(RunFiles):
    """One run: its folder, its lock, its experiment and its model.

    ``log`` has its ledger, metrics and times, ``state`` what it continues from.
    """

    def __init__(self, path: Path | str) -> None:
        super().__init__(Path(path))
        self.log = RunLog(self.path)
        self.state = RunState(self.path)
        self.people_file = self.private / "people.bin"
        """Keyed digests of whose records the run uses, see :mod:`uldp.runs.people`."""
        self._held = False
        self._new: tuple[Path, ...] = ()
        """The folders that were made for this run, innermost first."""

    @classmethod
    def create(cls, path: Path | str, experiment: Experiment) -> RunDirectory:
        """A new directory; one that exists and is not empty is refused."""
        cls.check_free(path)
        run = cls(path)
        run.make()
        with report_disk_errors(run.path):
            run.private.mkdir(exist_ok=True)
            run.private.chmod(0o700)
        run.write_json("versions.json", versions())
        about = {"name": experiment.name, "base": str(experiment.base.resolve())}
        run.write_json("experiment.json", {**about, **experiment.to_tree()})
        return run

    @staticmethod
    def check_free(path: Path | str) -> None:
        """Refuse a directory that exists and is not empty, but for what a creation that was cut short leaves."""
        path = Path(path)
        with report_disk_errors(path):
            taken = path.exists() and (not path.is_dir() or not all(map(_is_leftover, path.iterdir())))
        if taken:
            why = "exists already; choose another directory, or continue it with `uldp resume`"
            raise RunError(why, location=str(path), value=str(path))

    @staticmethod
    def next_free(parent: Path, name: str) -> Path:
        """The first of ``name-1``, ``name-2``, ... that does not exist."""
        with report_disk_errors(parent):
            return next(path for number in count(1) if not (path := parent / f"{name}-{number}").exists())

    @classmethod
    def open(cls, path: Path | str) -> RunDirectory:
        run = cls(path)
        if not run.is_started:
            raise RunError("is not a run directory: it has no experiment.json", location=str(path), value=str(path))
        return run

    def make(self) -> None:
        """The directory itself, if it is not there yet."""
        with report_disk_errors(self.path):
            new = tuple(folder for folder in (self.path, *self.path.parents) if not folder.exists())
            self.path.mkdir(parents=True, exist_ok=True)
            self._new = new

    @contextmanager
    def discard_unless_started(self) -> Iterator[None]:
        """A directory that was made for this run goes again if the run fails before its first checkpoint.

        Or, if it would fail again, before it has released anything: what was asked for cannot be done here.
        """
        try:
            yield
        except BaseException as error:
            hopeless = isinstance(error, ConfigError | DataError | ModelError | MemoryError)
            last = self.path / "ledger.jsonl" if hopeless else self.state.checkpoint_file
            if self._new and not last.exists():
                shutil.rmtree(self.path, ignore_errors=True)
                for folder in self._new[1:]:
                    with suppress(OSError):  # somebody put something there
                        folder.rmdir()
            raise

    @property
    def is_started(self) -> bool:
        """Whether the directory was made to the end."""
        return self.has("experiment.json")

    @property
    def is_served(self) -> bool:
        """Whether its silos are elsewhere: then ``private`` has a folder of what transports messages to them."""
        return (self.private / TRANSPORT).is_dir()

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end and said so."""
        return self.has("result.json")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from working on this run at the same time. Who has it locked may lock it again."""
        if self._held:
            yield
            return
        if not self.private.is_dir():
            why = "its folder `private` is gone, and with it what a run continues from; restore it, or start a new run"
            raise RunError(why, location=str(self.path))
        with ExitStack() as held:
            try:
                taken = "another process is working on this run"
                held.enter_context(lock(self.private / "lock", taken, str(self.path), self.path))
            except RunError as error:
                # A finished run is only read, also from a disk that cannot be written.
                unwritable = isinstance(error.__cause__, OSError) and error.__cause__.errno in _READ_ONLY
                if not (unwritable and self.finished):
                    raise
            self._held = True
            held.callback(setattr, self, "_held", False)
            yield

    def experiment(self) -> Experiment:
        """The experiment that this run belongs to."""
        tree = self.read_json("experiment.json")
        name, base = tree.pop("name", ""), tree.pop("base", ".")
        if not isinstance(name, str) or not isinstance(base, str):
            raise RunError("is damaged: name and base are text", location=str(self.path / "experiment.json"))
        return Experiment.from_tree(in_current_terms(tree), base, name)

    def check_version(self) -> None:
        """Refuse to continue a run that another version of uldp has begun: it may train or account differently."""
        begun = self.read_json("versions.json").get("uldp") if self.has("versions.json") else None
        if begun != __version__:
            raise RunError(
                f"this run was begun with uldp {begun or 'of an unknown version'}, and only that version can continue "
                f"it; this is {__version__}",
                location=str(self.path),
            )

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
        if self.has("description.json"):
            why = "describes data and has no model; `uldp describe` (or uldp.describe) reads it again"
            raise RunError(why, location=str(self.path))
        if self.has("coefficients.json"):
            why = "has coefficients and no model; `uldp coefficients` (or uldp.coefficients) reads it again"
            raise RunError(why, location=str(self.path))
        if not file.exists():
            raise RunError("has no trained model yet; finish it with `uldp resume`", location=str(self.path))
        try:
            with np.load(file) as arrays:
                return np.asarray(arrays["x"], dtype=np.float64)
        except Exception as error:  # whatever a damaged archive makes of the library
            raise RunError(f"cannot be read ({first_line(error)})", location=str(file)) from error


def _is_leftover(entry: Path) -> bool:
    """Whether this is what a process leaves that is killed while it makes a directory."""
    if entry.name == "private":
        return entry.is_dir() and not any(entry.iterdir())
    return entry.name == "versions.json" or (entry.name.startswith(".") and entry.name.endswith(".partial"))


def versions() -> dict[str, str]:
    """The versions that a result depends on."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version(), "uldp": __version__}
    for name in ("torch", "numpy", "scipy", "cryptography", "msgspec"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found
