"""Masks modulo 2^64: what one silo of a pair adds, the other takes away."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from uldp.native.sources import Sources
from uldp.rng import SecretStream
from uldp.vectors import Residues

BLOCK: Final = 1 << 15
"""Words made at a time: they are added while they are still in the processor's cache."""
MANY_KEYS: Final = 16
LONG: Final = 1 << 13
"""From so many words on OpenSSL's keystreams are as fast as the kernel's, whose keys cost nothing."""

_SOURCES: Final = Sources("masks", [Path(__file__).with_name("mask_kernels.py")])


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


def add_masks_of(residues: Residues, keys: Sequence[bytes], negative: Sequence[bool]) -> None:
    """Add the keystreams of all these keys to ``residues`` modulo 2^64, in place; or take away where ``negative``.

    They are those of :class:`uldp.rng.SecretStream`. Many keys and few words go to a kernel
    (``docs/decisions/0020``); the result is the same.

    >>> zeros = np.zeros(2, dtype=np.uint64)
    >>> add_masks_of(zeros, [bytes(32), bytes(32)], [False, True])
    >>> zeros.tolist()
    [0, 0]
    """
    if len(keys) < MANY_KEYS or len(residues) >= LONG or (kernel := compiled()) is None:
        for key, minus in zip(keys, negative, strict=True):
            add_masks(residues, SecretStream(key, simulated=False), negative=minus)
        return
    words = np.frombuffer(b"".join(keys), dtype="<u4").astype(np.uint32)
    kernel(words, np.array(negative, dtype=np.bool_), residues)


@functools.cache
def compiled() -> Any:
    """The kernel; None where numba is told not to compile."""
    from numba.core import config

    if config.DISABLE_JIT:
        return None
    from uldp.crypto import mask_kernels
    from uldp.native.cache import keep_on_disk

    kernel = keep_on_disk(mask_kernels.add_keystreams, _SOURCES)
    state = mask_kernels.initial_state()

    def add(keys: Any, negative: Any, residues: Residues) -> None:
        own = state.copy()  # threads may mask at the same time
        kernel(keys, negative, residues, own, np.empty_like(own))

    return add
