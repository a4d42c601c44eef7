"""What ``lattice`` adds to a release, by formulas of the test's own, and who together learns what no message shows.

A release is rounded where it is dithered, and something is left of users outside the sample.
"""

import math
from dataclasses import replace

import pytest
from tests.core.test_sessions import build
from tests.support import make_sessions, small_federation

import uldp
from uldp.aggregation.lattice import LatticeWeighting
from uldp.privacy.accountants import account
from uldp.privacy.events import Gaussian
from uldp.privacy.ledger import Entry, Ledger
from uldp.privacy.releases import Adversary, GaussianSum, PublicFacts, UserSampling, views
from uldp.privacy.statement import exposures_of

SIGMA, SILOS, DIMENSION = 2.0, 4, 2**20
DITHER = math.sqrt(DIMENSION) * 2.0 ** (40 - 76)
"""In clips: rounding to multiples of 2^40 at a known point, where 2^76 is the clip."""
LEFT = 2048 * 2000 / 2.0**52
"""In clips: the error of a ciphertext, 2048 at most, times 2000 records."""
SUMS = Adversary("server", sees_silo_sums=True)


def release_of(weighting="records", **settings):
    lattice = LatticeWeighting()
    facts = PublicFacts(100, SILOS, DIMENSION, rounding=lattice.rounding, residual=lattice.residual)
    return GaussianSum(facts=facts, clip=1.0, noise_multiplier=SIGMA, weighting=weighting, **settings)


def multiplier(event):
    assert isinstance(event, Gaussian)
    return event.noise_multiplier


def test_a_total_is_rounded_once_and_each_of_the_sums_of_single_silos_for_itself():
    assert multiplier(release_of().event(SILOS)) == pytest.approx(SIGMA / (1 + DITHER), rel=1e-12)
    # A user's weights w_s and noise sigma^2 / |S| in each sum: mu^2 = |S| sum_s (w_s + dither)^2 / sigma^2, at most
    found = multiplier(release_of().view(SUMS))
    worst = math.sqrt(SILOS * ((1 - 1e-12 + DITHER) ** 2 + (SILOS - 1) * (1e-12 / 3 + DITHER) ** 2))
    assert found <= SIGMA / worst
    found = multiplier(release_of("uniform").view(SUMS))
    assert found <= SIGMA / math.sqrt(SILOS * SILOS * (1 / SILOS + DITHER) ** 2) * (1 + 1e-14)
    assert found == pytest.approx(SIGMA, rel=1e-6)


@pytest.mark.parametrize("adversary", [Adversary("server", sees_silo_sums=False), SUMS, Adversary("silos")])
def test_rounds_beyond_the_most_that_a_user_is_sampled_in_still_carry_what_is_left_of_them(adversary):
    sampling = UserSampling(0.1, max_participations=3)
    seen = views(release_of(user_sampling=sampling), adversary, [1] * 10)
    (sampled, sampled_rounds), (left, left_rounds) = sorted(seen.items(), key=lambda item: multiplier(item[0]))
    assert (sampled_rounds, left_rounds) == (3, 7)
    assert sampled == release_of(user_sampling=sampling).view(adversary)
    shares = adversary.shares(release_of().facts)
    noise = SIGMA * math.sqrt(1 / SILOS if adversary == SUMS else shares / SILOS)
    sums = math.sqrt(SILOS) if adversary == SUMS else 1
    assert multiplier(left) == pytest.approx(noise / (LEFT + sums * DITHER), rel=1e-9)
    # It is next to nothing, and not nothing; without a residual there is nothing.
    assert 1e-9 < 1 / multiplier(left) < 1e-6
    exact = replace(release_of(user_sampling=sampling), facts=PublicFacts(100, SILOS, DIMENSION))
    assert sum(views(exact, adversary, [1] * 10).values()) == 3


def rows_of(name, aggregation="lattice", **settings):
    method = build(name, **{"rounds": 5, "noise_multiplier": 1.0, **settings})
    server, _ = make_sessions(method, small_federation(silos=4), aggregation=aggregation)
    plan = server.plan
    entries = tuple(Entry(number, plan.release.event(4), "planned") for number in range(1, 6))
    ledger = Ledger(1e-5, None, entries)
    return plan.release, {row.who: row for row in exposures_of(plan.release, plan.disclosure, ledger, [1] * 5)}


@pytest.mark.parametrize("sampling", ["open", "private"])
def test_two_silos_may_be_the_dealer_and_the_keeper_of_a_table_and_know_the_sample(sampling):
    release, rows = rows_of("uldp-avg-w", sample_rate=0.1, sampling=sampling)
    two, one = rows["two colluding silos"], rows["one silo"]
    unsampled = replace(release, user_sampling=UserSampling()).event(2)
    assert two.epsilon == pytest.approx(account({unsampled: 5}, 1e-5).value)
    assert one.epsilon < two.epsilon / 2
    assert "the sample" in two.sees and "record totals" in two.sees
    assert (two.counts, one.counts, rows["the server"].counts) == (True, False, False)


def test_where_totals_are_public_or_nothing_is_looked_up_two_silos_learn_no_more_than_their_noise():
    _, rows = rows_of("uldp-avg")  # uniform weights: every total is |S|
    assert not rows["two colluding silos"].counts
    assert rows["two colluding silos"].sees == "the same, and each other's shares of the noise"


@pytest.mark.parametrize("sampling", ["open", "private"])
@pytest.mark.parametrize(
    ("adversary", "row"),
    [
        ({"adversary": "server"}, "the server"),
        ({"adversary": "silo"}, "one silo"),
        ({"adversary": "silo", "colluding": 2}, "two colluding silos"),
    ],
)
def test_a_question_without_data_is_answered_like_the_statement(adversary, row, sampling):
    """``uldp epsilon`` takes a million parameters: a little more than the statement about four, never less."""
    settings = {"sample_rate": 0.1, "sampling": sampling}
    _, rows = rows_of("uldp-avg-w", **settings)
    asked = uldp.epsilon(
        "uldp-avg-w", 1.0, rounds=5, silos=4, aggregation="lattice", delta=1e-5, settings=settings, **adversary
    )
    assert rows[row].epsilon <= asked <= rows[row].epsilon * 1.001
    assert asked.replace_one >= rows[row].replace_one


def test_noise_for_the_server_covers_what_encryptions_of_zero_leave():
    about = {"rounds": 5, "silos": 4, "aggregation": "lattice", "adversary": "server"}
    for target in (2.0, 60.0):
        noise = float(uldp.noise_multiplier("uldp-avg-w", target, **about))
        assert uldp.epsilon("uldp-avg-w", noise, **about) <= target
        assert uldp.epsilon("uldp-avg-w", noise * (1 - 1e-4), **about) > target
