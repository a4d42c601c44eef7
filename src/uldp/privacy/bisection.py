"""Bisection where one end is wanted, for it holds: the root that scipy finds may lie on either side of the true one."""

from __future__ import annotations

import math
from collections.abc import Callable


def bisect(
    below: Callable[[float], bool],
    low: float,
    high: float,
    *,
    close: Callable[[float, float], bool],
    geometric: bool = False,
) -> tuple[float, float]:
    """A number that is ``below`` and one that is not, ``close`` to each other; ``geometric`` halves the ratio.

    Neither ``low`` nor ``high`` is tried.

    >>> bisect(lambda number: number * number < 2, 0.0, 2.0, close=lambda low, high: high - low < 0.01)
    (1.4140625, 1.421875)
    """
    while not close(low, high):
        middle = math.sqrt(low * high) if geometric else (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return low, high
