"""Tables of numbers that come with scikit-learn, read without importing it: that would take a second and a half."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import numpy.typing as npt

from uldp.errors import DataError


def load_numbers(name: str, skip: int = 0) -> npt.NDArray[np.float64]:
    """The rows of one of its comma-separated files, without the first ``skip``."""
    spec = importlib.util.find_spec("sklearn")
    places = spec.submodule_search_locations if spec is not None else None
    path = Path(next(iter(places or [""]))) / "datasets" / "data" / name
    if not path.is_file():
        raise DataError(f"scikit-learn's file {name} is not there; install scikit-learn again", location=name)
    return np.loadtxt(path, delimiter=",", skiprows=skip)
