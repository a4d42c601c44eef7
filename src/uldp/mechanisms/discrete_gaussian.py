"""Exact samples of the discrete Gaussian, many at once, from a cryptographic stream.

Source: C. Canonne, G. Kamath, T. Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020,
Algorithms 1 to 3.

With sigma the scale and t = floor(sigma) + 1, a proposal is U uniform on {0, ..., t - 1}, V geometric with
P(V >= k) = exp(-k), and a fair sign; let y = U + t V. The paper accepts U with probability exp(-U / t), rejects
"minus zero", and accepts what is then a discrete Laplace draw with probability
exp(-(y - sigma^2 / t)^2 / (2 sigma^2)). A rejection of either kind starts the proposal afresh, so the two
decisions are one here: accept with probability exp(-x), where

    x = U / t + (y - sigma^2 / t)^2 / (2 sigma^2) = y^2 / (2 sigma^2) + sigma^2 / (2 t^2) - V     (x >= 0)

and P(y) is proportional to exp(-V) exp(-x), that is, to exp(-y^2 / (2 sigma^2)).

Every decision "R < exp(-x)" is about a uniform real number R whose bits are drawn when they are needed. The
first 64 bits decide nearly always: by floats with a margin that covers all rounding or, within the margin, by
integers. Hence the samples follow from the stream alone, on every machine and with every library for exp.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from uldp.errors import ConfigError, require
from uldp.rng import SecretStream

MIN_SCALE: Final = Fraction(1, 2)
MAX_SCALE: Final = Fraction(2**46)

_LOCATION: Final = "noise scale"
_WORD_BITS: Final = 64
_WORDS_PER_PROPOSAL: Final = 3
_PROPOSALS_AT_ONCE: Final = 1 << 14  # their words and arrays stay in the processor's cache

# How far the float value of exp(-x), minus the leading 53 bits of R, must be from zero to decide alone.
# Let u = 2^-53, A = y^2 / (2 sigma^2), d = sigma^2 / (2 t^2) < 1/2, x = A + d - V, p = exp(-x); x' is the
# float for x. Always sigma < t <= 2 sigma, because sigma >= 1/2.
#  - V <= 44, but for a probability below 2^-64. Then y < 45 t < 2^52 is exact in float64, and y < 90 sigma
#    gives A < 4050. The square is taken in float64, so no integer overflows.
#  - fl(y y), fl(1 / (2 sigma^2)) and their product each err by a factor within 1 +- u: 3.01 u A in all. fl(d)
#    errs by u d, the sum A + d by u (A + d), the difference with V (an exact float) by u x <= u (A + d); with
#    the second-order terms |x' - x| <= u (6 A + 3) < 2^-38.
#  - The terms of x cancel where V is large, but p is small there: y >= t V >= sigma V gives V <= sqrt(2 A),
#    hence x >= A - sqrt(2 A) and p A <= A exp(sqrt(2 A) - A) <= 2, the maximum being at A = 2. So
#    p |x' - x| <= 15 u, and |exp(-x') - p| <= 2^-48.
#  - The library's exp: 2^-40 relative, that is, 4096 units in the last place (numpy's own float64 tests allow
#    1). Underflow costs 2^-1022. Leading 53 bits instead of R: 2^-53. The subtraction: 2^-53.
# The sum is below 2^-39, and the margin is 128 times that; one proposal in 2^31 is decided by integers.
# The rare V > 44, which integers find, have x >= V^2 / 2 - V > 900: exp(-x) and its float are below 2^-1000.
# An int64 holds y for V < 2^16; more blocks than that have probability exp(-65,536).
MARGIN: Final = 2.0**-32
"""See :class:`DiscreteGaussian`."""


def sample_discrete_gaussian(scale: Fraction | float | int, count: int, stream: SecretStream) -> npt.NDArray[np.int64]:
    """``count`` independent integers with P(k) proportional to exp(-k^2 / (2 scale^2)), exactly.

    ``scale`` lies between 1/2 and 2^46; a float is taken as the exact rational number it is. The samples are
    a function of the stream's state, the scale and the count. From the same state a smaller count gives the
    beginning of a larger one, unless 64 bits leave a comparison open (a chance of 2^-56 per draw). Words of
    surplus proposals are thrown away, never used again.

    The running time depends on the sampler's own draws: on how many proposals were rejected, a number that
    says nothing about the accepted values. It does not depend on any data.

    >>> from uldp.rng import Secrets
    >>> noise = sample_discrete_gaussian(2.5, 1000, Secrets.from_os().child("noise").stream())
    >>> noise.dtype.name, noise.shape, bool(abs(noise).max() < 50)
    ('int64', (1000,), True)
    """
    return DiscreteGaussian.of(scale).sample(count, stream)


def _exact_scale(scale: Fraction | float | int) -> Fraction:
    number = not isinstance(scale, bool) and isinstance(scale, Fraction | float | int)
    require(number, _LOCATION, scale, "a noise scale is a number")
    if not MIN_SCALE <= scale <= MAX_SCALE:  # NaN is not within either
        raise ConfigError(f"a noise scale lies between 0.5 and 2^46, not {scale}", location=_LOCATION, value=scale)
    return Fraction(scale)


def _exact_count(count: int) -> int:
    try:
        exact = operator.index(count)
    except TypeError:
        exact = -1
    valid = not isinstance(count, bool) and exact >= 0
    require(valid, _LOCATION, count, "a number of draws is a whole number from 0 up")
    return exact


@dataclass(frozen=True)
class DiscreteGaussian:
    """The distribution P(k) proportional to exp(-k^2 / (2 scale^2)), and how it is sampled (the module's head).

    ``width`` is t, ``curvature`` and ``offset`` are the constants of the exponent x as the nearest floats. A comparison
    that floats leave closer than ``margin`` is made by integers. From ``MARGIN`` up, every margin gives the same
    samples, a larger one more slowly; with 2 integers decide alone.
    """

    scale: Fraction
    width: int
    curvature: float
    offset: float
    margin: float = MARGIN

    def __post_init__(self) -> None:
        require(self.margin >= MARGIN, "noise margin", self.margin, f"at least {MARGIN}")

    @classmethod
    def of(cls, scale: Fraction | float | int) -> Self:
        """The distribution of this scale, which is refused outside its range."""
        exact = _exact_scale(scale)
        width = math.floor(exact) + 1
        # Division of Python integers, and so float(Fraction), rounds correctly.
        return cls(exact, width, float(1 / (2 * exact**2)), float(exact**2 / (2 * width**2)))

    def exponent(self, magnitude: int, blocks: int) -> Fraction:
        """x of the module's head, without any rounding."""
        variance = self.scale**2
        return magnitude**2 / (2 * variance) + variance / (2 * self.width**2) - blocks

    def probability(self, magnitude: npt.NDArray[np.int64], blocks: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """exp(-x) in floats, to 2^-39; the operations are those of the comment at ``MARGIN``."""
        size = magnitude.astype(np.float64)
        exponent = size * size * self.curvature + self.offset - blocks
        with np.errstate(under="ignore"):
            return np.exp(-exponent)

    def accept(
        self,
        magnitude: npt.NDArray[np.int64],
        blocks: npt.NDArray[np.int64],
        words: npt.NDArray[np.uint64],
        stream: SecretStream,
    ) -> npt.NDArray[np.bool_]:
        """R < exp(-x) for each proposal, where R begins with the word's bits."""
        leading = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
        distance = self.probability(magnitude, blocks) - leading
        accepted = distance > 0
        for row in np.flatnonzero(np.abs(distance) <= self.margin):
            exact = self.exponent(int(magnitude[row]), int(blocks[row]))
            accepted[row] = LazyUniform(int(words[row]), stream).below_exp(exact)
        return accepted

    def sample(self, count: int, stream: SecretStream) -> npt.NDArray[np.int64]:
        """``count`` independent draws; :func:`sample_discrete_gaussian` says more."""
        samples = np.empty(_exact_count(count), dtype=np.int64)
        filled = 0
        while filled < samples.size:
            missing = samples.size - filled
            proposals = min(_PROPOSALS_AT_ONCE, 5 * missing // 2 + 16)  # 2.1 to 2.9 proposals make a sample
            words = stream.words(_WORDS_PER_PROPOSAL * proposals).reshape(proposals, _WORDS_PER_PROPOSAL)
            accepted = self._accepted_proposals(words, stream)[:missing]
            samples[filled : filled + accepted.size] = accepted
            filled += accepted.size
        return samples

    def _accepted_proposals(self, words: npt.NDArray[np.uint64], stream: SecretStream) -> npt.NDArray[np.int64]:
        """The accepted proposals of the rows of ``words``, in their order."""
        first, second, third = words.T
        negative = (first & np.uint64(1)).astype(np.bool_)
        remainder, usable = uniform_integers(first >> np.uint64(1), self.width)
        blocks = geometric(second, stream)
        magnitude = remainder + self.width * blocks
        usable &= self.accept(magnitude, blocks, third, stream)
        usable &= (magnitude != 0) | ~negative  # zero has one sign only
        return np.where(negative, -magnitude, magnitude)[usable]


def uniform_integers(
    numbers: npt.NDArray[np.uint64], bound: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Uniform 63-bit ``numbers`` as uniform integers below ``bound``, and which of them may be used.

    Numbers from the largest multiple of ``bound`` up are refused, so that every remainder is equally likely.
    """
    usable = numbers < np.uint64(2**63 - 2**63 % bound)
    divisor = np.uint64(bound)
    return (numbers - numbers // divisor * divisor).astype(np.int64), usable


@cache
def geometric_marks() -> npt.NDArray[np.uint64]:
    """floor(2^64 exp(-k)) for k = 45, 44, ..., 1: from 0 up, strictly rising."""
    return np.array([floor_exp(Fraction(k), _WORD_BITS) for k in range(45, 0, -1)], dtype=np.uint64)


def geometric(words: npt.NDArray[np.uint64], stream: SecretStream) -> npt.NDArray[np.int64]:
    """V with P(V >= k) = exp(-k): how many k >= 1 have R < exp(-k), where R begins with the word's bits."""
    marks = geometric_marks()
    location = np.searchsorted(marks, words, side="right")
    blocks = (marks.size - location).astype(np.int64)
    # Where a word equals the mark of k, R may lie on either side of exp(-k). Word 0 is one: V is 44 or more.
    for row in np.flatnonzero(marks[location - 1] == words):
        uniform = LazyUniform(int(words[row]), stream)
        level = 0
        while uniform.below_exp(Fraction(level + 1)):
            level += 1
        blocks[row] = level
    return blocks


class LazyUniform:
    """A uniform real number in [0, 1), known by its leading bits; a comparison that needs more draws more.

    Whether it needs more follows from exact values, not from floats: what is drawn from the stream does not
    depend on the machine or on the margin.
    """

    def __init__(self, word: int, stream: SecretStream) -> None:
        self._leading = word
        self._bits = _WORD_BITS
        self._stream = stream

    def below_exp(self, x: Fraction) -> bool:
        """Whether the number is below exp(-x), for x >= 0."""
        while (mark := floor_exp(x, self._bits)) == self._leading:
            self._leading = self._leading << _WORD_BITS | int(self._stream.words(1)[0])
            self._bits += _WORD_BITS
        return self._leading < mark


def floor_exp(x: Fraction, bits: int) -> int:
    """floor(2^bits exp(-x)) for x >= 0.

    The loop ends: exp(-x) is irrational for rational x > 0 (Lindemann), and for x = 0 the bounds are equal.
    """
    guard = 32
    while True:
        low, high = exp_bounds(x, bits + guard)
        if low >> guard == high >> guard:
            return low >> guard
        guard *= 2


def exp_bounds(x: Fraction, bits: int) -> tuple[int, int]:
    """Integers around 2^bits exp(-x), for x >= 0; low rounds down and high rounds up at every step.

    The Taylor series of exp(-z) at z = x / 2^h < 1, squared h times. Its terms alternate and fall, so what is
    left out is at most the last term taken.
    """
    halvings = math.floor(x).bit_length()
    z_low = (x.numerator << bits) // (x.denominator << halvings)
    z_high = -((-x.numerator << bits) // (x.denominator << halvings))
    low = high = term_low = term_high = 1 << bits
    order = 0
    while term_high > 1:
        order += 1
        term_low = term_low * z_low // (order << bits)
        term_high = -(-term_high * z_high // (order << bits))
        if order % 2:
            low, high = low - term_high, high - term_low
        else:
            low, high = low + term_low, high + term_high
    low, high = max(low - term_high, 0), min(high + term_high, 1 << bits)
    for _ in range(halvings):
        low, high = low * low >> bits, -(-high * high >> bits)
    return low, high
