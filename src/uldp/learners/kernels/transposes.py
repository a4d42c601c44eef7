"""Blocks of 8 x 8 numbers: transposed, or summed by rows."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from uldp.learners.kernels.products import Offsets
from uldp.native.jit import inline, kernel, stay_apart
from uldp.native.simd import LANES, VECTORS, Builder, Value, check, store_vector, transpose_vectors


@intrinsic
def _transpose_block(context, ws, source, row, target, target_row):
    """The 8 x 8 block at ``source``, transposed, to ``target``."""

    def lower(context: Any, b: Builder, sig: Any, args: Any) -> Value:
        o = Offsets(b, context.make_array(ws)(context, b, args[0]).data, ws.dtype)
        for r, value in enumerate(transpose_vectors(b, [o.vector(args[1], args[2], r) for r in range(LANES)])):
            store_vector(b, ws.dtype, value, o.at(args[3], args[4], r))
        return context.get_dummy_value()

    return types.void(ws, *[types.intp] * 4), lower


@intrinsic
def _row_totals(context, ws, source):
    def lower(context: Any, b: Builder, sig: Any, args: Any) -> Value:
        o = Offsets(b, context.make_array(ws)(context, b, args[0]).data, ws.dtype)
        found = transpose_vectors(b, [o.vector(args[1], ir.Constant(ir.IntType(64), LANES), r) for r in range(LANES)])
        while len(found) > 1:
            half = len(found) // 2
            found = [b.fadd(low, high) for low, high in zip(found[:half], found[half:], strict=True)]
        return found[0]

    return VECTORS[ws.dtype](ws, types.intp), lower


@inline
def row_totals(ws, source):
    """The sums of eight vectors that lie one after the other: what ``total`` gives for each, bit for bit."""
    check(ws, source, source + LANES * LANES)
    return _row_totals(ws, source)


@kernel
def transpose(ws, source, row, target, target_row, m, n):
    """target[j, i] = source[i, j] for i < m, j < n, rounded up to whole blocks of 8 x 8 on both sides."""
    stay_apart()
    for i in range(0, m, LANES):
        for j in range(0, n, LANES):
            check(ws, source + i * row + j, source + (i + LANES - 1) * row + j + LANES)
            check(ws, target + j * target_row + i, target + (j + LANES - 1) * target_row + i + LANES)
            _transpose_block(ws, source + i * row + j, row, target + j * target_row + i, target_row)
