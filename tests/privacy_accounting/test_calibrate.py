"""Noise and rounds for a target, with groups too; and settings that must not hang."""

import time

import numpy as np
import pytest

from uldp.errors import ConfigError
from uldp.privacy.accountants import account
from uldp.privacy.calibrate import calibrate, rounds_within
from uldp.privacy.events import Gaussian, Group, NonPrivate, PoissonSampled, dp_sgd

DELTA = 1e-5


@pytest.mark.parametrize(("rate", "steps", "size", "target"), [(0.01, 5000, 8, 20.0), (0.1, 1, 4, 300.0)])
def test_noise_for_a_group(rate, steps, size, target):
    tried = []

    def planned(sigma):
        tried.append(sigma)
        return {dp_sgd(sigma, rate, steps, size): 1}

    sigma = calibrate(planned, target, DELTA)
    assert len(tried) < 40
    assert account(planned(sigma), DELTA).value <= target
    assert account(planned(sigma * 0.998), DELTA).value > target


def test_noise_is_never_a_rounding_too_little():
    for target in np.geomspace(0.05, 50, 300):
        sigma = calibrate(lambda sigma: {Gaussian(sigma): 30}, target, DELTA)
        assert account({Gaussian(sigma): 30}, DELTA).value <= target


def test_out_of_reach_names_the_closest_there_is():
    def planned(sigma):
        return {Gaussian(sigma): 1, Gaussian(5.0): 100}  # the second one does not listen

    with pytest.raises(ConfigError, match=r"out of reach: the closest there is, .* is 9\.997"):
        calibrate(planned, 2.0, DELTA)
    with pytest.raises(ConfigError, match=r"is inf"):
        calibrate(lambda sigma: {NonPrivate(): 1}, 2.0, DELTA)


def test_a_target_that_any_noise_meets_takes_the_least():
    assert calibrate(lambda sigma: {PoissonSampled(1e-4, Gaussian(sigma)): 1}, 1e6, DELTA) == 0.01


@pytest.mark.parametrize(
    "event",
    [
        Gaussian(5.0),
        PoissonSampled(0.1, Gaussian(2.0)),
        dp_sgd(3.0, 0.02, 10, 5),
    ],
)
@pytest.mark.parametrize("target", [1.0, 12.0])
def test_rounds_within_a_target_are_the_most_there_are(event, target):
    rounds = rounds_within(event, target, DELTA, 100_000)
    assert rounds == 0 or account({event: rounds}, DELTA).value <= target
    assert account({event: rounds + 1}, DELTA).value > target
    assert rounds_within(event, target, DELTA, 2) == min(rounds, 2)


def test_no_rounds_are_within_where_one_is_too_many():
    assert rounds_within(NonPrivate(), 1.0, DELTA, 100) == 0
    assert rounds_within(Gaussian(0.1), 1.0, DELTA, 100) == 0
    with pytest.raises(ConfigError, match=r"privacy\.epsilon"):
        rounds_within(Gaussian(1.0), 0.0, DELTA, 100)


@pytest.mark.parametrize(
    ("size", "rate", "sigma", "steps", "delta"),
    [
        (64, 0.01, 0.1, 100_000, 1e-5),
        (8, 0.01, 0.1, 100, 1e-5),
        (4, 0.01, 0.01, 10, 1e-5),
        (1000, 0.05, 20.0, 1000, 1e-6),
        (100_000, 0.01, 500.0, 10, 1e-6),
        (8, 1e-9, 1.0, 1000, 1e-6),
        (6, 0.9976, 0.8, 1, 1e-9),
        (15, 1 - 1e-7, 0.26, 3, 1e-8),
        (4, 0.01, 50.0, 10_000_000, 1e-5),
        (8, 0.01, 5.0, 1000, 1e-15),
    ],
)
def test_odd_settings_neither_hang_nor_promise_too_much(size, rate, sigma, steps, delta):
    event = Group(size, PoissonSampled(rate, Gaussian(sigma)))
    start = time.thread_time()
    spent = account({event: steps}, delta).value
    assert time.thread_time() - start < 20
    unsampled = account({Group(size, Gaussian(sigma)): steps}, delta).value
    single = account({PoissonSampled(rate, Gaussian(sigma)): steps}, delta).value
    assert single * 0.999 <= spent <= unsampled


@pytest.mark.parametrize(("steps", "sigma"), [(100_000, 5.0), (100_000, 1.0), (1000, 40.0), (1_000_000, 1000.0)])
def test_a_tiny_delta_is_neither_understated_nor_lost_in_rounding(steps, sigma):
    """The transforms' own answer against the exact one, down to where float64 has no digits beside 1."""
    from uldp.privacy import pld

    for delta in (1e-2, 1e-5, 1e-10, 1e-15, 1e-20, 1e-50, 1e-100):
        exact = account({Gaussian(sigma): steps}, delta).value
        assert exact <= pld.distribution_epsilon(frozenset({(Gaussian(sigma), steps)}), delta) <= exact * (1 + 1e-4)


def test_a_tiny_delta_has_an_answer():
    event = Group(2, PoissonSampled(1 - 1e-12, Gaussian(100.0)))  # all but a Gaussian, whose epsilon is known
    exact = account({Group(2, Gaussian(100.0)): 10_000}, 1e-15).value
    assert account({event: 10_000}, 1e-15).value == pytest.approx(exact, rel=1e-6)
