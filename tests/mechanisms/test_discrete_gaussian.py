"""The discrete Gaussian sampler: its distribution, its exact decisions, and that these tests can fail."""

from __future__ import annotations

import dataclasses
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from uldp.errors import ConfigError
from uldp.mechanisms import discrete_gaussian
from uldp.mechanisms.discrete_gaussian import (
    MARGIN,
    MAX_SCALE,
    MIN_SCALE,
    DiscreteGaussian,
    LazyUniform,
    exp_bounds,
    floor_exp,
    geometric,
    geometric_marks,
    sample_discrete_gaussian,
    uniform_integers,
)
from uldp.rng import Secrets, SecretStream

SMALL_SCALES = [0.5, 0.999, 1, 2.5, Fraction(73, 10), 100]
LARGE_SCALES = [1e4, 2.3e6, 2.0**30, 2**40, 2**46]
DRAWS = 400_000
PLAUSIBLE = 1e-4  # streams are fixed, so a test that passes once passes always
IMPOSSIBLE = 1e-9  # what a planted error must reach


def stream(*path: str | int) -> SecretStream:
    return Secrets.simulated_from_seed(2).child("discrete gaussian", *path).stream()


class ScriptedStream(SecretStream):
    """Gives out the words it was told to, and counts them."""

    def __init__(self, *words: int) -> None:
        super().__init__(bytes(32), simulated=True)
        self.script = list(words)

    def words(self, count: int) -> np.ndarray:
        given, self.script = self.script[:count], self.script[count:]
        assert len(given) == count, "more words were drawn than expected"
        return np.array(given, dtype=np.uint64)


# Statistical tests: each gives a p-value.


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    return float(stats.chisquare(counts, expected * counts.sum() / expected.sum()).pvalue)


def chi_square_of_pmf(samples: np.ndarray, scale: float) -> float:
    """Against the exact probabilities, values in the far tails taken together."""
    reach = math.ceil(12 * scale)
    values = np.arange(-reach, reach + 1)
    weights = np.exp(-((values / scale) ** 2) / 2)
    inner = math.ceil(3 * scale)
    cells = np.clip(values, -inner, inner) + inner
    expected = np.bincount(cells, weights)
    counts = np.bincount(np.clip(samples, -inner, inner) + inner, minlength=expected.size)
    assert expected.min() / expected.sum() * samples.size > 5
    return chi_square(counts, expected)


def kolmogorov_smirnov(samples: np.ndarray, scale: float) -> float:
    """Against the normal distribution, which a discrete Gaussian of scale 1e4 equals up to steps of 4e-5."""
    return float(stats.kstest(samples / scale, "norm").pvalue)


def moments(samples: np.ndarray, scale: float) -> float:
    """Mean, variance and share beyond 3 scales, at scales where the discrete moments are the normal ones."""
    unit = samples / scale
    tail = 2 * stats.norm.sf(3)
    scores = [
        unit.mean() * math.sqrt(unit.size),
        (np.mean(unit**2) - 1) * math.sqrt(unit.size / 2),
        (np.mean(np.abs(unit) > 3) - tail) * math.sqrt(unit.size / tail),
    ]
    return float(min(1, len(scores) * 2 * stats.norm.sf(np.abs(scores).max())))


def low_bits(samples: np.ndarray) -> float:
    return chi_square(np.bincount(samples & 255, minlength=256), np.ones(256))


# The distribution.


@pytest.mark.parametrize("scale", SMALL_SCALES)
def test_small_scales_follow_the_exact_probabilities(scale: Fraction | float | int) -> None:
    samples = sample_discrete_gaussian(scale, DRAWS, stream("pmf", str(scale)))
    assert samples.dtype == np.int64
    assert samples.shape == (DRAWS,)
    assert chi_square_of_pmf(samples, float(scale)) > PLAUSIBLE


@pytest.mark.parametrize("scale", LARGE_SCALES)
def test_large_scales_look_normal_and_their_low_bits_uniform(scale: float | int) -> None:
    samples = sample_discrete_gaussian(scale, DRAWS, stream("large", str(scale)))
    assert kolmogorov_smirnov(samples, scale) > PLAUSIBLE
    assert moments(samples, scale) > PLAUSIBLE
    assert low_bits(samples) > PLAUSIBLE
    assert 4 < np.abs(samples).max() / scale < 7


def test_draws_are_independent_of_their_neighbours() -> None:
    samples = sample_discrete_gaussian(2.3e6, DRAWS, stream("neighbours")) / 2.3e6
    for lag in (1, 2, 3):
        assert abs(np.mean(samples[lag:] * samples[:-lag])) * math.sqrt(DRAWS) < 4


def by_integers(kind: type[DiscreteGaussian], scale: Fraction | float | int) -> DiscreteGaussian:
    """No decision is left to floats."""
    return dataclasses.replace(kind.of(scale), margin=2.0)


class WithoutFloats(DiscreteGaussian):
    """The float probability says nothing."""

    def probability(self, magnitude: np.ndarray, blocks: np.ndarray) -> np.ndarray:
        return np.ones(magnitude.size)


def test_every_decision_made_by_integers_gives_the_same_samples() -> None:
    scales: list[Fraction | float | int] = [0.5, 0.999, 2.5, Fraction(73, 10), 1e4 + 0.1, 2**40, 2**46]
    fast = [sample_discrete_gaussian(scale, 1500, stream("fallback", str(scale))) for scale in scales]
    exact = [by_integers(WithoutFloats, scale).sample(1500, stream("fallback", str(scale))) for scale in scales]
    for left, right in zip(fast, exact, strict=True):
        np.testing.assert_array_equal(left, right)


def test_integers_alone_give_the_distribution() -> None:
    samples = by_integers(DiscreteGaussian, 2.5).sample(20_000, stream("integers"))
    assert chi_square_of_pmf(samples, 2.5) > PLAUSIBLE


# Planted errors: the same statistical tests refuse them.


@pytest.mark.parametrize("scale", [0.5, 2.5, 100])
def test_a_scale_three_percent_off_is_caught_at_small_scales(scale: float) -> None:
    samples = sample_discrete_gaussian(1.03 * scale, DRAWS, stream("planted scale", str(scale)))
    assert chi_square_of_pmf(samples, scale) < IMPOSSIBLE


def test_a_scale_three_percent_off_is_caught_at_large_scales() -> None:
    samples = sample_discrete_gaussian(1.03 * 2.3e6, DRAWS, stream("planted scale"))
    assert kolmogorov_smirnov(samples, 2.3e6) < PLAUSIBLE  # the weaker of the two against a change of scale
    assert moments(samples, 2.3e6) < IMPOSSIBLE


def test_a_wrong_proposal_width_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = uniform_integers
    monkeypatch.setattr(discrete_gaussian, "uniform_integers", lambda numbers, bound: right(numbers, bound - 1))
    samples = sample_discrete_gaussian(2.5, DRAWS, stream("planted width"))
    assert chi_square_of_pmf(samples, 2.5) < IMPOSSIBLE


def test_reduction_in_place_of_rejection_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def reduced(numbers: np.ndarray, bound: int) -> tuple[np.ndarray, np.ndarray]:
        bits = numbers & np.uint64(2 ** bound.bit_length() - 1)
        return (bits % np.uint64(bound)).astype(np.int64), np.ones(bits.size, dtype=np.bool_)

    monkeypatch.setattr(discrete_gaussian, "uniform_integers", reduced)
    assert chi_square_of_pmf(sample_discrete_gaussian(2.5, DRAWS, stream("planted modulo")), 2.5) < IMPOSSIBLE
    large = sample_discrete_gaussian(2.3e6, DRAWS, stream("planted modulo", "large"))
    assert kolmogorov_smirnov(large, 2.3e6) < IMPOSSIBLE


def test_a_wrong_acceptance_is_caught() -> None:
    law = DiscreteGaussian.of(2.5)
    crooked = dataclasses.replace(law, curvature=1.05 * law.curvature)
    assert chi_square_of_pmf(law.sample(DRAWS, stream("planted law")), 2.5) > PLAUSIBLE
    assert chi_square_of_pmf(crooked.sample(DRAWS, stream("planted law")), 2.5) < IMPOSSIBLE


def test_a_biased_low_bit_is_caught() -> None:
    samples = sample_discrete_gaussian(1e4, DRAWS, stream("planted bit"))
    samples[::20] &= ~1
    assert low_bits(samples) < IMPOSSIBLE


# The pieces.


def test_uniform_integers_refuse_the_incomplete_last_round() -> None:
    for bound in (1, 2, 3, 2**40, 2**40 + 1, 2**46 + 1):
        limit = 2**63 // bound * bound
        numbers = [number for number in (0, bound - 1, bound, limit - 1, limit, 2**63 - 1) if number < 2**63]
        values, usable = uniform_integers(np.array(numbers, dtype=np.uint64), bound)
        assert values.tolist() == [number % bound for number in numbers]
        assert usable.tolist() == [number < limit for number in numbers]


def test_bounds_of_exp_hold_the_true_value() -> None:
    with localcontext() as context:
        context.prec = 120
        for x in map(Fraction, ("0", "1e-9", "1/3", "1", "22/7", "4050")):
            true = (-Decimal(x.numerator) / Decimal(x.denominator)).exp()
            for bits in (1, 64, 200):
                low, high = exp_bounds(x, bits)
                assert low <= true * 2**bits <= high
                assert high - low <= 2**8 * max(1, math.ceil(x))
                assert floor_exp(x, bits) == math.floor(true * 2**bits)


def test_the_number_of_blocks_is_the_same_by_table_and_by_integers() -> None:
    marks = [int(mark) for mark in geometric_marks()]
    assert marks == sorted(set(marks))
    assert marks[0] == 0
    near = {mark + step for mark in marks[1:] for step in (-1, 1)} - set(marks)
    words = sorted(near) + [int(word) for word in stream("blocks").words(500)]
    nothing = ScriptedStream()  # no further word may be drawn
    blocks = geometric(np.array(words, dtype=np.uint64), nothing)
    for word, level in zip(words, blocks.tolist(), strict=True):
        uniform = LazyUniform(word, nothing)
        assert level == 0 or uniform.below_exp(Fraction(level))
        assert not uniform.below_exp(Fraction(level + 1))


def test_a_word_equal_to_a_mark_is_decided_by_the_next_word() -> None:
    following = int(floor_exp(Fraction(3), 128) % 2**64)
    mark = floor_exp(Fraction(3), 64)
    for further, level in ((following - 1, 3), (following + 1, 2)):
        scripted = ScriptedStream(further)
        blocks = geometric(np.array([mark], dtype=np.uint64), scripted)
        assert blocks.tolist() == [level]
        assert scripted.script == []


def test_the_rarest_word_gives_a_number_of_blocks_beyond_the_table() -> None:
    scripted = ScriptedStream(2**40)  # R = 2^-88, about exp(-61)
    assert geometric(np.array([0], dtype=np.uint64), scripted).tolist() == [60]


def test_an_acceptance_that_64_bits_leave_open_draws_one_more_word() -> None:
    law = DiscreteGaussian.of(Fraction(5, 2))
    x = law.exponent(4, 1)
    mark, both = floor_exp(x, 64), floor_exp(x, 128)
    magnitude, blocks, word = np.array([4]), np.array([1]), np.array([mark], dtype=np.uint64)
    for further, decision in ((both % 2**64 - 1, True), (both % 2**64 + 1, False)):
        scripted = ScriptedStream(further)
        assert law.accept(magnitude, blocks, word, scripted).tolist() == [decision]
        assert scripted.script == []
    for near, decision in ((mark - 1, True), (mark + 1, False)):
        words = np.array([near], dtype=np.uint64)
        assert law.accept(magnitude, blocks, words, ScriptedStream()).tolist() == [decision]


@pytest.mark.parametrize("scale", [0.5, 0.999999, 1, 1.7, 2.5, 100, 2.3e6, 2.0**40 - 0.5, 2**40, 2.0**46 - 0.5, 2**46])
def test_the_float_probability_is_as_close_as_the_margin_assumes(scale: float | int) -> None:
    law = DiscreteGaussian.of(Fraction(scale))
    blocks = np.array([0] * 100 + [1] * 100 + [2] * 50 + list(range(45)), dtype=np.int64)
    remainder = (stream("margin").words(blocks.size) % np.uint64(law.width)).astype(np.int64)
    remainder[::7], remainder[1::7] = 0, law.width - 1
    magnitude = remainder + law.width * blocks
    floats = law.probability(magnitude, blocks)
    for size, level, float_value in zip(magnitude.tolist(), blocks.tolist(), floats.tolist(), strict=True):
        low, high = exp_bounds(law.exponent(size, level), 200)
        assert abs(Fraction(float_value) - Fraction(low + high, 2**201)) < Fraction(1, 2**46)
    assert MARGIN >= 2.0**-39


def test_a_margin_that_floats_could_miss_is_refused() -> None:
    for margin in (2.0**-40, 0.0, -1.0, math.nan):
        with pytest.raises(ConfigError, match="at least"):
            dataclasses.replace(DiscreteGaussian.of(2.5), margin=margin)


def test_the_exponent_is_the_one_of_the_paper() -> None:
    for scale in (Fraction(1, 2), Fraction(73, 10), Fraction(2.3e6)):
        law = DiscreteGaussian.of(scale)
        for remainder, blocks in ((0, 0), (0, 1), (law.width - 1, 0), (law.width // 2, 7)):
            size, t = remainder + law.width * blocks, law.width
            paper = Fraction(remainder, t) + (size - scale**2 / t) ** 2 / (2 * scale**2)
            assert law.exponent(size, blocks) == paper >= 0


# The stream and the arguments.


def test_the_same_stream_gives_the_same_samples_and_a_beginning_is_a_beginning() -> None:
    long = sample_discrete_gaussian(2.5, 50_000, stream("same"))
    for count in (0, 1, 7, 1000, 20_000, 50_000):
        np.testing.assert_array_equal(sample_discrete_gaussian(2.5, count, stream("same")), long[:count])


def test_two_calls_on_one_stream_share_no_words() -> None:
    shared = stream("twice")
    first, second = (sample_discrete_gaussian(2**46, 2000, shared) for _ in range(2))
    assert np.intersect1d(first, second).size == 0


def test_no_draws_take_nothing_from_the_stream() -> None:
    assert sample_discrete_gaussian(1, 0, ScriptedStream()).tolist() == []


def test_a_float_scale_is_the_rational_number_it_is() -> None:
    left = sample_discrete_gaussian(7.3, 1000, stream("float"))
    right = sample_discrete_gaussian(Fraction(7.3), 1000, stream("float"))
    np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize(
    "scale",
    [
        0,
        0.49,
        -1,
        -2.5,
        2**46 + 1,
        2.0**47,
        1e300,
        math.inf,
        -math.inf,
        math.nan,
        Fraction(499, 1000),
        True,
        "1",
        None,
    ],
)
def test_scales_out_of_range_are_refused(scale: object) -> None:
    with pytest.raises(ConfigError) as caught:
        sample_discrete_gaussian(scale, 1, ScriptedStream())  # type: ignore[arg-type]
    assert caught.value.location == "noise scale"


@pytest.mark.parametrize("count", [-1, 1.5, True, None])
def test_counts_that_are_no_counts_are_refused(count: object) -> None:
    with pytest.raises(ConfigError) as caught:
        sample_discrete_gaussian(1, count, ScriptedStream())  # type: ignore[arg-type]
    assert caught.value.location == "noise scale"


def test_the_ends_of_the_range_are_allowed() -> None:
    for scale in (MIN_SCALE, MAX_SCALE):
        assert sample_discrete_gaussian(scale, 3, stream("ends")).size == 3
