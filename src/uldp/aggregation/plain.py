"""``plain``: every silo's noised sum goes to the server as it is; the server adds them up modulo 2^64.

The server sees each silo's sum, so against the server a silo has only its own share of the noise (see
``Method.seen_by_server``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from uldp.vectors import Words


@dataclass(frozen=True)
class Plain:
    """No protection beyond the noise."""

    name: ClassVar[str] = "plain"
    server_sees_each_silo: ClassVar[bool] = True

    def protect(self, words: Words, silo: int, round_: int) -> Words:
        """What leaves silo ``silo`` in round ``round_``."""
        return words

    def combine(self, protected: Iterable[Words], dimension: int) -> Words:
        """The total of all silos modulo 2^64."""
        total = np.zeros(dimension, dtype=np.uint64)
        for words in protected:
            total += words
        return total
