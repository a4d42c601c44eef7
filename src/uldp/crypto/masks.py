"""Masks modulo 2^64: what one silo of a pair adds, the other takes away."""

from __future__ import annotations

from typing import Final

import numpy as np

from uldp.rng import SecretStream
from uldp.vectors import Residues

BLOCK: Final = 1 << 15
"""Words made at a time: they are added while they are still in the processor's cache."""


def add_masks(residues: Residues, stream: SecretStream, *, negative: bool = False) -> None:
    """Add the keystream to ``residues`` modulo 2^64, in place; or take it away."""
    block = np.empty(min(BLOCK, len(residues)), dtype=np.uint64)
    for start in range(0, len(residues), BLOCK):
        part = residues[start : start + BLOCK]
        masks = block[: len(part)]
        stream.fill(masks)
        if negative:
            np.subtract(part, masks, out=part)
        else:
            np.add(part, masks, out=part)
