"""Number-theoretic transforms of 4096 numbers modulo a prime below 2^48, and sums of products: compiled.

*Arithmetic.* Residues are whole numbers in float64, between about -16 p and 16 p. A product with a known factor w,
|w| <= p / 2, and the float f next to w / p:

    h = fl(a w), q = the whole number next to a f, r = (h - q p) + (a w - h)

With fused multiply-adds all but h and q is exact: a w - h by its definition, h - q p because it is a whole number below
2^53. So r = a w modulo p. Rounding a f to a whole number errs by at most 1/2, and f itself by 2^-54, that is a f by
|a| 2^-54 < 1/4 for |a| < 2^52: |r| < 3p/4. Whoever adds 3p/4 twelve times to numbers below 2^50 < 4.01 p stays below
13.1 p < 2^51.8. Adding 1.5 * 2^52 rounds to whole numbers below 2^51, and |a f| < 2^50.8.

*Order.* N = 8^4: four passes of three stages each (Cooley and Tukey's). The stage of a node splits x^2m = w^2 into
x^m = w and x^m = -w. After the first pass eight polynomials of 512 coefficients are left, and these are turned into the
eight lanes of vectors: all later passes go without a shuffle. The order of evaluations is what comes out.

*Few coefficients.* A polynomial of at most 512 coefficients is its own remainder in all eight nodes after the first
pass, one of at most 64 in all nodes after the second: they begin there.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from uldp.native.jit import entry, inline, kernel, stay_apart
from uldp.native.simd import (
    LANES,
    VECTORS,
    Builder,
    Value,
    address,
    call_intrinsic,
    check,
    constant,
    first_lane,
    fma,
    load,
    splat,
    store,
    store_vector,
    total,
    transpose_vectors,
    where_greater,
)

#: 1.5 * 2^52: a float64 that small whole numbers can be added to without rounding; they are then its low bits.
MAGIC: Final = 1.5 * 2.0**52
MAGIC_BITS: Final = 0x4338000000000000
#: Vectors of a node of three stages: 1 + 2 + 4 factors, and the floats next to their quotients by p.
NODE: Final = 14 * LANES
QUOTIENTS: Final = 7 * LANES
#: Where the nodes of each pass begin.
SECOND: Final = NODE
THIRD: Final = 2 * NODE
FOURTH: Final = 10 * NODE
#: Behind the 74 nodes: 1 / N and its quotient in all lanes, and p.
INVERSE_N: Final = 74 * NODE
PRIME: Final = INVERSE_N + 2 * LANES
TABLE: Final = PRIME + 1
N: Final = 4096
#: Users whose ciphertexts, and whose values of a block, stay in the cache for all blocks and for both limbs.
TILE: Final = 8

_FLOATS: Final = VECTORS[types.float64]
_WORDS: Final = ir.VectorType(ir.IntType(64), LANES)


def _word_address(context: Any, builder: Builder, kind: Any, array: Value, index: Value) -> Value:
    return builder.bitcast(address(context, builder, kind, array, index), _WORDS.as_pointer())


@intrinsic
def _load_whole(context, array, index):
    def lower(context: Any, b: Builder, sig: Any, args: Any) -> Value:
        words = b.load(_word_address(context, b, array, args[0], args[1]))
        words.align = 8
        shifted = b.add(words, ir.Constant(_WORDS, [MAGIC_BITS] * LANES))
        floats = b.bitcast(shifted, constant(types.float64, 0.0).type)
        return b.fsub(floats, constant(types.float64, MAGIC))

    return _FLOATS(array, types.intp), lower


@intrinsic
def _store_whole(context, array, index, value):
    def lower(context: Any, b: Builder, sig: Any, args: Any) -> Value:
        shifted = b.bitcast(b.fadd(args[2], constant(types.float64, MAGIC)), _WORDS)
        words = b.sub(shifted, ir.Constant(_WORDS, [MAGIC_BITS] * LANES))
        b.store(words, _word_address(context, b, array, args[0], args[1])).align = 8
        return context.get_dummy_value()

    return types.void(array, types.intp, _FLOATS), lower


@inline
def load_whole(array, index):
    """Eight int64 below 2^51 in magnitude as floats."""
    check(array, index, index + LANES)
    return _load_whole(array, index)


@inline
def store_whole(array, index, value):
    """Eight whole floats below 2^51 in magnitude as int64."""
    check(array, index, index + LANES)
    _store_whole(array, index, value)


@intrinsic
def _store_turned(context, array, index, a, b, c, d, e, f, g, h):
    def lower(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        for k, vector in enumerate(transpose_vectors(builder, list(args[2:]))):
            offset = builder.add(args[1], ir.Constant(ir.IntType(64), LANES * k))
            store_vector(builder, types.float64, vector, address(context, builder, array, args[0], offset))
        return context.get_dummy_value()

    return types.void(array, types.intp, *[_FLOATS] * LANES), lower


@intrinsic
def times(context, a, w, quotient, minus_p, magic):
    """a w modulo p (the module's head)."""

    def lower(context: Any, b: Builder, sig: Any, args: Any) -> Value:
        a, w, quotient, minus_p, magic = args
        high = b.fmul(a, w)
        q = b.fsub(call_intrinsic(b, "fma", a, quotient, magic), magic)
        low = call_intrinsic(b, "fma", a, w, b.fneg(high))
        return b.fadd(call_intrinsic(b, "fma", q, minus_p, high), low)

    return _FLOATS(*[_FLOATS] * 5), lower


@intrinsic
def plus_product(context, t, a, c, inverse, minus_p, magic):
    """t + a c modulo p, at most 0.6 p, for |t| <= 0.6 p, |a| <= 0.51 p and 0 <= c < p.

    As ``times``, with the quotient (fl(a c) + t) / p, below 2^47.1: three roundings and that of 1 / p move it by less
    than 2^-4.
    """

    def lower(context: Any, b: Builder, sig: Any, args: Any) -> Value:
        t, a, c, inverse, minus_p, magic = args
        high = b.fmul(a, c)
        q = b.fsub(call_intrinsic(b, "fma", b.fadd(high, t), inverse, magic), magic)
        low = call_intrinsic(b, "fma", a, c, b.fneg(high))
        return b.fadd(b.fadd(call_intrinsic(b, "fma", q, minus_p, high), low), t)

    return _FLOATS(*[_FLOATS] * 6), lower


@intrinsic
def towards_zero(context, a):
    """a without what is behind the point."""

    def lower(context: Any, b: Builder, sig: Any, args: Any) -> Value:
        return call_intrinsic(b, "trunc", args[0])

    return _FLOATS(_FLOATS), lower


@inline
def shrink(a, inverse, minus_p, magic):
    """a modulo p, at most 0.51 p in magnitude."""
    return fma(fma(a, inverse, magic) - magic, minus_p, a)


@inline
def residue(a, p):
    """a or a + p, from 0 up, for |a| < p."""
    return where_greater(splat(0.0), a, a + p, a)


@inline
def split(x0, x1, x2, x3, x4, x5, x6, x7, table, at, minus_p, magic):
    """Three stages from a node down: eight coefficients m apart."""
    w, f = load(table, at), load(table, at + QUOTIENTS)
    y4, y5 = times(x4, w, f, minus_p, magic), times(x5, w, f, minus_p, magic)
    y6, y7 = times(x6, w, f, minus_p, magic), times(x7, w, f, minus_p, magic)
    x0, x4, x1, x5 = x0 + y4, x0 - y4, x1 + y5, x1 - y5
    x2, x6, x3, x7 = x2 + y6, x2 - y6, x3 + y7, x3 - y7
    w, f = load(table, at + 8), load(table, at + QUOTIENTS + 8)
    y2, y3 = times(x2, w, f, minus_p, magic), times(x3, w, f, minus_p, magic)
    w, f = load(table, at + 16), load(table, at + QUOTIENTS + 16)
    y6, y7 = times(x6, w, f, minus_p, magic), times(x7, w, f, minus_p, magic)
    x0, x2, x1, x3 = x0 + y2, x0 - y2, x1 + y3, x1 - y3
    x4, x6, x5, x7 = x4 + y6, x4 - y6, x5 + y7, x5 - y7
    y1 = times(x1, load(table, at + 24), load(table, at + QUOTIENTS + 24), minus_p, magic)
    y3 = times(x3, load(table, at + 32), load(table, at + QUOTIENTS + 32), minus_p, magic)
    y5 = times(x5, load(table, at + 40), load(table, at + QUOTIENTS + 40), minus_p, magic)
    y7 = times(x7, load(table, at + 48), load(table, at + QUOTIENTS + 48), minus_p, magic)
    return x0 + y1, x0 - y1, x2 + y3, x2 - y3, x4 + y5, x4 - y5, x6 + y7, x6 - y7


@inline
def join(x0, x1, x2, x3, x4, x5, x6, x7, table, at, minus_p, magic):
    """The three stages back, times eight: sums of numbers below 0.51 p stay below 4.1 p."""
    w, f = load(table, at + 24), load(table, at + QUOTIENTS + 24)
    x0, x1 = x0 + x1, times(x0 - x1, w, f, minus_p, magic)
    w, f = load(table, at + 32), load(table, at + QUOTIENTS + 32)
    x2, x3 = x2 + x3, times(x2 - x3, w, f, minus_p, magic)
    w, f = load(table, at + 40), load(table, at + QUOTIENTS + 40)
    x4, x5 = x4 + x5, times(x4 - x5, w, f, minus_p, magic)
    w, f = load(table, at + 48), load(table, at + QUOTIENTS + 48)
    x6, x7 = x6 + x7, times(x6 - x7, w, f, minus_p, magic)
    w, f = load(table, at + 8), load(table, at + QUOTIENTS + 8)
    x0, x2 = x0 + x2, times(x0 - x2, w, f, minus_p, magic)
    x1, x3 = x1 + x3, times(x1 - x3, w, f, minus_p, magic)
    w, f = load(table, at + 16), load(table, at + QUOTIENTS + 16)
    x4, x6 = x4 + x6, times(x4 - x6, w, f, minus_p, magic)
    x5, x7 = x5 + x7, times(x5 - x7, w, f, minus_p, magic)
    w, f = load(table, at), load(table, at + QUOTIENTS)
    y4, y5 = times(x0 - x4, w, f, minus_p, magic), times(x1 - x5, w, f, minus_p, magic)
    y6, y7 = times(x2 - x6, w, f, minus_p, magic), times(x3 - x7, w, f, minus_p, magic)
    return x0 + x4, x1 + x5, x2 + x6, x3 + x7, y4, y5, y6, y7


@inline
def load_eight(ws, at, m):
    """Eight vectors m numbers apart."""
    return (
        load(ws, at), load(ws, at + m), load(ws, at + 2 * m), load(ws, at + 3 * m),
        load(ws, at + 4 * m), load(ws, at + 5 * m), load(ws, at + 6 * m), load(ws, at + 7 * m),
    )  # fmt: skip


@inline
def store_eight(ws, at, m, x):
    """Write eight vectors m numbers apart."""
    for k, vector in enumerate(x):
        store(ws, at + k * m, vector)


@inline
def shrink_eight(x, inverse, minus_p, magic):
    """Each of eight vectors modulo p."""
    return (
        shrink(x[0], inverse, minus_p, magic), shrink(x[1], inverse, minus_p, magic),
        shrink(x[2], inverse, minus_p, magic), shrink(x[3], inverse, minus_p, magic),
        shrink(x[4], inverse, minus_p, magic), shrink(x[5], inverse, minus_p, magic),
        shrink(x[6], inverse, minus_p, magic), shrink(x[7], inverse, minus_p, magic),
    )  # fmt: skip


# --- passes -----------------------------------------------------------------------------------------------------------


@kernel
def first_pass(x, start, ws, table):
    """Of all N whole numbers from x[start] on."""
    stay_apart()
    minus_p, magic = splat(-table[PRIME]), splat(MAGIC)
    for j in range(0, 512, LANES):
        at = start + j
        a, b, c, d, e, f, g, h = split(
            load_whole(x, at), load_whole(x, at + 512), load_whole(x, at + 1024), load_whole(x, at + 1536),
            load_whole(x, at + 2048), load_whole(x, at + 2560), load_whole(x, at + 3072), load_whole(x, at + 3584),
            table, 0, minus_p, magic,
        )  # fmt: skip
        check(ws, LANES * j, LANES * (j + LANES))
        _store_turned(ws, LANES * j, a, b, c, d, e, f, g, h)


@kernel
def spread_few(x, start, count, ws, size):
    """``count`` <= size numbers in all lanes, and in all nodes of ``size`` coefficients: what earlier passes make."""
    stay_apart()
    for node in range(0, N, size * LANES):
        for j in range(size):
            store(ws, node + LANES * j, splat(float(x[start + j])) if j < count else splat(0.0))


@kernel
def middle_pass(ws, table, nodes, size, begin):
    """The second or third pass: ``nodes`` nodes of ``size`` vectors."""
    stay_apart()
    minus_p, magic = splat(-table[PRIME]), splat(MAGIC)
    for node in range(nodes):
        at = begin + NODE * node
        for j in range(size // 8):
            start = LANES * (node * size + j)
            a, b, c, d, e, f, g, h = load_eight(ws, start, size)
            store_eight(ws, start, size, split(a, b, c, d, e, f, g, h, table, at, minus_p, magic))


@kernel
def transform(x, start, count, ws, table):
    """All but the last pass, of ``count`` whole numbers from x[start] on; the others are zero."""
    if count > 512:
        first_pass(x, start, ws, table)
    elif count > 64:
        spread_few(x, start, count, ws, 512)
    else:
        spread_few(x, start, count, ws, 64)
    if count > 64:
        middle_pass(ws, table, 1, 512, SECOND)
    middle_pass(ws, table, 8, 64, THIRD)


@kernel
def last_pass(ws, table, out, start):
    """The last pass, as residues."""
    stay_apart()
    p = table[PRIME]
    minus_p, magic, inverse, prime = splat(-p), splat(MAGIC), splat(1.0 / p), splat(p)
    for node in range(64):
        a, b, c, d, e, f, g, h = load_eight(ws, 64 * node, LANES)
        x = split(a, b, c, d, e, f, g, h, table, FOURTH + NODE * node, minus_p, magic)
        for k, vector in enumerate(x):
            store_whole(out, start + 64 * node + 8 * k, residue(shrink(vector, inverse, minus_p, magic), prime))


@kernel
def last_pass_of_product(ws, table, ciphertexts, first, second, totals, total):
    """The last pass; its results times two polynomials are added to totals[total:] and to the N numbers behind."""
    stay_apart()
    p = table[PRIME]
    minus_p, magic, inverse = splat(-p), splat(MAGIC), splat(1.0 / p)
    for node in range(64):
        a, b, c, d, e, f, g, h = load_eight(ws, 64 * node, LANES)
        x = split(a, b, c, d, e, f, g, h, table, FOURTH + NODE * node, minus_p, magic)
        for k, vector in enumerate(x):
            at = 64 * node + 8 * k
            value = shrink(vector, inverse, minus_p, magic)
            one, other = load_whole(ciphertexts, first + at), load_whole(ciphertexts, second + at)
            at += total
            store(totals, at, plus_product(load(totals, at), value, one, inverse, minus_p, magic))
            store(totals, at + N, plus_product(load(totals, at + N), value, other, inverse, minus_p, magic))


@kernel
def inverse_pass(ws, table, nodes, size, begin):
    """``middle_pass`` back, and ``last_pass`` (64 nodes of 8 vectors)."""
    stay_apart()
    p = table[PRIME]
    minus_p, magic, inverse = splat(-p), splat(MAGIC), splat(1.0 / p)
    for node in range(nodes):
        at = begin + NODE * node
        for j in range(size // 8):
            start = LANES * (node * size + j)
            a, b, c, d, e, f, g, h = shrink_eight(load_eight(ws, start, size), inverse, minus_p, magic)
            store_eight(ws, start, size, join(a, b, c, d, e, f, g, h, table, at, minus_p, magic))


# --- what Python calls ------------------------------------------------------------------------------------------------


@entry
def evaluations(x, limb, ws, table, out):
    """Transform polynomials of one limb: x and out are (polynomials, 2, N), flat."""
    for start in range(limb * N, x.size, 2 * N):
        transform(x, start, N, ws, table)
        last_pass(ws, table, out, start)


@entry
def coefficients(x, limb, ws, table, out):
    """The inverse of ``evaluations``; ws has room for 64 more numbers."""
    p = table[PRIME]
    minus_p, magic, inverse, prime = splat(-p), splat(MAGIC), splat(1.0 / p), splat(p)
    scale, quotient = load(table, INVERSE_N), load(table, INVERSE_N + LANES)
    for start in range(limb * N, x.size, 2 * N):
        for j in range(0, N, LANES):
            store(ws, j, load_whole(x, start + j))
        inverse_pass(ws, table, 64, 8, FOURTH)
        inverse_pass(ws, table, 8, 64, THIRD)
        inverse_pass(ws, table, 1, 512, SECOND)
        for j in range(0, 512, LANES):
            a, b, c, d, e, f, g, h = load_eight(ws, LANES * j, LANES)
            check(ws, N, N + LANES * LANES)
            _store_turned(ws, N, a, b, c, d, e, f, g, h)
            a, b, c, d, e, f, g, h = shrink_eight(load_eight(ws, N, LANES), inverse, minus_p, magic)
            for lane, vector in enumerate(join(a, b, c, d, e, f, g, h, table, 0, minus_p, magic)):
                scaled = times(vector, scale, quotient, minus_p, magic)
                store_whole(out, start + 512 * lane + j, residue(scaled, prime))


@kernel
def bits_of(values, start, count):
    """Every bit that is set in one of the magnitudes (of a negative number: in its magnitude less one)."""
    stay_apart()
    bits = 0
    for k in range(start, start + count):
        bits |= values[k] ^ (values[k] >> 63)
    return bits


@entry
def add_products(values, parameters, users, ciphertexts, limbs, blocks, ws, padded, tables, totals):
    """Add users' values times their ciphertexts to the totals of limbs[0] to limbs[1] and of some blocks.

    values are (users, parameters), ciphertexts (all users, 2 components, 2 limbs, N), totals (2 limbs, blocks, 2, N),
    all flat; users[row] says whose ciphertext belongs to a row, and padded has room for N whole numbers.

    Returns whether all values are within their range. If not, the totals are worthless.
    """
    bits = 0
    for tile in range(0, users.size, TILE):
        for block in range(blocks[0], blocks[1]):
            count = min(N, parameters - block * N)
            for limb in range(limbs[0], limbs[1]):
                table = tables[limb * TABLE : (limb + 1) * TABLE]
                total = 2 * N * (limb * (totals.size // (4 * N)) + block)
                for row in range(tile, min(tile + TILE, users.size)):
                    start = row * parameters + block * N
                    bits |= bits_of(values, start, count)
                    if 512 < count < N:  # the first pass takes whole blocks
                        padded[count:] = 0
                        padded[:count] = values[start : start + count]
                        transform(padded, 0, N, ws, table)
                    else:
                        transform(values, start, count, ws, table)
                    first = (4 * users[row] + limb) * N
                    last_pass_of_product(ws, table, ciphertexts, first, first + 2 * N, totals, total)
    return bits < 2**50


@entry
def weigh_rows(rows, parameters, scale, limit, counts, out):
    """Rows as whole numbers trunc(scale x), times the count of each; rows and out are (counts, parameters), flat.

    A row counts as zero if the sum of its squared whole numbers is above the limit, or no number. Whole numbers and
    their sums are exact below 2^53, and the limit is below: no order of adding decides what is above it.

    Returns how many rows count as zero.
    """
    left_out = 0
    factor = splat(scale)
    for row in range(counts.size):
        start, end, count = row * parameters, (row + 1) * parameters, float(counts[row])
        whole, weight, squares = end - parameters % LANES, splat(count), splat(0.0)
        for at in range(start, whole, LANES):
            units = towards_zero(load(rows, at) * factor)
            squares = squares + units * units
            store_whole(out, at, units * weight)
        length = total(squares)
        for at in range(whole, end):
            one = first_lane(towards_zero(splat(rows[at] * scale)))
            length += one * one
            out[at] = int(one * count)
        if not length <= limit:
            out[start:end] = 0
            left_out += 1
    return left_out
