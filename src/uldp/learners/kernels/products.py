"""Products of matrices: register-blocked, with dimensions known at run time only.

Every element of a product is one chain of fused multiply-adds in the order of k, whatever the blocks: a row's bits do
not depend on the other rows, and not on how many there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from uldp.native.jit import CHECKED, LONG_REGISTERS, kernel, stay_apart
from uldp.native.simd import (
    LANES,
    Builder,
    Value,
    call_intrinsic,
    check,
    element,
    first_lanes,
    load_to_blend,
    load_vector,
    spread,
    store_vector,
)

_WORD: Final = ir.IntType(64)
_DENSE_NAMES: Final = ["a", "row_a", "k_a", "parts", "part_a", "k", "b", "row_b", "z", "row_z", "c", "row_c"]
_SPARSE_NAMES: Final = ["places", "values", "count", "b", "row_b", "z", "row_z", "c", "row_c"]
#: Blocks of sums: for each number of rows, of how many vectors. Sixteen registers of AVX2 hold 6 x 2, 4 x 3 or 3 x 4
#: sums, the fewer ones of rows and columns, and one of the others; the 32 of AVX-512, twice as long, 8 x 4. The tallest
#: is repeated; of the lower ones one takes what is left. No sum depends on the blocks.
_PANELS: Final = (4, 3, 2, 1) if LONG_REGISTERS else (4, 2, 1)
_DENSE: Final = (
    dict.fromkeys(range(8, 0, -1), _PANELS)
    if LONG_REGISTERS
    else {6: (2, 1), 5: (2, 1), 4: (3, 2, 1), 3: _PANELS, 2: _PANELS, 1: _PANELS}
)
#: Sums of few terms (gradients of few records): for each number of terms, panels of how many vectors.
_SHORT: Final = (
    dict.fromkeys((1, 2, 3, 4, 5, 6), _PANELS)
    if LONG_REGISTERS
    else {1: _PANELS, 2: _PANELS, 3: _PANELS, 4: (2, 1), 5: (2, 1), 6: (2, 1)}
)
MAX_TERMS: Final = max(_SHORT)
_SPARSE: Final = (
    dict.fromkeys((5, 4, 3, 2, 1), _PANELS)
    if LONG_REGISTERS
    else {5: (3, 2, 1), 4: (3, 2, 1), 3: _PANELS, 2: _PANELS, 1: _PANELS}
)

Names = dict[str, Any]


class Offsets:
    """Arithmetic on offsets into the workspace, for generators of LLVM code."""

    def __init__(self, builder: Builder, workspace: Value, scalar: types.Float) -> None:
        self.builder, self.workspace, self.scalar = builder, workspace, scalar

    def at(self, base: Value, stride: Value, times: int, extra: int = 0) -> Value:
        """The address of workspace[base + stride * times + extra]."""
        b = self.builder
        offset = b.add(base, b.mul(stride, ir.Constant(_WORD, times)))
        return b.gep(self.workspace, [b.add(offset, ir.Constant(_WORD, extra))], inbounds=True)

    def vector(self, base: Value, stride: Value, times: int, extra: int = 0, lanes: int = LANES) -> Value:
        return load_vector(self.builder, self.scalar, self.at(base, stride, times, extra), lanes)

    def panel(self, base: Value, stride: Value, times: int, vectors: int) -> list[Value]:
        """A row of a panel: pairs of vectors as one of twice the length, which is what AVX-512 has."""
        return [self.vector(base, stride, times, at, lanes) for at, lanes in _chunks(vectors)]

    def broadcast(self, base: Value, stride: Value, times: int) -> Value:
        """A number that goes to all lanes."""
        return self.builder.load(self.at(base, stride, times))


def _chunks(vectors: int) -> list[tuple[int, int]]:
    """A panel of this many vectors in pieces: where each begins, and its number of lanes."""
    pairs = [(2 * LANES * pair, 2 * LANES) for pair in range(vectors // 2)]
    return [*pairs, *([(LANES * (vectors - 1), LANES)] if vectors % 2 else [])]


def _fma(builder: Builder, x: Value, y: Value, z: Value) -> Value:
    """x y + z for a scalar x."""
    return call_intrinsic(builder, "fma", spread(builder, x, y.type.count), y, z)


def _loop(builder: Builder, count: Value, carried: list[Value], body: Any) -> list[Value]:
    """``carried = body(carried)``, count times (also zero times); returns what is carried in the end."""
    before = builder.block
    head, inside, after = (builder.append_basic_block(name) for name in ("head", "inside", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    number = builder.phi(_WORD)
    number.add_incoming(ir.Constant(_WORD, 0), before)
    values = [builder.phi(value.type) for value in carried]
    for phi, value in zip(values, carried, strict=True):
        phi.add_incoming(value, before)
    builder.cbranch(builder.icmp_signed("<", number, count), inside, after)
    builder.position_at_end(inside)
    new = body(list(values))
    last = builder.block
    number.add_incoming(builder.add(number, ir.Constant(_WORD, 1)), last)
    for phi, value in zip(values, new, strict=True):
        phi.add_incoming(value, last)
    builder.branch(head)
    builder.position_at_end(after)
    return list(values)


def _store_block(o: Offsets, sums: list[list[Value]], c: Value, row_c: Value, tail: Value) -> None:
    """Store all vectors; of the last one in each row only ``tail`` lanes, the rest is written back as it was."""
    b = o.builder
    mask = first_lanes(b, tail)
    with b.if_else(b.icmp_signed("<", tail, ir.Constant(_WORD, LANES))) as (ragged, full):
        with ragged:
            for r, row in enumerate(sums):
                *whole, last = [part for value in row for part in _split_eights(b, value)]
                for v, value in enumerate(whole):
                    store_vector(b, o.scalar, value, o.at(c, row_c, r, LANES * v))
                target = o.at(c, row_c, r, LANES * len(whole))
                store_vector(b, o.scalar, b.select(mask, last, load_to_blend(b, o.scalar, target)), target)
        with full:
            for r, row in enumerate(sums):
                at = 0
                for value in row:
                    store_vector(b, o.scalar, value, o.at(c, row_c, r, at))
                    at += value.type.count


def _split_eights(b: Builder, value: Value) -> list[Value]:
    """A vector as vectors of eight lanes."""
    nothing, index = ir.Constant(value.type, ir.Undefined), ir.VectorType(ir.IntType(32), LANES)
    return [
        b.shuffle_vector(value, nothing, ir.Constant(index, list(range(start, start + LANES))))
        for start in range(0, value.type.count, LANES)
    ]


def _repeat(b: Builder, p: Names, moves: dict[str, str], rows: int, body: Callable[[Names], None]) -> None:
    """``body`` for p["repeat"] blocks, one below the other: p[name] moves by ``rows`` times p[stride]."""
    steps = {name: b.mul(p[stride], ir.Constant(_WORD, rows)) for name, stride in moves.items()}

    def block(carried: list[Value]) -> list[Value]:
        body({**p, **dict(zip(steps, carried, strict=True))})
        return [b.add(value, step) for value, step in zip(carried, steps.values(), strict=True)]

    _loop(b, p["repeat"], [p[name] for name in steps], block)


def _dense_block(b: Builder, o: Offsets, p: Names, rows: int, vectors: int) -> None:
    """sums[r][v] = z + sum over parts and k of a[r, k] b[k, v]; b goes on through the parts, a jumps."""
    zero, chunks = ir.Constant(_WORD, 0), _chunks(vectors)
    sums = [value for r in range(rows) for value in o.panel(p["z"], p["row_z"], r, vectors)]
    many = len(chunks)

    def step(carried: list[Value]) -> list[Value]:
        a, row, *values = carried
        # The fewer ones are kept, the others taken one after the other: twelve sums leave room for four.
        if rows < vectors:
            kept = [o.broadcast(a, p["row_a"], r) for r in range(rows)]
            for v, (at, lanes) in enumerate(chunks):
                y = o.vector(row, zero, 0, at, lanes)
                for r in range(rows):
                    values[r * many + v] = _fma(b, kept[r], y, values[r * many + v])
        else:
            kept = o.panel(row, zero, 0, vectors)
            for r in range(rows):
                x = o.broadcast(a, p["row_a"], r)
                for v in range(many):
                    values[r * many + v] = _fma(b, x, kept[v], values[r * many + v])
        return [b.add(a, p["k_a"]), b.add(row, p["row_b"]), *values]

    def part(carried: list[Value]) -> list[Value]:
        a, *rest = carried
        return [b.add(a, p["part_a"]), *_loop(b, p["k"], [a, *rest], step)[1:]]

    _, _, *done = _loop(b, p["parts"], [p["a"], p["b"], *sums], part)
    _store_block(o, [done[r * many : (r + 1) * many] for r in range(rows)], p["c"], p["row_c"], p["tail"])


def _sparse_block(b: Builder, o: Offsets, p: Names, rows: int, vectors: int) -> None:
    """sums[r][v] = z + sum over t of value[t] b[place[t] + r row_b, v]."""
    zero, many = ir.Constant(_WORD, 0), len(_chunks(vectors))
    sums = [value for r in range(rows) for value in o.panel(p["z"], p["row_z"], r, vectors)]

    def step(carried: list[Value]) -> list[Value]:
        t, *values = carried
        place = b.add(p["b"], b.load(b.gep(p["places"], [t], inbounds=True)))
        x = o.broadcast(b.add(p["values"], t), zero, 0)
        terms = [y for r in range(rows) for y in o.panel(place, p["row_b"], r, vectors)]
        return [b.add(t, ir.Constant(_WORD, 1)), *(_fma(b, x, y, z) for y, z in zip(terms, values, strict=True))]

    _, *done = _loop(b, p["count"], [zero, *sums], step)
    _store_block(o, [done[r * many : (r + 1) * many] for r in range(rows)], p["c"], p["row_c"], p["tail"])


def _define(builder: Builder, name: str, kinds: list[Any], body: Any) -> Value:
    """The function ``name`` of the module, written once: LLVM is not to copy a block to each of its uses."""
    found = builder.module.globals.get(name)
    if found is None:
        found = ir.Function(builder.module, ir.FunctionType(ir.VoidType(), kinds), name)
        found.linkage = "linkonce_odr"
        found.attributes.add("noinline")
        inner = ir.IRBuilder(found.append_basic_block("entry"))
        body(inner, found.args)
        inner.ret_void()
    return found


def _panels(b: Builder, n: Value, widths: tuple[int, ...], panel: Callable[[int, Value, Value], None]) -> None:
    """Cover n columns by panels of the largest width, then of the next: ``panel(vectors, column, last lanes)``.

    One of three vectors is taken where their number is odd: a panel of one would leave the processor waiting.
    """
    column: Value = ir.Constant(_WORD, 0)
    end = b.and_(b.add(n, ir.Constant(_WORD, LANES - 1)), ir.Constant(_WORD, -LANES))
    for vectors in widths:

        def step(carried: list[Value], vectors: int = vectors) -> list[Value]:
            left = b.sub(b.sub(n, carried[0]), ir.Constant(_WORD, LANES * (vectors - 1)))
            full = ir.Constant(_WORD, LANES)
            panel(vectors, carried[0], b.select(b.icmp_signed("<", left, full), left, full))
            return [b.add(carried[0], ir.Constant(_WORD, LANES * vectors))]

        count = b.sdiv(b.sub(end, column), ir.Constant(_WORD, LANES * vectors))
        if vectors == 3:
            odd = b.icmp_signed("!=", b.and_(end, ir.Constant(_WORD, LANES)), ir.Constant(_WORD, 0))
            some = b.icmp_signed(">", count, ir.Constant(_WORD, 0))
            count = b.zext(b.and_(odd, some), _WORD)
        (column,) = _loop(b, count, [column], step)


def _short_block(b: Builder, o: Offsets, p: Names, terms: int, vectors: int) -> None:
    """p["m"] rows of sums of few terms: sums[v] = z + sum over k of a[k] b[k, v], with all of b in registers.

    With a ``rate`` the sums begin at zero, and c becomes c + rate sums.
    """
    kept = [o.panel(p["b"], p["row_b"], k, vectors) for k in range(terms)]
    rate = o.broadcast(p["rate"], p["rate"], 0) if "rate" in p else None

    def row(carried: list[Value]) -> list[Value]:
        a, z, c = carried
        sums = o.panel(z, z, 0, vectors) if rate is None else [ir.Constant(y.type, None) for y in kept[0]]
        for k in range(terms):
            x = o.broadcast(a, p["k_a"], k)
            sums = [_fma(b, x, y, value) for y, value in zip(kept[k], sums, strict=True)]
        if rate is not None:
            sums = [_fma(b, rate, y, value) for y, value in zip(sums, o.panel(c, c, 0, vectors), strict=True)]
        _store_block(o, [sums], c, c, p["tail"])
        return [b.add(a, p["row_a"]), b.add(z, p["row_z"]), b.add(c, p["row_c"])]

    _loop(b, p["m"], [p["a"], p["z"], p["c"]], row)


class _Product:
    """The function of one of the two products: its blocks, and the sweep over them."""

    def __init__(self, scalar: types.Float, dense: bool) -> None:
        self.scalar, self.dense, self.blocks = scalar, dense, _DENSE if dense else _SPARSE
        self.name = f"uldp_{'dense' if dense else 'sparse'}"
        self.names = _DENSE_NAMES if dense else _SPARSE_NAMES
        self.write = _dense_block if dense else _sparse_block
        self.moves = {"z": "row_z", "c": "row_c", **({"a": "row_a"} if dense else {"b": "row_b"})}
        pointers = {"places": _WORD.as_pointer()}
        self.kinds = [element(scalar).as_pointer(), *(pointers.get(name, _WORD) for name in self.names)]

    def call(self, builder: Builder, workspace: Value, args: Any) -> None:
        function = _define(builder, f"{self.name}_{self.scalar}", [*self.kinds, _WORD, _WORD], self._sweep)
        builder.call(function, [workspace, *args])

    def _sweep(self, b: Builder, args: Any) -> None:
        """Sums of few terms row by row; others by blocks."""
        workspace, *values, m, n = args
        p = dict(zip(self.names, values, strict=True))
        if not self.dense:
            self._sweep_blocks(b, workspace, p, m, n)
            return
        few = b.icmp_signed("<=", p["k"], ir.Constant(_WORD, max(_SHORT)))
        few = b.and_(few, b.icmp_signed("==", p["parts"], ir.Constant(_WORD, 1)))
        few = b.and_(few, b.icmp_signed(">", p["k"], ir.Constant(_WORD, 0)))
        with b.if_else(b.and_(few, b.icmp_signed(">", m, p["k"]))) as (short, long):
            with short:
                for terms in _SHORT:
                    with b.if_then(b.icmp_signed("==", p["k"], ir.Constant(_WORD, terms))):
                        self._call_short(b, workspace, p, terms, m, n)
            with long:
                self._sweep_blocks(b, workspace, p, m, n)

    def _sweep_blocks(self, b: Builder, workspace: Value, p: Names, m: Value, n: Value) -> None:
        """Rows by blocks of the tallest kind, and what is left by one block of the right height.

        One or two rows by themselves would leave the processor waiting: with the block above them they make two.
        """
        tallest, zero, one = max(self.blocks), ir.Constant(_WORD, 0), ir.Constant(_WORD, 1)
        middle = tallest // 2 + 1
        whole, left = b.sdiv(m, ir.Constant(_WORD, tallest)), b.srem(m, ir.Constant(_WORD, tallest))
        few = b.and_(b.icmp_signed(">", left, zero), b.icmp_signed("<", left, ir.Constant(_WORD, 3)))
        split = b.and_(few, b.icmp_signed(">", whole, zero))
        whole = b.sub(whole, b.zext(split, _WORD))
        with b.if_then(b.icmp_signed(">", whole, zero)):
            self._call_blocks(b, workspace, p, tallest, whole, n)
        below = self._skip_rows(b, p, b.mul(whole, ir.Constant(_WORD, tallest)))
        with b.if_then(split):
            self._call_blocks(b, workspace, below, middle, one, n)
        below = self._skip_rows(b, below, b.select(split, ir.Constant(_WORD, middle), zero))
        left = b.add(left, b.select(split, ir.Constant(_WORD, tallest - middle), zero))
        for rows in self.blocks:
            if rows < tallest:
                with b.if_then(b.icmp_signed("==", left, ir.Constant(_WORD, rows))):
                    self._call_blocks(b, workspace, below, rows, one, n)

    def descend(self, builder: Builder, workspace: Value, args: Any) -> None:
        """c + rate (A B) for products of few terms; ``z`` is where the rate stands."""

        def sweep(b: Builder, given: Any) -> None:
            inside, *values, m, n = given
            p = dict(zip(self.names, values, strict=True))
            for terms in _SHORT:
                with b.if_then(b.icmp_signed("==", p["k"], ir.Constant(_WORD, terms))):
                    self._call_short(b, inside, p, terms, m, n, "descend")

        function = _define(builder, f"{self.name}_descend_{self.scalar}", [*self.kinds, _WORD, _WORD], sweep)
        builder.call(function, [workspace, *args])

    def _skip_rows(self, b: Builder, p: Names, rows: Value) -> Names:
        """The names of a product without its first rows."""
        return {**p, **{name: b.add(p[name], b.mul(rows, p[stride])) for name, stride in self.moves.items()}}

    def _call_short(
        self, b: Builder, workspace: Value, p: Names, terms: int, m: Value, n: Value, what: str = "short"
    ) -> None:
        def write(inner: Builder, o: Offsets, q: Names, vectors: int) -> None:
            rate = {"rate": q["z"]} if what == "descend" else {}
            _short_block(inner, o, {**q, **rate, "m": q["repeat"]}, terms, vectors)

        columns = ("b", "c") if what == "descend" else ("b", "z", "c")
        self._call_panels(b, workspace, p, f"{what}_{terms}", _SHORT[terms], write, m, n, columns)

    def _call_blocks(self, b: Builder, workspace: Value, p: Names, rows: int, repeat: Value, n: Value) -> None:
        def write(inner: Builder, o: Offsets, q: Names, vectors: int) -> None:
            _repeat(inner, q, self.moves, rows, lambda moved: self.write(inner, o, moved, rows, vectors))

        self._call_panels(b, workspace, p, str(rows), self.blocks[rows], write, repeat, n)

    def _call_panels(
        self, b: Builder, workspace: Value, p: Names, name: str, widths: tuple[int, ...], write: Any, repeat: Value,
        n: Value, columns: tuple[str, ...] = ("b", "z", "c"),
    ) -> None:  # fmt: skip
        """Cover n columns by panels; each is a call of the function that ``write`` writes for its width.

        ``columns`` names what moves from panel to panel.
        """

        def panel(vectors: int, column: Value, tail: Value) -> None:
            def body(inner: Builder, given: Any) -> None:
                named = dict(zip([*self.names, "tail", "repeat"], given[1:], strict=True))
                write(inner, Offsets(inner, given[0], self.scalar), named, vectors)

            function = _define(b, f"{self.name}_{name}_{vectors}_{self.scalar}", [*self.kinds, _WORD, _WORD], body)
            moved = {**p, **{name: b.add(p[name], column) for name in columns}}
            b.call(function, [workspace, *(moved[name] for name in self.names), tail, repeat])

        _panels(b, n, widths, panel)


@intrinsic
def _dense(context, ws, a, row_a, k_a, parts, part_a, k, b, row_b, z, row_z, c, row_c, m, n):
    def lower(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        data = context.make_array(ws)(context, builder, args[0]).data
        _Product(ws.dtype, dense=True).call(builder, data, args[1:])
        return context.get_dummy_value()

    return types.void(ws, *[types.intp] * 14), lower


@intrinsic
def _descend(context, ws, a, row_a, k_a, k, b, row_b, rate, c, row_c, m, n):
    def lower(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        data = context.make_array(ws)(context, builder, args[0]).data
        a, row_a, k_a, k, b, row_b, rate, c, row_c, m, n = args[1:]
        zero, one = ir.Constant(_WORD, 0), ir.Constant(_WORD, 1)
        product = _Product(ws.dtype, dense=True)
        product.descend(builder, data, [a, row_a, k_a, one, zero, k, b, row_b, rate, zero, c, row_c, m, n])
        return context.get_dummy_value()

    return types.void(ws, *[types.intp] * 11), lower


@intrinsic
def _sparse(context, ws, iw, places, values, count, b, row_b, z, row_z, c, row_c, m, n):
    def lower(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        data = context.make_array(ws)(context, builder, args[0]).data
        numbers = context.make_array(iw)(context, builder, args[1]).data
        start = builder.gep(numbers, [args[2]], inbounds=True)
        _Product(ws.dtype, dense=False).call(builder, data, [start, *args[3:]])
        return context.get_dummy_value()

    return types.void(ws, iw, *[types.intp] * 11), lower


@kernel
def multiply(ws, a, row_a, k_a, parts, part_a, k, b, row_b, z, row_z, c, row_c, m, n):
    """C = Z + A B for m rows and n columns, all of them parts of the workspace.

    A[r, q k + i] = ws[a + r row_a + q part_a + i k_a] for ``parts`` runs q of ``k`` columns (one run: an ordinary
    matrix); rows of B, Z and C lie row_b, row_z and row_c apart. Up to 7 numbers beyond a row of B, Z and C are read,
    and written back as they were.
    """
    stay_apart()
    if m <= 0 or n <= 0:
        return
    ceiling = (n + LANES - 1) // LANES * LANES
    check(ws, c, c + (m - 1) * row_c + ceiling)
    check(ws, z, z + (m - 1) * row_z + ceiling)
    if parts > 0 and k > 0:
        check(ws, a, a + (m - 1) * row_a + (parts - 1) * part_a + (k - 1) * k_a + 1)
        check(ws, b, b + (parts * k - 1) * row_b + ceiling)
    _dense(ws, a, row_a, k_a, parts, part_a, k, b, row_b, z, row_z, c, row_c, m, n)


@kernel
def descend(ws, a, row_a, k_a, k, b, row_b, rate, c, row_c, m, n):
    """C <- C + ws[rate] (A B) for m rows, n columns and sums of at most ``MAX_TERMS`` terms.

    The same bits as a product that starts at zeros and is added afterwards, without a place for it.
    """
    stay_apart()
    ceiling = (n + LANES - 1) // LANES * LANES
    check(ws, c, c + (m - 1) * row_c + ceiling)
    check(ws, a, a + (m - 1) * row_a + (k - 1) * k_a + 1)
    check(ws, b, b + (k - 1) * row_b + ceiling)
    check(ws, rate, rate + 1)
    _descend(ws, a, row_a, k_a, k, b, row_b, rate, c, row_c, m, n)


@kernel
def multiply_list(ws, iw, places, values, count, b, row_b, z, row_z, c, row_c, m, n):
    """C[r, j] = Z[r, j] + sum over t < count of ws[values + t] B_t[r, j], with B_t at b + iw[places + t].

    The product with a matrix of which only ``count`` entries are not zero.
    """
    stay_apart()
    if m <= 0 or n <= 0:
        return
    ceiling = (n + LANES - 1) // LANES * LANES
    check(ws, c, c + (m - 1) * row_c + ceiling)
    check(ws, z, z + (m - 1) * row_z + ceiling)
    check(ws, values, values + count)
    check(iw, places, places + count)
    if CHECKED:
        for t in range(count):
            check(ws, b + iw[places + t], b + iw[places + t] + (m - 1) * row_b + ceiling)
    _sparse(ws, iw, places, values, count, b, row_b, z, row_z, c, row_c, m, n)
