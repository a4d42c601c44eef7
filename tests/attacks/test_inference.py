"""The inference attack: against theory where there is one, against twins, and (slow) against the published numbers."""

import math

import numpy as np
import pytest

from uldp.attacks.estimators import ADVERSARIES, WEIGHTS, Channel, Evidence, by_frequency
from uldp.attacks.inference import Scene, attack
from uldp.errors import ConfigError
from uldp.mechanisms.local_registry import local_mechanism
from uldp.rng import Secrets, Streams

ALIKE = Scene(trials=60, tolerance=0.0)
UNLIKE = Scene(trials=30, tolerance=0.0, spread=0.38)
DELTA = 266.5  # for 20,001 values what the paper's 20 is for 1501: 0.6 of the largest


def mechanism(name, epsilon, **settings):
    if name == "srr":
        settings = {"delta": DELTA, **settings}
    return local_mechanism(name, epsilon=float(epsilon), radius=1.0, **settings)


def play(local, adversaries, scene, seed=0):
    streams, secrets = Streams.from_seed(seed), Secrets.simulated_from_seed(seed)
    chosen = [ADVERSARIES[name] for name in adversaries]
    return {outcome.adversary: outcome for outcome in attack(local, chosen, scene, streams, secrets)}


def two_point_theory(epsilon, scene):
    """E abs(N + U) / 2: the average of all reports is normal around 0.3, the last mean is shifted by U."""
    variance = 1 / math.tanh(epsilon / 2) ** 2 - 0.3**2
    deviation = math.sqrt((variance + scene.tolerance**2 / 3) / (scene.clients * scene.rounds))
    draw = np.random.default_rng(0)
    errors = deviation * draw.normal(size=10**6) + scene.tolerance * draw.uniform(-1, 1, 10**6)
    return np.abs(errors).mean() / 2


@pytest.mark.parametrize("epsilon", [1, 3, 10])
@pytest.mark.parametrize("tolerance", [0.0, 0.01])
def test_the_papers_adversary_errs_as_theory_says(epsilon, tolerance):
    scene = Scene(trials=150, tolerance=tolerance)
    found = play(mechanism("two-point", epsilon), ["frequency", "mean"], scene)
    assert abs(found["frequency"].error - two_point_theory(epsilon, scene)) < 4 * found["frequency"].standard_error
    np.testing.assert_allclose(found["frequency"].errors, found["mean"].errors, atol=1e-9)


@pytest.mark.parametrize("epsilon", [1, 3, 5])
def test_mean_inversion_of_srr_errs_as_its_slope_and_variance_say(epsilon):
    srr, near = mechanism("srr", epsilon), np.array([0.29, 0.31])
    slope = np.diff(srr.mean(near))[0] / 0.02
    deviation = math.sqrt(srr.variance(np.array([0.3]))[0] / 50_000) / slope
    found = play(srr, ["mean"], ALIKE)["mean"]
    assert abs(found.error - deviation * math.sqrt(2 / math.pi) / 2) < 4 * found.standard_error


def test_two_outputs_tell_no_more_than_their_mean():
    found = play(mechanism("two-point", 1), ["mean", "likelihood", "em"], ALIKE)
    np.testing.assert_allclose(found["likelihood"].errors, found["mean"].errors, atol=2e-5)
    np.testing.assert_allclose(found["em"].errors, found["mean"].errors, atol=2e-4)


def test_the_likeliest_weight_of_alike_clients_is_nearer_than_the_inverted_mean():
    found = play(mechanism("srr", 3), ["mean", "likelihood"], ALIKE)
    assert found["likelihood"].error < 0.7 * found["mean"].error


def test_unlike_clients_stop_mean_inversion_but_not_em():
    found = play(mechanism("srr", 3), ["mean", "em"], UNLIKE)
    assert found["mean"].error > 0.04
    assert found["em"].error < 0.004
    two_points = play(mechanism("two-point", 3), ["mean"], UNLIKE)
    assert two_points["mean"].error < 0.004


@pytest.mark.parametrize("name", ["mean", "likelihood", "em"])
def test_reports_that_do_not_depend_on_the_weight_allow_no_more_than_guessing_the_centre(name):
    uniform = mechanism("srr", 5, groups=1, precision=3)
    scene = Scene(clients=100, rounds=10, trials=20)
    errors = play(uniform, [name], scene)[name].errors
    last = [
        scene.weights(uniform, Streams.from_seed(0).child("trial", trial, "weights"))[-1].mean() for trial in range(20)
    ]
    np.testing.assert_allclose(errors, np.abs(last) / 2, atol=1e-9)


@pytest.mark.parametrize("name", ["srr", "two-point", "grr", "piecewise", "hybrid"])
def test_all_adversaries_come_close_whatever_the_outputs(name):
    local = mechanism(name, 5, **({"precision": 2, "delta": 2.0} if name == "srr" else {}))
    if name == "grr":
        local = mechanism(name, 5, precision=1)
    found = play(local, [*ADVERSARIES], Scene(trials=10, tolerance=0.0))
    assert set(found) == (set(ADVERSARIES) if name == "two-point" else set(ADVERSARIES) - {"frequency"})
    for outcome in found.values():
        assert outcome.error < 0.006, outcome.adversary


def test_candidates_that_miss_most_values_are_not_used_against_grr():
    once = Scene(trials=1, rounds=1)
    assert set(play(mechanism("grr", 5), [*ADVERSARIES], once)) == {"mean"}
    assert set(play(mechanism("grr", 5, precision=2), [*ADVERSARIES], once)) == {"mean", "likelihood"}


def test_the_channel_is_the_mechanisms_law_in_bins():
    srr = mechanism("srr", 2, precision=2, delta=2.0)
    channel = Channel.of(srr, Secrets.simulated_from_seed(0))
    law = srr.matrix() / srr.total  # one row for each input
    bins = np.searchsorted(channel.edges, srr.grid.values())
    exact = np.array([law[:, bins == b].sum(axis=1) for b in range(len(channel.edges) + 1)])
    inputs = srr.grid.index(channel.weights)
    expected = exact[:, inputs] / exact[:, inputs].mean(axis=1, keepdims=True)
    assert channel.ratios.shape == (len(channel.edges) + 1, WEIGHTS)
    np.testing.assert_allclose(channel.ratios, expected, rtol=1e-9)


def test_the_channel_of_many_outputs_is_near_the_law():
    piecewise = mechanism("piecewise", 2)
    channel = Channel.of(piecewise, Secrets.simulated_from_seed(0))
    outputs = piecewise.perturb(np.zeros(10**6), Secrets.simulated_from_seed(1).stream())
    even = piecewise.perturb(np.linspace(-1, 1, 10**6), Secrets.simulated_from_seed(2).stream())
    measured = channel.counts(outputs) / channel.counts(even)
    assert channel.counts(outputs).sum() == 10**6
    assert np.median(np.abs(channel.ratios[:, WEIGHTS // 2] / measured - 1)) < 0.04


def test_confidence_is_from_two_halves_of_the_rounds():
    two_points = mechanism("two-point", 3)
    uppers = np.array([[0.6, 0.6, 0.6, 0.6], [0.4, 0.4, 0.6, 0.6]])
    halves = np.tile(np.arange(4), (2, 1))
    guess = by_frequency(two_points, Evidence(uppers, uppers, np.empty((2, 0)), None, halves))
    scale = 1 / math.tanh(1.5)
    np.testing.assert_allclose(guess.weights, [0.2 * scale, 0.0], atol=1e-12)
    np.testing.assert_allclose(guess.confidence, [100, 1 / (0.01 + 0.4 * scale / 2)])


def test_one_round_has_no_halves_and_one_trial_no_standard_error():
    found = play(mechanism("two-point", 3), ["frequency"], Scene(rounds=1, trials=1))["frequency"]
    assert found.confidence is None
    assert found.standard_error is None


def test_the_same_seed_gives_the_same_errors():
    scene = Scene(clients=50, rounds=4, trials=3)
    first, again, other = (
        play(mechanism("srr", 3, precision=2, delta=2.0), ["mean", "em"], scene, seed)["em"].errors
        for seed in (1, 1, 2)
    )
    assert (first == again).all()
    assert (first != other).any()


def test_a_weight_outside_the_range_is_refused():
    with pytest.raises(ConfigError, match="--weight"):
        play(mechanism("two-point", 3), ["mean"], Scene(offset=1.5))


@pytest.mark.slow
def test_table_1_is_reproduced():
    printed = {1: 0.46, 2: 0.33, 3: 0.31, 5: 0.28, 8: 0.28, 10: 0.29}
    for epsilon, percent in printed.items():
        found = play(mechanism("two-point", epsilon), ["frequency"], Scene())["frequency"]
        assert abs(100 * found.error - percent) < 0.05, epsilon


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "expected"), [("srr", {1: 0.32, 3: 0.10, 5: 0.08}), ("two-point", {1: 0.38, 3: 0.19, 5: 0.17})]
)
def test_mean_inversion_of_alike_clients_is_reproduced(name, expected):
    for epsilon, percent in expected.items():
        found = play(mechanism(name, epsilon), ["mean"], Scene(tolerance=0.0))["mean"]
        assert abs(100 * found.error - percent) < 0.05, epsilon


@pytest.mark.slow
def test_unlike_clients_against_the_recorded_numbers():
    """Recorded: mean inversion 4.6 %, EM 0.6 / 0.17 / 0.2 %; how unlike the clients were is not recorded.

    The spread of 0.38 is chosen so that mean inversion errs by 4.6 %; EM's numbers then follow. That of epsilon 1 is
    not reproduced: our EM is about 0.1 percentage points nearer, so there only the recorded bound is tested.
    """
    recorded = {1: 0.6, 3: 0.17, 5: 0.2}
    for epsilon, percent in recorded.items():
        found = play(mechanism("srr", epsilon), ["mean", "em"], Scene(tolerance=0.0, spread=0.38))
        assert abs(100 * found["mean"].error - 4.6) < 0.05 + 100 * found["mean"].standard_error, epsilon
        if epsilon == 1:
            assert 100 * found["em"].error < percent
        else:
            assert abs(100 * found["em"].error - percent) < 0.05, epsilon
