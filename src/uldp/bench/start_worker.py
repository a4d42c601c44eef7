"""A new process of ``uldp bench train --case start``: prints the seconds of its imports and of the first training.

Nothing that takes time is imported above: it would not be counted.
"""

from __future__ import annotations

import importlib
import json
import time


def measure() -> dict[str, float]:
    """Seconds by part: PyTorch, numba, what else training imports, and the kernels (compiled, or loaded from disk)."""
    seconds, last = {}, time.perf_counter()
    for part, module in (("torch", "torch"), ("numba", "numba"), ("uldp", "uldp.learners.kernels.__main__")):
        importlib.import_module(module)
        seconds[part], last = time.perf_counter() - last, time.perf_counter()
    from uldp.learners.kernels.__main__ import main

    main(["float32"])
    seconds["kernels"] = time.perf_counter() - last
    return seconds


if __name__ == "__main__":
    print(json.dumps(measure()))
