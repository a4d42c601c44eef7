"""A tile of records through all operations of a program, forward and backward."""

from __future__ import annotations

from uldp.learners.kernels import activations, norms, objectives
from uldp.learners.kernels import layout as at
from uldp.learners.kernels.embedding import embed, embedding_gradient
from uldp.learners.kernels.operations import (
    convolve,
    convolve_backward,
    drop,
    linear_gradient,
    linear_step,
    normalise,
    normalise_backward,
    pool,
    pool_backward,
)
from uldp.learners.kernels.products import multiply
from uldp.learners.kernels.shortcuts import connect, connect_backward
from uldp.native.jit import kernel, stay_apart
from uldp.native.simd import LANES, load, padded_length, spread_like, store, write


@kernel
def forward(ws, program, reals, head, m, training, keys, step):
    """All operations, for the m records of a tile."""
    stay_apart()
    for number in range(program.shape[0]):
        op, real = program[number], reals[number]
        kind = op[at.KIND]
        if kind == at.LINEAR:
            bias = op[at.B] if op[at.B] >= 0 else head[at.ZERO]
            multiply(ws, op[at.X], op[at.ROW_X], 1, 1, 0, op[at.NX], op[at.W], op[at.ROW], bias, 0, op[at.Y],
                     op[at.ROW_Y], m, op[at.ROW_Y])  # fmt: skip
        elif kind == at.ACTIVATION:
            activations.activate(ws, op[at.FUNCTION], real, op[at.X], op[at.Y], m * op[at.ROW_X])
        elif kind == at.ROW_NORM or kind == at.IMAGE_NORM:
            normalise(ws, op, m, real)
        elif kind == at.DROPOUT:
            if training:
                drop(ws, op, m, real, keys, step)
            else:
                for i in range(0, m * op[at.ROW_X], LANES):
                    store(ws, op[at.Y] + i, load(ws, op[at.X] + i))
        elif kind == at.CONVOLUTION:
            convolve(ws, op, m, head[at.ZERO])
        elif kind == at.EMBEDDING:
            embed(ws, op, m)
        elif kind == at.FORK or kind == at.ADD or kind == at.REORDER:
            connect(ws, op, m)
        else:
            pool(ws, op, m)


@kernel
def backward(ws, iw, program, reals, head, m, fresh, explicit, stepping):
    """Gradients of the parameters, from the gradient of the outputs.

    They are summed over the tile's records and added to what is there unless ``fresh``. With ``explicit``, each
    record's own are formed instead; of linear layers none are: their norms follow from inputs and gradients. With
    ``stepping``, linear layers take their step at once; what comes below them reads the transposed weights.
    """
    stay_apart()
    for number in range(program.shape[0] - 1, head[at.FIRST_TRAINED] - 1, -1):
        op, kind = program[number], program[number, at.KIND]
        after = program[min(number + 1, program.shape[0] - 1)]
        dw, db = head[at.GRADIENTS] + op[at.W], head[at.GRADIENTS] + op[at.B] if op[at.B] >= 0 else -1
        if kind == at.LINEAR:
            if stepping:
                linear_step(ws, op, head, m)
            elif not explicit:
                linear_gradient(ws, op, head, m, dw, db, fresh)
            if op[at.GX] >= 0:
                multiply(ws, op[at.GY], op[at.ROW_Y], 1, 1, 0, op[at.NY], op[at.TURNED], op[at.ROW_X], head[at.ZERO],
                         0, op[at.GX], op[at.ROW_X], m, op[at.ROW_X])  # fmt: skip
        elif kind == at.ACTIVATION:
            activations.activate_backward(
                ws, op[at.FUNCTION], reals[number], op[at.X], op[at.Y], op[at.GY], m * op[at.ROW_X]
            )
        elif kind == at.ROW_NORM or kind == at.IMAGE_NORM:
            norm_gradient(ws, op, head, m, dw, db, fresh, explicit)
            normalise_backward(ws, op, m)
        elif kind == at.DROPOUT:
            for i in range(0, m * op[at.ROW_X], LANES):
                store(ws, op[at.GY] + i, load(ws, op[at.GY] + i) * load(ws, op[at.MASK] + i))
        elif kind == at.CONVOLUTION:
            for r in range(m):
                if explicit:
                    own = head[at.RECORD_GRADIENTS] + r * head[at.EXPLICIT]
                    bias = own + op[at.B] if op[at.B] >= 0 else -1
                    convolve_backward(ws, iw, op, after, head, r, own + op[at.W], bias, True)
                else:
                    convolve_backward(ws, iw, op, after, head, r, dw, db, fresh and r == 0)
        elif kind == at.EMBEDDING:
            embedding_gradient(ws, op, head, m, dw, fresh, explicit)
        elif kind == at.FORK or kind == at.ADD or kind == at.REORDER:
            connect_backward(ws, op, m)
        else:
            pool_backward(ws, op, m)


@kernel
def norm_gradient(ws, op, head, m, dw, db, fresh, explicit):
    """The gradients of a norm's scale and shift; the rows of an image are its pixels."""
    stay_apart()
    if op[at.W] < 0:
        return
    image = op[at.KIND] == at.IMAGE_NORM
    for r in range(m):
        own = head[at.RECORD_GRADIENTS] + r * head[at.EXPLICIT]
        scale, shift = (own + op[at.W], own + op[at.B] if op[at.B] >= 0 else -1) if explicit else (dw, db)
        first, begin = explicit or (fresh and r == 0), r * op[at.ROW_X]
        if image:
            norms.parameters_backward(ws, op[at.GY] + begin, op[at.HAT] + begin, op[at.CHANNELS], op[at.PIXELS],
                                      op[at.CHANNELS], scale, shift, first)  # fmt: skip
        elif explicit:
            norms.parameters_backward(ws, op[at.GY] + begin, op[at.HAT] + begin, 0, 1, op[at.NX], scale, shift, True)
        elif r == 0:
            norms.parameters_backward(ws, op[at.GY], op[at.HAT], op[at.ROW_X], m, op[at.NX], dw, db, fresh)


@kernel
def loss_gradient(ws, head, m, weight):
    """The gradient of the loss at the outputs; of a loss that couples records it is already there."""
    stay_apart()
    z, labels, g, outputs = head[at.OUTPUTS], head[at.LABELS], head[at.G_OUTPUTS], head[at.N_OUTPUTS]
    if head[at.LOSS] == objectives.CROSS_ENTROPY:
        objectives.cross_entropy(ws, z, head[at.OFFSETS], labels, g, m, outputs, weight)
    elif head[at.LOSS] == objectives.LOGISTIC:
        objectives.logistic_loss(ws, z, head[at.OFFSETS], labels, g, m, weight)
    elif head[at.LOSS] == objectives.SQUARED:
        objectives.squared_error(ws, z, labels, g, m, weight)


@kernel
def gather(ws, head, features, record, r):
    """The features of a record to place r of the tile, images as (height, width, channels)."""
    stay_apart()
    n, channels = head[at.N_FEATURES], head[at.FEATURE_CHANNELS]
    x = head[at.FEATURES] + r * padded_length(n)
    store(ws, x + padded_length(n) - LANES, spread_like(ws, 0.0))  # zeros in the gap
    if channels == 1:
        for i in range(n):
            write(ws, x + i, features[record, i])
        return
    pixels = n // channels
    for p in range(pixels):
        for c in range(channels):
            ws[x + p * channels + c] = features[record, c * pixels + p]
