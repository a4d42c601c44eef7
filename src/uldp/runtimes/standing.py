"""Where a run or a silo stands, in words: read from its folder, which nothing here changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from uldp.errors import ConfigError, UldpError
from uldp.privacy.sentences import finite_or_none, show_epsilon
from uldp.runs.directory import RunDirectory
from uldp.runs.files import is_locked, report_disk_errors
from uldp.runs.trail import HEAD
from uldp.runtimes.policy import OwnLedger, Policy
from uldp.runtimes.release_trail import check_trails
from uldp.runtimes.result import RoundReport
from uldp.runtimes.silo_state import StartedExperiment, experiments_in, ledger_name


@dataclass(frozen=True)
class Standing:
    """What was found: ``tree`` for programs, ``sentences`` for people; ``ok`` if nobody has to do anything."""

    tree: dict[str, Any]
    sentences: tuple[str, ...]
    ok: bool = True

    def to_json(self) -> dict[str, Any]:
        return {**self.tree, "ok": self.ok, "sentences": list(self.sentences)}


def standing_of(folder: Path, *, keys: Path | None = None, policy: Path | None = None) -> Standing:
    """Where a run directory or a silo's folder of state stands.

    Args:
        folder: Either of the two.
        keys: For a silo, the folder of its keys, which has the head of its audit trail.
        policy: For a silo, its owner's policy if it does not lie in the folder.

    Raises:
        ConfigError: The folder is neither.
        RunError: A file in it is damaged.
    """
    with report_disk_errors(folder):
        is_silo = (folder / "experiments").is_dir()
    if is_silo:
        return _silo(folder, keys, policy)
    directory = RunDirectory(folder)
    if not directory.is_started:
        raise ConfigError(
            "is neither a run directory nor a silo's folder of state", location=str(folder), value=str(folder)
        )
    return _run(directory)


def _run(directory: RunDirectory) -> Standing:
    settings = directory.read_json("experiment.json")
    lines = directory.log.metrics()
    rounds = settings.get("method", {}).get("rounds")
    last = RoundReport.from_json(lines[-1], rounds if isinstance(rounds, int) else 0) if lines else None
    running = directory.private.is_dir() and is_locked(directory.private / "lock")
    done, charged = 0 if last is None else last.round, len(directory.log.ledger_entries())
    of = f" of {rounds}" if isinstance(rounds, int) else ""
    if directory.finished:
        sentences = [f"The run is finished: {done} rounds."]
    elif running:
        sentences = [f"A process is working on the run: {done}{of} rounds are done."]
    else:
        again = "serve --resume" if directory.is_served else "resume"
        more = " and the options of before" if directory.is_served else ""
        sentences = [
            f"The run stands still after {done}{of} rounds; continue with: "
            f"uldp {again} {quote(str(directory.path))}{more}"
        ]
    epsilon = 0.0 if last is None else last.epsilon
    sentences.append(f"Spent: epsilon {show_epsilon(epsilon)}, {charged} release{'' if charged == 1 else 's'}.")
    if last is not None and last.missing:
        sentences.append(f"The last round did without {', '.join(last.missing)}.")
    trail, whole = _trail_sentence(lambda: check_trails(directory.path), directory.private / "trail.jsonl")
    state = "finished" if directory.finished else "running" if running else "stopped"
    tree = {
        "kind": "run",
        "state": state,
        "round": done,
        "rounds": rounds if isinstance(rounds, int) else None,
        "epsilon": finite_or_none(epsilon),
        "releases": charged,
        "missing": [] if last is None else list(last.missing),
        "trail": trail,
    }
    return Standing(tree, (*sentences, *filter(None, [trail])), ok=whole and state != "stopped")


def _trail_sentence(check: Callable[[], Any], file: Path) -> tuple[str, bool]:
    """What the check of the trail says; whether it is whole. Without a trail nothing."""
    if not file.exists():
        return "", True
    try:
        found = check()[0]
    except UldpError as error:
        return f"The audit trail does not hold: {error}.", False
    compared = ", and ends where its head says" if found.head_compared else ""
    return f"The audit trail is whole{compared}: {len(found.entries)} entries, head {found.head}.", True


def _silo(state: Path, keys: Path | None, policy_file: Path | None) -> Standing:
    policy = Policy.of_silo(state, policy_file)
    ledger = OwnLedger(state / ledger_name(rehearsal=False), policy)
    begun, running, spent = experiments_in(state), is_locked(state / "lock"), ledger.epsilon()
    cap = policy.max_epsilon
    room = "no cap" if cap is None else f"the owner's cap is {cap:g}"
    sentences = [
        "A process of this silo is running." if running else "No process of this silo is running.",
        f"Spent: epsilon {show_epsilon(spent)} at delta {policy.delta:g} over {_experiments(len(_charged(ledger)))}; "
        f"{room}.",
        *(_about(one, state) for one in begun),
    ]
    heads = state.parent if keys is None and (state.parent / HEAD).is_file() else keys
    trail, whole = _trail_sentence(lambda: check_trails(state, heads=heads), state / "trail.jsonl")
    tree = {
        "kind": "silo",
        "state": "running" if running else "stopped",
        "epsilon": finite_or_none(spent),
        "delta": policy.delta,
        "max_epsilon": cap,
        "experiments": [
            {"experiment": one.digest, "round": one.round, "over": one.over, "secrets": one.secrets} for one in begun
        ],
        "trail": trail,
    }
    readable = all(one.round is not None for one in begun)
    return Standing(tree, (*sentences, *filter(None, [trail])), ok=whole and readable and math.isfinite(spent))


def _charged(ledger: OwnLedger) -> set[str]:
    return {charge.experiment for charge in ledger.charges}


def _experiments(number: int) -> str:
    return f"{number} experiment{'' if number == 1 else 's'}"


def _about(one: StartedExperiment, state: Path) -> str:
    name = f"Experiment {one.digest[:12]}"
    if one.round is None:
        return f"{name}: its session cannot be read; it does not respond in this experiment any more."
    stands = f"round {one.round} was the last" if one.round else "no round yet"
    if one.over:
        return f"{name}: over, {stands}."
    end = f"`uldp leave {quote(str(state))} --experiment {one.digest[:8]}` ends it"
    return f"{name}: not over, {stands}; the command of before (`uldp join ...`) continues it, {end}."
