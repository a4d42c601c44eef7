"""Pooling of one image (height, width, channels): windows of (kh, kw) pixels, (sh, sw) pixels apart.

A border of (ph, pw) pixels around the image, and what a last window has beyond it, is left out: only pixels of the
image are read. A mean divides by the pixels that are there, or with COUNT_BORDER also by those of the border, as torch.
"""

from __future__ import annotations

from uldp.learners.kernels import layout as at
from uldp.native.jit import inline, kernel, stay_apart
from uldp.native.simd import LANES, load, spread_like, store, store_tail, where_equal, where_new_maximum


@kernel
def fill_zero(ws, begin, n):
    """Zero in n numbers, rounded up to whole vectors."""
    stay_apart()
    zero = spread_like(ws, 0.0)
    for i in range(0, n, LANES):
        store(ws, begin + i, zero)


@inline
def window(op, oy, ox):
    """Where an output pixel's window begins, and its part inside the image: rows y0..y1 - 1, columns x0..x1 - 1."""
    top, left = oy * op[at.SH] - op[at.PH], ox * op[at.SW] - op[at.PW]
    y0, y1 = max(0, -top), min(op[at.KH], op[at.HEIGHT] - top)
    x0, x1 = max(0, -left), min(op[at.KW], op[at.WIDTH] - left)
    return top, left, y0, y1, x0, x1


@inline
def count_pixels(op, oy, ox):
    """By how many pixels the mean of a window divides."""
    top, left, y0, y1, x0, x1 = window(op, oy, ox)
    if op[at.COUNT_BORDER]:
        height = min(top + op[at.KH], op[at.HEIGHT] + op[at.PH]) - top
        return height * (min(left + op[at.KW], op[at.WIDTH] + op[at.PW]) - left)
    return (y1 - y0) * (x1 - x0)


@kernel
def max_forward(ws, op, x, y, index):
    """The largest number of each window, and its place in the window, ky KW + kx; the first among equals, NaN before
    all."""
    stay_apart()
    channels, width = op[at.CHANNELS], op[at.WIDTH]
    for oy in range(op[at.OUT_HEIGHT]):
        for ox in range(op[at.OUT_WIDTH]):
            top, left, y0, y1, x0, x1 = window(op, oy, ox)
            target, corner = (oy * op[at.OUT_WIDTH] + ox) * channels, x + (top * width + left) * channels
            for c in range(0, channels, LANES):
                best = load(ws, corner + (y0 * width + x0) * channels + c)
                number = spread_like(ws, y0 * op[at.KW] + x0)
                for ky in range(y0, y1):
                    for kx in range(x0, x1):
                        value = load(ws, corner + (ky * width + kx) * channels + c)
                        number = where_new_maximum(value, best, spread_like(ws, ky * op[at.KW] + kx), number)
                        best = where_new_maximum(value, best, value, best)
                store_tail(ws, y + target + c, best, channels - c)
                store_tail(ws, index + target + c, number, channels - c)


@kernel
def max_backward(ws, op, g, gx, index):
    """gx at the largest number of each window += g; zero elsewhere."""
    stay_apart()
    channels, width, zero = op[at.CHANNELS], op[at.WIDTH], spread_like(ws, 0.0)
    fill_zero(ws, gx, op[at.NX])
    for oy in range(op[at.OUT_HEIGHT]):
        for ox in range(op[at.OUT_WIDTH]):
            top, left, y0, y1, x0, x1 = window(op, oy, ox)
            source, corner = (oy * op[at.OUT_WIDTH] + ox) * channels, gx + (top * width + left) * channels
            for c in range(0, channels, LANES):
                value, number = load(ws, g + source + c), load(ws, index + source + c)
                for ky in range(y0, y1):
                    for kx in range(x0, x1):
                        target = corner + (ky * width + kx) * channels + c
                        share = where_equal(number, spread_like(ws, ky * op[at.KW] + kx), value, zero)
                        store_tail(ws, target, load(ws, target) + share, channels - c)


@kernel
def mean_forward(ws, op, x, y):
    """The mean of each window."""
    stay_apart()
    channels, width, zero = op[at.CHANNELS], op[at.WIDTH], spread_like(ws, 0.0)
    for oy in range(op[at.OUT_HEIGHT]):
        for ox in range(op[at.OUT_WIDTH]):
            top, left, y0, y1, x0, x1 = window(op, oy, ox)
            size, corner = spread_like(ws, count_pixels(op, oy, ox)), x + (top * width + left) * channels
            for c in range(0, channels, LANES):
                sums = zero
                for ky in range(y0, y1):
                    for kx in range(x0, x1):
                        sums = sums + load(ws, corner + (ky * width + kx) * channels + c)
                store_tail(ws, y + (oy * op[at.OUT_WIDTH] + ox) * channels + c, sums / size, channels - c)


@kernel
def mean_backward(ws, op, g, gx):
    """gx in each window += g / (the pixels that count)."""
    stay_apart()
    channels, width = op[at.CHANNELS], op[at.WIDTH]
    fill_zero(ws, gx, op[at.NX])
    for oy in range(op[at.OUT_HEIGHT]):
        for ox in range(op[at.OUT_WIDTH]):
            top, left, y0, y1, x0, x1 = window(op, oy, ox)
            size, corner = spread_like(ws, count_pixels(op, oy, ox)), gx + (top * width + left) * channels
            for c in range(0, channels, LANES):
                share = load(ws, g + (oy * op[at.OUT_WIDTH] + ox) * channels + c) / size
                for ky in range(y0, y1):
                    for kx in range(x0, x1):
                        target = corner + (ky * width + kx) * channels + c
                        store_tail(ws, target, load(ws, target) + share, channels - c)
