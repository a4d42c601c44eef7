"""Groups: what dominates what, what is cut and where it goes, and records that are replaced."""

import math

import numpy as np
import pytest
from tests.privacy_accounting.brute_force import replaced_one_step

from uldp.privacy.accountants import account, account_replace_one
from uldp.privacy.events import Gaussian, Group, NonPrivate, PoissonSampled, Repeated
from uldp.privacy.gaussian import AnalyticGaussian
from uldp.privacy.mixture import Mixture, mixture_of

DELTA = 1e-5


def group(size, rate=0.02, sigma=2.0):
    return Group(size, PoissonSampled(rate, Gaussian(sigma)))


@pytest.mark.parametrize(("size", "part"), [(2, 1), (8, 1), (8, 4), (9, 3)])
def test_all_records_in_one_silo_is_the_worst_split(size, part):
    together = account({group(size): 200}, DELTA).value
    split = account({group(part): 200, group(size - part): 200}, DELTA).value
    assert split < together


@pytest.mark.parametrize("size", [2, 8, 32])
def test_sampling_helps_and_a_group_costs_more_than_its_size_in_epsilon(size):
    spent = account({group(size): 200}, DELTA).value
    assert spent < AnalyticGaussian().epsilon({Group(size, Gaussian(2.0)): 200}, DELTA)
    assert spent > account({group(1): 200}, DELTA).value * size * 0.9
    assert (
        spent < account({group(size): 200}, DELTA, "lemma5").value < account({group(size): 200}, DELTA, "lemma6").value
    )


@pytest.mark.parametrize(
    ("size", "rate", "sigma", "steps"), [(2, 0.1, 1.0, 10), (8, 0.02, 2.0, 300), (5, 0.7, 6.0, 40)]
)
def test_agrees_with_the_mixture_of_dp_accounting(size, rate, sigma, steps):
    from dp_accounting.pld import privacy_loss_distribution
    from scipy.stats import binom

    counts = np.arange(size + 1)
    theirs = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        sigma, counts, binom.pmf(counts, size, rate), value_discretization_interval=5e-3
    ).self_compose(steps)
    ours = account({Group(size, PoissonSampled(rate, Gaussian(sigma))): steps}, DELTA).value
    assert ours == pytest.approx(theirs.get_epsilon_for_delta(DELTA), rel=2e-3)


def test_a_group_of_unsampled_records_is_a_longer_gaussian():
    assert account({Group(6, Gaussian(12.0)): 10}, DELTA) == account({Gaussian(2.0): 10}, DELTA)
    mixed = account({Group(3, Gaussian(5.0)): 10, Gaussian(4.0): 20}, DELTA).value
    mu = math.sqrt(10 * 9 / 25 + 20 / 16)
    assert mixed == pytest.approx(AnalyticGaussian().epsilon({Gaussian(1 / mu): 1}, DELTA), rel=1e-9)


def lies_above(cut: Mixture, whole: Mixture) -> bool:
    """Whether ``cut`` has no more weight up to any length: its lengths are stochastically larger."""
    up_to_whole = np.cumsum(np.exp(whole.log_weights))
    up_to = np.append(0.0, np.cumsum(np.exp(cut.log_weights)))
    up_to_cut = up_to[np.searchsorted(cut.lengths, whole.lengths, side="right")]
    return bool((up_to_cut <= up_to_whole + 1e-10).all() and abs(up_to[-1] - 1) < 1e-9)


@pytest.mark.parametrize("log_tail", [-3.0, -10.0, -40.0])
@pytest.mark.parametrize(("size", "rate"), [(10, 0.1), (64, 0.01), (200, 0.5), (30, 0.999)])
def test_what_is_cut_of_the_binomial_counts_as_more_records(size, rate, log_tail):
    whole = mixture_of(group(size, rate))
    cut = whole.truncate(log_tail)
    assert lies_above(cut, whole)
    assert cut.lengths[-1] == size


def test_a_large_group_is_rounded_towards_more_records():
    size, rate = 20_000, 0.3
    from scipy.stats import binom

    counts = np.arange(size + 1)
    whole = Mixture(2.0, counts.astype(float), binom.logpmf(counts, size, rate))
    ladder = mixture_of(group(size, rate))
    assert len(ladder.lengths) <= 256 and ladder.lengths[-1] == size
    assert lies_above(ladder, whole)


def test_a_cut_tail_costs_rather_than_saves(monkeypatch):
    """With a cut that one can see, epsilon grows."""
    from uldp.privacy import pld

    event = group(12, 0.1, 1.0)
    honest = pld.distribution_epsilon(frozenset({(event, 3)}), 1e-3)
    original = Mixture.truncate
    monkeypatch.setattr(Mixture, "truncate", lambda self, _: original(self, math.log(0.02)))
    rough = pld.distribution_epsilon(frozenset({(event, 3)}), 1e-3)
    assert honest * 1.05 < rough < math.inf


@pytest.mark.parametrize(
    ("size", "rate", "sigma", "delta"),
    [(1, 0.1, 1.0, 1e-5), (1, 0.5, 3.0, 1e-3), (3, 0.2, 1.0, 1e-4), (8, 0.05, 2.0, 1e-5), (4, 0.9, 1.5, 1e-3)],
)
def test_replaced_records_are_covered(size, rate, sigma, delta):
    event = Group(size, PoissonSampled(rate, Gaussian(sigma)))
    replaced = account_replace_one({event: 1}, delta).value
    assert replaced >= replaced_one_step(size, rate, sigma, delta)
    assert (
        account({event: 1}, delta).value
        < replaced
        <= account_replace_one({Group(size, Gaussian(sigma)): 1}, delta).value
    )


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.8])
def test_replaced_users_over_many_rounds(rate):
    """dp-accounting's distribution for one replaced pair is below the bound, and not far below."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution

    pair = privacy_loss_distribution.from_gaussian_mechanism(
        4.0,
        sampling_prob=rate,
        value_discretization_interval=1e-3,
        neighboring_relation=NeighboringRelation.REPLACE_ONE,
    ).self_compose(60)
    below = pair.get_epsilon_for_delta(DELTA)
    replaced = account_replace_one({PoissonSampled(rate, Gaussian(4.0)): 60}, DELTA).value
    assert below * 0.999 < replaced < below * 1.15


def test_replaced_is_exact_without_sampling_and_below_lemma_5_with_it():
    assert account_replace_one({Gaussian(3.0): 7, Group(2, Gaussian(8.0)): 3}, DELTA) == account(
        {Gaussian(1.5): 7, Gaussian(2.0): 3}, DELTA
    )
    for size in (1, 4, 16):
        composition = {Repeated(50, group(size)): 4}
        by_hand = account({Repeated(50, group(2 * size)): 4}, DELTA, "lemma5").value
        assert account(composition, DELTA).value * 1.8 < account_replace_one(composition, DELTA).value < by_hand
    assert account_replace_one({NonPrivate(): 1, group(2): 1}, DELTA).value == math.inf
    assert account_replace_one({}, DELTA).value == 0.0
