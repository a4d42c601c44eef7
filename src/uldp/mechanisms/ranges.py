"""Ranges of weights, from weights that everybody knows: those of the initial model, or of a released one.

SRR-FL (CODASPY 2024, Section 4.4) gives every layer a range of its own and has it re-evaluated; by what rule, it does
not say. Ours: most tensors begin with weights drawn around 0, so the range is symmetric and some times as wide as they
spread. Tensors whose weights are all alike at first are the scales and shifts of norms; they stay near that value.

Everything here is a median, a product or a comparison: the same bits on every processor. A range that depended on a
client's own records would reveal something about them, and no mechanism would cover that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from uldp.vectors import Vector

MARGIN: Final = 2.0
"""How many times as far as the weights spread the range reaches: room for training."""
RADIUS_OF_ALIKE: Final = 0.1
"""The radius for weights that are all alike."""


@dataclass(frozen=True)
class WeightRange:
    """The range center - radius to center + radius of a tensor's weights."""

    center: float
    radius: float


def spread(weights: Vector, center: float) -> float:
    """Twice the median distance from the center: the half width of a uniform law. A few noisy weights do not move it.

    >>> spread(np.array([-0.2, -0.1, 0.1, 9.0]), 0.0)
    0.30000000000000004
    """
    return 2 * float(np.median(np.abs(weights - center))) if len(weights) else 0.0


def weight_range(weights: Vector) -> WeightRange:
    """The range for a tensor with these weights, which are public.

    >>> weight_range(np.linspace(-0.05, 0.05, 101))
    WeightRange(center=0.0, radius=0.1)
    >>> weight_range(np.ones(8))
    WeightRange(center=1.0, radius=0.1)
    """
    if len(weights) and (weights == weights[0]).all():
        return WeightRange(_two_digits(float(weights[0])), RADIUS_OF_ALIKE)
    return WeightRange(0.0, _two_digits(MARGIN * spread(weights, 0.0)) or RADIUS_OF_ALIKE)


def _two_digits(value: float) -> float:
    """Fewer digits to read; and initial weights that another processor rounds otherwise give the same range."""
    return float(f"{value:.1e}")
