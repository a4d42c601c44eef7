"""The guarantee in integers: no tolerance, for all inputs, group counts and many sizes."""

from __future__ import annotations

import math
from decimal import Context, Decimal
from fractions import Fraction
from itertools import accumulate, pairwise

import numpy as np
import pytest
from tests.mechanisms.test_discrete_gaussian import ScriptedStream

from uldp.mechanisms.grid import by_distance, offset_moments, rank_of
from uldp.mechanisms.piecewise import CELLS, Piecewise
from uldp.mechanisms.ranks import DRAW_BITS, RankLaw, exp_below
from uldp.mechanisms.response import RandomizedResponse
from uldp.mechanisms.staircase import StaircaseResponse, largest_delta, staircase_sizes
from uldp.mechanisms.two_point import TwoPoint
from uldp.rng import Secrets

EPSILONS = (0.01, 1.0, 5.0)


def exp_lower(epsilon: float) -> Fraction:
    """Below e^epsilon, by another way than the package's: decimal's exp is correctly rounded."""
    return Fraction(Context(prec=60).exp(Decimal(epsilon))) * (1 - Fraction(1, 10**58))


def mechanism(kind, size: int, **settings):
    return kind(radius=(size - 1) / 2 * 1e-4, precision=4, **settings)


def deltas(size: int, groups: int) -> list[float]:
    if groups == 1:
        return [0.0]
    largest = largest_delta(size, groups)
    top = float(largest) if Fraction(float(largest)) <= largest else math.nextafter(float(largest), 0.0)
    return [0.0, 0.37 * top, top]


def within(largest: int, smallest: int, epsilon: float) -> bool:
    return Fraction(int(largest), int(smallest)) <= exp_lower(epsilon)


@pytest.mark.parametrize("size", [3, 5, 31, 101, 301])
def test_rank_masses_sum_to_the_total_with_ratio_within_epsilon(size):
    every_group_count = range(1, size + 1) if size <= 101 else [*range(1, 41), *range(50, 301, 25), 299, 300, 301]
    for groups in every_group_count:
        for delta, epsilon in zip(deltas(size, groups), EPSILONS, strict=False):
            srr = mechanism(StaircaseResponse, size, epsilon=epsilon, groups=groups, delta=delta)
            masses = srr.masses()
            assert srr.grid.size == size == len(masses) and min(srr.law.sizes) >= 1
            assert len(srr.law.sizes) == groups
            assert sum(map(int, masses)) == srr.total <= 2**53
            assert np.all(np.diff(masses) <= 0)
            assert within(masses[0], masses[-1], epsilon)
            if groups == 1:
                assert masses[0] == masses[-1]
            else:  # the budget is used, not just kept
                assert masses[0] / masses[-1] == pytest.approx(math.exp(epsilon), rel=1e-9)


@pytest.mark.parametrize("size", [3, 7, 31])
@pytest.mark.parametrize("epsilon", [1e-6, 0.3, 3.0, 20.0])
def test_full_matrices_are_private_in_every_column(size, epsilon):
    candidates = [mechanism(RandomizedResponse, size, epsilon=epsilon)]
    for groups in range(1, size + 1):
        candidates += [
            mechanism(StaircaseResponse, size, epsilon=epsilon, groups=groups, delta=delta)
            for delta in deltas(size, groups)
        ]
    for candidate in candidates:
        matrix = candidate.matrix()
        assert np.all(matrix.sum(axis=1) == candidate.total) and matrix.min() > 0
        for column in matrix.T:
            assert within(column.max(), column.min(), epsilon)


@pytest.mark.parametrize("epsilon", [1e-6, 0.3, 1.0, 3.0, 20.0])
def test_two_points_and_windows_are_private(epsilon):
    two = TwoPoint(epsilon=epsilon)
    upper = [int(k) for k in two.thresholds(np.linspace(-0.08, 0.08, 1001))]
    for masses in (upper, [2**53 - k for k in upper]):
        assert min(masses) > 0 and within(max(masses), min(masses), epsilon)
    window = Piecewise(epsilon=epsilon)
    assert within(window.law.masses[0], window.law.masses[1], epsilon)
    assert window.law.ranks == CELLS
    starts = window.starts(np.linspace(-0.08, 0.08, 1001))  # a window that left the cells would lose outputs
    assert starts.min() == 0 and starts.max() == CELLS - window.window


@pytest.mark.parametrize("size", [3, 5, 7, 9, 31, 101, 301])
def test_ranks_are_a_permutation_of_the_outputs_by_distance(size):
    every = np.arange(size, dtype=np.int32)
    outputs = by_distance(np.repeat(every, size), np.tile(every, size), size).reshape(size, size)
    for index, row in enumerate(outputs):
        assert sorted(row.tolist()) == list(range(size))
        assert np.all(np.diff(np.abs(row - index)) >= 0)
        assert row.tolist() == [plain_output(index, rank, size) for rank in range(size)]
    assert np.array_equal(rank_of(every[:, None], outputs, size), np.broadcast_to(every, (size, size)))


def plain_output(index: int, rank: int, size: int) -> int:
    """The rule as it is written: left and right in turn, then along the longer side."""
    nearer = min(index, size - 1 - index)
    if rank <= 2 * nearer:
        return index - (rank + 1) // 2 if rank % 2 else index + rank // 2
    return rank if index == nearer else size - 1 - rank


def test_piecewise_ranks_are_a_permutation_of_the_cells(monkeypatch):
    window = Piecewise(epsilon=3.0)
    every = np.arange(CELLS, dtype=np.int32)
    for weight in (-0.075, -0.02, 0.075):
        ranks = iter(every)  # one after the other, however many are drawn at a time
        monkeypatch.setattr(RankLaw, "sample", lambda law, count, stream, ranks=ranks: np.fromiter(ranks, "i4", count))
        outputs = window.perturb(np.full(CELLS, weight), Secrets.simulated_from_seed(0).stream())
        cells = np.rint((outputs - window.center) / window.cell + (CELLS - 1) / 2).astype(np.int64)
        assert np.array_equal(np.sort(cells), every)
        start = int(window.starts(np.array([weight]))[0])
        assert np.array_equal(np.sort(cells[: window.window]), np.arange(start, start + window.window))


@pytest.mark.parametrize("size", [3, 31, 101, 301])
def test_expected_error_is_at_most_the_radius_for_all_inputs(size):
    """Theorem 5.2, in steps of the grid; sums stay below 2^53 * 300 < 2^63."""
    every = np.arange(size)
    distance = np.abs(every[:, None] - every[None, :])
    for groups in {1, 2, 3, min(10, size), size}:
        for delta, epsilon in zip(deltas(size, groups), EPSILONS, strict=False):
            srr = mechanism(StaircaseResponse, size, epsilon=epsilon, groups=groups, delta=delta)
            assert np.all((srr.matrix() * distance).sum(axis=1) <= (size - 1) // 2 * srr.total)


@pytest.mark.parametrize(("groups", "fraction"), [(1, 0), (2, 1), (5, 0.5), (10, 0)])
def test_moments_are_exact_sums_and_the_mean_rises_with_the_weight(groups, fraction):
    size = 101
    delta = fraction * deltas(size, groups)[-1]
    srr = mechanism(StaircaseResponse, size, epsilon=2.0, groups=groups, delta=delta)
    first, second = offset_moments(srr.law)
    means = []
    for index, row in enumerate(srr.matrix().tolist()):
        mean = Fraction(sum(mass * (y - index) for y, mass in enumerate(row)), srr.total)
        square = Fraction(sum(mass * (y - index) ** 2 for y, mass in enumerate(row)), srr.total)
        assert first[index] == pytest.approx(float(mean), abs=1e-10)
        assert second[index] == pytest.approx(float(square), rel=1e-10)
        means.append(index + mean)
    steps = [b - a for a, b in pairwise(means)]
    near = srr.law.sizes[0]  # so near to an end, a step only changes the order within the nearest group
    flat = [k < near // 2 or size - 2 - k < (near - 1) // 2 for k in range(size - 1)]
    assert all((step == 0) == is_flat and step >= 0 for step, is_flat in zip(steps, flat, strict=True))


def test_sizes_sum_exactly_and_grow_by_delta():
    for size in (31, 301, 1501):
        for groups in range(2, 51):
            if groups > size:
                continue
            for delta in deltas(size, groups):
                sizes = staircase_sizes(size, groups, delta)
                assert sum(sizes) == size and min(sizes) >= 1
                assert all(abs(b - a - delta) <= 1 + 1e-9 for a, b in pairwise(sizes))


def test_draws_at_the_edges_of_every_rank_fall_on_the_right_side():
    for size, groups, epsilon in ((1501, 10, 3.0), (1501, 150, 1.0), (31, 1, 1.0), (301, 2, 20.0)):
        law = RankLaw.linear(staircase_sizes(size, groups, 0.0), epsilon)
        ends = list(accumulate(map(int, law.rank_masses())))
        masses = map(int, law.rank_masses())
        draws = [draw for end, mass in zip(ends, masses, strict=True) for draw in (end - mass, end - 1)]
        ranks = law.sample(2 * size, ScriptedStream(*(draw << (64 - DRAW_BITS) for draw in draws)))
        assert np.array_equal(ranks, np.repeat(np.arange(size), 2))


def test_draws_beyond_the_total_are_drawn_again():
    law = RankLaw((2, 1), (3 << 50, 1 << 50))  # one draw in eight is refused
    ranks = law.sample(400_000, Secrets.simulated_from_seed(0).stream())
    counts = np.bincount(ranks, minlength=3)
    expected = 400_000 * np.array([3, 3, 1]) / 7
    assert ((counts - expected) ** 2 / expected).sum() < 20


def test_the_bound_of_the_exponential_is_below_and_close():
    for epsilon in (1e-6, 0.1, 1.0, 3.3, 20.0):
        assert exp_lower(epsilon) * (1 - Fraction(1, 10**30)) < exp_below(epsilon)
        assert exp_below(epsilon) < exp_lower(epsilon) * (1 + Fraction(1, 10**50))
