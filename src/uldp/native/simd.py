"""A vector of eight floats as a value of numba, with the operations that kernels need.

Eight lanes for float32 and for float64: one layout, one set of kernels. LLVM lowers the vectors to what the processor
has (AVX-512, AVX2, SSE, NEON). Each lane is computed by the same IEEE operations everywhere, so results are identical.

>>> import numpy as np, numba
>>> total_of_eight = numba.njit(lambda a: total(fma(load(a, 0), splat(a[0]), load(a, 0))))
>>> total_of_eight(np.ones(8, dtype=np.float32))
16.0
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core.datamodel import models
from numba.core.typing.templates import ConcreteTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, register_model

from uldp.native.jit import CHECKED, inline

LANES: Final = 8

Builder = Any
Value = Any
Generate = Callable[..., Value]


class VectorType(types.Type):  # type: ignore[misc]
    """Eight lanes of a scalar type."""

    def __init__(self, scalar: types.Float) -> None:
        self.scalar = scalar
        super().__init__(name=f"Vector({scalar}, {LANES})")


def element(scalar: types.Float) -> ir.Type:
    """LLVM's type for a scalar type of numba."""
    return ir.FloatType() if scalar.bitwidth == 32 else ir.DoubleType()


def llvm_vector(scalar: types.Float, lanes: int = LANES) -> ir.VectorType:
    """LLVM's type for eight lanes, or for another number of them."""
    return ir.VectorType(element(scalar), lanes)


@register_model(VectorType)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: VectorType) -> None:
        super().__init__(manager, kind, llvm_vector(kind.scalar))


VECTORS: Final = {scalar: VectorType(scalar) for scalar in (types.float32, types.float64)}


# --- operators ------------------------------------------------------------------------------------------------


def _operator(symbol: Callable[..., Any], instruction: str) -> None:
    """``x symbol y`` for two vectors, lane by lane."""

    @infer_global(symbol)
    class Template(ConcreteTemplate):  # type: ignore[misc]
        cases = [signature(v, v, v) for v in VECTORS.values()]  # noqa: RUF012

    for vector in VECTORS.values():

        @lower_builtin(symbol, vector, vector)
        def _lower(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
            return getattr(builder, instruction)(*args)


for _symbol, _instruction in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _operator(_symbol, _instruction)


def _elementwise(arguments: int, generate: Generate) -> Any:
    """An intrinsic on ``arguments`` vectors of one type, which returns such a vector."""

    def type_call(context: Any, *kinds: Any) -> Any:
        vector = kinds[0]
        if not isinstance(vector, VectorType):
            return None

        def lower(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
            return generate(builder, vector.scalar, *args)

        return vector(*[vector] * arguments), lower

    # numba wants a fixed number of named arguments
    names = ", ".join("xyzw"[:arguments])
    scope = {"typed": type_call}
    exec(f"def intrinsic_(context, {names}): return typed(context, {names})", scope)
    return intrinsic(scope["intrinsic_"])


def call_intrinsic(builder: Builder, name: str, *values: Value) -> Value:
    """Call LLVM's ``llvm.name`` on vectors or scalars of one type."""
    kind = values[0].type
    wide = isinstance(kind, ir.VectorType)
    bits = 32 if (kind.element if wide else kind) == ir.FloatType() else 64
    full = f"llvm.{name}.{f'v{kind.count}' if wide else ''}f{bits}"
    function = builder.module.globals.get(full)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(kind, [kind] * len(values)), full)
    return builder.call(function, values)


def constant(scalar: types.Float, value: float) -> ir.Constant:
    """The same number in all lanes."""
    return ir.Constant(llvm_vector(scalar), [value] * LANES)


#: x y + z with one rounding.
fma = _elementwise(3, lambda b, s, x, y, z: call_intrinsic(b, "fma", x, y, z))
#: The square root, correctly rounded.
root = _elementwise(1, lambda b, s, x: call_intrinsic(b, "sqrt", x))
#: z where x > y, else w. A NaN in x or y gives w.
where_greater = _elementwise(4, lambda b, s, x, y, z, w: b.select(b.fcmp_ordered(">", x, y), z, w))
#: z where x <= y, else w. A NaN in x or y gives w.
where_at_most = _elementwise(4, lambda b, s, x, y, z, w: b.select(b.fcmp_ordered("<=", x, y), z, w))
#: z where x > y or x is NaN, else w: what a maximum takes, so that NaN is passed on.
where_new_maximum = _elementwise(
    4, lambda b, s, x, y, z, w: b.select(b.or_(b.fcmp_ordered(">", x, y), b.fcmp_unordered("uno", x, x)), z, w)
)
#: z where x == y, else w. A NaN in x or y gives w.
where_equal = _elementwise(4, lambda b, s, x, y, z, w: b.select(b.fcmp_ordered("==", x, y), z, w))


# --- memory ---------------------------------------------------------------------------------------------------


def address(context: Any, builder: Builder, kind: Any, array: Value, index: Value) -> Value:
    """The pointer to ``array[index]`` of an array of numba's type ``kind``."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.gep(data, [index], inbounds=True)


def address_of_vector(builder: Builder, scalar: types.Float, pointer: Value, lanes: int = LANES) -> Value:
    """The pointer to a scalar as one to a vector."""
    return builder.bitcast(pointer, llvm_vector(scalar, lanes).as_pointer())


def load_vector(builder: Builder, scalar: types.Float, pointer: Value, lanes: int = LANES) -> Value:
    """Eight lanes (or another number) from a pointer to a scalar, at any alignment."""
    found = builder.load(address_of_vector(builder, scalar, pointer, lanes))
    found.align = scalar.bitwidth // 8
    return found


class _VolatileLoad(ir.LoadInstr):  # type: ignore[misc]
    def descr(self, buf: list[str]) -> None:
        super().descr(buf)
        buf[-1] = buf[-1].replace("load ", "load volatile ", 1)


def load_to_blend(builder: Builder, scalar: types.Float, pointer: Value) -> Value:
    """As :func:`load_vector`, where some lanes are to be written back to the same place.

    LLVM makes a masked store of a load, a selection and a store; AMD's processors take twenty times as long for that.
    It leaves volatile loads alone.
    """
    found = _VolatileLoad(builder.block, address_of_vector(builder, scalar, pointer))
    found.align = scalar.bitwidth // 8
    builder._insert(found)
    return found


def store_vector(builder: Builder, scalar: types.Float, value: Value, pointer: Value) -> None:
    """All lanes of a vector to a pointer to a scalar, at any alignment."""
    lanes = value.type.count
    builder.store(value, address_of_vector(builder, scalar, pointer, lanes)).align = scalar.bitwidth // 8


def first_lanes(builder: Builder, count: Value) -> Value:
    """A mask of the first ``count`` lanes, for counts below 2^31."""
    numbers = ir.Constant(ir.VectorType(ir.IntType(32), LANES), list(range(LANES)))
    return builder.icmp_signed("<", numbers, spread(builder, builder.trunc(count, ir.IntType(32))))


def spread(builder: Builder, value: Value, lanes: int = LANES) -> Value:
    """A scalar in all lanes."""
    kind = ir.VectorType(value.type, lanes)
    nothing = ir.Constant(kind, ir.Undefined)
    one = builder.insert_element(nothing, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes))


def transpose_vectors(b: Builder, rows: list[Value]) -> list[Value]:
    """Eight vectors as the columns of what they were the rows of: three rounds of exchanges between pairs of rows."""
    index, width = ir.VectorType(ir.IntType(32), LANES), 1
    while width < LANES:
        new = list(rows)
        low = [j if not j & width else LANES + j - width for j in range(LANES)]
        high = [j + width if not j & width else LANES + j for j in range(LANES)]
        for r in range(LANES):
            if not r & width:
                new[r] = b.shuffle_vector(rows[r], rows[r + width], ir.Constant(index, low))
                new[r + width] = b.shuffle_vector(rows[r], rows[r + width], ir.Constant(index, high))
        rows, width = new, 2 * width
    return rows


@intrinsic
def _load(context: Any, array: Any, index: Any) -> Any:
    def lower(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        return load_vector(builder, array.dtype, address(context, builder, array, args[0], args[1]))

    return VECTORS[array.dtype](array, types.intp), lower


@intrinsic
def _load_back(context: Any, array: Any, index: Any) -> Any:
    def lower(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        return load_to_blend(builder, array.dtype, address(context, builder, array, args[0], args[1]))

    return VECTORS[array.dtype](array, types.intp), lower


@intrinsic
def _store(context: Any, array: Any, index: Any, value: Any) -> Any:
    def lower(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        store_vector(builder, array.dtype, args[2], address(context, builder, array, args[0], args[1]))
        return context.get_dummy_value()

    return types.void(array, types.intp, VECTORS[array.dtype]), lower


@intrinsic
def _read(context: Any, array: Any, index: Any) -> Any:
    def lower(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        return builder.load(address(context, builder, array, args[0], args[1]))

    return array.dtype(array, types.intp), lower


@intrinsic
def _write(context: Any, array: Any, index: Any, value: Any) -> Any:
    def lower(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        builder.store(args[2], address(context, builder, array, args[0], args[1]))
        return context.get_dummy_value()

    return types.void(array, types.intp, array.dtype), lower


@intrinsic
def keep_lanes(context: Any, value: Any, other: Any, count: Any) -> Any:
    """The first ``count`` lanes of value, the others of other."""

    def lower(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        return builder.select(first_lanes(builder, args[2]), args[0], args[1])

    return value(value, value, types.intp), lower


@intrinsic
def clear_lanes(context: Any, value: Any, count: Any) -> Any:
    """The first ``count`` lanes of value, zero in the others (also where they are NaN)."""

    def lower(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        return builder.select(first_lanes(builder, args[1]), args[0], constant(value.scalar, 0.0))

    return value(value, types.intp), lower


@intrinsic
def splat(context: Any, value: Any) -> Any:
    """A scalar in all lanes."""

    def lower(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        return spread(builder, args[0])

    return VECTORS[value](value), lower


@intrinsic
def spread_like(context: Any, array: Any, value: Any) -> Any:
    """A number of any type in all lanes, in the type of the array."""

    def lower(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        return spread(builder, context.cast(builder, args[1], value, array.dtype))

    return VECTORS[array.dtype](array, value), lower


@intrinsic
def total(context: Any, value: Any) -> Any:
    """The sum of the lanes: halves are added, (0+4, 1+5, 2+6, 3+7) and so on, always in this order."""

    def lower(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        (found,), width = args, LANES
        while width > 1:
            width //= 2
            nothing = ir.Constant(found.type, ir.Undefined)
            index = ir.VectorType(ir.IntType(32), width)
            low = builder.shuffle_vector(found, nothing, ir.Constant(index, list(range(width))))
            high = builder.shuffle_vector(found, nothing, ir.Constant(index, list(range(width, 2 * width))))
            found = builder.fadd(low, high)
        return builder.extract_element(found, ir.Constant(ir.IntType(32), 0))

    return value.scalar(value), lower


@intrinsic
def first_lane(context: Any, value: Any) -> Any:
    """The first lane."""

    def lower(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        return builder.extract_element(args[0], ir.Constant(ir.IntType(32), 0))

    return value.scalar(value), lower


@intrinsic
def widen(context: Any, value: Any) -> Any:
    """The lanes as float64."""

    def lower(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        return args[0] if value.scalar == types.float64 else builder.fpext(args[0], llvm_vector(types.float64))

    return VECTORS[types.float64](value), lower


@inline
def check(array: Any, begin: int, end: int) -> None:
    """With checks compiled in: refuse an access outside of array[begin:end]."""
    if CHECKED and (begin < 0 or end > array.size):
        raise IndexError("a kernel reached outside of its workspace")


if CHECKED:

    @inline
    def load(array: Any, index: int) -> Any:
        """Eight numbers from ``array[index]`` on."""
        check(array, index, index + LANES)
        return _load(array, index)

    @inline
    def load_back(array: Any, index: int) -> Any:
        """Eight numbers, of which some are to be written back."""
        check(array, index, index + LANES)
        return _load_back(array, index)

    @inline
    def store(array: Any, index: int, value: Any) -> None:
        """Write eight numbers to ``array[index]`` and behind."""
        check(array, index, index + LANES)
        _store(array, index, value)

    @inline
    def read(array: Any, index: int) -> Any:
        """``array[index]``, which for numba would include a look whether index is negative."""
        check(array, index, index + 1)
        return _read(array, index)

    @inline
    def write(array: Any, index: int, value: Any) -> None:
        """``array[index] = value``, as :func:`read`."""
        check(array, index, index + 1)
        _write(array, index, value)
else:
    load, load_back, store, read, write = _load, _load_back, _store, _read, _write


@inline
def padded_length(n):
    """Rounded up to whole vectors."""
    return (n + LANES - 1) // LANES * LANES


@inline
def load_tail(array: Any, index: int, count: int) -> Any:
    """The first ``count`` lanes from ``array[index]`` on, zero in the others."""
    return clear_lanes(load(array, index), count)


@inline
def store_tail(array: Any, index: int, value: Any, count: int) -> None:
    """Write the first ``count`` lanes; what lies behind them is read and written back as it was."""
    store(array, index, keep_lanes(value, load_back(array, index), count))
