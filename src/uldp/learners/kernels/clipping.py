"""Sums of clipped gradients of single records, as DP-SGD needs them.

Norms, factors and sums are float64, and products of two float32 are exact there: what a record adds has the norm that
was computed for it, but for some 1e-16 of it. Sums in float32 would not do: without one record all others are added in
another order, and roundings of all of them would move the sum, not only that record.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from uldp.learners.kernels import layout as at
from uldp.learners.kernels.passes import backward, forward, gather, loss_gradient
from uldp.learners.kernels.pooling import fill_zero
from uldp.learners.kernels.products import multiply
from uldp.native.jit import inline, kernel, stay_apart
from uldp.native.simd import LANES, fma, load, splat, spread_like, store, total, widen

#: Larger sums of squares are left out: float32 ends at 3e38. In float64, what is lost to underflow in one factor of a
#: product (1e-154) cannot be made large by the other then (1e38).
_LIMIT: Final = 1e76


@kernel
def squares(ws, begin, n):
    """The sum of n squares in float64; n may reach into zeros."""
    stay_apart()
    sums = widen(spread_like(ws, 0.0))
    for i in range(0, n, LANES):
        value = widen(load(ws, begin + i))
        sums = fma(value, value, sums)
    return total(sums)


@inline
def squares_of_row(ws, begin, n):
    """The sum of n squares in float64."""
    sums = 0.0
    whole = n // LANES * LANES
    if whole:
        sums = squares(ws, begin, whole)
    for i in range(whole, n):
        value = np.float64(ws[begin + i])
        sums += value * value
    return sums


@kernel
def clip_factor(ws, program, head, r, clip):
    """What scales the gradient of record r to at most ``clip``: 1 or less, and 0 for a gradient that has no norm.

    The gradient of a linear layer is a product of the record's input a and of the output's gradient b: its norm is
    |a| |b| (Goodfellow 2015), with |b| once more for the bias.
    """
    stay_apart()
    square = squares(ws, head[at.RECORD_GRADIENTS] + r * head[at.EXPLICIT], head[at.EXPLICIT])
    for number in range(program.shape[0]):
        op = program[number]
        if op[at.KIND] == at.LINEAR:
            inputs = squares_of_row(ws, op[at.X] + r * op[at.ROW_X], op[at.NX])
            outputs = squares_of_row(ws, op[at.GY] + r * op[at.ROW_Y], op[at.NY])
            if not (inputs <= _LIMIT and outputs <= _LIMIT):
                return 0.0
            square += (inputs + (1.0 if op[at.B] >= 0 else 0.0)) * outputs
    if not square <= _LIMIT:
        return 0.0
    return min(1.0, clip / np.sqrt(square)) if square > 0 else 1.0


@kernel
def add_linear(ws, fw, op, m, factors, a, b):
    """Add the tile's clipped gradients of a linear layer: A^T (factor B), and factor B for the bias.

    ``a`` and ``b`` are room for both in float64. A record with factor 0 may hold anything: it becomes zeros.
    """
    stay_apart()
    inputs, outputs, row = op[at.NX], op[at.NY], op[at.ROW]
    for r in range(m):
        factor = fw[factors + r]
        for i in range(inputs):
            fw[a + r * inputs + i] = ws[op[at.X] + r * op[at.ROW_X] + i] if factor > 0 else 0.0
        for j in range(outputs):
            value = np.float64(ws[op[at.GY] + r * op[at.ROW_Y] + j]) * factor if factor > 0 else 0.0
            fw[b + r * row + j] = value
            if op[at.B] >= 0:
                fw[op[at.B] + j] += value
    multiply(fw, a, 1, inputs, 1, 0, m, b, row, op[at.W], row, op[at.W], row, inputs, outputs)


@kernel
def add_clipped(ws, iw, uw, fw, program, reals, head, features, labels, records, begin, count, keys, step, clip):
    """Add a tile's clipped gradients to the sums, which lie in ``fw`` as the parameters do in the workspace."""
    stay_apart()
    for r in range(count):
        record = records[begin + r]
        gather(ws, head, features, record, r)
        ws[head[at.LABELS] + r] = labels[record]
        uw[2 * r], uw[2 * r + 1] = keys[begin + r, 0], 0
    forward(ws, program, reals, head, count, True, uw, step)
    loss_gradient(ws, head, count, 1.0)
    fill_zero(ws, head[at.RECORD_GRADIENTS], count * head[at.EXPLICIT])
    backward(ws, iw, program, reals, head, count, True, True, False)
    factors = head[at.PARAMETERS]
    for r in range(count):
        factor = clip_factor(ws, program, head, r, clip)
        fw[factors + r] = factor
        if factor > 0:
            own = head[at.RECORD_GRADIENTS] + r * head[at.EXPLICIT]
            for i in range(0, head[at.EXPLICIT], LANES):
                store(fw, i, fma(widen(load(ws, own + i)), splat(factor), load(fw, i)))
    for number in range(program.shape[0]):
        op = program[number]
        if op[at.KIND] == at.LINEAR:
            add_linear(ws, fw, op, count, factors, factors + head[at.TILE], head[at.CLIPPED_B])
