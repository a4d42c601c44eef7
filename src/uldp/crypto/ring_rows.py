"""Rows of numbers as the integers that are multiplied with ciphertexts: encoded, checked and weighed in one pass."""

from __future__ import annotations

import itertools
from typing import Final

import numpy as np

from uldp.crypto.ring_transforms import compiled, read_only
from uldp.native.threads import in_threads
from uldp.vectors import FixedPoint, Integers, Rows

MAX_BITS: Final = 26
"""Squares of integers up to 2^bits, and their sums, are exact in float64 as far as the limit."""
#: Numbers that are worth a thread.
_SHARE: Final = 1 << 16


def weigh_rows(encoding: FixedPoint, rows: Rows, counts: Integers, out: Integers, threads: int = 1) -> int:
    """Write trunc(row / unit) times the row's count to ``out``: what ``encode_rows`` gives, multiplied.

    Args:
        encoding: the units, and the limit that a row's integer norm is checked against.
        rows: one row of numbers for each count. One that is longer than the limit, or not finite, counts as zero.
        counts: whole numbers of at most 2^24.
        out: an array of the shape of ``rows``, all of which is written.
        threads: on how many threads rows are spread.

    Returns:
        How many rows count as zero.

    Raises:
        ValueError: if shapes do not fit, or the encoding saturates or is too fine.

    Example:
        >>> out = np.empty((2, 3), dtype=np.int64)
        >>> weigh_rows(FixedPoint(1.0, bits=4), np.array([[0.5, -0.07, 0], [2.0, 0, 0]]), np.array([3, 1]), out)
        1
        >>> out.tolist()
        [[24, -3, 0], [0, 0, 0]]
    """
    fits = out.shape == rows.shape and rows.shape[:1] == counts.shape and out.flags.c_contiguous
    if encoding.saturate or encoding.bits > MAX_BITS or not fits or out.dtype != np.int64:
        raise ValueError("rows, counts and integers do not fit together")
    scale, limit = encoding.integer_limit / encoding.limit, float(encoding.integer_limit) ** 2
    given = np.ascontiguousarray(rows, dtype=np.float64)
    kernel, parameters = compiled("weigh_rows"), rows.shape[1]

    def work(part: slice) -> int:
        result = out[part].reshape(-1)
        return int(kernel(read_only(given[part]), parameters, scale, limit, read_only(counts[part]), result))

    parts = max(1, min(threads, len(rows), rows.size // _SHARE))
    cuts = [len(rows) * part // parts for part in range(parts + 1)]
    portions = [slice(*cut) for cut in itertools.pairwise(cuts)]
    return sum(in_threads(work, portions, parts) if parts > 1 else map(work, portions))
