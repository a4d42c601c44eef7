"""Direct checks: their p-values hold where little was seen, too, and what they are for is caught."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats

from uldp.audits.canaries import SILENT
from uldp.audits.checks import gaussian_check, mask_checks
from uldp.audits.dispersion import dispersion_p_value
from uldp.audits.local import weight_bounds
from uldp.audits.observe import Seen


def alarms(p_values, level):
    """Whether so many p-values below ``level`` are no more than chance allows."""
    return sum(p < level for p in p_values) <= stats.binom.isf(1e-6, len(p_values), level)


def seen(**what):
    """What a run showed, of which only ``what`` counts."""
    empty = dict.fromkeys(("included", "totals", "silo_sums", "sent", "sample", "sizes", "model"))
    return Seen(**{**empty, **what})


@pytest.mark.parametrize(("tries", "rate"), [((3, 3), 0.3), ((2, 4, 5), 0.1), ((6,), 0.5)])
def test_the_spread_of_counts_has_the_p_value_of_all_outcomes(tries, rate):
    laws = [stats.binom.pmf(np.arange(number + 1), number, rate) for number in tries]
    centres = [round(number * rate) for number in tries]
    outcomes = list(product(*(range(number + 1) for number in tries)))
    chances = np.array([np.prod([law[x] for law, x in zip(laws, one, strict=True)]) for one in outcomes])
    squares = np.array([sum((x - c) ** 2 for x, c in zip(one, centres, strict=True)) for one in outcomes])
    for one, square in zip(outcomes, squares, strict=True):
        by_hand = 2 * min(chances[squares >= square].sum(), chances[squares <= square].sum())
        assert dispersion_p_value(np.array(one), np.array(tries), rate) == pytest.approx(min(1, by_hand), abs=1e-12)


def test_small_samples_whose_sizes_are_right_raise_no_alarm():
    """A user in a hundred of a hundred: as if normal, a level of 1e-4 were passed twenty times too often."""
    generator = np.random.default_rng(0)
    p_values = [dispersion_p_value(generator.binomial(100, 0.01, 20), 100, 0.01) for _ in range(2000)]
    assert alarms(p_values, 0.001) and alarms(p_values, 0.05)
    assert dispersion_p_value(np.tile([0, 8], 10), 100, 0.01) < 1e-6


@pytest.mark.parametrize(("users", "samples"), [(5_000, 400), (1_000_000, 400), (1_000_000, 1)])
def test_large_samples_too(users, samples):
    sizes = np.random.default_rng(0).binomial(users, 0.5, samples)
    assert dispersion_p_value(sizes, users, 0.5) > 0.01
    assert samples == 1 or dispersion_p_value(np.full(samples, users // 2), users, 0.5) < 1e-9
    assert dispersion_p_value(sizes + users // 20, users, 0.5) < 1e-9


@pytest.mark.parametrize("numbers", [250, 5000])
def test_the_shape_of_gaussian_noise_raises_no_alarm_and_that_of_other_noise_does(numbers):
    generator = np.random.default_rng(0)
    p_values = [gaussian_check([generator.normal(0, 2.0, (1, numbers))], 4.0).p_value for _ in range(300)]
    assert alarms(p_values, 0.01)
    assert (
        gaussian_check([generator.normal(0, 2.0, (1, 5000))], 1.0).p_value > 1e-3
    )  # its size is another check's matter
    assert gaussian_check([generator.laplace(0, 2.0**0.5, (1, 5000))], 4.0).p_value < 1e-9
    bounded = generator.normal(0, 2.0, (1, 20000))
    assert gaussian_check([bounded[:, np.abs(bounded[0]) < 5.9]], 4.0).p_value < 1e-9


def test_masks_of_two_silos_mirror_one_another_and_raise_no_alarm():
    generator = np.random.default_rng(0)
    p_values = []
    for _ in range(300):
        mask = generator.integers(0, 2**64, (2, 700), dtype=np.uint64)
        noise = generator.integers(0, 2**30, (2, 700), dtype=np.uint64)
        p_values += [check.p_value for check in mask_checks([seen(sent=np.stack([mask, noise - mask]))])]
    assert alarms(p_values, 0.01)
    bare = [check.p_value for check in mask_checks([seen(sent=np.stack([noise, noise]))])]
    twice = [check.p_value for check in mask_checks([seen(sent=np.stack([mask[:1] + noise, noise - mask[:1]]))])]
    assert max(bare) < 1e-9 and twice[1] < 1e-9


def test_guesses_by_sign_hold_for_reports_that_are_the_same_in_every_round():
    """They assume nothing of reports: a client who sends its first report again and again is no surer a guess."""
    rounds, coins, above = 20, 200, 0
    for seed in range(40):
        generator = np.random.default_rng(seed)
        included = generator.random((1, coins)) < 0.5
        right = generator.random((1, coins)) < np.e / (1 + np.e)  # epsilon 1
        reports = np.pad(np.where(right == included, 1.0, -1.0), ((0, 0), (0, SILENT)))
        sums = np.repeat(reports[:, None], rounds, axis=1)
        one, *_ = weight_bounds([seen(included=included, totals=sums[0], silo_sums=sums)], 0.1)
        above += one.epsilon > 1
    assert above <= stats.binom.isf(1e-6, 40, 0.1)
