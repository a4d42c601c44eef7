"""The numbers of the ULDP-FL paper, and the ones that are right."""

import math

import pytest

from uldp.errors import ConfigError
from uldp.privacy.accountants import account, account_replace_one
from uldp.privacy.events import Gaussian, Group, PoissonSampled, Repeated
from uldp.privacy.groups import published_epsilon

DELTA = 1e-5
SIZES = (1, 2, 4, 8, 16, 32, 64)


def steps_of_dp_sgd(size):
    return {Repeated(100_000, Group(size, PoissonSampled(0.01, Gaussian(5.0)))): 1}


@pytest.mark.parametrize(
    ("rounds", "exact", "by_rdp"),
    [(10, 2.594, 2.814), (50, 6.573, 7.077), (100, 9.997, 10.725), (200, 15.456, 16.511)],
)
def test_full_participation(rounds, exact, by_rdp):
    assert account({Gaussian(5.0): rounds}, DELTA).value == pytest.approx(exact, abs=6e-4)
    assert account({Gaussian(5.0): rounds}, DELTA, "rdp").value == pytest.approx(by_rdp, abs=1e-3)


@pytest.mark.parametrize(
    ("rate", "tight", "by_rdp"), [(0.1, 0.758, 0.835), (0.3, 2.532, 2.759), (0.5, 4.488, 4.862), (0.7, 6.591, 7.110)]
)
def test_sampled_users(rate, tight, by_rdp):
    composition = {PoissonSampled(rate, Gaussian(5.0)): 100}
    assert account(composition, DELTA).value == pytest.approx(tight, abs=6e-4)
    assert account(composition, DELTA, "rdp").value == pytest.approx(by_rdp, abs=1e-3)


def test_naive_moves_by_twice_the_clip():
    assert account({Gaussian(2.5): 100}, DELTA).value == pytest.approx(24.38, abs=5e-3)
    assert account_replace_one({Gaussian(5.0): 100}, DELTA).value == account({Gaussian(2.5): 100}, DELTA).value


@pytest.mark.parametrize(("missing", "expected"), [(0, 9.997), (1, 11.48), (2, 13.76)])
def test_noise_shares_of_five_silos(missing, expected):
    seen = Gaussian(5.0 * math.sqrt((5 - missing) / 5))
    assert account({seen: 100}, DELTA).value == pytest.approx(expected, abs=6e-3)


def test_one_silos_share_only():
    assert account({Gaussian(5.0 / math.sqrt(5)): 100}, DELTA).value == pytest.approx(28.37, abs=6e-3)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lemma6", (2.849, 7.990, 24.54, 98.79, 545.6, 3267, 20107)),
        ("lemma5", (2.849, 6.80, 18.25, 58.07, 214.7, 854.2, 3508)),
        ("auto", (2.627, 5.836, 13.60, 34.18, 95.16, 295.8, 1012.0)),
    ],
)
def test_groups(name, expected):
    found = [account(steps_of_dp_sgd(size), DELTA, name).value for size in SIZES]
    assert found == pytest.approx(expected, rel=2e-3)


def test_what_was_published_for_groups_is_below_what_its_own_lemma_proves():
    published = {size: published_epsilon(steps_of_dp_sgd(size), DELTA) for size in SIZES}
    valid = {size: account(steps_of_dp_sgd(size), DELTA, "lemma6").value for size in SIZES}
    assert round(published[1], 2) == 2.85
    assert published[32] == pytest.approx(2100, rel=0.03)
    assert published[64] == pytest.approx(11400, rel=0.005)
    assert [size for size in SIZES if published[size] < valid[size] * 0.99] == [16, 32, 64]
    with pytest.raises(ConfigError, match="powers of two"):
        published_epsilon(steps_of_dp_sgd(12), DELTA)


@pytest.mark.parametrize("size", [3, 5, 12, 33])
def test_a_size_that_is_no_power_of_two_is_rounded_up_by_lemma_6_and_exact_elsewhere(size):
    above = 2 ** math.ceil(math.log2(size))
    composition = {Group(size, PoissonSampled(0.01, Gaussian(5.0))): 1000}
    rounded = {Group(above, PoissonSampled(0.01, Gaussian(5.0))): 1000}
    assert account(composition, DELTA, "lemma6").value == account(rounded, DELTA, "lemma6").value
    for name in ("lemma5", "mixture-pld"):
        below = {Group(size - 1, PoissonSampled(0.01, Gaussian(5.0))): 1000}
        assert (
            account(below, DELTA, name).value
            < account(composition, DELTA, name).value
            < account(rounded, DELTA, name).value
        )
