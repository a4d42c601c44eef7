"""Order of records and dropout: the hashes of ``uldp.learners.randomness``, one user at a time.

The same words come out as there, bit for bit (the tests compare them): a dropout decision belongs to (user, step,
layer, position of the record in its batch, unit), an order of records to (user, epoch).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from uldp.native.jit import inline, kernel, stay_apart
from uldp.native.simd import LANES, Builder, Value, check, constant, first_lane, spread, spread_like, store_vector

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_STEP: Final = np.uint64(0xD1B54A32D192ED03)
_LAYER: Final = np.uint64(0xABC98388FB8FAC03)
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)
_HASH_1: Final = np.uint32(0x21F0AAAD)
_HASH_2: Final = np.uint32(0xD35A2D97)


@inline
def mix(word):
    """splitmix64's finaliser."""
    z = np.uint64(word)
    z ^= z >> np.uint64(30)
    z *= _MIX_1
    z ^= z >> np.uint64(27)
    z *= _MIX_2
    return z ^ (z >> np.uint64(31))


@inline
def counter(number):
    """A well spread word for a coordinate."""
    return (np.uint64(number) + np.uint64(1)) * _GOLDEN


@kernel
def sort_stably(keys, order, n, other_keys, other_order):
    """Sort order[:n] by keys[:n], both rising from 0 on; equals keep their order. The others are room to work in."""
    stay_apart()
    width = 1
    while width < n:
        for low in range(0, n, 2 * width):
            middle, high = min(low + width, n), min(low + 2 * width, n)
            left, right = low, middle
            for k in range(low, high):
                if right >= high or (left < middle and keys[left] <= keys[right]):
                    other_keys[k], other_order[k] = keys[left], order[left]
                    left += 1
                else:
                    other_keys[k], other_order[k] = keys[right], order[right]
                    right += 1
        for k in range(n):
            keys[k], order[k] = other_keys[k], other_order[k]
        width *= 2


@kernel
def order_records(key, epoch, n, keys, order, other_keys, other_order):
    """order[:n]: a random order of 0..n-1 for the user with this key."""
    stay_apart()
    start = mix(key + mix(counter(epoch)))
    for k in range(n):
        keys[k], order[k] = mix(start + counter(k)), k
    sort_stably(keys, order, n, other_keys, other_order)


@inline
def unit_bits(row, lane):
    """32 bits for two neighbouring units: 16 each, the first unit's are the lower ones."""
    low, high = np.uint32(row), np.uint32(row >> np.uint64(32))
    bits = np.uint32(low + np.uint32(counter(lane)))
    bits = np.uint32(bits ^ np.uint32(bits >> np.uint32(16)))
    bits = np.uint32(bits * _HASH_1)
    bits = np.uint32(bits ^ high)
    bits = np.uint32(bits ^ np.uint32(bits >> np.uint32(15)))
    bits = np.uint32(bits * _HASH_2)
    return np.uint32(bits ^ np.uint32(bits >> np.uint32(15)))


def _hash_lanes(b: Builder, row: Value, lane: Value) -> Value:
    """:func:`unit_bits` of eight neighbouring lanes at once."""
    word = ir.IntType(32)

    def numbers(*values: int) -> ir.Constant:
        return ir.Constant(ir.VectorType(word, LANES), list(values) * (LANES // len(values)))

    def fold(bits: Value, shift: int) -> Value:
        return b.xor(bits, b.lshr(bits, numbers(shift)))

    low, high = b.trunc(row, word), b.trunc(b.lshr(row, ir.Constant(row.type, 32)), word)
    counters = b.add(spread(b, b.trunc(lane, word)), numbers(*range(1, LANES + 1)))
    bits = b.add(spread(b, low), b.mul(counters, numbers(int(_GOLDEN) & 0xFFFFFFFF)))
    bits = b.xor(b.mul(fold(bits, 16), numbers(int(_HASH_1))), spread(b, high))
    return fold(b.mul(fold(bits, 15), numbers(int(_HASH_2))), 15)


@intrinsic
def _sixteen_factors(context, ws, at, count, row, lane, threshold, factor):
    """ws[at..at+15] = factor where the unit stays, else 0, for units from 2 lane on; eight if count is at most 8."""

    def lower(context: Any, b: Builder, sig: Any, args: Any) -> Value:
        scalar, data = ws.dtype, context.make_array(ws)(context, b, args[0]).data
        bits, limit = _hash_lanes(b, args[3], args[4]), spread(b, b.trunc(args[5], ir.IntType(32)))
        kept, zero = spread(b, context.cast(b, args[6], factor, scalar)), constant(scalar, 0.0)
        halves = (
            b.and_(bits, ir.Constant(bits.type, [0xFFFF] * LANES)),
            b.lshr(bits, ir.Constant(bits.type, [16] * LANES)),
        )
        even, odd = (b.select(b.icmp_signed("<", half, limit), kept, zero) for half in halves)

        def write(half: int) -> None:
            pairs = [k + half * LANES // 2 for k in range(LANES // 2)]
            index = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [i for k in pairs for i in (k, LANES + k)])
            place = b.gep(data, [b.add(args[1], ir.Constant(args[1].type, half * LANES))], inbounds=True)
            store_vector(b, scalar, b.shuffle_vector(even, odd, index), place)

        write(0)
        with b.if_then(b.icmp_signed(">", args[2], ir.Constant(args[2].type, LANES))):
            write(1)
        return context.get_dummy_value()

    return types.void(ws, types.intp, types.intp, types.uint64, types.intp, types.intp, factor), lower


@kernel
def dropout_factors(ws, mask, key, step, layer, position, channels, pixels, whole_channels, threshold, factor):
    """mask[p, c] = factor where the unit stays, else 0. Unit c pixels + p as in torch's order, or c alone."""
    stay_apart()
    row = mix(mix(key + np.uint64(step) * _STEP + np.uint64(layer) * _LAYER) + counter(position))
    if channels == 1 and not whole_channels:
        for unit in range(0, pixels, 2 * LANES):
            check(ws, mask + unit, mask + min(unit + 2 * LANES, (pixels + LANES - 1) // LANES * LANES))
            _sixteen_factors(ws, mask + unit, pixels - unit, row, unit // 2, threshold, factor)
        return
    zero, kept = first_lane(spread_like(ws, 0.0)), first_lane(spread_like(ws, factor))
    for p in range(pixels):
        for c in range(channels):
            unit = c if whole_channels else c * pixels + p
            half = unit_bits(row, unit // 2) >> np.uint32(16 * (unit % 2)) & np.uint32(0xFFFF)
            ws[mask + p * channels + c] = kept if np.int64(half) < threshold else zero
