"""The epsilon of a view that is near an accounted one, against an exact computation on a small grid."""

import math

import numpy as np
import pytest
from tests.core.test_sessions import build
from tests.privacy_accounting.test_lattice_accounting import rows_of
from tests.support import make_sessions, small_federation

from uldp.privacy.distance import Distance, account_at_distance, account_shifted
from uldp.privacy.gaussian import gaussian_epsilon
from uldp.privacy.ledger import Entry, Ledger
from uldp.privacy.statement import Background, compose

STEPS, DEVIATION, SENSITIVITY = 8, 60, 400
"""Noise is a multiple of 8 with a deviation of 60 such multiples, and a dither below 8."""


def law(data, shift):
    """Probabilities of data + noise + shift on a grid of numbers."""
    multiples = np.arange(-800, 801)
    weights = np.exp(-(multiples**2) / (2 * DEVIATION**2))
    noise = np.repeat(weights / weights.sum() / STEPS, STEPS)
    found = np.zeros(len(noise) + 1000)
    found[500 + data + shift :][: len(noise)] = noise
    return found


def exact_epsilon(one, other, delta):
    """The smallest epsilon of two laws at ``delta``, by bisection of their hockey-stick divergences."""
    low, high = 0.0, 50.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        larger = max(np.maximum(a - math.exp(middle) * b, 0).sum() for a, b in ((one, other), (other, one)))
        low, high = (middle, high) if larger > delta else (low, middle)
    return high


@pytest.mark.parametrize("shift", [1, 3, 7])
def test_a_shift_that_depends_on_the_data_is_covered(shift):
    """The worst that an h below one step can do: it points away from the neighbour, in both data sets."""

    def accounted(delta):
        return exact_epsilon(law(0, 0), law(SENSITIVITY, 0), delta)

    for delta in (1e-3, 1e-6):
        found = exact_epsilon(law(0, -shift), law(SENSITIVITY, shift), delta)
        assert accounted(delta) < found <= account_shifted(accounted, delta, 1 / DEVIATION)


@pytest.mark.parametrize("shift", [1, 3, 7])
def test_a_shift_costs_no_more_than_what_its_event_says(shift):
    """Of one coordinate whose h is known: its statistical distance, and its Renyi divergence of every order."""
    here, moved = law(0, 0), law(0, shift)
    # At the ends of the grid, 13 deviations away, one of both is cut off.
    inside = (here > 0) & (moved > 0)
    assert here[~inside].sum() + moved[~inside].sum() < 1e-40
    assert np.abs(here - moved).sum() / 2 <= 0.4 * shift / (STEPS * DEVIATION)
    logs = np.log(here[inside]), np.log(moved[inside])
    for order in (1.001, 2.0, 41.0, 400.0):
        for p, q in (logs, logs[::-1]):
            terms = order * p + (1 - order) * q
            divergence = (terms.max() + math.log(np.exp(terms - terms.max()).sum())) / (order - 1)
            # rho-zCDP with rho = mu^2 / 2; with every dither that moves the noise by a step it does so fully
            assert divergence <= order / (2 * DEVIATION**2) * (1 + 1e-6)


def test_two_coordinates_and_two_rounds_add_up_as_stated():
    """d = 2 coordinates of one round, then T = 2: mu = sqrt(d T) / s, by Chernoff's bound of the exact law."""
    one, moved = law(0, 0), law(0, 7)
    inside = (one > 0) & (moved > 0)
    one, moved = one[inside], moved[inside]
    for numbers, mu in ((2, math.sqrt(2) / DEVIATION), (4, 2 / DEVIATION)):
        logs = np.log(moved) - np.log(one)
        for eps in (0.5 * mu, 2 * mu, 5 * mu):
            # P(A) <= e^eps Q(A) + delta1 for all A, over the loss of all coordinates, which are independent
            order = 1 + (eps / (mu * mu / 2) - 1) / 2
            moment = math.log((moved * np.exp((order - 1) * logs)).sum())
            bound = math.exp(min(0.0, numbers * moment - (order - 1) * eps))
            assert bound <= math.exp(-((eps - mu * mu / 2) ** 2) / (2 * mu * mu)) * (1 + 1e-6)


def test_an_epsilon_next_to_where_there_is_none_is_found_in_few_steps():
    """The statistical bound ends at an epsilon of log(delta / t) or so, and is approached slowly there."""
    for ratio in np.linspace(0.5, 3, 26):
        calls = []

        def accounted(delta, calls=calls, ratio=ratio):
            calls.append(delta)
            return gaussian_epsilon(0.4 / ratio, delta)

        near = Distance(1e-12, shift=1e-6)
        found = near.epsilon(accounted, 1e-5)
        assert found <= account_shifted(accounted, 1e-5, 1e-6)
        assert len(calls) < 60
        assert near.epsilon(accounted, 1e-5) <= account_at_distance(accounted, 1e-5, 1e-12)


def test_the_tails_are_charged_and_what_they_do_not_outweigh_has_no_bound():
    assert account_shifted(lambda delta: 790.0, 1e-5, 1e-9) == pytest.approx(790.0)
    assert account_shifted(lambda delta: 830.0, 1e-5, 1e-9) == math.inf
    assert account_shifted(lambda delta: 1.0, 1e-5, 1.1) == math.inf


def test_the_smaller_of_both_bounds_counts_and_no_distance_costs_nothing():
    def accounted(delta):
        return gaussian_epsilon(1.0, delta)

    assert Distance().epsilon(accounted, 1e-5) == accounted(1e-5)
    near, far = Distance(1e-15, shift=0.1), Distance(1e-3, shift=1e-6)
    assert near.epsilon(accounted, 1e-5) == account_at_distance(accounted, 1e-5, 1e-15)
    assert far.epsilon(accounted, 1e-5) == account_shifted(accounted, 1e-5, 1e-6)
    assert Distance(1e-3).epsilon(accounted, 1e-5) == math.inf
    assert Distance(1e-9, shift=1e-3).times(4) == Distance(4e-9, shift=2e-3)


def test_distances_of_different_experiments_add_up_like_rounds():
    one, other, none = Distance(1e-9, shift=3e-3), Distance(5e-9), Distance()
    total = none
    for _ in range(4):
        total += one
    assert (total.statistical, total.shift) == pytest.approx((one.times(4).statistical, one.times(4).shift))
    assert one + none == none + one == one
    assert one + one.times(0) == one
    assert one + other == Distance(6e-9, shift=math.inf)  # of the other no shift is known


@pytest.mark.parametrize("noise", [0.2, 0.4])
def test_the_server_faces_a_large_epsilon_of_lattice_and_not_an_infinite_one(noise):
    """By statistical distance alone it was infinite from an epsilon of some thirty up."""
    _, rows = rows_of("uldp-avg-w", noise_multiplier=noise)
    public, server = rows["anyone who sees the released models"], rows["the server"]
    assert public.epsilon > 30
    assert public.epsilon < server.epsilon < public.epsilon * 1.0001
    assert public.replace_one < server.replace_one < public.replace_one * 1.0001


@pytest.mark.parametrize("aggregation", ["lattice", "masked"])
@pytest.mark.parametrize(("noise", "said"), [(0.2, True), (5.0, False)])
def test_the_statement_says_where_e_to_the_epsilon_outweighs_the_keys(aggregation, noise, said):
    """2^-128 e^epsilon exceeds a delta of 1e-5 from an epsilon of 77 up."""
    method = build("uldp-avg-w", noise_multiplier=noise, rounds=5)
    server, _ = make_sessions(method, small_federation(silos=4), aggregation=aggregation)
    release = server.plan.release
    ledger = Ledger(1e-5, None, tuple(Entry(t, release.event(4), "planned") for t in range(1, 6)))
    statement = compose(release, server.plan.disclosure, ledger, Background(), simulated=False)
    (row,) = (one for one in statement.exposures if one.who == "the server")
    assert (77 < row.epsilon < math.inf) == said
    texts = [caveat.text for caveat in statement.caveats if caveat.code == "large-epsilon"]
    assert len(texts) == said and all("An epsilon above 77 " in text for text in texts)


def test_what_no_key_hides_is_not_qualified_by_keys():
    method = build("uldp-avg-w", noise_multiplier=0.2)
    server, _ = make_sessions(method, small_federation(silos=4), aggregation="plain")
    assert server.plan.disclosure.security_bits == 0
