"""``uldp bench train --case start``: from a new process to the first trained model, with and without compiled kernels.

The process trains a tiny model, as ``python -m uldp.learners.kernels`` does: that compiles, or loads from disk, the
float32 kernels of every model. *Cold*: the cache folder is empty. *Warm*: the same folder again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Final

from uldp.bench.machine import Case, Say
from uldp.errors import RunError

WARM_RUNS: Final = 3
FOLDER_VARIABLE: Final = "ULDP_CACHE_DIR"


def run_case(say: Say = lambda text: None) -> Case:
    with tempfile.TemporaryDirectory() as folder:
        say("start: cold, kernels are compiled")
        cold = start(folder)
        say("start: warm")
        warm = min((start(folder) for _ in range(WARM_RUNS)), key=lambda seconds: seconds["total"])
    return {
        "name": "start",
        "kind": "start",
        "unit": "s",
        "cold": cold,
        "warm": warm,
        "note": f"a new process that trains a tiny model with float32 kernels; warm is the best of {WARM_RUNS} runs",
    }


def start(folder: str) -> dict[str, float]:
    """Seconds of one new process that keeps compiled kernels in ``folder``: in total, and by part."""
    environment = {**os.environ, FOLDER_VARIABLE: folder}
    command = [sys.executable, "-m", "uldp.bench.start_worker"]
    begin = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    total = time.perf_counter() - begin
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        raise RunError(f"a new process could not train ({lines[-1]})", place="start")
    parts: dict[str, float] = json.loads(done.stdout)
    return {"total": total, **parts}
