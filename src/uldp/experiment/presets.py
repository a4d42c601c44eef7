"""Settings that work, for each data set and method, so that a name is enough to start; and the published ones."""

from __future__ import annotations

from typing import Any, Final

from uldp.data.builtin import dataset as find_dataset
from uldp.errors import ConfigError
from uldp.experiment.config import AUTO
from uldp.experiment.sections import Tree
from uldp.methods.central_sub_dp import CentralSubDp
from uldp.methods.dp_sgd import DpSgd
from uldp.methods.fedavg import FedAvg
from uldp.methods.ldp_fedavg import LdpFedAvg
from uldp.methods.registry import lookup
from uldp.methods.uldp_avg import UldpAvg
from uldp.methods.uldp_naive import UldpNaive
from uldp.methods.uldp_sgd import UldpSgd

Settings = dict[type, dict[str, Any]]
EPSILON: Final = 4.0
"""What a run of ``auto`` on a built-in data set may cost, where nothing is said."""

_MODELS: Final = {"digits": "logistic", "creditcard": "creditcard", "mnist": "cnn"}

# Found on the public data sets by looking at their test sets. On private data such a search costs privacy.
_ANY: Final[Settings] = {
    FedAvg: {"rounds": 20, "local_epochs": 5, "local_lr": 0.5},
    UldpAvg: {"rounds": 20, "local_epochs": 10, "local_lr": 0.5, "clip": 1.0, "global_lr": 10.0},
    UldpSgd: {"rounds": 20, "clip": 0.3, "global_lr": 30.0},
    UldpNaive: {"rounds": 20, "local_epochs": 5, "local_lr": 0.5, "clip": 0.3, "global_lr": 1.0},
    CentralSubDp: {"rounds": 20, "clip": 0.3, "global_lr": 6.0},
    LdpFedAvg: {"rounds": 10, "local_epochs": 1, "local_lr": 0.1},
    DpSgd: {"rounds": 20, "local_steps": 50, "local_lr": 0.5, "record_rate": 0.1, "batch_size": 10.0, "clip": 1.0},
}
_OURS: Final[dict[str, Settings]] = {
    "digits": {
        LdpFedAvg: {"rounds": 10, "local_epochs": 5, "local_lr": 0.5, "radius": 0.3},
        UldpAvg: {"rounds": 20, "local_epochs": 5, "local_lr": 0.5, "clip": 0.3, "global_lr": 30.0},
        UldpSgd: {"rounds": 20, "clip": 0.3, "global_lr": 100.0},
    },
}


def _uldp_fl_settings(
    rounds: int, batch_size: int, local_lr: float, epochs: int, avg_epochs: int, rate: float
) -> Settings:
    """ULDP-FL's experiments: clip 0.1, global rate 10 (1 for what trains per silo), plain SGD inside a silo.

    The paper's DP-SGD takes batch / n_s of a silo's records, and epochs of n_s / batch steps. Here ``rate`` is public
    and the same for all silos, and is that of a silo of ordinary size.
    """
    local = {"rounds": rounds, "batch_size": batch_size, "local_lr": local_lr, "optimizer": "sgd"}
    steps = {"batch_size": float(batch_size), "record_rate": rate, "local_steps": round(epochs / rate)}
    return {
        FedAvg: {**local, "local_epochs": epochs, "global_lr": 1.0},
        UldpNaive: {**local, "local_epochs": epochs, "global_lr": 1.0, "clip": 0.1},
        UldpAvg: {**local, "local_epochs": avg_epochs, "global_lr": 10.0, "clip": 0.1},
        UldpSgd: {"rounds": rounds, "global_lr": 10.0, "clip": 0.1},
        DpSgd: {"rounds": rounds, **steps, "local_lr": local_lr, "global_lr": 1.0, "clip": 0.1},
    }


# From the scripts that the authors of ULDP-FL published: sigma 5, delta 1e-5.
_PAPER: Final[dict[str, Settings]] = {
    "creditcard": _uldp_fl_settings(rounds=100, batch_size=64, local_lr=0.01, epochs=50, avg_epochs=30, rate=0.02),
    "heart-disease": _uldp_fl_settings(rounds=50, batch_size=4, local_lr=0.001, epochs=50, avg_epochs=50, rate=0.025),
    "tcga-brca": _uldp_fl_settings(rounds=50, batch_size=8, local_lr=0.001, epochs=50, avg_epochs=50, rate=0.05),
    "mnist": _uldp_fl_settings(rounds=200, batch_size=64, local_lr=0.01, epochs=50, avg_epochs=50, rate=0.005),
}


# SRR-FL's experiments on mnist: 100 clients, the net, r, p, m, Delta. How its clients train is not published: rounds,
# epochs, rate and batch are those of docs/results.md.
_SRR_TRAINING: Final = {"rounds": 10, "local_epochs": 1, "local_lr": 0.1, "batch_size": 32}
_SRR_MECHANISM: Final = {"epsilon_weight": 5.0, "radius": 0.075, "precision": 4, "groups": 10, "delta_sizes": 20.0}
_PAPER_TREES: Final[dict[tuple[str, str], Tree]] = {
    ("mnist", "srr-fl"): {
        "data": {"silos": 100, "users": 100, "allocation": "uniform"},
        "model": {"name": "mnist-two-layer"},
        "method": {**_SRR_TRAINING, **_SRR_MECHANISM},
    }
}


def preset(dataset: str, method: str, name: str = "") -> Tree:
    """An experiment for this data set and method. A method of one's own takes its base class's settings."""
    find_dataset(dataset)
    if name not in ("", "paper"):
        raise ConfigError(f"unknown preset {name!r}. Known: paper", location="--preset", value=name)
    lineage = lookup(method).method.__mro__
    settings = _PAPER.get(dataset, {}) if name else {**_ANY, **_OURS.get(dataset, {})}
    found = next((settings[cls] for cls in lineage if cls in settings), None)
    whole = _PAPER_TREES.get((dataset, method), {}) if name else {}
    if name and found is None and not whole:
        raise ConfigError(_explain_missing(dataset, method), location="--preset", value=name)
    noise = {} if lookup(method).local else {"epsilon": EPSILON} if method == AUTO else {"noise_multiplier": 5.0}
    tree: Tree = {
        "data": {"dataset": dataset, **whole.get("data", {})},
        "method": {"name": method, **(found or {}), **whole.get("method", {})},
        "privacy": {"delta": 1e-5, **noise},
    }
    if name:  # as published: weights in the clear
        tree["aggregation"] = {"name": "masked"}
    model = whole["model"]["name"] if whole else _MODELS.get(dataset)
    return {**tree, "model": {"name": model}} if model else tree


def _explain_missing(dataset: str, method: str) -> str:
    """Why there is no preset, and where there is one."""
    sets = [name for name in _PAPER if any(cls in _PAPER[name] for cls in lookup(method).method.__mro__)]
    sets += [name for name, of in _PAPER_TREES if of == method]
    where = f"there are some for: {', '.join(sets)}" if sets else "leave --preset out for settings that work"
    return f"no published settings for {method} on {dataset}; {where}"
