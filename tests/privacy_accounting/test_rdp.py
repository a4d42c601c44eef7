"""Renyi divergences against dp-accounting, against sums over all draws, and what is made of them."""

import itertools
import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binom, norm

from uldp.privacy.accountants import account
from uldp.privacy.events import Gaussian, Group, PoissonSampled
from uldp.privacy.mixture import mixture_of
from uldp.privacy.pld import quick_epsilon
from uldp.privacy.rdp import convert_rdp, orders_between, sampled_gaussian_rdp


def oracle(orders, *events):
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(orders=list(orders))
    for event, count in events:
        accountant.compose(event, count)
    return accountant


def sampled(rate, sigma):
    import dp_accounting

    return dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma))


def their_divergence(rate, sigma, order):
    """At one order, out of the only epsilon that it gives (Canonne, Kamath and Steinke 2020, Proposition 12)."""
    delta = 1e-12
    epsilon = oracle([order], (sampled(rate, sigma), 1)).get_epsilon(delta)
    assert epsilon > 0
    return epsilon - math.log1p(-1 / order) + math.log(delta * order) / (order - 1)


CASES = pytest.mark.parametrize(("rate", "sigma"), [(0.01, 5.0), (0.3, 1.0), (0.9, 0.6), (1e-3, 0.8)])


@CASES
def test_whole_orders_of_the_sampled_gaussian_against_dp_accounting(rate, sigma):
    orders = [2.0, 3.0, 8.0, 64.0, 200.0]
    theirs = [their_divergence(rate, sigma, order) for order in orders]
    np.testing.assert_allclose(sampled_gaussian_rdp(rate, sigma, np.array(orders)), theirs, rtol=1e-6)


@CASES
@pytest.mark.parametrize("order", [1.25, 2.7, 10.5])
def test_fractional_orders_of_the_sampled_gaussian_against_integration(rate, sigma, order):
    def excess(x):
        ratio = 1 - rate + rate * math.exp((2 * x - 1) / (2 * sigma**2))
        return norm.pdf(x, 0, sigma) * (ratio**order - 1 - order * (ratio - 1))  # E[ratio] = 1: no cancellation

    integral = quad(excess, -12 * sigma, order + 12 * sigma, points=[0, order], limit=500, epsabs=0, epsrel=1e-10)[0]
    ours = sampled_gaussian_rdp(rate, sigma, np.array([order]))[0]
    assert ours == pytest.approx(math.log1p(integral) / (order - 1), rel=1e-5)
    assert ours <= their_divergence(rate, sigma, order) * (1 + 1e-6)  # theirs: a bound between orders


@pytest.mark.parametrize("sigma", [0.7, 5.0])
def test_epsilon_against_dp_accounting(sigma):
    import dp_accounting

    composition = {PoissonSampled(0.02, Gaussian(sigma)): 500, Gaussian(4 * sigma): 20}
    events = (sampled(0.02, sigma), 500), (dp_accounting.GaussianDpEvent(4 * sigma), 20)
    theirs = oracle(orders_between(1.01, 512), *events).get_epsilon(1e-6)
    assert theirs * 0.995 < account(composition, 1e-6, "rdp").value <= theirs * (1 + 1e-6)


@pytest.mark.parametrize(("size", "rate", "sigma"), [(2, 0.3, 1.0), (4, 0.1, 2.0), (3, 0.5, 0.5)])
@pytest.mark.parametrize("order", [2, 3, 4])
def test_a_groups_divergence_against_the_sum_over_all_draws(size, rate, sigma, order):
    """E over j_1 .. j_alpha of exp(sum of j_i j_l over pairs / sigma^2), for whole alpha."""
    weights = binom.pmf(np.arange(size + 1), size, rate)
    total = 0.0
    for draws in itertools.product(range(size + 1), repeat=order):
        j = np.array(draws)
        total += weights[j].prod() * math.exp((j.sum() ** 2 - (j**2).sum()) / (2 * sigma**2))
    left, came = mixture_of(Group(size, PoissonSampled(rate, Gaussian(sigma)))).renyi(np.array([float(order)]))
    assert left[0] == pytest.approx(math.log(total) / (order - 1), rel=1e-9)
    assert 0 < came[0] <= left[0]


def test_an_order_out_of_reach_is_infinite_not_small():
    left, came = mixture_of(Group(64, PoissonSampled(0.01, Gaussian(0.1)))).renyi(np.array([1.1, 1e4]))
    assert np.isfinite([left[0], came[0]]).all() and np.isinf([left[1], came[1]]).all()


def test_small_noise_and_small_rates_lose_no_digits():
    q, sigma = 1e-7, 1.0
    second = sampled_gaussian_rdp(q, sigma, np.array([2.0]))[0]
    assert second == pytest.approx(q**2 * math.expm1(1 / sigma**2), rel=1e-9)


def test_the_conversion_is_the_papers():
    rho, alpha, delta = 0.7, 9.0, 1e-5
    expected = rho + math.log((alpha - 1) / alpha) - (math.log(delta) + math.log(alpha)) / (alpha - 1)
    assert convert_rdp(np.array([rho]), np.array([alpha]), delta)[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("size", [1, 3, 20])
@pytest.mark.parametrize("sigma", [0.4, 2.0, 30.0])
def test_the_quick_bound_is_a_bound_and_not_far_off(size, sigma):
    composition = {Group(size, PoissonSampled(0.05, Gaussian(sigma))): 300}
    tight, quick = account(composition, 1e-5).value, quick_epsilon(composition, 1e-5)
    assert tight <= quick <= 1.3 * tight
