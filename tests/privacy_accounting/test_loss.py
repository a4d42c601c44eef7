"""The loss of one release and its place on the grid, in both directions, against plain integration."""

import math

import numpy as np
import pytest
from tests.privacy_accounting.brute_force import densities, two_steps

from uldp.privacy.events import Gaussian, Group, PoissonSampled
from uldp.privacy.mixture import mixture_of
from uldp.privacy.pld import connect_dots

CASES = pytest.mark.parametrize(
    ("size", "rate", "sigma"), [(1, 1.0, 0.7), (1, 0.2, 1.0), (2, 0.3, 0.8), (5, 0.05, 2.0), (4, 0.9, 1.5)]
)
DIRECTIONS = ("left", "came")


def mixture(size, rate, sigma):
    inner = Gaussian(sigma) if rate == 1 else PoissonSampled(rate, Gaussian(sigma))
    return mixture_of(Group(size, inner))


def integrated(size, rate, sigma, direction, epsilons):
    p, q, step = densities(size, rate, sigma, 400_001, reach=9.0)
    p, q = (p, q) if direction == "left" else (q, p)
    return np.array([np.maximum(p - math.exp(epsilon) * q, 0).sum() * step for epsilon in epsilons])


def on_the_grid(mixture, direction, interval, log_tail=-40.0, every=1):
    """Losses and probabilities, infinity last; ``every`` keeps only some points of the grid."""
    losses = mixture.sketches(log_tail)[DIRECTIONS.index(direction)].losses
    indices = np.arange(math.floor(losses[0] / interval), math.ceil(losses[-1] / interval) + 2, every)
    found = connect_dots(getattr(mixture, f"profile_if_{direction}"), indices, interval)
    return np.append(found.indices * interval, np.inf), np.append(found.probabilities, found.infinity)


def delta_of(losses, probabilities, epsilon):
    return float(probabilities @ np.maximum(-np.expm1(np.minimum(epsilon - losses, 0)), 0))


@CASES
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_profile_is_the_hockey_stick_divergence(size, rate, sigma, direction):
    epsilons = np.array([-2.0, -0.4, -0.01, 0.0, 0.003, 0.5, 1.0, 3.0])
    profile = getattr(mixture(size, rate, sigma), f"profile_if_{direction}")(epsilons)
    truth = integrated(size, rate, sigma, direction, epsilons)
    np.testing.assert_allclose(profile.gained, truth, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(profile.missed, 1 - truth, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(profile.beyond, truth - (1 - np.exp(epsilons)), rtol=1e-5, atol=1e-9)


@CASES
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("interval", "every"), [(0.01, 1), (0.3, 1), (0.01, 7)])
def test_the_grid_never_understates_and_is_close(size, rate, sigma, direction, interval, every):
    losses, probabilities = on_the_grid(mixture(size, rate, sigma), direction, interval, every=every)
    assert probabilities.sum() == pytest.approx(1, abs=1e-9)
    epsilons = np.array([0.0, 0.0437, 0.31, 0.777, 1.4142, 2.9])
    truth = integrated(size, rate, sigma, direction, epsilons)
    found = np.array([delta_of(losses, probabilities, epsilon) for epsilon in epsilons])
    assert (found >= truth - 1e-9).all()
    if interval * every == 0.01:
        np.testing.assert_allclose(found, truth, rtol=0.01, atol=1e-7)


@CASES
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_tail_that_is_cut_counts_as_infinite(size, rate, sigma, direction):
    losses, probabilities = on_the_grid(mixture(size, rate, sigma), direction, 0.05, log_tail=-4.0)
    assert probabilities.sum() == pytest.approx(1, abs=1e-9)
    epsilons = np.array([0.0, 0.3, 1.0, 3.0])
    truth = integrated(size, rate, sigma, direction, epsilons)
    assert all(
        delta_of(losses, probabilities, epsilon) >= true - 1e-9 for epsilon, true in zip(epsilons, truth, strict=True)
    )


@pytest.mark.parametrize(("size", "rate", "sigma", "delta"), [(1, 0.2, 1.0, 1e-3), (3, 0.3, 1.0, 1e-3)])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_two_releases_add_their_losses(size, rate, sigma, delta, direction):
    truth = two_steps(size, rate, sigma, delta)[DIRECTIONS.index(direction)]
    losses, probabilities = on_the_grid(mixture(size, rate, sigma), direction, 0.002)
    both = np.convolve(probabilities[:-1], probabilities[:-1])
    sums = np.append(2 * losses[0] + 0.002 * np.arange(len(both)), np.inf)
    both = np.append(both, 1 - (1 - probabilities[-1]) ** 2)
    assert delta_of(sums, both, truth) == pytest.approx(delta, rel=0.01)
    assert delta_of(sums, both, truth) >= delta * (1 - 1e-3)
