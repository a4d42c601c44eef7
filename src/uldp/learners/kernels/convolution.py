"""Convolution of one image (height, width, channels) without unrolling it.

The window of one output pixel is ``kh`` runs of ``kw channels`` neighbouring numbers, one run in each image row. So a
row of output pixels is a product of matrices whose left one lies inside the image, and nothing is copied. Zeros around
the image are copied once (:func:`add_border`).

Weights lie as (out channels, kh, run) with runs rounded up to eight: that is what both backward products read. The
forward product reads them transposed; :func:`turn_weights` does that once per step.

Backward products take only those entries of the output's gradient that are not zero: after max-pooling that is a
quarter of them, after ReLU about half. Leaving out a zero changes no finite sum. (A zero times a weight that is not
finite would be NaN; but then the forward pass was not finite either.)
"""

from __future__ import annotations

from uldp.learners.kernels.jit import inlined, kernel, stay_apart
from uldp.learners.kernels.pooling import fill_zero
from uldp.learners.kernels.products import multiply, multiply_list, transpose
from uldp.learners.kernels.simd import LANES, load, store_tail


@inlined
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
def weights_backward(ws, iw, x, g, dw, db, zero, one, line, channels, kh, run, padded_run, out_height, out_width,
                     out_channels, sh, sw, values, places, fresh):  # fmt: skip
    """dw[o, k, i] = sum over pixels of g[oy, ox, o] x[oy sh + k, (ox sw) channels + i]; db[o] = sum of g[.., o]."""
    stay_apart()
    for o in range(out_channels):
        count, source = 0, g + o
        for oy in range(out_height):
            place = oy * sh * line
            for _ in range(out_width):
                value = ws[source]
                ws[values + count], iw[places + count] = value, place
                count += value != 0
                source, place = source + out_channels, place + sw * channels
        target = dw + o * kh * padded_run
        before, step = (zero, 0) if fresh else (target, padded_run)
        multiply_list(ws, iw, places, values, count, x, line, before, step, target, padded_run, kh, run)
    if db >= 0:
        multiply(ws, one, 0, 0, 1, 0, out_height * out_width, g, out_channels, zero if fresh else db, 0, db, 0, 1,
                 out_channels)  # fmt: skip


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
                value = ws[g + (oy * out_width + ox) * out_channels + o]
                ws[values + count] = value
                iw[places + count] = o * kh * padded_run
                count += value != 0
            if count:
                target = gx + oy * sh * line + ox * sw * channels
                multiply_list(ws, iw, places, values, count, w, padded_run, target, line, target, line, kh, run)
