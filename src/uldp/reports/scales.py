"""Axes: where numbers lie on a chart, and which of them are written beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Numbers from ``low`` to ``high`` on pixels from ``start`` to ``end``, linear or logarithmic."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of ``value``; what lies outside is moved to the edge.

        >>> Scale(0, 10, 100, 200)(5), Scale(1, 100, 0, 100, log=True)(10)
        (150.0, 50.0)
        """
        value = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 2)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that cover ``low`` to ``high``: about ``count`` of them.

    >>> ticks(0.0, 3.999), ticks(0.71, 0.79), ticks(5.0, 5.0)
    ([0.0, 1.0, 2.0, 3.0, 4.0], [0.7, 0.72, 0.74, 0.76, 0.78, 0.8], [4.5, 5.0, 5.5])
    """
    if not high > low:
        margin = 0.1 * abs(low) or 0.5
        low, high, count = low - margin, high + margin, 3
    rough = (high - low) / max(1, count - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.75), 10 * power)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5 and their decades around ``low`` to ``high``; decades only where these are many.

    >>> log_ticks(0.8, 6.0), log_ticks(1.0, 3000.0)
    ([0.5, 1.0, 2.0, 5.0, 10.0], [1.0, 10.0, 100.0, 1000.0, 10000.0])
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors: Sequence[int] = (1, 2, 5) if len(decades) <= 3 else (1,)
    all_ticks = sorted(round(factor * 10.0**decade, 12) for decade in decades for factor in factors)
    first = max((index for index, tick in enumerate(all_ticks) if tick <= low), default=0)
    last = next((index for index, tick in enumerate(all_ticks) if tick >= high), len(all_ticks) - 1)
    return all_ticks[first : max(last, first + 1) + 1]
