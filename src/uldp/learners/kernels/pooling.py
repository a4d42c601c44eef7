"""Pooling of one image (height, width, channels): windows of (kh, kw) pixels, (sh, sw) pixels apart, all inside."""

from __future__ import annotations

from uldp.learners.kernels.jit import kernel, stay_apart
from uldp.learners.kernels.simd import LANES, load, spread_like, store, store_tail, where_new_maximum


@kernel
def fill_zero(ws, begin, n):
    """Zero in n numbers, rounded up to whole vectors."""
    stay_apart()
    zero = spread_like(ws, 0.0)
    for i in range(0, n, LANES):
        store(ws, begin + i, zero)


@kernel
def max_forward(ws, x, y, index, width, channels, out_height, out_width, kh, kw, sh, sw):
    """The largest number of each window, and which of the window it was; the first among equals, NaN before all."""
    stay_apart()
    for oy in range(out_height):
        for ox in range(out_width):
            target = (oy * out_width + ox) * channels
            corner = x + (oy * sh * width + ox * sw) * channels
            for c in range(0, channels, LANES):
                best, number = load(ws, corner + c), spread_like(ws, 0.0)
                for k in range(1, kh * kw):
                    value = load(ws, corner + ((k // kw) * width + k % kw) * channels + c)
                    number = where_new_maximum(value, best, spread_like(ws, k), number)
                    best = where_new_maximum(value, best, value, best)
                store_tail(ws, y + target + c, best, channels - c)
                store_tail(ws, index + target + c, number, channels - c)


@kernel
def max_backward(ws, g, gx, index, height, width, channels, out_height, out_width, kh, kw, sh, sw):
    """gx at the largest number of each window += g; zero elsewhere."""
    stay_apart()
    fill_zero(ws, gx, height * width * channels)
    for oy in range(out_height):
        for ox in range(out_width):
            source = (oy * out_width + ox) * channels
            corner = gx + (oy * sh * width + ox * sw) * channels
            for c in range(channels):
                k = int(ws[index + source + c])
                ws[corner + ((k // kw) * width + k % kw) * channels + c] += ws[g + source + c]


@kernel
def mean_forward(ws, x, y, width, channels, out_height, out_width, kh, kw, sh, sw):
    """The mean of each window."""
    stay_apart()
    size = spread_like(ws, kh * kw)
    for oy in range(out_height):
        for ox in range(out_width):
            corner = x + (oy * sh * width + ox * sw) * channels
            for c in range(0, channels, LANES):
                sums = load(ws, corner + c)
                for k in range(1, kh * kw):
                    sums = sums + load(ws, corner + ((k // kw) * width + k % kw) * channels + c)
                store_tail(ws, y + (oy * out_width + ox) * channels + c, sums / size, channels - c)


@kernel
def mean_backward(ws, g, gx, height, width, channels, out_height, out_width, kh, kw, sh, sw):
    """gx in each window += g / (kh kw)."""
    stay_apart()
    size = spread_like(ws, kh * kw)
    fill_zero(ws, gx, height * width * channels)
    for oy in range(out_height):
        for ox in range(out_width):
            corner = gx + (oy * sh * width + ox * sw) * channels
            for c in range(0, channels, LANES):
                share = load(ws, g + (oy * out_width + ox) * channels + c) / size
                for k in range(kh * kw):
                    at = corner + ((k // kw) * width + k % kw) * channels + c
                    store_tail(ws, at, load(ws, at) + share, channels - c)
