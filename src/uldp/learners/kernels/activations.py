"""Activations on n numbers, and their derivatives. Buffers are rounded up to eight: whole vectors are written."""

from __future__ import annotations

import math
from typing import Final

from uldp.learners.kernels.maths import exp, logistic, normal, tanh
from uldp.native.jit import kernel, stay_apart
from uldp.native.simd import LANES, fma, load, load_back, spread_like, store, where_at_most, where_greater

RELU: Final = 0
LEAKY_RELU: Final = 1
TANH: Final = 2
SIGMOID: Final = 3
SILU: Final = 4
GELU: Final = 5

_DENSITY: Final = 1.0 / math.sqrt(2.0 * math.pi)


@kernel
def activate(ws, kind, slope, x, y, n):
    """y = f(x). NaN stays NaN: what a comparison keeps is x itself."""
    stay_apart()
    zero, slopes = spread_like(ws, 0.0), spread_like(ws, slope)
    if kind == RELU:
        for i in range(0, n, LANES):
            v = load(ws, x + i)
            store(ws, y + i, where_greater(zero, v, zero, v))
    elif kind == LEAKY_RELU:
        for i in range(0, n, LANES):
            v = load(ws, x + i)
            store(ws, y + i, where_greater(v, zero, v, v * slopes))
    elif kind == TANH:
        for i in range(0, n, LANES):
            store(ws, y + i, tanh(load(ws, x + i)))
    elif kind == SIGMOID:
        for i in range(0, n, LANES):
            store(ws, y + i, logistic(load(ws, x + i)))
    elif kind == SILU:
        for i in range(0, n, LANES):
            v = load(ws, x + i)
            store(ws, y + i, v * logistic(v))
    else:
        for i in range(0, n, LANES):
            v = load(ws, x + i)
            store(ws, y + i, v * normal(v))


@kernel
def activate_backward(ws, kind, slope, x, y, g, n):
    """g <- g f'(x), from the input x and the output y."""
    stay_apart()
    zero, one, slopes = spread_like(ws, 0.0), spread_like(ws, 1.0), spread_like(ws, slope)
    if kind == RELU:
        for i in range(0, n, LANES):
            store(ws, g + i, where_at_most(load(ws, y + i), zero, zero, load_back(ws, g + i)))
    elif kind == LEAKY_RELU:
        for i in range(0, n, LANES):
            v = load_back(ws, g + i)
            store(ws, g + i, where_at_most(load(ws, x + i), zero, v * slopes, v))
    elif kind == TANH:
        for i in range(0, n, LANES):
            v = load(ws, y + i)
            store(ws, g + i, load(ws, g + i) * (one - v * v))
    elif kind == SIGMOID:
        for i in range(0, n, LANES):
            v = load(ws, y + i)
            store(ws, g + i, load(ws, g + i) * (v * (one - v)))
    elif kind == SILU:
        for i in range(0, n, LANES):
            v = load(ws, x + i)
            s = logistic(v)
            store(ws, g + i, load(ws, g + i) * (s * fma(v, one - s, one)))
    else:
        # (x Phi(x))' = Phi(x) + x phi(x), with phi the density of the normal distribution
        half, scale = spread_like(ws, -0.5), spread_like(ws, _DENSITY)
        for i in range(0, n, LANES):
            v = load(ws, x + i)
            store(ws, g + i, load(ws, g + i) * fma(v, scale * exp(v * v * half), normal(v)))
