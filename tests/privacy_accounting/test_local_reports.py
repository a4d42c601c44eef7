"""Local reports: what many perturbed weights of one client amount to."""

import itertools
import math

import pytest

from uldp.errors import ConfigError
from uldp.privacy.accountants import account, account_replace_one
from uldp.privacy.calibrate import rounds_within
from uldp.privacy.events import Gaussian, LocalReports, NonPrivate, Repeated, event_from_json, event_to_json
from uldp.privacy.local_reports import compose_reports
from uldp.privacy.pld import quick_epsilon


def exact_delta(epsilon, count, total):
    """The hockey-stick divergence of ``count`` randomised responses, the worst case of pure DP, by enumeration."""
    high = math.exp(epsilon) / (1 + math.exp(epsilon))
    found = 0.0
    for ones in range(count + 1):
        ways = math.comb(count, ones)
        loss = (2 * ones - count) * epsilon
        if loss > total:
            log_p = math.log(ways) + ones * math.log(high) + (count - ones) * math.log1p(-high)
            found += math.exp(log_p) * -math.expm1(total - loss)
    return found


@pytest.mark.parametrize("epsilon", [0.05, 0.3, 1.0, 5.0])
@pytest.mark.parametrize("count", [1, 2, 10, 100, 600])
@pytest.mark.parametrize("delta", [1e-2, 1e-5])
def test_never_below_the_truth(epsilon, count, delta):
    total = compose_reports(epsilon, count, delta)
    assert exact_delta(epsilon, count, total * (1 - 1e-12)) <= delta * (1 + 1e-6)
    assert total <= count * epsilon


def test_many_small_reports_cost_less_than_their_sum_and_few_large_ones_add_up():
    assert account({LocalReports(0.01, 1000): 1}, 1e-5).value < 2
    assert account({LocalReports(5.0, 20_490): 1}, 1e-5).value <= 5 * 20_490
    assert account({LocalReports(5.0, 2): 3}, 1e-5).value == pytest.approx(30.0, rel=1e-5)
    assert account({LocalReports(5.0, 1): 1}, 1e-5).value == 5.0


def test_rounds_and_weights_are_the_same_thing():
    values = [
        account(composition, 1e-5).value
        for composition in (
            {LocalReports(0.5, 60): 1},
            {LocalReports(0.5, 6): 10},
            {Repeated(10, LocalReports(0.5, 6)): 1},
        )
    ]
    assert values[0] == values[1] == values[2]


def test_it_is_about_replaced_data_and_goes_beside_other_events():
    local, noised = {LocalReports(1.0, 10): 2}, {Gaussian(5.0): 100}
    assert account_replace_one(local, 1e-5) == account(local, 1e-5)
    both = {**local, **noised}
    for epsilon in (account, account_replace_one):  # they share delta
        halves = epsilon(local, 5e-6).value + epsilon(noised, 5e-6).value
        assert epsilon(both, 1e-5).value == pytest.approx(halves, rel=1e-12)
    assert account_replace_one(both, 1e-5).value > account(both, 1e-5).value
    assert math.isinf(account({**local, NonPrivate(): 1}, 1e-5).value)


@pytest.mark.parametrize(
    "composition",
    [
        {LocalReports(5.0, 650): 10},
        {LocalReports(0.01, 650): 10},
        {LocalReports(0.1, 6): 2, Gaussian(5.0): 100},
        {Repeated(3, LocalReports(0.1, 6)): 2, Gaussian(5.0): 1},
        {LocalReports(0.1, 6): 2, NonPrivate(): 1},
    ],
)
def test_the_quick_bound_is_never_below_the_accountant(composition):
    assert account(composition, 1e-5).value <= quick_epsilon(composition, 1e-5) * (1 + 1e-12)


@pytest.mark.parametrize(("epsilon", "budget", "rounds"), [(5.0, 100.0, 0), (5.0, 7000.0, 2), (5.0, 1e6, 10)])
def test_a_budget_ends_where_local_reports_use_it_up(epsilon, budget, rounds):
    event = LocalReports(epsilon, 650)
    assert rounds_within(event, budget, 1e-5, 10) == rounds
    assert rounds == 0 or account({event: rounds}, 1e-5).value <= budget
    assert rounds == 10 or account({event: rounds + 1}, 1e-5).value > budget


def test_so_many_that_composing_takes_long_add_up():
    assert compose_reports(0.1, 10**21, 1e-5) == 10**20


@pytest.mark.parametrize(("epsilon", "count"), list(itertools.product([0.0, -1.0, math.inf], [3])))
def test_impossible_reports_are_refused(epsilon, count):
    with pytest.raises(ConfigError):
        LocalReports(epsilon, count)
    with pytest.raises(ConfigError):
        LocalReports(1.0, 0)


def test_it_survives_the_ledger():
    event = LocalReports(2.5, 7)
    assert event_from_json(event_to_json(event)) == event
