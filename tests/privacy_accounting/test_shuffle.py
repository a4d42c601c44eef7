"""Shuffled reports: the published numbers, exact sums over all outcomes, and what composition may not do."""

import itertools
import math
from collections import Counter
from fractions import Fraction

import pytest

from uldp.errors import ConfigError
from uldp.privacy.accountants import account
from uldp.privacy.events import LocalReports
from uldp.privacy.gaussian import gaussian_epsilon
from uldp.privacy.shuffle import advanced_composition, erlingsson, feldman, local_run, shuffled_run

DELTA = 1e-5
EPSILONS = (1.0, 3.0, 5.0)


@pytest.mark.parametrize(
    ("clients", "expected"),
    [(100, (0.444, None, None)), (1000, (0.125, 0.704, 4.99)), (10_000, (0.035, 0.192, 0.635))],
)
def test_the_table_of_the_errata(clients, expected):
    for epsilon, published in zip(EPSILONS, expected, strict=True):
        found = feldman(epsilon, clients, DELTA)
        assert (found is None) == (published is None)
        assert found is None or found == pytest.approx(published, rel=0.01, abs=0.005)


@pytest.mark.parametrize(
    ("clients", "expected"),
    [(100, (0.553, None, None)), (1000, (0.154, 1.064, None)), (10_000, (0.0434, 0.2734, 0.9745))],
)
def test_the_bound_for_every_randomizer_is_larger(clients, expected):
    for epsilon, ours in zip(EPSILONS, expected, strict=True):
        found = feldman(epsilon, clients, DELTA, extremal=False)
        assert found == (None if ours is None else pytest.approx(ours, rel=2e-3))
        assert (found or epsilon) >= (feldman(epsilon, clients, DELTA) or epsilon)


def test_the_authors_own_example():
    """The README of apple/ml-shuffling-amplification: between 0.16754 and 0.17279."""
    assert 0.1675385 < feldman(4.0, 100_000, 1e-6, extremal=False) < 0.1727906


@pytest.mark.parametrize(
    ("epsilon", "clients", "delta", "location"),
    [
        (0.4, 999, 1e-5, "clients"),
        (0.5, 1000, 1e-5, "epsilon"),
        (5.0, 1000, 1e-5, "epsilon"),
        (0.4, 1000, 0.01, "privacy.delta"),
    ],
)
def test_the_formula_is_refused_outside_its_region(epsilon, clients, delta, location):
    with pytest.raises(ConfigError, match=r"clients >= 1000, epsilon < 1/2 and delta < 1/100.*Feldman") as refused:
        erlingsson(epsilon, clients, delta)
    assert refused.value.location == location
    assert refused.value.value in (epsilon, clients, delta)


def test_the_formula_inside_its_region_is_above_the_numeric_bound():
    for epsilon, clients, delta in [(0.49, 1000, 0.009), (0.1, 10_000, 1e-5), (0.4, 100_000, 1e-8)]:
        formula = erlingsson(epsilon, clients, delta)
        assert formula == pytest.approx(12 * epsilon * math.sqrt(math.log(1 / delta) / clients))
        assert feldman(epsilon, clients, delta, extremal=False) < formula


@pytest.mark.parametrize("bad", [0, -1.0, math.nan, math.inf])
def test_an_epsilon_is_positive_and_finite(bad):
    for call in (
        lambda: feldman(bad, 10, DELTA),
        lambda: erlingsson(bad, 1000, DELTA),
        lambda: local_run(bad, 1, 1),
        lambda: shuffled_run(bad, 10, 1, 1, DELTA),
        lambda: advanced_composition(bad, 2, DELTA),
    ):
        with pytest.raises(ConfigError):
            call()


@pytest.mark.parametrize("bad", [0, -3, 1.5, True])
def test_counts_are_whole_and_positive(bad):
    with pytest.raises(ConfigError, match="clients"):
        feldman(1.0, bad, DELTA)
    with pytest.raises(ConfigError, match="weights"):
        local_run(1.0, bad, 1)
    with pytest.raises(ConfigError, match="rounds"):
        shuffled_run(1.0, 10, 2, bad, DELTA)


@pytest.mark.parametrize("delta", [0.0, 1.0, math.nan])
def test_delta_is_a_probability(delta):
    with pytest.raises(ConfigError, match="delta"):
        feldman(1.0, 10, delta)
    with pytest.raises(ConfigError, match="delta"):
        shuffled_run(1.0, 10, 1, 1, delta)


def rising(values):
    return all(before <= after * (1 + 1e-6) for before, after in itertools.pairwise(values))


@pytest.mark.parametrize("extremal", [True, False])
def test_more_clients_a_smaller_epsilon_or_a_larger_delta_help(extremal):
    def bound(epsilon, clients, delta):
        found = feldman(epsilon, clients, delta, extremal=extremal)
        assert found is None or 0 <= found < epsilon
        return epsilon if found is None else found

    clients = (1, 2, 3, 10, 50, 200, 1000, 5000, 100_000)
    deltas = (0.5, 0.1, 1e-3, 1e-5, 1e-9, 1e-14)
    epsilons = (1e-3, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 49.0, 51.0, 800.0)
    for epsilon in (0.2, 1.0, 3.0):
        assert rising([bound(epsilon, n, DELTA) for n in reversed(clients)])
        assert rising([bound(epsilon, 500, delta) for delta in deltas])
    for n in (2, 100, 3000):
        assert rising([bound(epsilon, n, DELTA) for epsilon in epsilons])


def test_a_client_alone_gains_nothing():
    assert all(feldman(epsilon, 1, DELTA) is None for epsilon in (0.01, 1.0, 30.0))


def exact_clones_delta(target, local, clients, share):
    """The divergence of the pair of the reduction from its definition; e^target, e^eps0 and all else are fractions."""
    pairs = [Counter(), Counter()]
    honest = local / (local + 1)
    for clones in range(clients):
        of_clones = math.comb(clients - 1, clones) * share**clones * (1 - share) ** (clients - 1 - clones)
        for first, own in itertools.product(range(clones + 1), (0, 1)):
            weight = of_clones * Fraction(math.comb(clones, first), 2**clones)
            pairs[0][first + own, clones - first + 1 - own] += weight * (honest if own else 1 - honest)
            pairs[1][first + own, clones - first + 1 - own] += weight * (1 - honest if own else honest)
    return sum(max(pairs[0][seen] - target * pairs[1][seen], Fraction(0)) for seen in pairs[0])


@pytest.mark.parametrize("extremal", [True, False])
@pytest.mark.parametrize("local", [Fraction(3, 2), Fraction(3), Fraction(12)])
@pytest.mark.parametrize(("clients", "delta"), [(2, 0.05), (3, 0.01), (6, 0.02), (12, 1e-3), (40, 1e-5)])
def test_an_upper_bound_and_a_tight_one_against_exact_sums(local, clients, delta, extremal):
    epsilon = math.log(local)
    share = 2 / (local + 1) if extremal else 1 / local
    found = feldman(epsilon, clients, delta, extremal=extremal)
    if found is None:
        almost = Fraction(math.exp(epsilon * (1 - 1.01e-3)))
        assert exact_clones_delta(almost, local, clients, share) > delta * (1 - 1e-5)
        return
    assert exact_clones_delta(Fraction(math.exp(found)), local, clients, share) <= delta
    if found > 0:
        assert exact_clones_delta(Fraction(math.exp(found * (1 - 1e-4))), local, clients, share) > delta


def test_blocks_of_clones_are_on_the_safe_side_and_cost_next_to_nothing():
    fine = feldman(1.0, 100_000, DELTA, extremal=False)
    coarse = feldman(1.0, 100_000, DELTA, extremal=False, max_blocks=50)
    assert fine * (1 - 1e-8) <= coarse <= fine * 1.01


def shuffled_delta(target, reports, other_reports, others):
    """The divergence of the true shuffled outputs: a client with either of ``reports``, and the ``others``."""

    def histogram(own):
        seen = {(): Fraction(1)}
        for distribution in (own, *others):
            longer = Counter()
            for outputs, weight in seen.items():
                for output, probability in enumerate(distribution):
                    longer[tuple(sorted((*outputs, output)))] += weight * probability
            seen = longer
        return seen

    left, right = histogram(reports), histogram(other_reports)
    return sum(max(weight - target * right[seen], Fraction(0)) for seen, weight in left.items())


def normal(*row):
    return tuple(Fraction(entry) / sum(row) for entry in row)


E0 = 4
TWO_OUTPUTS = [normal(E0, 1), normal(1, E0), normal(3, 2), normal(1, 1)]
GRR = [normal(E0, 1, 1), normal(1, E0, 1), normal(1, 1, E0)]
SHARED = [normal(E0, 1, E0), normal(1, E0, E0), normal(E0, E0, 1)]
STAIRCASE = [normal(4, 2, 2, 1), normal(2, 4, 2, 1), normal(1, 2, 2, 4), normal(2, 2, 1, 4)]


@pytest.mark.parametrize("clients", [2, 3, 4])
@pytest.mark.parametrize(
    ("randomizer", "extremal"), [(TWO_OUTPUTS, True), (GRR, True), (SHARED, False), (STAIRCASE, False)]
)
def test_true_shuffled_reports_are_covered(randomizer, extremal, clients):
    """Over all inputs of all clients, at any delta for which the bound says something."""
    for delta in (0.3, 0.1, 0.03):
        target = Fraction(math.exp(feldman(math.log(E0), clients, delta, extremal=extremal) or math.log(E0)))
        for own, other in itertools.permutations(randomizer, 2):
            for others in itertools.combinations_with_replacement(randomizer, clients - 1):
                assert shuffled_delta(target, own, other, others) <= delta


def test_for_binary_randomized_response_and_two_clients_the_bound_is_exact():
    found = feldman(math.log(E0), 2, 0.1)
    worst = max(
        shuffled_delta(Fraction(math.exp(found * (1 - 1e-3))), *TWO_OUTPUTS[:2], [other]) for other in TWO_OUTPUTS[:2]
    )
    assert worst > 0.1


@pytest.mark.parametrize(("local", "times", "slack"), [(2, 3, 0.05), (Fraction(3, 2), 10, 1e-3), (5, 6, 1e-4)])
def test_advanced_composition_against_exact_sums(local, times, slack):
    """Theorem 3.3 of Kairouz et al. by its definition: randomized responses, all outcomes."""
    local = Fraction(local)

    def exact(target):
        total = Fraction(0)
        for hits in range(times + 1):
            here = math.comb(times, hits) * local**hits / (1 + local) ** times
            there = math.comb(times, hits) * local ** (times - hits) / (1 + local) ** times
            total += max(here - target * there, Fraction(0))
        return total

    found = advanced_composition(math.log(local), times, slack)
    assert exact(Fraction(math.exp(found))) <= slack < exact(Fraction(math.exp(found * (1 - 1e-5))))


@pytest.mark.parametrize(("epsilon", "times"), [(0.01, 10_000), (0.1, 1000), (1.0, 50)])
def test_advanced_composition_is_below_the_textbook_formula(epsilon, times):
    """Dwork, Rothblum and Vadhan (FOCS 2010)."""
    textbook = epsilon * math.sqrt(2 * times * math.log(1 / DELTA)) + times * epsilon * math.expm1(epsilon)
    assert epsilon < advanced_composition(epsilon, times, DELTA) < min(textbook, times * epsilon)


def test_composition_of_very_many_releases_is_quick_and_finite():
    assert advanced_composition(5.0, 20_490 * 200, DELTA) < 5.0 * 20_490 * 200
    limit = gaussian_epsilon(math.sqrt(1e9) * 1e-4, DELTA)  # by the central limit theorem
    assert advanced_composition(1e-4, 10**9, DELTA) == pytest.approx(limit, rel=1e-4)


def test_a_local_run_adds_up():
    cost = local_run(5.0, 20_490, 7)
    assert (cost.per_weight_round, cost.per_client_round, cost.per_run) == (5.0, 102_450.0, 717_150.0)
    assert cost.delta == 0.0 and "not shuffled" in cost.how


@pytest.mark.parametrize("extremal", [True, False])
@pytest.mark.parametrize("clients", [1, 100, 10_000])
@pytest.mark.parametrize("epsilon", [0.05, 1.0, 5.0])
@pytest.mark.parametrize(("weights", "rounds"), [(1, 1), (1, 3), (2, 1), (14, 50), (20_490, 20)])
def test_between_one_release_and_the_local_bound(epsilon, clients, weights, rounds, extremal):
    cost = shuffled_run(epsilon, clients, weights, rounds, DELTA, extremal=extremal)
    local = local_run(epsilon, weights, rounds)
    assert 0 < cost.per_weight_round <= cost.per_client_round <= cost.per_run
    assert cost.per_weight_round == (feldman(epsilon, clients, DELTA, extremal=extremal) or epsilon)
    assert cost.per_weight_round <= local.per_weight_round
    assert cost.per_client_round <= local.per_client_round
    assert cost.per_run <= local.per_run
    for shuffled, count in ((cost.per_client_round, weights), (cost.per_run, weights * rounds)):
        alone = account({LocalReports(epsilon, count): 1}, DELTA).value
        assert shuffled == alone or shuffled < alone * (1 - 1e-3)
    assert (cost.per_client_round == cost.per_weight_round) == (weights == 1)
    assert (cost.per_run == cost.per_client_round) == (rounds == 1)


def test_a_run_says_how_and_takes_the_bound_for_every_randomizer_unless_told():
    cost = shuffled_run(1.0, 10_000, 20_490, 10, DELTA)
    assert cost.per_weight_round == feldman(1.0, 10_000, DELTA, extremal=False)
    assert cost.per_run > shuffled_run(1.0, 10_000, 20_490, 10, DELTA, extremal=True).per_run
    assert "10000 clients" in cost.how and "204900 times" in cost.how and "composed" in cost.how
    assert cost.to_json()["per_run"] == cost.per_run
    assert "shuffling gains nothing" in shuffled_run(5.0, 100, 3, 2, DELTA).how


def test_the_split_of_delta_is_kept():
    """By hand: half of delta shared among the releases, half for the composition."""
    weights, rounds = 500, 10
    each = feldman(1.0, 5000, DELTA / (2 * weights * rounds), extremal=False)
    by_hand = advanced_composition(each, weights * rounds, DELTA / 2)
    assert shuffled_run(1.0, 5000, weights, rounds, DELTA).per_run == by_hand
