"""A new process of ``uldp bench train --case start``: prints the seconds of its imports and of the first training.

With the argument ``library``: of ``import uldp``, of what training imports besides, and of the first ``uldp.train``.

Nothing that takes time is imported above: it would not be counted.
"""

from __future__ import annotations

import importlib
import json
import sys
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


def measure_library() -> dict[str, float]:
    """Seconds of ``import uldp``, of other imports, and of the first call of ``uldp.train`` on breast-cancer."""
    seconds, last = {}, time.perf_counter()
    import uldp

    seconds["import_uldp"], last = time.perf_counter() - last, time.perf_counter()
    for module in ("torch", "numba", "pandas", "sklearn.datasets", "uldp.library.training", "uldp.runs.trained"):
        importlib.import_module(module)
    seconds["other_imports"], last = time.perf_counter() - last, time.perf_counter()
    uldp.train("breast-cancer", epsilon=3.0, progress=False)
    seconds["train"] = time.perf_counter() - last
    return seconds


if __name__ == "__main__":
    print(json.dumps(measure_library() if "library" in sys.argv else measure()))
