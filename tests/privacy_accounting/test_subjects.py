"""What the paper on subject-level DP claims, beside what holds."""

import math

import numpy as np
import pytest

from uldp.errors import ConfigError
from uldp.privacy.accountants import account
from uldp.privacy.calibrate import calibrate
from uldp.privacy.events import Gaussian, Group, PoissonSampled, event_from_json, event_to_json, flatten
from uldp.privacy.mixture import mixture_of
from uldp.research.published_noise import item_epsilon, item_target, moments_epsilon, published_noise


def noise_for(claimed, rate, steps):
    event = (lambda s: Gaussian(s)) if rate == 1 else (lambda s: PoissonSampled(rate, Gaussian(s)))
    return calibrate(lambda s: {event(s): steps}, claimed, 1e-5)


@pytest.mark.parametrize(
    ("claimed", "rate", "steps", "true"),
    [
        (2.0, 1.0, 1, {1: 2.0, 2: 2.95, 5: 5.00, 10: 7.54}),
        (8.0, 1.0, 1, {1: 8.0, 2: 12.26, 5: 22.16, 10: 35.62}),
        (2.0, 0.01, 1000, {1: 2.0, 2: 2.81, 5: 4.55, 10: 6.70}),
        (8.0, 0.01, 1000, {2: 10.7, 5: 16.8, 10: 24.7}),
    ],
)
def test_silos_of_a_subject_add_up(claimed, rate, steps, true):
    noise = noise_for(claimed, rate, steps)
    for silos, expected in true.items():
        assert item_epsilon(noise, rate, steps, 1e-5, silos=silos) == pytest.approx(expected, rel=7e-3)


def test_many_items_of_a_subject_are_hit_more_often_than_one():
    """PAPERS item 2 has 7.6, 64, 182 (Z = 3, q = 0.01, 1000 steps): between noise found tightly and by RDP."""
    noise = calibrate(lambda s: {PoissonSampled(0.01, Gaussian(s)): 1000}, *item_target(2.0, 1e-5, 3))
    found = [item_epsilon(noise, 0.01, 1000, 1e-5, items=items) for items in (10, 50, 100)]
    assert found == pytest.approx([7.6, 64, 182], rel=0.075)
    assert item_epsilon(noise, 0.01, 1000, 1e-5, items=3) <= 2.0  # Theorem 3.1 itself holds


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("rate", [1.0, 0.02])
def test_published_noise_covers_a_group_of_its_size_if_it_is_the_same_for_everybody(size, rate):
    noise = published_noise(2.0, 1e-5, size, rate, 100)
    assert item_epsilon(noise, rate, 100, 1e-5, items=size) <= 2.0
    assert moments_epsilon(noise, rate, 100, item_target(2.0, 1e-5, size)[1]) == pytest.approx(2.0 / size, rel=1e-5)


def test_the_moments_accountant_is_a_bound_and_not_far_from_the_truth():
    for rate, steps in ((0.01, 1000), (0.1, 50), (1.0, 10)):
        event = Gaussian(4.0) if rate == 1 else PoissonSampled(rate, Gaussian(4.0))
        true = account({event: steps}, 1e-5).value
        assert true <= moments_epsilon(4.0, rate, steps, 1e-5) <= 2 * true


def test_noise_that_nobody_can_add_is_refused():
    with pytest.raises(ConfigError, match=r"^epsilon: no noise reaches"):
        published_noise(1e-6, 1e-5, 1, 1.0, 10**6)
    with pytest.raises(ConfigError, match="delta below what a float can hold"):
        published_noise(800.0, 1e-5, 64, 0.1, 10)


# --- a group of which not all records count ---------------------------------------------------------------------


def test_a_largest_group_bounds_the_shift():
    event = Group(50, PoissonSampled(0.1, Gaussian(2.0)), 3)
    mixture = mixture_of(event)
    assert mixture.lengths.tolist() == [0.0, 1.0, 2.0, 3.0]
    whole = mixture_of(Group(50, PoissonSampled(0.1, Gaussian(2.0))))
    assert np.allclose(mixture.log_weights[:3], whole.log_weights[:3])
    assert np.exp(mixture.log_weights).sum() == pytest.approx(1, abs=1e-12)


def test_a_largest_group_lies_between_one_record_and_all():
    single, group = PoissonSampled(0.05, Gaussian(2.0)), 20
    epsilons = [account({Group(group, single, most): 100}, 1e-5).value for most in (1, 2, 5, 19)]
    assert epsilons == sorted(epsilons)
    assert account({single: 100}, 1e-5).value < epsilons[0]
    assert epsilons[-1] < account({Group(group, single): 100}, 1e-5).value * (1 + 1e-6)


def test_without_sampling_a_largest_group_is_a_smaller_group():
    assert flatten({Group(9, Gaussian(2.0), 3): 1}) == {Group(3, Gaussian(2.0)): 1}
    assert flatten({Group(9, PoissonSampled(0.5, Gaussian(2.0)), 9): 1}) == {
        Group(9, PoissonSampled(0.5, Gaussian(2.0))): 1
    }
    assert account({Group(9, Gaussian(2.0), 3): 4}, 1e-5).value == account({Gaussian(1 / 3): 1}, 1e-5).value


def test_lemmas_about_single_records_do_not_cover_it_and_it_survives_the_ledger():
    event = Group(9, PoissonSampled(0.5, Gaussian(2.0)), 3)
    assert event_from_json(event_to_json(event)) == event
    for lemma in ("lemma5", "lemma6"):
        with pytest.raises(ConfigError, match="cannot interpret"):
            account({event: 1}, 1e-5, lemma)
    with pytest.raises(ConfigError, match="largest group"):
        Group(9, Gaussian(1.0), 0)


def test_the_epsilon_of_a_largest_group_is_no_less_than_the_integrated_divergence():
    """One step, by the trapezoidal rule: P = sum_j w_j N(min(j, Z), 1) against N(0, 1)."""
    rate, size, most, sigma = 0.2, 6, 2, 1.5
    event = Group(size, PoissonSampled(rate, Gaussian(sigma)), most)
    epsilon = account({event: 1}, 1e-5).value
    weights = [math.comb(size, j) * rate**j * (1 - rate) ** (size - j) for j in range(size + 1)]
    x = np.arange(-20, 30, 1e-3)

    def density(mean):
        return np.exp(-((x - mean) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))

    p = sum(w * density(min(j, most)) for j, w in enumerate(weights))
    q = density(0)
    for one, other in ((p, q), (q, p)):
        assert np.maximum(one - math.exp(epsilon) * other, 0).sum() * 1e-3 <= 1e-5 * (1 + 1e-3)
    worst = max(np.maximum(a - math.exp(epsilon * 0.999) * b, 0).sum() * 1e-3 for a, b in ((p, q), (q, p)))
    assert worst > 1e-5
