"""Accountants, calibration, ledger."""

import math

import pytest

from uldp.errors import BudgetExhausted, ConfigError, RunError
from uldp.privacy.accountants import account
from uldp.privacy.calibrate import calibrate
from uldp.privacy.events import Gaussian, NonPrivate, PoissonSampled, event_from_json, event_to_json
from uldp.privacy.gaussian import AnalyticGaussian, gaussian_delta
from uldp.privacy.ledger import Entry, Ledger
from uldp.privacy.pld import Pld


@pytest.mark.parametrize(("rounds", "expected"), [(10, 2.594), (50, 6.573), (100, 9.997), (200, 15.456)])
def test_full_participation_is_the_analytic_gaussian(rounds, expected):
    spent = account({Gaussian(5.0): rounds}, 1e-5)
    assert spent.accountant == "analytic-gaussian"
    assert spent.value == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize(("rate", "expected"), [(0.1, 0.758), (0.3, 2.532), (0.5, 4.488), (0.7, 6.591)])
def test_poisson_sampling_is_accounted_by_pld(rate, expected):
    spent = account({PoissonSampled(rate, Gaussian(5.0)): 100}, 1e-5)
    assert spent.accountant == "pld"
    assert spent.value == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize(("rounds", "sigma"), [(1, 0.7), (10, 2.0), (100, 5.0), (300, 20.0)])
def test_pld_is_never_below_the_exact_value_and_close_to_it(rounds, sigma):
    exact = AnalyticGaussian().epsilon({Gaussian(sigma): rounds}, 1e-6)
    pessimistic = Pld().epsilon({Gaussian(sigma): rounds}, 1e-6)
    assert exact - 1e-9 <= pessimistic <= exact * 1.005


def test_unequal_rounds_compose():
    mixed = account({Gaussian(5.0): 50, Gaussian(4.0): 50}, 1e-5).value
    mu = math.sqrt(50 / 25 + 50 / 16)
    assert gaussian_delta(mixed, mu) == pytest.approx(1e-5, rel=1e-6)
    sampled = account({PoissonSampled(0.5, Gaussian(5.0)): 50, Gaussian(5.0): 50}, 1e-5).value
    assert (
        account({PoissonSampled(0.5, Gaussian(5.0)): 100}, 1e-5).value
        < sampled
        < account({Gaussian(5.0): 100}, 1e-5).value
    )


def test_delta_of_the_gaussian_against_numerical_integration():
    from scipy.integrate import quad
    from scipy.stats import norm

    for epsilon, mu in [(0.5, 1.0), (2.0, 0.8), (5.0, 2.0)]:

        def density(t, epsilon=epsilon, mu=mu):
            return max(0.0, norm.pdf(t - mu) - math.exp(epsilon) * norm.pdf(t))

        integral, _ = quad(density, -12, 14, points=[epsilon / mu + mu / 2], limit=200)
        assert gaussian_delta(epsilon, mu) == pytest.approx(integral, rel=1e-6)


def test_no_noise_is_no_privacy():
    assert account({Gaussian(5.0): 1, NonPrivate(): 1}, 1e-5).value == math.inf
    assert account({}, 1e-5).value == 0.0


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_delta_is_a_probability(delta):
    with pytest.raises(ConfigError, match=r"privacy\.delta"):
        account({Gaussian(5.0): 1}, delta)


@pytest.mark.parametrize("target", [0.1, 2.0, 50.0])
@pytest.mark.parametrize("rate", [1.0, 0.2])
def test_calibrated_noise_meets_its_target_from_below_and_is_not_wasteful(target, rate):
    def planned(sigma):
        event = Gaussian(sigma)
        return {event if rate == 1 else PoissonSampled(rate, event): 30}

    sigma = calibrate(planned, target, 1e-5)
    assert account(planned(sigma), 1e-5).value <= target
    assert account(planned(sigma * 0.999), 1e-5).value > target


def test_a_target_out_of_reach_is_refused():
    with pytest.raises(ConfigError, match="out of reach"):
        calibrate(lambda sigma: {Gaussian(sigma): 10**9}, 1e-9, 1e-12)


def test_a_replay_is_not_charged_twice_but_other_content_is():
    ledger = Ledger(1e-5)
    assert ledger.charge(Entry(1, Gaussian(5.0), "aa"))
    before = ledger.epsilon()
    assert not ledger.charge(Entry(1, Gaussian(5.0), "aa"))
    assert ledger.epsilon() == before
    assert ledger.charge(Entry(1, Gaussian(5.0), "bb"))
    assert ledger.epsilon().value > before.value


def test_two_releases_of_one_round_share_its_sample():
    """They are not independent samples: charging them as such would be too little."""
    ledger = Ledger(1e-5)
    for content in ("aa", "bb"):
        ledger.charge(Entry(1, PoissonSampled(0.01, Gaussian(1.0)), content))
    honest = account({PoissonSampled(0.01, Gaussian(1 / math.sqrt(2))): 1}, 1e-5).value
    naive = account({PoissonSampled(0.01, Gaussian(1.0)): 2}, 1e-5).value
    assert ledger.epsilon().value == pytest.approx(honest, rel=1e-6)
    assert honest > 2 * naive
    ledger.charge(Entry(1, NonPrivate(), "cc"))
    assert ledger.epsilon().value == math.inf


@pytest.mark.parametrize("part", [1 - 1e-9, 1.0])
def test_a_budget_is_kept_to_the_last_digit(part):
    event = Gaussian(5.0)
    four = tuple(Entry(round_, event, "a") for round_ in range(1, 5))
    ledger = Ledger(1e-5, part * account({event: 5}, 1e-5).value, four)
    assert ledger.affords(event, 5) == (part == 1.0)
    if part == 1.0:
        assert ledger.charge(Entry(5, event, "a"))
    else:
        with pytest.raises(BudgetExhausted, match="round 5"):
            ledger.charge(Entry(5, event, "a"))
        assert ledger.entries == four


def test_a_budget_is_a_hard_stop_and_refusing_changes_nothing():
    budget = account({Gaussian(5.0): 3}, 1e-5).value
    ledger = Ledger(1e-5, budget)
    for round_ in (1, 2, 3):
        assert ledger.charge(Entry(round_, Gaussian(5.0), str(round_)))
    with pytest.raises(BudgetExhausted, match="not released"):
        ledger.charge(Entry(4, Gaussian(5.0), "4"))
    assert len(ledger.entries) == 3
    assert not ledger.affords(Gaussian(5.0), 99)


@pytest.mark.parametrize("event", [Gaussian(2.5), PoissonSampled(0.1, Gaussian(3.0)), NonPrivate()])
def test_entries_survive_json(event):
    entry = Entry(7, event, "cc")
    assert Entry.from_json(entry.to_json()) == entry


def test_foreign_entries_are_refused():
    with pytest.raises(ConfigError, match="unknown privacy event"):
        event_from_json({"event": "laplace"})
    with pytest.raises(RunError):
        Entry.from_json({"event": "non-private"})
    assert event_to_json(NonPrivate()) == {"event": "non-private"}
