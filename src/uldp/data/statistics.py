"""Scaling by statistics of the data: opt-in, and without a guarantee."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from uldp.data.findings import Matrix
from uldp.elementary import mean
from uldp.errors import ConfigError


@dataclass(frozen=True)
class Statistics:
    """Mean and deviation of each numeric feature: opt-in standardisation, with which user-level DP does not hold."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @classmethod
    def of(cls, features: npt.NDArray[np.floating[Any]], positions: Sequence[int]) -> Statistics:
        """Of the features at ``positions``; no rows change nothing, a constant feature is only centred."""
        if not len(features):
            return cls((0.0,) * len(positions), (1.0,) * len(positions))
        columns = [features[:, position].astype(np.float64) for position in positions]
        means = [mean(column) for column in columns]
        offsets = [column - middle for column, middle in zip(columns, means, strict=True)]
        return cls(tuple(means), tuple(math.sqrt(mean(offset * offset)) or 1.0 for offset in offsets))

    def apply(self, features: npt.NDArray[np.floating[Any]], positions: Sequence[int]) -> Matrix:
        """The features with those at ``positions`` standardised."""
        changed = features.astype(np.float64)
        changed[:, list(positions)] = (changed[:, list(positions)] - self.mean) / self.deviation
        return changed

    @classmethod
    def from_dict(cls, tree: Any, location: str) -> Statistics:
        try:
            mean, deviation = (tuple(float(value) for value in tree[key]) for key in ("mean", "deviation"))
        except (KeyError, TypeError, ValueError):
            raise ConfigError("two lists of numbers, mean and deviation", location=location, value=tree) from None
        return cls(mean, deviation)

    def to_dict(self) -> dict[str, Any]:
        return {"mean": list(self.mean), "deviation": list(self.deviation)}
