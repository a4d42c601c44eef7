"""exp, log, tanh, the logistic function and the normal distribution, lane by lane, written out.

The C library's functions differ between machines in the last bit; these are sums and products in a fixed order. The
errors are stated with each function and tested against mpmath-grade references. NaN gives NaN.

The functions below are written once, as Python that *generates* LLVM instructions: ``Lanes`` turns ``x * y + z`` into
a multiplication and an addition of eight lanes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from llvmlite import ir
from numba import types

from uldp.native.simd import LANES, Builder, Value, _elementwise, call_intrinsic, constant, llvm_vector


class Lanes:
    """Eight numbers inside a generator; numbers of Python become constants in all lanes."""

    def __init__(self, builder: Builder, scalar: types.Float, value: Value) -> None:
        self.builder, self.scalar, self.value = builder, scalar, value

    def _new(self, value: Value) -> Lanes:
        return Lanes(self.builder, self.scalar, value)

    def number(self, other: Lanes | float) -> Lanes:
        return other if isinstance(other, Lanes) else self._new(constant(self.scalar, float(other)))

    def __add__(self, other: Lanes | float) -> Lanes:
        return self._new(self.builder.fadd(self.value, self.number(other).value))

    def __sub__(self, other: Lanes | float) -> Lanes:
        return self._new(self.builder.fsub(self.value, self.number(other).value))

    def __mul__(self, other: Lanes | float) -> Lanes:
        return self._new(self.builder.fmul(self.value, self.number(other).value))

    def __truediv__(self, other: Lanes | float) -> Lanes:
        return self._new(self.builder.fdiv(self.value, self.number(other).value))

    def divide_into(self, number: float) -> Lanes:
        """number / self."""
        return self.number(number) / self

    def fma(self, factor: Lanes | float, term: Lanes | float) -> Lanes:
        """self factor + term, rounded once."""
        values = (self.value, self.number(factor).value, self.number(term).value)
        return self._new(call_intrinsic(self.builder, "fma", *values))

    def magnitude(self) -> Lanes:
        return self._new(call_intrinsic(self.builder, "fabs", self.value))

    def with_sign_of(self, other: Lanes) -> Lanes:
        return self._new(call_intrinsic(self.builder, "copysign", self.value, other.value))

    def where(self, comparison: str, other: Lanes | float, then: Lanes | float, otherwise: Lanes | float) -> Lanes:
        """then where ``self comparison other`` holds (never for NaN), else otherwise."""
        mask = self.builder.fcmp_ordered(comparison, self.value, self.number(other).value)
        return self._new(self.builder.select(mask, self.number(then).value, self.number(otherwise).value))

    def or_nan_of(self, other: Lanes) -> Lanes:
        """self, but other where that is NaN."""
        mask = self.builder.fcmp_unordered("uno", other.value, other.value)
        return self._new(self.builder.select(mask, other.value, self.value))

    def polynomial(self, coefficients: Sequence[float]) -> Lanes:
        """Horner's rule; the coefficient of the highest power comes first."""
        total = self.number(coefficients[0])
        for coefficient in coefficients[1:]:
            total = total.fma(self, coefficient)
        return total

    # --- bits -------------------------------------------------------------------------------------------------

    @property
    def single(self) -> bool:
        return bool(self.scalar.bitwidth == 32)

    @property
    def mantissa_bits(self) -> int:
        return 23 if self.single else 52

    def integers(self) -> ir.VectorType:
        return ir.VectorType(ir.IntType(self.scalar.bitwidth), LANES)

    def bits(self) -> Value:
        return self.builder.bitcast(self.value, self.integers())

    def from_bits(self, bits: Value) -> Lanes:
        return self._new(self.builder.bitcast(bits, llvm_vector(self.scalar)))

    def integer_constant(self, value: int) -> ir.Constant:
        return ir.Constant(self.integers(), [value] * LANES)


def _power_of_two(x: Lanes, exponent: Value) -> Lanes:
    """2^exponent for whole exponents within the range of normal numbers."""
    bias = 127 if x.single else 1023
    return x.from_bits(
        x.builder.shl(x.builder.add(exponent, x.integer_constant(bias)), x.integer_constant(x.mantissa_bits))
    )


def _reduce(x: Lanes) -> tuple[Lanes, Value]:
    """x = r + n log 2 with |r| <= (log 2) / 2: (r, n). Adding 1.5 * 2^p rounds to a whole number, in the low bits."""
    magic = 1.5 * 2.0**x.mantissa_bits
    high, low = (0.693359375, -2.12194440e-4) if x.single else (6.93147180369123816490e-1, 1.90821492927058770002e-10)
    shifted = x.fma(1.0 / math.log(2.0), magic)
    n = shifted - magic
    r = n.fma(-low, n.fma(-high, x))
    return r, x.builder.sub(shifted.bits(), x.number(magic).bits())


def _exp_tail(r: Lanes) -> Lanes:
    """(exp(r) - 1 - r) / r^2 for small r, by its Taylor series."""
    terms = 7 if r.single else 13
    return r.polynomial([1.0 / math.factorial(k) for k in range(terms, 1, -1)])


def _scale_by_power(x: Lanes, n: Value) -> Lanes:
    """x 2^n in two steps, so that 2^n itself need not be representable."""
    half = x.builder.ashr(n, x.integer_constant(1))
    return x * _power_of_two(x, half) * _power_of_two(x, x.builder.sub(n, half))


def exp_lanes(x: Lanes) -> Lanes:
    """exp(x). Relative error below 1.5e-7 (float32) and 3e-16 (float64) for normal results."""
    low, high = (-104.0, 89.0) if x.single else (-746.0, 710.0)
    clamped = x.where(">", high, high, x.where(">", low, x, low))
    r, n = _reduce(clamped)
    return _scale_by_power((r * r).fma(_exp_tail(r), r) + 1.0, n).or_nan_of(x)


def log_lanes(x: Lanes) -> Lanes:
    """log(x) of positive normal numbers. Relative error below 3e-7 and 6e-16; 0 gives -inf, infinity stays.

    x = m 2^e with m from sqrt(1/2) to sqrt(2), and log m = 2 atanh(s) = 2 (s + s^3/3 + ...), s = (m - 1) / (m + 1).
    """
    b, start = x.builder, x.number(math.sqrt(0.5)).bits()
    shifted = b.sub(x.bits(), start)
    exponent = b.ashr(shifted, x.integer_constant(x.mantissa_bits))
    m = x.from_bits(b.sub(x.bits(), b.shl(exponent, x.integer_constant(x.mantissa_bits))))
    e = x._new(b.sitofp(exponent, llvm_vector(x.scalar)))
    s = (m - 1.0) / (m + 1.0)
    square = s * s
    terms = 5 if x.single else 11
    series = square.polynomial([2.0 / (2 * k + 1) for k in range(terms, 0, -1)])
    high, low = (0.693359375, -2.12194440e-4) if x.single else (6.93147180369123816490e-1, 1.90821492927058770002e-10)
    found = e.fma(high, (s * square).fma(series, s * 2.0) + e * low)
    found = x.where("==", 0.0, -math.inf, x.where("==", math.inf, math.inf, found))
    return x.where("<", 0.0, math.nan, found).or_nan_of(x)


def tanh_lanes(x: Lanes) -> Lanes:
    """tanh(x) = E / (E + 2) with E = exp(2|x|) - 1. Relative error below 4e-7 and 8e-16."""
    size = x.magnitude()
    limit = 10.0 if x.single else 20.0
    r, n = _reduce(size.where(">", limit, limit, size) * 2.0)
    power = _power_of_two(x, n)
    excess = power.fma((r * r).fma(_exp_tail(r), r), power - 1.0)
    return (excess / (excess + 2.0)).with_sign_of(x).or_nan_of(x)


def logistic_lanes(x: Lanes) -> Lanes:
    """1 / (1 + exp(-x)). Relative error below 3e-7 and 6e-16."""
    return (exp_lanes(x * -1.0) + 1.0).divide_into(1.0)


# erfc(x) = t exp(-x^2) S(2 t - 1) with t = 2 / (2 + x), for x >= 0; S in Chebyshev polynomials (fitted with mpmath).
_ERFC: Final = (
    1.1540674772329393772, 0.35543692127049848731, 0.06509515882878652455, 0.0036711423958366391659,
    -0.0011128447433526324969, -0.00016075829915378079758, 0.000032780315741731370605, 5.4424416455050160333e-6,
    -1.5154665553171481622e-6, -1.4297608181169864917e-7, 8.234608827419493433e-8, -1.2962846852306562536e-9,
    -4.1547216310151983042e-9, 6.3470582783628111814e-10, 1.4320822712256223707e-10, -6.1603901052045855418e-11,
    2.0612138554721696306e-12, 3.571493148847704445e-12, -8.5864228432517964757e-13, -6.145600213790630554e-14,
    7.4187257485966170573e-14, -1.2895042755032325615e-14, -2.3587263857106323568e-15, 1.5729349381685911397e-15,
    -2.2782966239546465174e-16, -6.3123304507564298101e-17, 3.5916763531814922992e-17,
)  # fmt: skip


def normal_lanes(x: Lanes) -> Lanes:
    """P(N(0, 1) <= x) = erfc(-x / sqrt(2)) / 2. Absolute error below 3e-7 and 5e-16."""
    z = x.magnitude() * math.sqrt(0.5)
    t = (z + 2.0).divide_into(2.0)
    y = (t * 2.0 - 1.0) * 2.0
    later, latest = x.number(0.0), x.number(0.0)
    for coefficient in reversed(_ERFC[1 : 12 if x.single else 27]):  # Clenshaw's recurrence
        later, latest = y.fma(later, latest * -1.0 + coefficient), later
    series = y.fma(later * 0.5, latest * -1.0 + 0.5 * _ERFC[0])
    upper = t * exp_lanes(z * z * -1.0) * series * 0.5
    return x.where(">", 0.0, x.number(1.0) - upper, upper).or_nan_of(x)


def _export(generate: Any) -> Any:
    return _elementwise(1, lambda b, scalar, value: generate(Lanes(b, scalar, value)).value)


exp = _export(exp_lanes)
log = _export(log_lanes)
tanh = _export(tanh_lanes)
logistic = _export(logistic_lanes)
normal = _export(normal_lanes)
