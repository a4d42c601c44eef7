"""Generalized randomized response (GRR) on the grid of weights: the weight itself, or any other value alike.

Source: P. Kairouz, S. Oh, P. Viswanath, "Extremal Mechanisms for Local Differential Privacy", JMLR 17, 2016
(there: k-ary randomized response). It does not know that some values are nearer than others, so on a grid of many
values it is close to noise; it stands here as the rival that SRR-FL names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from uldp.mechanisms.grid import DiscreteMechanism


@dataclass(frozen=True, kw_only=True)
class RandomizedResponse(DiscreteMechanism):
    """A law of two groups: the value itself with e^epsilon times the mass of each other one."""

    name: ClassVar[str] = "grr"
    summary: ClassVar[str] = "generalized randomized response: the value itself, or any other of the grid alike"

    def group_sizes(self) -> tuple[int, ...]:
        return (1, self.grid.size - 1)
