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
from uldp.errors import ConfigError, did_you_mean, shown
from uldp.plugins import named_object
from uldp.rng import Streams

NO_OPTIONS: Final[Mapping[str, Any]] = MappingProxyType({})

_ALL: Final[tuple[Dataset, ...]] = (
    breast_cancer.DATASET,
    digits.DATASET,
    synthetic.DATASET,
    heart_disease.DATASET,
    tcga_brca.DATASET,
    creditcard.DATASET,
    mnist.DATASET,
    cifar10.DATASET,
    medical_mnist.DATASET,
)


def datasets() -> Mapping[str, Dataset]:
    """All data sets by name.

    >>> [name for name, dataset in datasets().items() if dataset.files is None]
    ['breast-cancer', 'digits', 'synthetic']
    >>> [name for name, dataset in datasets().items() if dataset.files is not None]
    ['heart-disease', 'tcga-brca', 'creditcard', 'mnist', 'cifar10', 'medical-mnist']
    """
    return MappingProxyType({dataset.info.name: dataset for dataset in _ALL})


def dataset(name: str) -> Dataset:
    """The data set of this name: one of ours, or ``package.module:DATASET`` for anyone's."""
    known = datasets()
    if name not in known and ":" in name:
        found = named_object(name, "data.dataset")
        if not isinstance(found, Dataset):
            raise ConfigError(f"{name!r} is no Dataset (uldp.data.sets.base)", location="data.dataset", value=name)
        return found
    if name not in known:
        raise ConfigError(
            f"unknown data set {name!r}. Known: {', '.join(known)}{did_you_mean(name, known)}",
            location="data.dataset",
            value=name,
        )
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
    for key, value in options.items():
        _check_option(chosen, key, value)
    info = chosen.info
    users = info.users if users is None else users
    silos = info.silos if silos is None else silos
    check_size(users, silos)
    return chosen.load(
        users,
        silos,
        info.allocation if allocation is None else allocation,
        streams.child("data"),
        {**chosen.options, **options},
        data_dir,
    )


def _check_option(chosen: Dataset, key: str, value: Any) -> None:
    known, location = chosen.options, f"data.options.{key}"
    if key not in known:
        raise ConfigError(
            f"unknown key {key!r} for {chosen.info.name}. Known keys: {', '.join(sorted(known))}"
            + did_you_mean(key, known),
            location="data.options",
            value=key,
        )
    if isinstance(known[key], bool):
        if not isinstance(value, bool):
            raise ConfigError(f"true or false, not {shown(value)}", location=location, value=value)
    elif isinstance(known[key], int | float) and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ConfigError(f"a number, not {shown(value)}", location=location, value=value)
