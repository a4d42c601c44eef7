"""What every accountant promises: a true bound, monotone, refusing what it cannot read."""

import math

import pytest
from tests.privacy_accounting.brute_force import one_step, two_steps

from uldp.errors import ConfigError
from uldp.privacy.accountants import ACCOUNTANTS, account
from uldp.privacy.events import Gaussian, Group, LocalReports, NonPrivate, PoissonSampled, Repeated

GAUSSIAN = Gaussian(2.0)
SAMPLED = PoissonSampled(0.1, Gaussian(2.0))
GROUP = Group(3, PoissonSampled(0.1, Gaussian(2.0)))
READS = {
    "analytic-gaussian": {GAUSSIAN},
    "pld": {GAUSSIAN, SAMPLED},
    "mixture-pld": {GAUSSIAN, SAMPLED, GROUP},
    "rdp": {GAUSSIAN, SAMPLED},
    "lemma5": {GAUSSIAN, SAMPLED, GROUP},
    "lemma6": {GAUSSIAN, SAMPLED, GROUP},
    "local": set(),  # reads none of these, but local reports: test_local_reports.py
}
PAIRS = [(accountant, event) for accountant in ACCOUNTANTS for event in READS[accountant.name]]
each_accountant = pytest.mark.parametrize("accountant", ACCOUNTANTS, ids=lambda one: one.name)
each_pair = pytest.mark.parametrize(
    ("accountant", "event"), PAIRS, ids=lambda one: getattr(one, "name", type(one).__name__)
)


def event_of(size, rate, sigma):
    inner = Gaussian(sigma) if rate == 1 else PoissonSampled(rate, Gaussian(sigma))
    return inner if size == 1 else Group(size, inner)


def test_the_accountants_are_these():
    assert [accountant.name for accountant in ACCOUNTANTS] == list(READS)


@each_accountant
def test_it_reads_what_it_says(accountant):
    accepted = {event for event in (GAUSSIAN, SAMPLED, GROUP) if accountant.accepts(event)}
    assert accepted == READS[accountant.name]
    assert not accountant.accepts(NonPrivate())
    assert accountant.accepts(LocalReports(1.0, 3)) == (accountant.name == "local")


@pytest.mark.parametrize(
    ("size", "rate", "sigma", "delta"),
    [
        (1, 1.0, 2.0, 1e-5),
        (1, 1.0, 0.5, 1e-2),
        (1, 0.1, 1.0, 1e-5),
        (1, 0.5, 0.6, 1e-3),
        (2, 0.3, 1.0, 1e-4),
        (4, 0.05, 0.7, 1e-5),
        (5, 0.6, 3.0, 1e-3),
        (4, 1.0, 3.0, 1e-4),
    ],
)
def test_never_below_the_truth_and_the_default_within_one_percent(size, rate, sigma, delta):
    event = event_of(size, rate, sigma)
    truth = max(one_step(size, rate, sigma, delta))
    for accountant in ACCOUNTANTS:
        if accountant.accepts(event):
            assert accountant.epsilon({event: 1}, delta) >= truth * (1 - 1e-6), accountant.name
    assert account({event: 1}, delta).value <= truth * 1.01


@pytest.mark.parametrize(
    ("size", "rate", "sigma", "delta"), [(1, 0.2, 1.0, 1e-4), (3, 0.3, 1.0, 1e-3), (2, 0.1, 0.8, 1e-4)]
)
def test_two_steps_against_two_dimensional_integration(size, rate, sigma, delta):
    event = event_of(size, rate, sigma)
    left, came = two_steps(size, rate, sigma, delta)
    for accountant in ACCOUNTANTS:
        if accountant.accepts(event):
            assert accountant.epsilon({event: 2}, delta) >= max(left, came) * (1 - 1e-4), accountant.name
    assert account({event: 2}, delta).value <= max(left, came) * 1.01


@each_pair
def test_more_rounds_more_epsilon_more_delta_less(accountant, event):
    values = [accountant.epsilon({event: rounds}, 1e-5) for rounds in (1, 2, 10, 100)]
    assert values == sorted(values) and values[0] < values[-1]
    assert accountant.epsilon({event: 10}, 1e-8) > accountant.epsilon({event: 10}, 1e-3)


@each_pair
def test_less_noise_more_epsilon(accountant, event):
    values = []
    for sigma in (8.0, 2.0, 1.0, 0.5):
        of = event.event if isinstance(event, Group) else event
        inner = Gaussian(sigma) if isinstance(of, Gaussian) else PoissonSampled(of.sample_rate, Gaussian(sigma))
        values.append(accountant.epsilon({Group(event.size, inner) if isinstance(event, Group) else inner: 5}, 1e-5))
    assert values == sorted(set(values))


@each_accountant
def test_a_larger_sample_and_a_larger_group_cost_more(accountant):
    if accountant.accepts(SAMPLED):
        rates = [accountant.epsilon({PoissonSampled(rate, Gaussian(2.0)): 20}, 1e-5) for rate in (0.05, 0.1, 0.5, 1.0)]
        assert rates == sorted(set(rates))
    if accountant.accepts(GROUP):
        groups = [accountant.epsilon({event_of(size, 0.1, 2.0): 20}, 1e-5) for size in (1, 2, 3, 5, 8, 11)]
        assert groups == sorted(groups) and groups[0] < groups[1] < groups[-1]


@each_pair
def test_repetitions_and_order_do_not_matter(accountant, event):
    once = accountant.epsilon({event: 6}, 1e-5)
    assert accountant.epsilon({Repeated(2, Repeated(3, event)): 1}, 1e-5) == once
    assert accountant.epsilon({Repeated(2, event): 1, event: 4}, 1e-5) == once
    other = Gaussian(5.0)
    assert accountant.epsilon({event: 2, other: 3}, 1e-5) == pytest.approx(
        accountant.epsilon({other: 3, event: 2}, 1e-5), rel=1e-12
    )


@each_pair
def test_a_mixed_composition_lies_between_its_parts(accountant, event):
    other = Gaussian(6.0)
    mixed = accountant.epsilon({event: 5, other: 5}, 1e-5)
    alone = max(accountant.epsilon({event: 5}, 1e-5), accountant.epsilon({other: 5}, 1e-5))
    assert alone < mixed
    added = accountant.epsilon({event: 5}, 5e-6) + accountant.epsilon({other: 5}, 5e-6)
    if not isinstance(event, Group) or accountant.name == "mixture-pld":
        assert mixed <= added * (1 + 1e-3)  # basic composition


@each_accountant
def test_nothing_released_costs_nothing(accountant):
    assert accountant.epsilon({}, 1e-5) == 0.0


@each_accountant
def test_a_group_of_one_and_a_sample_of_all_are_no_group_and_no_sample(accountant):
    for strange, plain in [
        (Group(1, SAMPLED), SAMPLED),
        (PoissonSampled(1.0, GAUSSIAN), GAUSSIAN),
        (Group(3, PoissonSampled(1.0, GAUSSIAN)), Group(3, GAUSSIAN)),
    ]:
        if accountant.accepts(plain):
            assert accountant.epsilon({strange: 4}, 1e-5) == accountant.epsilon({plain: 4}, 1e-5)


@each_accountant
def test_by_name_it_answers_or_refuses_and_says_who_can(accountant):
    for event in (GAUSSIAN, SAMPLED, GROUP):
        if accountant.accepts(event):
            spent = account({Repeated(3, event): 2}, 1e-5, accountant.name)
            assert (spent.accountant, spent.value) == (accountant.name, accountant.epsilon({event: 6}, 1e-5))
        else:
            with pytest.raises(ConfigError, match=type(event).__name__) as refusal:
                account({GAUSSIAN: 1, event: 1}, 1e-5, accountant.name)
            able = [other.name for other in ACCOUNTANTS if other.accepts(event)]
            assert able and f"these can: {', '.join(able)}" in str(refusal.value)
    assert account({event: 1, NonPrivate(): 1}, 1e-5, accountant.name).value == math.inf


def test_the_default_is_the_first_that_reads_everything():
    chosen = {event: account({event: 2, GAUSSIAN: 1}, 1e-5).accountant for event in (GAUSSIAN, SAMPLED, GROUP)}
    assert chosen == {GAUSSIAN: "analytic-gaussian", SAMPLED: "pld", GROUP: "mixture-pld"}
    assert account({Group(7, GAUSSIAN): 2}, 1e-5).accountant == "analytic-gaussian"


@pytest.mark.parametrize("name", ["published", "pdl", ""])
def test_an_unknown_accountant_is_refused(name):
    with pytest.raises(ConfigError, match=r"privacy\.accountant: unknown accountant"):
        account({GAUSSIAN: 1}, 1e-5, name)
