"""Convolution of one image (height, width, channels) without unrolling it.

The window of one output pixel is ``kh`` runs of ``kw channels`` neighbouring numbers, one run in each image row. So a
row of output pixels is a product of matrices whose left one lies inside the image, and nothing is copied. Zeros around
the image are copied once (:func:`add_border`).

Weights lie as (out channels, kh, run) with runs rounded up to eight: that is what both backward products read. The
forward product reads them transposed; :func:`turn_weights` does that once per step.

Backward products take only those entries of the output's gradient that are not zero: after max-pooling that is a
quarter of them (whose places it knows), after ReLU about half. Leaving out a zero changes no finite sum. (A zero
times a weight that is not finite would be NaN; but then the forward pass was not finite either.)
"""

from __future__ import annotations

from uldp.learners.kernels import layout as at
from uldp.learners.kernels.pooling import fill_zero
from uldp.learners.kernels.products import multiply, multiply_list
from uldp.learners.kernels.transposes import transpose
from uldp.native.jit import inline, kernel, stay_apart
from uldp.native.simd import LANES, load, padded_length, read, store_tail, write


@inline
def copy_row(ws, source, target, n):
    """Copy n numbers within the workspace."""
    for i in range(0, n, LANES):
        store_tail(ws, target + i, load(ws, source + i), n - i)


@kernel
def add_border(ws, x, bordered, height, width, channels, ph, pw):
    """The image with ph rows and pw columns of zeros around it."""
    stay_apart()
    row = (width + 2 * pw) * channels
    fill_zero(ws, bordered, (height + 2 * ph) * row)
    for y in range(height):
        copy_row(ws, x + y * width * channels, bordered + (y + ph) * row + pw * channels, width * channels)


@kernel
def remove_border(ws, bordered, x, height, width, channels, ph, pw):
    """The image without its border."""
    stay_apart()
    row = (width + 2 * pw) * channels
    for y in range(height):
        copy_row(ws, bordered + (y + ph) * row + pw * channels, x + y * width * channels, width * channels)


@kernel
def turn_weights(ws, w, turned, row, kh, run, padded_run, out_channels):
    """turned[(k, i), o] = w[o, k, i]: what the forward product reads, in rows of length ``row``."""
    stay_apart()
    for k in range(kh):
        transpose(ws, w + k * padded_run, kh * padded_run, turned + k * run * row, row, out_channels, run)


@kernel
def forward(ws, x, y, turned, row, bias, line, channels, kh, run, out_height, out_width, out_channels, sh, sw):
    """y[oy, ox, o] = bias[o] + sum over k, i of x[oy sh + k, (ox sw) channels + i] w[o, k, i]; a line is a row of x."""
    stay_apart()
    for oy in range(out_height):
        multiply(ws, x + oy * sh * line, sw * channels, 1, kh, line, run, turned, row, bias, 0,
                 y + oy * out_width * out_channels, out_channels, out_width, out_channels)  # fmt: skip


@kernel
def list_pixels(ws, iw, g, o, line, step, sh, out_height, out_width, out_channels, values, places):
    """The entries of g in channel o that are not zero, and where their windows begin in x; returns their number."""
    stay_apart()
    count, source = 0, g + o
    for oy in range(out_height):
        place = oy * sh * line
        for _ in range(out_width):
            value = read(ws, source)
            write(ws, values + count, value)
            write(iw, places + count, place)
            count += value != 0
            source, place = source + out_channels, place + step
    return count


@kernel
def list_maxima(ws, iw, pool, g, index, o, line, step, sh, values, places):
    """As :func:`list_pixels`, of a convolution whose output max-pooling reads, from the gradient g of *its* output.

    Of a window only the largest pixel has a gradient. iw[i] says how far pixel i of a window lies behind its corner.
    """
    stay_apart()
    height, width, channels = pool[at.OUT_HEIGHT], pool[at.OUT_WIDTH], pool[at.CHANNELS]
    down, right, left = pool[at.SH] * sh * line, pool[at.SW] * step, pool[at.PW] * step
    count, source, row = 0, o, -pool[at.PH] * sh * line
    for _ in range(height):
        corner = row - left
        for _ in range(width):
            value = read(ws, g + source)
            write(ws, values + count, value)
            write(iw, places + count, corner + read(iw, int(read(ws, index + source))))
            count += value != 0
            source, corner = source + channels, corner + right
        row += down
    return count


@kernel
def weights_backward(ws, iw, op, pool, r, g, dw, db, zero, one, values, fresh):
    """dw[o, k, i] = sum over pixels of g[oy, ox, o] x[oy sh + k, (ox sw) channels + i]; db[o] = sum of g[.., o]."""
    stay_apart()
    x, line = op[at.BORDERED] + r * op[at.N_BORDERED], (op[at.WIDTH] + 2 * op[at.PW]) * op[at.CHANNELS]
    kh, run, channels = op[at.KH], op[at.KW] * op[at.CHANNELS], op[at.OUT_CHANNELS]
    sh, step, padded = op[at.SH], op[at.SW] * op[at.CHANNELS], padded_length(run)
    pooled, pixels, places = op[at.POOLED], op[at.OUT_HEIGHT] * op[at.OUT_WIDTH], 0
    if pooled:
        g, pixels = pool[at.GY] + r * pool[at.ROW_Y], pool[at.OUT_HEIGHT] * pool[at.OUT_WIDTH]
        for ky in range(pool[at.KH]):
            for kx in range(pool[at.KW]):
                iw[places] = ky * sh * line + kx * step
                places += 1
    for o in range(channels):
        if pooled:
            index = pool[at.INDEX] + r * pool[at.ROW_Y]
            count = list_maxima(ws, iw, pool, g, index, o, line, step, sh, values, places)
        else:
            count = list_pixels(ws, iw, g, o, line, step, sh, op[at.OUT_HEIGHT], op[at.OUT_WIDTH], channels, values,
                                places)  # fmt: skip
        target = dw + o * kh * padded
        before, row = (zero, 0) if fresh else (target, padded)
        multiply_list(ws, iw, places, values, count, x, line, before, row, target, padded, kh, run)
    if db >= 0:
        multiply(ws, one, 0, 0, 1, 0, pixels, g, channels, zero if fresh else db, 0, db, 0, 1, channels)


@kernel
def input_backward(ws, iw, g, gx, w, line, channels, kh, run, padded_run, height, out_height, out_width,
                   out_channels, sh, sw, values, places):  # fmt: skip
    """gx[oy sh + k, (ox sw) channels + i] += sum over o of g[oy, ox, o] w[o, k, i], for every output pixel."""
    stay_apart()
    fill_zero(ws, gx, height * line)
    for oy in range(out_height):
        for ox in range(out_width):
            count = 0
            for o in range(out_channels):
                value = read(ws, g + (oy * out_width + ox) * out_channels + o)
                write(ws, values + count, value)
                write(iw, places + count, o * kh * padded_run)
                count += value != 0
            if count:
                target = gx + oy * sh * line + ox * sw * channels
                multiply_list(ws, iw, places, values, count, w, padded_run, target, line, target, line, kh, run)
