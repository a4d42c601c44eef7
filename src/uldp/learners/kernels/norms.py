"""Layer norm and group norm: y = gamma xhat + beta, xhat = (x - mean) rate, rate = 1 / sqrt(variance + epsilon).

Both kernels leave xhat and the rates behind for the way back. ``gamma`` and ``beta`` are offsets, negative where the
layer has none; all rows of C numbers share them.
"""

from __future__ import annotations

from typing import Final

from uldp.learners.kernels.transposes import row_totals
from uldp.native.jit import inline, kernel, stay_apart
from uldp.native.simd import (
    LANES,
    clear_lanes,
    first_lane,
    fma,
    load,
    load_tail,
    read,
    root,
    splat,
    spread_like,
    store,
    store_tail,
)


@inline
def scale_and_shift(ws, value, gamma, beta):
    """gamma value + beta."""
    if gamma >= 0:
        if beta >= 0:
            return fma(value, load(ws, gamma), load(ws, beta))
        return value * load(ws, gamma)
    return value


#: Numbers that norms of rows work in: a vector for each of eight rows, twice, and two numbers for each of them.
ROOM: Final = 2 * LANES * LANES + 2 * LANES


@kernel
def rows_forward(ws, x, y, hat, rates, gamma, beta, m, row, groups, size, epsilon, room):
    """Groups of ``size`` neighbouring numbers, ``groups`` of them in each of m rows; eight rows at a time."""
    stay_apart()
    zero, one, eps = spread_like(ws, 0.0), spread_like(ws, 1.0), spread_like(ws, epsilon)
    share, means, full = one / spread_like(ws, size), room + LANES * LANES, size // LANES * LANES
    for begin in range(0, m, LANES):
        count = min(LANES, m - begin)
        for group in range(groups):
            column, rate_at = group * size, rates + (begin * groups + group * LANES)
            start = begin * row + column
            for r in range(count):
                sums, at = zero, x + start + r * row
                for i in range(0, full, LANES):
                    sums = sums + load(ws, at + i)
                if full < size:
                    sums = sums + load_tail(ws, at + full, size - full)
                store(ws, room + LANES * r, sums)
            store(ws, means, row_totals(ws, room) * share)
            for r in range(count):
                mean, sums, at = splat(read(ws, means + r)), zero, x + start + r * row
                for i in range(0, full, LANES):
                    centred = load(ws, at + i) - mean
                    sums = fma(centred, centred, sums)
                if full < size:
                    centred = clear_lanes(load(ws, at + full) - mean, size - full)
                    sums = fma(centred, centred, sums)
                store(ws, room + LANES * r, sums)
            store(ws, rate_at, one / root(fma(row_totals(ws, room), share, eps)))
            for r in range(count):
                mean, rate = splat(read(ws, means + r)), splat(read(ws, rate_at + r))
                for i in range(0, size, LANES):
                    at = start + r * row + i
                    value = (load(ws, x + at) - mean) * rate
                    result = scale_and_shift(ws, value, gamma + column + i if gamma >= 0 else -1,
                                    beta + column + i if beta >= 0 else -1)  # fmt: skip
                    store_group(ws, hat + at, value, size - i, groups)
                    store_group(ws, y + at, result, size - i, groups)


@inline
def store_group(ws, at, value, count, groups):
    """Store the numbers of a group; behind the last group of a row is a gap."""
    if count >= LANES or groups == 1:
        store(ws, at, value)
    else:
        store_tail(ws, at, value, count)


@kernel
def rows_backward(ws, g, hat, rates, gamma, m, row, groups, size, room):
    """g <- rate (h - mean(h) - xhat mean(h xhat)) with h = gamma g and means over the group."""
    stay_apart()
    zero = spread_like(ws, 0.0)
    share = spread_like(ws, -1.0) / spread_like(ws, size)
    more, means = room + LANES * LANES, room + 2 * LANES * LANES
    slopes, full = means + LANES, size // LANES * LANES
    for begin in range(0, m, LANES):
        count = min(LANES, m - begin)
        for group in range(groups):
            column, rate_at = group * size, rates + (begin * groups + group * LANES)
            start = begin * row + column
            for r in range(count):
                sums, along, at = zero, zero, start + r * row
                for i in range(0, full, LANES):
                    h = scale_and_shift(ws, load(ws, g + at + i), gamma + column + i if gamma >= 0 else -1, -1)
                    sums = sums + h
                    along = fma(h, load(ws, hat + at + i), along)
                if full < size:
                    h = scale_and_shift(ws, load(ws, g + at + full), gamma + column + full if gamma >= 0 else -1, -1)
                    h = clear_lanes(h, size - full)
                    sums = sums + h
                    along = fma(h, load_tail(ws, hat + at + full, size - full), along)
                store(ws, room + LANES * r, sums)
                store(ws, more + LANES * r, along)
            store(ws, means, row_totals(ws, room) * share)
            store(ws, slopes, row_totals(ws, more) * share)
            for r in range(count):
                mean, slope, rate = (
                    splat(read(ws, means + r)),
                    splat(read(ws, slopes + r)),
                    splat(read(ws, rate_at + r)),
                )
                for i in range(0, size, LANES):
                    at = start + r * row + i
                    h = scale_and_shift(ws, load(ws, g + at), gamma + column + i if gamma >= 0 else -1, -1)
                    store_group(ws, g + at, fma(slope, load(ws, hat + at), h + mean) * rate, size - i, groups)


@kernel
def parameters_backward(ws, g, hat, row, rows, n, d_gamma, d_beta, fresh):
    """d_gamma = sum over rows of g xhat, d_beta = sum over rows of g; added to what is there unless ``fresh``."""
    stay_apart()
    zero = spread_like(ws, 0.0)
    for i in range(0, n, LANES):
        scale, shift = zero, zero
        if not fresh:
            scale = load(ws, d_gamma + i)
            shift = load(ws, d_beta + i) if d_beta >= 0 else zero
        for k in range(rows):
            value = load(ws, g + k * row + i)
            scale = fma(value, load(ws, hat + k * row + i), scale)
            shift = shift + value
        store_tail(ws, d_gamma + i, scale, n - i)
        if d_beta >= 0:
            store_tail(ws, d_beta + i, shift, n - i)


@kernel
def _group_means(ws, sums, channels, groups, share):
    """Each channel's number <- the sum over the channels of its group, times share."""
    stay_apart()
    size = channels // groups
    for group in range(groups):
        value = ws[sums + group * size]
        for channel in range(1, size):
            value += ws[sums + group * size + channel]
        value *= share
        for channel in range(size):
            ws[sums + group * size + channel] = value


@kernel
def image_forward(ws, x, y, hat, rates, gamma, beta, channels, pixels, groups, epsilon, means):
    """One image (pixels, channels): groups of channels over all pixels. ``means`` is room for a row of channels."""
    stay_apart()
    zero, one, eps = spread_like(ws, 0.0), spread_like(ws, 1.0), spread_like(ws, epsilon)
    share = first_lane(one / spread_like(ws, pixels * (channels // groups)))
    for c in range(0, channels, LANES):
        sums = zero
        for p in range(pixels):
            sums = sums + load(ws, x + p * channels + c)
        store(ws, means + c, sums)
    _group_means(ws, means, channels, groups, share)
    for c in range(0, channels, LANES):
        sums, mean = zero, load(ws, means + c)
        for p in range(pixels):
            centred = load(ws, x + p * channels + c) - mean
            sums = fma(centred, centred, sums)
        store(ws, rates + c, sums)
    _group_means(ws, rates, channels, groups, share)
    for c in range(0, channels, LANES):
        rate, mean = one / root(load(ws, rates + c) + eps), load(ws, means + c)
        store(ws, rates + c, rate)
        for p in range(pixels):
            value = (load(ws, x + p * channels + c) - mean) * rate
            result = scale_and_shift(ws, value, gamma + c if gamma >= 0 else -1, beta + c if beta >= 0 else -1)
            store_tail(ws, hat + p * channels + c, value, channels - c)
            store_tail(ws, y + p * channels + c, result, channels - c)


@kernel
def image_backward(ws, g, hat, rates, gamma, channels, pixels, groups, means, slopes):
    """As :func:`rows_backward`, for one image; ``means`` and ``slopes`` are room for a row of channels each."""
    stay_apart()
    zero = spread_like(ws, 0.0)
    share = first_lane(spread_like(ws, -1.0) / spread_like(ws, pixels * (channels // groups)))
    for c in range(0, channels, LANES):
        sums, along = zero, zero
        for p in range(pixels):
            h = scale_and_shift(ws, load(ws, g + p * channels + c), gamma + c if gamma >= 0 else -1, -1)
            sums = sums + h
            along = fma(h, load(ws, hat + p * channels + c), along)
        store(ws, means + c, sums)
        store(ws, slopes + c, along)
    _group_means(ws, means, channels, groups, share)
    _group_means(ws, slopes, channels, groups, share)
    for c in range(0, channels, LANES):
        mean, slope, rate = load(ws, means + c), load(ws, slopes + c), load(ws, rates + c)
        for p in range(pixels):
            at = p * channels + c
            h = scale_and_shift(ws, load(ws, g + at), gamma + c if gamma >= 0 else -1, -1)
            store_tail(ws, g + at, fma(slope, load(ws, hat + at), h + mean) * rate, channels - c)
