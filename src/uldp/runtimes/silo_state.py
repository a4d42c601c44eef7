"""What a silo of a real federation has on its disk, for its owner only::

    lock                              one process at a time
    experiments/DIGEST/secrets.key    where its noise and keys come from; made once, removed when the experiment is over
    experiments/DIGEST/session.bin    where the session stands, with the last response
    experiments/DIGEST/parts/         encrypted weights of ``lattice`` and ``paillier``, until the experiment is over
    ledger.jsonl                      what was released in all experiments (``uldp.runtimes.policy``)
    trail.jsonl                       the signed audit trail of all that left the silo (``uldp.runs.trail``)
    trail.key                         who signs it, where the silo has no keys: on loopback only

Whoever reads the folder of an unfinished experiment can take that silo's noise off: keep it as safe as the data.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from uldp.crypto.keys import SigningKey
from uldp.errors import ConfigError, RunError
from uldp.experiment.config import Experiment
from uldp.rng import Secrets
from uldp.runs.files import (
    Parts,
    lock,
    private_folder,
    replace_file,
    report_disk_errors,
    seal,
    stored_key,
    sync_folder,
    unseal,
)
from uldp.runs.trail import HEAD, TRAIL, OnAppend, Trail
from uldp.sessions.silo import SiloSession

_MAGIC: Final = b"uldp-silo-1\n"
_SESSION: Final = "session.bin"
_KEY: Final = "secrets.key"
TRAIL_KEY: Final = "trail.key"


def _load(file: Path) -> bytes | None:
    with report_disk_errors(file):
        if not file.exists():
            return None
        saved = unseal(_MAGIC, file.read_bytes())
    if saved is None:
        why = "the silo's saved session is damaged (its checksum does not fit); start a new experiment"
        raise RunError(why, location=str(file))
    return saved


def ledger_name(*, rehearsal: bool) -> str:
    """The file of a silo's own ledger. A rehearsal has another: its noise protects nobody."""
    return "rehearsal-ledger.jsonl" if rehearsal else "ledger.jsonl"


def trail_name(*, rehearsal: bool) -> str:
    """The file of a silo's audit trail, which belongs to the ledger of the same kind."""
    return f"rehearsal-{TRAIL}" if rehearsal else TRAIL


@dataclass(frozen=True)
class TrailSigner:
    """Who signs a silo's audit trail, and the folder in which its head is kept: that of the keys, not of the state."""

    key: SigningKey
    heads: Path


def open_trail(
    state: Path, *, rehearsal: bool, signer: TrailSigner | None, on_append: OnAppend = lambda entry: None
) -> Trail:
    """The audit trail of a silo, checked against its ledger and its head; begun with its first entry.

    Without a ``signer`` the trail is signed by a key of the folder itself, and no head is kept apart.
    """
    prefix = "rehearsal-" if rehearsal else ""
    key = SigningKey(Secrets.from_key(stored_key(state / TRAIL_KEY))) if signer is None else signer.key
    head = None if signer is None else signer.heads / f"{prefix}{HEAD}"
    return Trail(
        state / trail_name(rehearsal=rehearsal), state / ledger_name(rehearsal=rehearsal), key, head, on_append
    )


@dataclass(frozen=True)
class StartedExperiment:
    """An experiment that a silo has taken part in. ``round``: the last one released, None if that cannot be read."""

    digest: str
    round: int | None
    over: bool
    secrets: bool


def experiments_in(folder: Path) -> list[StartedExperiment]:
    """All experiments of a silo's folder of state."""
    if not (folder / "experiments").is_dir():
        raise ConfigError(
            "is no silo's folder of state; give the one of `uldp join`", location=str(folder), value=str(folder)
        )
    found = []
    with report_disk_errors(folder / "experiments"):
        owns = sorted(path for path in (folder / "experiments").iterdir() if path.is_dir())
    for own in owns:
        round_: int | None = 0
        over = False
        try:
            if (saved := _load(own / _SESSION)) is not None:
                round_, over = SiloSession.last_round(saved), SiloSession.is_closed(saved)
        except RunError:  # damaged, or of another version
            round_ = None
        found.append(StartedExperiment(own.name, round_, over, secrets=(own / _KEY).exists()))
    return found


def leave_experiment(folder: Path, start: str) -> None:
    """End the experiment whose digest begins with ``start`` from the silo's side, as a Close of the server does.

    Its secrets are destroyed, and what it saved of the last round.
    """
    fit = [one.digest for one in experiments_in(folder) if one.digest.startswith(start)]
    if len(fit) != 1:
        raise ConfigError(
            f"{len(fit)} experiments of {folder} begin with {start!r}; `uldp leave {folder}` shows them",
            location="--experiment",
            value=start,
        )
    state = SiloState(folder, fit[0])
    with state.lock():
        with suppress(RunError):  # a session that cannot be read is left as it is; it is of no use without its secrets
            saved = state.load()
            if saved is not None:
                state.save(SiloSession.close_state(saved))
        state.forget_secrets()


class SiloState:
    """The files of one silo and one experiment."""

    def __init__(self, folder: Path | str, digest: str) -> None:
        self.folder = Path(folder)
        self._own = self.folder / "experiments" / digest
        self._session, self._key = self._own / _SESSION, self._own / _KEY
        self.parts = Parts(self._own / "parts")
        """What the session keeps apart: large, and the same in every round."""
        for part in (self.folder, self.folder / "experiments", self._own):
            private_folder(part)

    def lock(self) -> AbstractContextManager[None]:
        """Keep a second process with the same identity from responding too."""
        taken = "another process of this silo is running; stop it first (the folder's ledger is for all experiments)"
        return lock(self.folder / "lock", taken, str(self.folder))

    def secrets(self, experiment: Experiment, *, closed: bool) -> Secrets:
        """The silo's own secrets: from the operating system, or in a rehearsal from the seed."""
        if experiment.run.secrets == "simulated":
            return Secrets.simulated_from_seed(experiment.run.seed)
        if closed:
            return Secrets.from_os()  # for show: a closed session repeats its last response and nothing else
        if not self._key.exists() and self._session.exists():
            raise RunError("the silo's secrets for this experiment are gone; start a new one", location=str(self._key))
        return Secrets.from_key(stored_key(self._key))

    def load(self) -> bytes | None:
        """The saved session, None if there is none yet; a damaged one is an error, never a fresh start."""
        return _load(self._session)

    def save(self, session: bytes) -> None:
        """Replace the saved session; it is on disk when this returns."""
        replace_file(self._session, seal(_MAGIC, session))

    def forget_secrets(self) -> None:
        """The experiment is over: nobody can compute this silo's noise any more."""
        with report_disk_errors(self._key):
            self._key.unlink(missing_ok=True)
            self.parts.remove()
            sync_folder(self._own)
