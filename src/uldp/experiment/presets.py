"""Settings that work, for each built-in data set and method, so that a name is enough to start."""

from __future__ import annotations

from typing import Any, Final

from uldp.data.builtin import dataset as find_dataset
from uldp.experiment.sections import Tree
from uldp.methods.registry import lookup

_TRAINING: Final[dict[str, dict[str, Any]]] = {
    "FedAvg": {"rounds": 20, "local_epochs": 5, "local_lr": 0.1},
    "UldpAvg": {"rounds": 20, "local_epochs": 10, "local_lr": 0.1, "clip": 0.5, "global_lr": 5.0},
    "UldpSgd": {"rounds": 20, "clip": 0.5, "global_lr": 5.0},
}


def preset(dataset: str, method: str) -> Tree:
    """An experiment for this data set and method."""
    find_dataset(dataset)
    training = _TRAINING.get(lookup(method).method.__name__, {})
    return {
        "data": {"dataset": dataset},
        "method": {"name": method, **training},
        "privacy": {"delta": 1e-5, "noise_multiplier": 5.0},
    }
