"""One operation of a program, forward and backward: from a row of the table to the kernels."""

from __future__ import annotations

from uldp.learners.kernels import convolution, norms, pooling
from uldp.learners.kernels import layout as at
from uldp.learners.kernels.products import descend, multiply
from uldp.learners.kernels.randomness import dropout_factors
from uldp.learners.kernels.transposes import transpose
from uldp.native.jit import kernel, stay_apart
from uldp.native.simd import LANES, load, padded_length, store


@kernel
def prepare(ws, program):
    """Transpose the weights, once for each value that they take: forward for convolutions, backward for linear."""
    stay_apart()
    for number in range(program.shape[0]):
        op = program[number]
        if op[at.KIND] == at.LINEAR and op[at.GX] >= 0:
            transpose(ws, op[at.W], op[at.ROW], op[at.TURNED], op[at.ROW_X], op[at.NX], op[at.NY])
        elif op[at.KIND] == at.CONVOLUTION:
            run = op[at.KW] * op[at.CHANNELS]
            padded = padded_length(run)
            convolution.turn_weights(
                ws, op[at.W], op[at.TURNED], op[at.ROW], op[at.KH], run, padded, op[at.OUT_CHANNELS]
            )


@kernel
def convolve(ws, op, m, zero):
    """Forward through a convolution."""
    stay_apart()
    line, bias = (op[at.WIDTH] + 2 * op[at.PW]) * op[at.CHANNELS], op[at.B] if op[at.B] >= 0 else zero
    for r in range(m):
        image = op[at.BORDERED] + r * op[at.N_BORDERED]
        if op[at.PH] > 0 or op[at.PW] > 0:
            convolution.add_border(
                ws,
                op[at.X] + r * op[at.ROW_X],
                image,
                op[at.HEIGHT],
                op[at.WIDTH],
                op[at.CHANNELS],
                op[at.PH],
                op[at.PW],
            )
        convolution.forward(
            ws,
            image,
            op[at.Y] + r * op[at.ROW_Y],
            op[at.TURNED],
            op[at.ROW],
            bias,
            line,
            op[at.CHANNELS],
            op[at.KH],
            op[at.KW] * op[at.CHANNELS],
            op[at.OUT_HEIGHT],
            op[at.OUT_WIDTH],
            op[at.OUT_CHANNELS],
            op[at.SH],
            op[at.SW],
        )


@kernel
def convolve_backward(ws, iw, op, after, head, r, dw, db, fresh):
    """Back through a convolution, for record r; ``after`` is the next operation."""
    stay_apart()
    values, g = head[at.VALUES], op[at.GY] + r * op[at.ROW_Y]
    line, run = (op[at.WIDTH] + 2 * op[at.PW]) * op[at.CHANNELS], op[at.KW] * op[at.CHANNELS]
    convolution.weights_backward(ws, iw, op, after, r, g, dw, db, head[at.ZERO], head[at.ONE], values, fresh)
    if op[at.GX] < 0:
        return
    has_border = op[at.PH] > 0 or op[at.PW] > 0
    target = op[at.G_BORDERED] if has_border else op[at.GX] + r * op[at.ROW_X]
    convolution.input_backward(
        ws,
        iw,
        g,
        target,
        op[at.W],
        line,
        op[at.CHANNELS],
        op[at.KH],
        run,
        padded_length(run),
        op[at.HEIGHT] + 2 * op[at.PH],
        op[at.OUT_HEIGHT],
        op[at.OUT_WIDTH],
        op[at.OUT_CHANNELS],
        op[at.SH],
        op[at.SW],
        values,
        0,
    )
    if has_border:
        convolution.remove_border(
            ws, target, op[at.GX] + r * op[at.ROW_X], op[at.HEIGHT], op[at.WIDTH], op[at.CHANNELS], op[at.PH], op[at.PW]
        )


@kernel
def normalise(ws, op, m, epsilon):
    """Forward through a norm."""
    stay_apart()
    if op[at.KIND] == at.ROW_NORM:
        size = op[at.NX] // op[at.GROUPS]
        norms.rows_forward(ws, op[at.X], op[at.Y], op[at.HAT], op[at.RATES], op[at.W], op[at.B], m, op[at.ROW_X],
                           op[at.GROUPS], size, epsilon, op[at.ROOM])  # fmt: skip
        return
    padded = padded_length(op[at.CHANNELS])
    for r in range(m):
        begin = r * op[at.ROW_X]
        norms.image_forward(
            ws,
            op[at.X] + begin,
            op[at.Y] + begin,
            op[at.HAT] + begin,
            op[at.RATES] + r * padded,
            op[at.W],
            op[at.B],
            op[at.CHANNELS],
            op[at.PIXELS],
            op[at.GROUPS],
            epsilon,
            op[at.ROOM],
        )


@kernel
def normalise_backward(ws, op, m):
    """Back through a norm, in place."""
    stay_apart()
    if op[at.KIND] == at.ROW_NORM:
        norms.rows_backward(ws, op[at.GY], op[at.HAT], op[at.RATES], op[at.W], m, op[at.ROW_X], op[at.GROUPS],
                            op[at.NX] // op[at.GROUPS], op[at.ROOM])  # fmt: skip
        return
    padded = padded_length(op[at.CHANNELS])
    for r in range(m):
        begin = r * op[at.ROW_X]
        norms.image_backward(
            ws,
            op[at.GY] + begin,
            op[at.HAT] + begin,
            op[at.RATES] + r * padded,
            op[at.W],
            op[at.CHANNELS],
            op[at.PIXELS],
            op[at.GROUPS],
            op[at.ROOM],
            op[at.ROOM] + padded,
        )


@kernel
def drop(ws, op, m, factor, keys, step):
    """y = x mask; the mask follows from each record's key and position."""
    stay_apart()
    for r in range(m):
        dropout_factors(
            ws,
            op[at.MASK] + r * op[at.ROW_X],
            keys[2 * r],
            step,
            op[at.LAYER],
            keys[2 * r + 1],
            op[at.CHANNELS],
            op[at.PIXELS],
            op[at.WHOLE_CHANNELS],
            op[at.THRESHOLD],
            factor,
        )
    for i in range(0, m * op[at.ROW_X], LANES):
        store(ws, op[at.Y] + i, load(ws, op[at.X] + i) * load(ws, op[at.MASK] + i))


@kernel
def pool(ws, op, m):
    """Forward through pooling."""
    stay_apart()
    for r in range(m):
        x, y = op[at.X] + r * op[at.ROW_X], op[at.Y] + r * op[at.ROW_Y]
        if op[at.KIND] == at.MAX_POOL:
            pooling.max_forward(ws, op, x, y, op[at.INDEX] + r * op[at.ROW_Y])
        else:
            pooling.mean_forward(ws, op, x, y)


@kernel
def pool_backward(ws, op, m):
    """Back through pooling, unless nobody asks for it: see :func:`convolution.list_maxima`."""
    stay_apart()
    if op[at.GX] < 0:
        return
    for r in range(m):
        g, gx = op[at.GY] + r * op[at.ROW_Y], op[at.GX] + r * op[at.ROW_X]
        if op[at.KIND] == at.MAX_POOL:
            pooling.max_backward(ws, op, g, gx, op[at.INDEX] + r * op[at.ROW_Y])
        else:
            pooling.mean_backward(ws, op, g, gx)


@kernel
def linear_gradient(ws, op, head, m, dw, db, fresh):
    """dw = X^T G, db = the sum of G's rows."""
    stay_apart()
    before, row = (head[at.ZERO], 0) if fresh else (dw, op[at.ROW])
    multiply(ws, op[at.X], 1, op[at.ROW_X], 1, 0, m, op[at.GY], op[at.ROW_Y], before, row, dw, op[at.ROW],
             op[at.NX], op[at.NY])  # fmt: skip
    if db >= 0:
        multiply(ws, head[at.ONE], 0, 0, 1, 0, m, op[at.GY], op[at.ROW_Y], head[at.ZERO] if fresh else db, 0, db, 0,
                 1, op[at.NY])  # fmt: skip


@kernel
def linear_step(ws, op, head, m):
    """W <- W + rate X^T G and likewise the bias, for the few records of a batch: no gradient is written down."""
    stay_apart()
    descend(ws, op[at.X], 1, op[at.ROW_X], m, op[at.GY], op[at.ROW_Y], head[at.RATE], op[at.W], op[at.ROW],
            op[at.NX], op[at.NY])  # fmt: skip
    if op[at.B] >= 0:
        descend(ws, head[at.ONE], 0, 0, m, op[at.GY], op[at.ROW_Y], head[at.RATE], op[at.B], 0, 1, op[at.NY])
