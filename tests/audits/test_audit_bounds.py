"""Lower bounds on epsilon: they hold as often as they say, reach what they should, and refute what is wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from uldp.audits.bounds import (
    Claim,
    Errors,
    Measured,
    one_run,
    one_run_epsilon,
    one_run_p_value,
    pure_rates,
    shift_over_noise,
    trade_off,
    upper_rate,
)
from uldp.audits.one_run import is_improbable, one_run_curve
from uldp.privacy.events import Gaussian, PoissonSampled
from uldp.privacy.gaussian import gaussian_delta, gaussian_epsilon

DELTA = 1e-5


def gaussian_scores(mu, number, seed):
    """What canaries show in a Gaussian of this mu, with the middle between in and out at 0."""
    generator = np.random.default_rng(seed)
    included = generator.random(number) < 0.5
    return generator.normal(np.where(included, mu / 2, -mu / 2)), included


def test_clopper_pearson_covers():
    """P(bound < p) <= level, exactly: summed over all outcomes of a binomial."""
    for tries, p, level in ((20, 0.3, 0.05), (200, 0.01, 0.01), (50, 0.5, 0.2)):
        missed = sum(stats.binom.pmf(k, tries, p) for k in range(tries + 1) if upper_rate(k, tries, level) < p)
        assert missed <= level
    assert upper_rate(3, 3, 0.05) == 1.0


def test_the_gaussian_bound_holds_as_often_as_it_says_and_reaches_most_of_it():
    mu, claim = 1.0, Claim.of({Gaussian(2.0): 4}, DELTA)  # sqrt(4) / 2
    true = gaussian_epsilon(mu, DELTA)
    assert claim.epsilon() == pytest.approx(true)
    found = [trade_off(claim, Errors.of(*gaussian_scores(mu, 2000, seed)), level=0.1).epsilon for seed in range(300)]
    above = sum(epsilon > true for epsilon in found)
    assert above <= stats.binom.isf(1e-6, 300, 0.1)
    assert np.median(found) > 0.75 * true
    half = [trade_off(claim, Errors.of(*gaussian_scores(2 * mu, 2000, seed)), level=1e-5).epsilon for seed in range(20)]
    assert min(half) > true  # half of the noise is refuted


def test_the_bound_of_a_sampled_release_goes_by_the_accountants_curve():
    claim = Claim.of({PoissonSampled(0.5, Gaussian(1.0)): 1}, DELTA)
    false_in = np.linspace(0.01, 0.99, 50)
    # The true curve of the mixture against the Gaussian, by the threshold test that is optimal here.
    at = stats.norm.isf(false_in)
    true = 0.5 * stats.norm.cdf(at) + 0.5 * stats.norm.cdf(at - 1)
    curve = claim.false_out(false_in)
    assert (curve <= true + 1e-6).all()
    assert (true - curve).max() < 0.05  # a handful of lines, and both directions have to fit below them
    generator = np.random.default_rng(0)
    included = generator.random(20_000) < 0.5
    sampled = included & (generator.random(20_000) < 0.5)
    values = generator.normal(sampled) - 0.5
    bound = trade_off(claim, Errors.of(values, included), 0.05).epsilon
    assert 0.5 * claim.epsilon() < bound < claim.epsilon()
    loud = generator.normal(4.0 * sampled) - 2.0
    assert trade_off(claim, Errors.of(loud, included), 1e-6).epsilon > claim.epsilon()


def test_one_run_is_the_binomial_tail_without_delta_and_no_smaller_with_it():
    for epsilon in (0.0, 1.0, 3.0):
        tail = stats.binom.sf(79, 100, 1 / (1 + math.exp(-epsilon)))
        assert one_run_p_value(1000, 100, 80, epsilon, 0.0) == pytest.approx(tail)
        assert one_run_p_value(1000, 100, 80, epsilon, 1e-5) >= tail
    # 100 of 100 right at 5 %: accuracy 0.05^(1/100), epsilon its log odds
    accuracy = 0.05 ** (1 / 100)
    assert one_run_epsilon(1000, 100, 100, 0.0, 0.05) == pytest.approx(math.log(accuracy / (1 - accuracy)))


def test_one_run_and_error_rates_hold_as_often_as_they_say():
    """Randomised response at epsilon 1 is the tightest that pure DP allows."""
    accuracy = math.e / (1 + math.e)
    above = {"one run": 0, "error rates, Clopper-Pearson": 0}
    largest = dict.fromkeys(above, 0.0)
    for seed in range(300):
        generator = np.random.default_rng(seed)
        included = generator.random(400) < 0.5
        values = np.where(generator.random(400) < accuracy, 1.0, -1.0) * np.where(included, 1, -1)
        values += generator.normal(0, 1e-9, 400)
        for bound in (one_run(values, included, 0.0, 0.1), pure_rates(values, included, 0.0, 0.1, (0.0,))):
            above[bound.name] += bound.epsilon > 1
            largest[bound.name] = max(largest[bound.name], bound.epsilon)
    assert max(above.values()) <= stats.binom.isf(1e-6, 300, 0.1)
    assert min(largest.values()) > 0.7


def test_guesses_of_one_run_on_a_curve_are_exact_for_one_coin():
    """One guess about one coin, the best there is: right with probability Phi(mu / 2), and that is what is refuted."""
    for mu in (0.3, 1.0, 3.0):
        likely, right = Claim.of({Gaussian(1 / mu): 1}, DELTA).least_likely(), stats.norm.cdf(mu / 2)
        assert not is_improbable(likely, 1, 1, 1, right - 1e-6)
        assert is_improbable(likely, 1, 1, 1, right + 1e-6)


def test_guesses_of_one_run_on_a_curve_are_those_of_pure_dp_on_its_curve():
    """Under pure DP right guesses are at most binomial (Steinke et al.): no smaller probability may be claimed."""
    epsilon, accuracy = 1.0, math.e / (1 + math.e)

    def likely(r):
        return max(0.0, math.exp(-epsilon) * r, 1 - math.exp(epsilon) * (1 - r))

    for guesses, right in ((50, 50), (80, 60), (200, 160)):
        tail = stats.binom.sf(right - 1, guesses, accuracy)  # reached by randomised response
        assert not is_improbable(likely, guesses, guesses, right, tail)
        assert is_improbable(likely, guesses, guesses, right, 30 * tail)


def test_guesses_of_one_run_on_a_curve_hold_as_often_as_they_say_and_reach_more_than_without():
    claim, mu = Claim.of({Gaussian(4.0): 16}, DELTA), 1.0
    scores = [gaussian_scores(mu, 2000, seed) for seed in range(100)]
    found = [one_run_curve(claim, *one, level=0.1).epsilon for one in scores]
    assert sum(epsilon > claim.epsilon() for epsilon in found) <= stats.binom.isf(1e-6, 100, 0.1)
    assert np.median(found) > 0.4 * claim.epsilon()
    assert np.median(found) > 1.2 * np.median([one_run(*one, DELTA, 0.1).epsilon for one in scores])
    quiet = Claim.of({Gaussian(16.0): 16}, DELTA)  # claims a quarter of that mu
    assert min(one_run_curve(quiet, *one, level=1e-5).epsilon for one in scores[:10]) > quiet.epsilon()


def test_guesses_on_the_curve_of_a_sampled_release_use_its_lines():
    claim = Claim.of({PoissonSampled(0.5, Gaussian(1.0)): 1}, DELTA)
    likely, r = claim.least_likely(), np.linspace(0.01, 0.99, 50)
    assert [likely(one) for one in r] == pytest.approx(claim.false_out(1 - r).tolist())
    generator = np.random.default_rng(0)
    included = generator.random(20_000) < 0.5
    values = generator.normal(included & (generator.random(20_000) < 0.5))
    assert 0.2 * claim.epsilon() < one_run_curve(claim, values, included, 0.05).epsilon < claim.epsilon()


def test_shift_over_noise_holds_as_often_as_it_says():
    claim, above = Claim.of({Gaussian(2.0): 4}, DELTA), 0
    for seed in range(300):
        noise = np.random.default_rng(seed).normal(0, 2.0, 1000)
        measured = Measured(1 / math.sqrt(np.square(noise).mean()), 1000)
        above += shift_over_noise(claim, measured, 0.5, 0.1).epsilon > claim.epsilon()
    assert above <= stats.binom.isf(1e-6, 300, 0.1)
    assert above > 5  # tight
    assert shift_over_noise(claim, Measured(1e-6, 1000), 0.5, 0.1).epsilon == 0


def test_shift_over_noise_holds_for_the_silo_whose_noise_came_out_smallest():
    """A canary in one silo is as loud as that silo's noise is quiet, and the loudest one is taken."""
    claim, above, silos = Claim.of({Gaussian(2.0): 4}, DELTA), 0, 10
    for seed in range(300):
        variances = np.square(np.random.default_rng(seed).normal(0, 2.0, (silos, 1000))).mean(axis=1)
        measured = Measured(1 / math.sqrt(variances.min()), 1000, silos)
        above += shift_over_noise(claim, measured, 0.5, 0.1).epsilon > claim.epsilon()
    assert 5 < above <= stats.binom.isf(1e-6, 300, 0.1)


def test_gaussian_curves_agree_with_delta():
    """The trade-off curve and delta(epsilon) are two ways to say one thing: 1 - false out - e^eps false in <= delta."""
    claim, false_in = Claim.of({Gaussian(1.0): 1}, DELTA), np.geomspace(1e-6, 0.999, 4000)
    for epsilon in (0.5, 1.0, 2.0):
        gained = (1 - claim.false_out(false_in) - math.exp(epsilon) * false_in).max()
        assert gained == pytest.approx(gaussian_delta(epsilon, 1.0), abs=1e-4)
