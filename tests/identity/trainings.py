"""Small complete runs, and digests of what each came to: data, initial model, metrics and final model.

Run as a program, it prints them as JSON; ``test_machines`` does so under several instruction sets.
"""

from __future__ import annotations

import hashlib
import json

import numpy as np

from uldp import Experiment, prepare, run

SYNTHETIC = {"dataset": "synthetic", "users": 12, "silos": 3, "options": {"records": 240, "features": 7, "classes": 3}}
NUMBERS = {"dataset": "synthetic", "users": 12, "silos": 3, "options": {"records": 240, "features": 7, "classes": 0}}
CANCER = {"dataset": "breast-cancer", "users": 20, "silos": 3}
DIGITS = {"dataset": "digits", "users": 30, "silos": 2, "options": {"test_fraction": 0.7}}
NOISE = {"noise_multiplier": 2.0}
MLP = {"name": "mlp", "hidden": [9, 5], "dropout": 0.2, "norm": "layer", "activation": "gelu"}
STEPS = {"rounds": 2, "local_steps": 5, "record_rate": 0.2, "batch_size": 8}

RUNS = {
    "uldp-avg-w, logistic": (CANCER, {}, {"name": "uldp-avg-w", "rounds": 2, "local_epochs": 2}, {"epsilon": 5.0}),
    "uldp-avg, mlp": (SYNTHETIC, MLP, {"name": "uldp-avg", "rounds": 2, "optimizer": "adam", "local_lr": 0.01}, NOISE),
    "uldp-sgd-w, regression": (NUMBERS, {}, {"name": "uldp-sgd-w", "rounds": 3, "sample_rate": 0.5}, NOISE),
    "uldp-naive": (SYNTHETIC, {}, {"name": "uldp-naive", "rounds": 2, "local_epochs": 2}, NOISE),
    "uldp-group, cnn": (DIGITS, {"name": "cnn"}, {"name": "uldp-group-2", **STEPS}, NOISE),
    "local-sub-dp": (SYNTHETIC, {"name": "mlp"}, {"name": "local-sub-dp", **STEPS}, NOISE),
    "central-sub-dp": (SYNTHETIC, {"name": "creditcard"}, {"name": "central-sub-dp", "rounds": 2}, NOISE),
    "srr-fl": (CANCER, {}, {"name": "srr-fl", "rounds": 2, "local_epochs": 1}, {}),
    "ldp-fedavg, hybrid": (CANCER, {}, {"name": "ldp-fedavg", "mechanism": "hybrid", "rounds": 2}, {}),
    "default": (SYNTHETIC, {"name": "creditcard"}, {"name": "default", "rounds": 2, "local_epochs": 2}, {}),
}


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
        "metrics": digest(json.dumps([dict(report.metrics) for report in result.history])),
    }


if __name__ == "__main__":
    print(json.dumps({name: stages(name) for name in RUNS}))
