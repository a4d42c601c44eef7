"""Sums of clipped gradients of single records, as DP-SGD needs them."""

from __future__ import annotations

from typing import Final

import numpy as np

from uldp.learners.kernels import layout as at
from uldp.learners.kernels import pooling
from uldp.learners.kernels.jit import inlined, kernel, stay_apart
from uldp.learners.kernels.operations import linear_gradient
from uldp.learners.kernels.passes import backward, forward, gather, loss_gradient
from uldp.learners.kernels.simd import LANES, fma, load, spread_like, store, total, widen

#: Squares beyond 1e30: scaled to the clip, such numbers would lose their digits in float32 and overstep it.
_LIMIT: Final = 1e60


@kernel
def squares(ws, begin, n):
    """The sum of n squares in float64; n may reach into zeros."""
    stay_apart()
    sums = widen(spread_like(ws, 0.0))
    for i in range(0, n, LANES):
        value = widen(load(ws, begin + i))
        sums = fma(value, value, sums)
    return total(sums)


@inlined
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
def clip_tile(ws, program, head, m, clip):
    """Scale the gradients of the tile's records to at most ``clip``; one that is too large to scale becomes zero.

    The gradient of a linear layer is a product of the record's input a and of the output's gradient b: its norm is
    |a| |b| (Goodfellow 2015), with |b| once more for the bias.
    """
    stay_apart()
    for r in range(m):
        own = head[at.RECORD_GRADIENTS] + r * head[at.EXPLICIT]
        square, largest = squares(ws, own, head[at.EXPLICIT]), 0.0
        for number in range(program.shape[0]):
            op = program[number]
            if op[at.KIND] == at.LINEAR:
                inputs = squares_of_row(ws, op[at.X] + r * op[at.NX], op[at.NX])
                outputs = squares_of_row(ws, op[at.GY] + r * op[at.NY], op[at.NY])
                largest = max(largest, inputs, outputs)
                square += (inputs + (1.0 if op[at.B] >= 0 else 0.0)) * outputs
        lost = not (square <= _LIMIT and largest <= _LIMIT)
        factor = 0.0 if lost else min(1.0, clip / np.sqrt(square)) if square > 0 else 1.0
        for i in range(head[at.EXPLICIT]):
            ws[own + i] = 0.0 if lost else ws[own + i] * factor
        for number in range(program.shape[0]):
            op = program[number]
            if op[at.KIND] == at.LINEAR:
                for j in range(op[at.NY]):
                    place = op[at.GY] + r * op[at.NY] + j
                    ws[place] = 0.0 if lost else ws[place] * factor
                if lost:  # so that zero times infinity does not come back
                    for i in range(op[at.NX]):
                        ws[op[at.X] + r * op[at.NX] + i] = 0.0


@kernel
def add_clipped(ws, iw, uw, program, reals, head, features, labels, records, begin, count, keys, step, clip):
    """Leave the sum of a tile's clipped gradients in the gradients."""
    stay_apart()
    for r in range(count):
        record = records[begin + r]
        gather(ws, head, features, record, r)
        ws[head[at.LABELS] + r] = labels[record]
        uw[2 * r], uw[2 * r + 1] = keys[begin + r, 0], 0
    forward(ws, program, reals, head, count, True, uw, step)
    loss_gradient(ws, head, count, 1.0)
    pooling.fill_zero(ws, head[at.RECORD_GRADIENTS], count * head[at.EXPLICIT])
    backward(ws, iw, program, reals, head, count, True, True)
    clip_tile(ws, program, head, count, clip)
    g = head[at.GRADIENTS]
    for i in range(0, head[at.EXPLICIT], LANES):
        sums = load(ws, head[at.RECORD_GRADIENTS] + i)
        for r in range(1, count):
            sums = sums + load(ws, head[at.RECORD_GRADIENTS] + r * head[at.EXPLICIT] + i)
        store(ws, g + i, sums)
    for number in range(program.shape[0]):
        op = program[number]
        if op[at.KIND] == at.LINEAR:
            linear_gradient(ws, op, head, count, g + op[at.W], g + op[at.B] if op[at.B] >= 0 else -1, True)
