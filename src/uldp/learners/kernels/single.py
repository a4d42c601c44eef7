"""A linear model with one output (logistic or linear regression), trained by SGD: weights stay in one short row.

The general way through a program costs some hundred nanoseconds for a step of a few records; this one a tenth. It is
taken for users whose records fit into one tile.
"""

from __future__ import annotations

from uldp.learners.kernels import layout as at
from uldp.learners.kernels.maths import logistic
from uldp.learners.kernels.objectives import LOGISTIC
from uldp.learners.kernels.randomness import order_records
from uldp.native.jit import inline, kernel, stay_apart
from uldp.native.simd import LANES, first_lane, fma, load, padded_length, splat, spread_like, store, total


@inline
def residual(ws, head, x, w, bias, n, label):
    """The loss' derivative at w x + bias: logistic(score) - y, or 2 (score - y)."""
    sums = spread_like(ws, 0.0)
    for i in range(0, n, LANES):
        sums = fma(load(ws, x + i), load(ws, w + i), sums)
    score = splat(total(sums) + bias)
    if head[at.LOSS] == LOGISTIC:
        return first_lane(logistic(score) - splat(label))
    return first_lane((score - splat(label)) + (score - splat(label)))


@kernel
def step(ws, head, w, g, bias, n, order, m, rate, keep):
    """One step on records order[:m] of the tile; returns the new bias (0 without one)."""
    stay_apart()
    for i in range(0, n, LANES):
        store(ws, g + i, spread_like(ws, 0.0))
    total_residual = ws[head[at.ZERO]]
    for k in range(m):
        x = head[at.FEATURES] + order[k] * n
        value = residual(ws, head, x, w, bias, n, ws[head[at.LABELS] + order[k]])
        total_residual += value
        for i in range(0, n, LANES):
            store(ws, g + i, fma(splat(value), load(ws, x + i), load(ws, g + i)))
    rates = splat(rate)
    for i in range(0, n, LANES):
        store(ws, w + i, fma(rates, load(ws, g + i), splat(keep) * load(ws, w + i)))
    return first_lane(fma(rates, splat(total_residual), splat(keep) * splat(bias)))


@kernel
def train_single(ws, uw, iw, head, op, settings, options, count, keys, most):
    """Q epochs on the ``count`` records that are in the tile; w <- (1 - lr decay) w - lr g with g over a batch."""
    stay_apart()
    epochs, size, n = options[0], options[1], padded_length(op[at.NX])
    order, words = iw[head[at.INTEGERS] :], uw[2 * head[at.TILE] :]
    w, g = op[at.TURNED], op[at.TURNED] + n
    for i in range(n):
        ws[w + i] = ws[op[at.W] + i * op[at.ROW]] if i < op[at.NX] else ws[head[at.ZERO]]
    bias = ws[op[at.B]] if op[at.B] >= 0 else ws[head[at.ZERO]]
    keep = first_lane(spread_like(ws, 1.0 - settings[0] * settings[1]))
    for k in range(count):
        order[k] = k
    for epoch in range(epochs):
        if count > size:
            order_records(keys[1], epoch, count, words, order, words[most:], order[most:])
        for begin in range(0, count, size):
            m = min(size, count - begin)
            rate = first_lane(spread_like(ws, -settings[0] / m))
            moved = step(ws, head, w, g, bias, n, order[begin:], m, rate, keep)
            if op[at.B] >= 0:
                bias = moved
    for i in range(op[at.NX]):
        ws[op[at.W] + i * op[at.ROW]] = ws[w + i]
    if op[at.B] >= 0:
        ws[op[at.B]] = bias
