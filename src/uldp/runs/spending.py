"""What this Python process has released: runs that are, or may be, about the same people are added up.

A run is charged here before the model of a round is released, whatever becomes of the run afterwards.
"""

from __future__ import annotations

import threading
from typing import Final

from uldp.runs.totals import RunGroup, SpentRun, group_runs

_LOCK: Final = threading.Lock()
_RUNS: Final[dict[tuple[str, str], SpentRun]] = {}


def charge(run: SpentRun) -> None:
    """Write down all that a run has released so far, in place of what was known of it, if that was no more."""
    with _LOCK:
        known = _RUNS.get(run.identity)
        if run.releases and (known is None or known.releases <= run.releases):
            _RUNS[run.identity] = run


def latest(run: SpentRun) -> SpentRun:
    """The run as it was last charged: it may have been resumed since."""
    with _LOCK:
        return _RUNS.get(run.identity, run)


def all_runs() -> list[SpentRun]:
    """All runs of this process that have released anything."""
    with _LOCK:
        return list(_RUNS.values())


def related_runs(run: SpentRun) -> RunGroup:
    """The runs of this process that are, or may be, about the people of ``run``, and ``run`` itself."""
    groups = group_runs([latest(run), *(one for one in all_runs() if one.identity != run.identity)])
    return next(group for group in groups if any(one.identity == run.identity for one in group.runs))
