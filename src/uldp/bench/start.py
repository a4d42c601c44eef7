"""``uldp bench train --case start``: from a new process to the first trained model, with and without compiled kernels.

The process trains a tiny model, as ``python -m uldp.learners.kernels`` does: that compiles, or loads from disk, the
float32 kernels of every model. *Cold*: the cache folder is empty. *Warm*: the same folder again.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from uldp.bench.machine import Case, Say, run_process, silent

WARM_RUNS: Final = 3


def run_case(say: Say = silent) -> Case:
    with tempfile.TemporaryDirectory() as folder:
        say("start: cold, kernels are compiled")
        cold = start(folder)
        say("start: warm")
        warm = min((start(folder) for _ in range(WARM_RUNS)), key=lambda seconds: seconds["total"])
        say("start: the first uldp.train of a process")
        library = min((start(folder, "library") for _ in range(WARM_RUNS)), key=lambda seconds: seconds["train"])
    return {
        "name": "start",
        "kind": "start",
        "unit": "s",
        "cold": cold,
        "warm": warm,
        "library": library,
        "note": f"a new process that trains a tiny model with float32 kernels; warm is the best of {WARM_RUNS} runs",
    }


def start(folder: str, *what: str) -> dict[str, float]:
    """Seconds of one new process that keeps compiled kernels in ``folder``: in total, and by part."""
    from uldp.native.cache import FOLDER_VARIABLE

    begin = time.perf_counter()
    worker = str(Path(__file__).with_name("start_worker.py"))  # not -m: that would import uldp before it is measured
    printed = run_process([sys.executable, "-P", worker, *what], "start", {FOLDER_VARIABLE: folder})
    return {"total": time.perf_counter() - begin, **json.loads(printed)}
