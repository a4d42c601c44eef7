"""Small complete runs, and digests of what each came to: data, initial model, metrics and final model.

Run as a program, it prints them as JSON; ``test_machines`` does so under several instruction sets.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import pkgutil
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import numba
import numpy as np
import torch

from uldp import Experiment, prepare
from uldp.runtimes.simulation import run

SYNTHETIC = {"dataset": "synthetic", "users": 12, "silos": 3, "options": {"records": 240, "features": 7, "classes": 3}}
NUMBERS = {"dataset": "synthetic", "users": 12, "silos": 3, "options": {"records": 240, "features": 7, "classes": 0}}
CANCER = {"dataset": "breast-cancer", "users": 20, "silos": 3}
DIGITS = {"dataset": "digits", "users": 30, "silos": 2, "options": {"test_fraction": 0.7}}
NOISE = {"noise_multiplier": 2.0}
MLP = {"name": "mlp", "hidden": [9, 5], "dropout": 0.2, "norm": "layer", "activation": "gelu"}
RANGES = {"center": "auto", "radius": "auto", "groups": "auto", "delta_sizes": "auto", "ranges": "model"}
STEPS = {"rounds": 2, "local_steps": 5, "record_rate": 0.2, "batch_size": 8}

RUNS = {
    "uldp-avg-w, logistic": (CANCER, {}, {"name": "uldp-avg-w", "rounds": 2, "local_epochs": 2}, {"epsilon": 5.0}),
    "uldp-avg, mlp": (SYNTHETIC, MLP, {"name": "uldp-avg", "rounds": 2, "optimizer": "adam", "local_lr": 0.01}, NOISE),
    "uldp-avg-adjusted": (SYNTHETIC, {"name": "mlp"}, {"name": "uldp-avg-adjusted", "rounds": 2}, NOISE),
    "uldp-sgd-w, regression": (NUMBERS, {}, {"name": "uldp-sgd-w", "rounds": 3, "sample_rate": 0.5}, NOISE),
    "auto, logistic": (CANCER, {}, {"name": "auto", "rounds": 12}, {"epsilon": 5.0}),
    "auto, linear": (NUMBERS, {}, {"name": "auto", "rounds": 12}, NOISE),
    "uldp-naive": (SYNTHETIC, {}, {"name": "uldp-naive", "rounds": 2, "local_epochs": 2}, NOISE),
    "uldp-group, cnn": (DIGITS, {"name": "cnn"}, {"name": "uldp-group-2", **STEPS}, NOISE),
    "local-sub-dp": (SYNTHETIC, {"name": "mlp"}, {"name": "local-sub-dp", **STEPS}, NOISE),
    "central-sub-dp": (SYNTHETIC, {"name": "creditcard"}, {"name": "central-sub-dp", "rounds": 2}, NOISE),
    "srr-fl": (CANCER, {}, {"name": "srr-fl", "rounds": 2, "local_epochs": 1}, {}),
    "srr-fl, automatic": (DIGITS, {"name": "cnn"}, {"name": "srr-fl", "rounds": 2, "local_epochs": 1, **RANGES}, {}),
    "ldp-fedavg, hybrid": (CANCER, {}, {"name": "ldp-fedavg", "mechanism": "hybrid", "rounds": 2}, {}),
    "fedavg": (SYNTHETIC, {"name": "creditcard"}, {"name": "fedavg", "rounds": 2, "local_epochs": 2}, {}),
}

FUNCTIONS = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "pow", "power", "float_power", "tanh"),
    *("sin", "cos", "tan", "sinh", "cosh", "hypot", "sigmoid", "softmax", "logcumsumexp"),
    *("cross_entropy", "binary_cross_entropy_with_logits", "sum", "mean", "std", "var", "dot", "matmul", "einsum"),
)
PACKAGES = (
    *("data", "data.sets", "learners", "mechanisms", "methods", "aggregation", "privacy", "privacy.releases"),
    "sessions",
)


def digest(*parts: np.ndarray | str) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(part.encode() if isinstance(part, str) else np.ascontiguousarray(part).tobytes())
    return found.hexdigest()[:16]


def stages(name: str) -> dict[str, str]:
    """What one run came to, stage by stage: the first that differs is where machines part."""
    data, model, method, privacy = RUNS[name]
    prepared = prepare(Experiment.from_tree({"data": data, "model": model, "method": method, "privacy": privacy}))
    federation = prepared.federation
    parts = [*federation.silos, federation.test]
    result = run(prepared)
    return {
        "features": digest(*(part.features for part in parts)),
        "labels": digest(*(part.labels for part in parts)),
        "users": digest(*(silo.users for silo in federation.silos)),
        "initial model": digest(prepared.learner.initial(prepared.streams.child("model"))),
        "noise multiplier": repr(prepared.plan.method.noise_multiplier),
        "model": digest(result.model),
        "metrics": digest(json.dumps([dict(report.metrics) for report in result.reports])),
    }


class RoundsOtherwise:
    """A library whose FUNCTIONS are off by 2^-41, more than any is on any machine: one bit would often go unseen."""

    def __init__(self, library: ModuleType) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._library, name)
        return partial(moved, found) if name in FUNCTIONS else found


def moved(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    found = function(*args, **kwargs)
    whole = isinstance(found, int) or (isinstance(found, np.ndarray | np.generic) and found.dtype.kind in "iu")
    return found if whole else found * (1 + 2.0**-41)


def round_otherwise() -> None:
    """Give such libraries to all that takes part in a run; kernels are compiled and call none."""
    for package in PACKAGES:
        found = importlib.import_module(f"uldp.{package}")
        for inner in pkgutil.iter_modules(getattr(found, "__path__", []), f"uldp.{package}."):
            importlib.import_module(inner.name)
    for name, module in list(sys.modules.items()):
        if name.startswith("uldp.") and not name.startswith("uldp.learners.kernels"):
            for alias in ("np", "math", "torch", "functional"):
                if isinstance(getattr(module, alias, None), ModuleType):
                    setattr(module, alias, RoundsOtherwise(getattr(module, alias)))


def main(arguments: list[str]) -> None:
    if arguments == ["--rounds-otherwise"]:
        round_otherwise()
    print(
        json.dumps(
            {
                "runs": {name: stages(name) for name in RUNS},
                "numpy": np.show_config(mode="dicts")["SIMD Extensions"].get("found", []),
                "torch": torch.backends.cpu.get_cpu_capability(),
                "numba": numba.config.CPU_NAME,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1:])
