"""New keys for a silo between two experiments: its ledger goes on, and its audit trail says who signs from now on."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from uldp.errors import ConfigError, RunError
from uldp.runs.files import lock, private_folder, replace_file, report_disk_errors, sync_folder
from uldp.runs.trail import ROTATED, read_trail
from uldp.runtimes.flower import credentials
from uldp.runtimes.flower.credentials import IDENTITY, NODE_KEY, NODE_PUBLIC, PublicKeys
from uldp.runtimes.silo_state import TrailSigner, experiments_in, open_trail, trail_name

NEXT: Final = "next"
"""The folder of the new keys, until they are in place."""
_READY: Final = "ready"
"""In there once the trail names the new key: from then on the rotation is only finished."""
_FILES: Final = (IDENTITY, NODE_KEY, NODE_PUBLIC)


def rotate_silo_keys(silo: str, keys: Path, state: Path) -> PublicKeys:
    """Put new keys in place of a silo's old ones, which are destroyed.

    A process that was killed in between is finished by the next one.

    Args:
        silo: The silo's name.
        keys: The folder of its keys.
        state: The folder of its sessions and its ledger, which stays as it is.

    Returns:
        The new public keys.

    Raises:
        ConfigError: There are no keys, or they belong to another folder of state.
        RunError: An experiment is under way, whose other parties know the silo by its old keys.
    """
    credentials.check_tie(keys, state)
    if not (keys / NEXT / _READY).exists():
        credentials.public_keys(silo, keys)  # there must be some
    with ExitStack() as until:
        until.enter_context(lock(keys / "lock", "another process uses these keys; stop it first", str(keys)))
        if (state / "experiments").is_dir():
            until.enter_context(lock(state / "lock", "a process of this silo is running; stop it first", str(state)))
            _check_nothing_open(state)
        if not (keys / NEXT / _READY).exists():
            _prepare(silo, keys, state)
        with report_disk_errors(keys):
            for name in _FILES:
                if (keys / NEXT / name).exists():
                    os.replace(keys / NEXT / name, keys / name)
            sync_folder(keys)
            shutil.rmtree(keys / NEXT)
    return credentials.public_keys(silo, keys)


def _check_nothing_open(state: Path) -> None:
    for one in experiments_in(state):
        if not one.over and (one.secrets or one.round):
            raise RunError(
                f"experiment {one.digest[:12]} is not over, and its other parties know the silo by these keys; wait "
                f"for its end, or end it with `uldp leave {state} --experiment {one.digest[:8]}`",
                location=str(state),
            )


def _prepare(silo: str, keys: Path, state: Path) -> None:
    """New keys beside the old ones, and an entry of the trail, signed by the old key, that names the new one."""
    new = keys / NEXT
    private_folder(new)
    if not all((new / name).exists() for name in _FILES):
        credentials.make_silo_keys(silo, new)
    identity = credentials.identity_of(new).public.hex()
    signer = TrailSigner(credentials.identity_of(keys), keys)
    for rehearsal in (True, False):
        file = state / trail_name(rehearsal=rehearsal)
        entries = read_trail(file)
        if entries and entries[-1].about.get("identity") != identity:
            node = credentials.public_keys(silo, new).node
            open_trail(state, rehearsal=rehearsal, signer=signer).append(ROTATED, {"identity": identity, "node": node})
    replace_file(new / _READY, b"")


def check_rotation_finished(keys: Path) -> None:
    """Refuse keys whose rotation was cut short.

    Raises:
        ConfigError: New keys lie beside the old ones.
    """
    if (keys / NEXT).exists():
        why = "a rotation of these keys was cut short; `uldp keys rotate` finishes it"
        raise ConfigError(why, location="--keys", value=str(keys))
