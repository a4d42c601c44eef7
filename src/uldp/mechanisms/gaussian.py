"""Continuous Gaussian noise from a cryptographic stream, in floating point.

For mechanisms that must add noise to real numbers step by step (DP-SGD inside a silo). Floats are not real numbers:
which doubles can come out depends on the value without noise, and who sees one exactly may learn more than the
theory says (Mironov, "On significance of the least significant bits for differential privacy", CCS 2012). Where a sum
can be made of integers, :mod:`uldp.mechanisms.discrete_gaussian` has no such gap.
"""

from __future__ import annotations

import numpy as np

from uldp.elementary import normal_pairs
from uldp.rng import SecretStream
from uldp.vectors import Vector


def sample_gaussian(scale: float, count: int, stream: SecretStream) -> Vector:
    """``count`` samples of N(0, scale^2) by Box and Muller's transform, from two 53-bit uniforms per pair."""
    pairs = (count + 1) // 2
    words = stream.words(2 * pairs) >> np.uint64(11)
    return scale * normal_pairs(words[:pairs], words[pairs:])[:count]
