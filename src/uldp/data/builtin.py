"""The registry of data sets by name. A new one is a file in ``sets`` and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from uldp.data.federation import Federation, check_size
from uldp.data.sets import (
    breast_cancer,
    cifar10,
    creditcard,
    digits,
    heart_disease,
    medical_mnist,
    mnist,
    synthetic,
    tcga_brca,
)
from uldp.data.sets.base import Dataset
from uldp.errors import ConfigError, check_keys, did_you_mean, require
from uldp.plugins import named_object
from uldp.rng import Streams

NO_OPTIONS: Final[Mapping[str, Any]] = MappingProxyType({})

_SETS: Final = (
    breast_cancer,
    digits,
    synthetic,
    heart_disease,
    tcga_brca,
    creditcard,
    mnist,
    cifar10,
    medical_mnist,
)


def datasets() -> Mapping[str, Dataset]:
    """All data sets by name.

    >>> [name for name, dataset in datasets().items() if dataset.files is None]
    ['breast-cancer', 'digits', 'synthetic']
    >>> [name for name, dataset in datasets().items() if dataset.files is not None]
    ['heart-disease', 'tcga-brca', 'creditcard', 'mnist', 'cifar10', 'medical-mnist']
    """
    return {module.DATASET.info.name: module.DATASET for module in _SETS}


def dataset(name: str) -> Dataset:
    """The data set of this name: one of ours, or ``package.module:DATASET`` for anyone's."""
    known = datasets()
    if name not in known and ":" in name:
        found = named_object(name, "data.dataset")
        if not isinstance(found, Dataset):
            raise ConfigError(f"{name!r} is no Dataset (uldp.data.sets.base)", location="data.dataset", value=name)
        return found
    if name not in known:
        reason = f"unknown data set {name!r}. Known: {', '.join(known)}{did_you_mean(name, known)}"
        raise ConfigError(reason, location="data.dataset", value=name)
    return known[name]


def load_builtin(
    name: str,
    users: int | None,
    silos: int | None,
    allocation: str | None,
    streams: Streams,
    data_dir: Path | None = None,
    options: Mapping[str, Any] = NO_OPTIONS,
) -> Federation:
    """The data set as a federation; None takes the data set's default.

    ``data_dir`` is where the sets' folders lie; without it ``$ULDP_DATA`` and the user cache are searched. ``options``
    are the data set's own, ``[data.options]`` of an experiment file.

    >>> load_builtin("breast-cancer", 20, 2, "zipf", Streams.from_seed(0)).users
    20
    """
    chosen = dataset(name)
    check_keys(options, sorted(chosen.options), "data.options", chosen.info.name)
    for key, value in options.items():
        _check_option(chosen, key, value)
    info = chosen.info
    users = info.users if users is None else users
    silos = info.silos if silos is None else silos
    allocation = info.allocation if allocation is None else allocation
    check_size(users, silos)
    return chosen.load(users, silos, allocation, streams.child("data"), {**chosen.options, **options}, data_dir)


def _check_option(chosen: Dataset, key: str, value: Any) -> None:
    default = chosen.options[key]
    if isinstance(default, bool):
        require(isinstance(value, bool), f"data.options.{key}", value, "true or false")
    elif isinstance(default, int | float):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        require(number, f"data.options.{key}", value, "a number")
