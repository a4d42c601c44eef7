"""One suite for all local mechanisms: what leaves a client has the law that is claimed, for every weight."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from uldp.errors import ModelError
from uldp.mechanisms.hybrid import Hybrid
from uldp.mechanisms.local_mechanism import LocalMechanism
from uldp.mechanisms.local_registry import LOCAL_MECHANISMS, local_mechanism
from uldp.mechanisms.piecewise import CELLS, Piecewise
from uldp.mechanisms.ranks import RankLaw
from uldp.mechanisms.staircase import StaircaseResponse
from uldp.mechanisms.two_point import TwoPoint
from uldp.rng import Secrets

SMALL = {"srr": {"precision": 3, "radius": 0.015, "groups": 4, "delta": 3.0}, "grr": {"precision": 3, "radius": 0.015}}
MECHANISMS = [
    local_mechanism(name, epsilon=epsilon, **SMALL.get(name, {"radius": 0.015}), center=center)
    for name in LOCAL_MECHANISMS
    for epsilon, center in ((0.5, 0.0), (3.0, 0.0403))
] + [local_mechanism("srr", epsilon=1.0, radius=0.015, precision=3, groups=1)]
DRAWS = 200_000

every = pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: f"{m.name}-{m.epsilon}-{m.center}")


def stream(seed: int = 0):
    return Secrets.simulated_from_seed(seed).child("test").stream()


def inputs(mechanism: LocalMechanism, count: int = 7):
    return np.linspace(mechanism.low, mechanism.high, count)


def support(mechanism: LocalMechanism):
    """All outputs that the mechanism can give."""
    if isinstance(mechanism, TwoPoint):
        return np.array([mechanism.center - mechanism.distance, mechanism.center + mechanism.distance])
    if isinstance(mechanism, Piecewise):
        return (np.arange(CELLS) - (CELLS - 1) / 2) * mechanism.cell + mechanism.center
    if isinstance(mechanism, Hybrid):
        pieces = support(mechanism.piecewise) if mechanism.share else np.empty(0)
        return np.concatenate([pieces, support(mechanism.two_point)])
    return mechanism.grid.values()


def law(mechanism: LocalMechanism, weight: float):
    outputs = support(mechanism)
    return outputs, np.exp(mechanism.log_likelihood(outputs, np.array([weight]))[:, 0])


def excess(mechanism: LocalMechanism, weight: float, samples) -> float:
    """By how many standard deviations chi-square exceeds its mean; infinite if an impossible output came out."""
    outputs, probabilities = law(mechanism, weight)
    edges = np.linspace(outputs.min() - 1e-9, outputs.max() + 1e-9, 64)
    expected = np.histogram(outputs, edges, weights=probabilities)[0] * len(samples)
    counts = np.histogram(samples, edges)[0]
    if counts.sum() < len(samples) or counts[expected == 0].any():
        return np.inf
    used = expected > 0
    degrees = max(1, int(used.sum()) - 1)
    statistic = ((counts - expected)[used] ** 2 / expected[used]).sum()
    return float((statistic - degrees) / np.sqrt(2 * degrees))


@every
def test_samples_follow_the_law(mechanism):
    for seed, weight in enumerate(inputs(mechanism, 3)):
        samples = mechanism.perturb(np.full(DRAWS, weight), stream(seed))
        assert excess(mechanism, weight, samples) < 6


@every
def test_a_wrong_sampler_is_caught(mechanism):
    weight = mechanism.high - mechanism.radius / 3
    samples = mechanism.perturb(np.full(DRAWS, weight), stream())
    samples[: DRAWS // 50] = weight  # one weight in fifty slips through
    assert excess(mechanism, weight, samples) > 6


def test_truncated_group_sizes_are_caught(monkeypatch):
    mechanism = replace(MECHANISMS[0], epsilon=1.0)
    assert isinstance(mechanism, StaircaseResponse)
    sizes = mechanism.law.sizes
    right, wrong = mechanism.law.masses, RankLaw((*sizes[:-1], sizes[-1] - 1), mechanism.law.masses)
    monkeypatch.setitem(mechanism.__dict__, "law", wrong)
    samples = mechanism.perturb(np.full(DRAWS, mechanism.low), stream())
    monkeypatch.setitem(mechanism.__dict__, "law", RankLaw(sizes, right))
    assert excess(mechanism, mechanism.low, samples) > 6


@every
def test_probabilities_sum_to_one_and_their_ratio_is_within_epsilon(mechanism):
    outputs = support(mechanism)
    if len(outputs) > 5000:
        outputs = np.concatenate([outputs[:: len(outputs) // 5000], outputs[-2:]])
    table = mechanism.log_likelihood(outputs, inputs(mechanism, 31))
    assert (table.max(axis=1) - table.min(axis=1)).max() <= mechanism.epsilon + 1e-9
    for weight in inputs(mechanism, 3):
        assert law(mechanism, weight)[1].sum() == pytest.approx(1.0, abs=1e-9)


@every
def test_moments_are_those_of_the_law_and_of_samples(mechanism):
    for seed, weight in enumerate(inputs(mechanism, 5)):
        outputs, probabilities = law(mechanism, weight)
        mean = float(outputs @ probabilities)
        variance = float((outputs - mean) ** 2 @ probabilities)
        assert mechanism.mean(np.array([weight]))[0] == pytest.approx(mean, abs=1e-8 * mechanism.largest_output)
        assert mechanism.variance(np.array([weight]))[0] == pytest.approx(variance, rel=1e-7)
        samples = mechanism.perturb(np.full(DRAWS, weight), stream(seed))
        assert abs(samples.mean() - mean) <= 6 * np.sqrt(variance / DRAWS)
        assert samples.var() == pytest.approx(variance, rel=0.05)


@every
def test_bias_is_as_declared(mechanism):
    weights = inputs(mechanism)
    bias = np.abs(mechanism.mean(weights) - weights).max() / mechanism.radius
    assert bias > 0.01 if mechanism.biased else bias < 1e-6


@every
def test_inverting_the_mean_gives_the_weight_back(mechanism):
    weights = inputs(mechanism, 31)
    means = mechanism.mean(weights)
    for weight, mean, found in zip(weights, means, mechanism.invert_mean(means), strict=True):
        alike = weights[np.abs(means - mean) < 1e-9]  # weights near an end of the range may have the same law
        assert found == pytest.approx((alike[0] + alike[-1]) / 2, abs=1e-6 * mechanism.radius)
        assert alike[0] <= weight <= alike[-1]
    ends = mechanism.invert_mean(np.array([-1e9, 1e9]))
    assert ends == pytest.approx(mechanism.invert_mean(means[[0, -1]]))


@every
def test_weights_are_clipped_first(mechanism):
    for far, edge in ((-1e300, mechanism.low), (1e300, mechanism.high)):
        a = mechanism.perturb(np.full(100, far), stream())
        assert np.array_equal(a, mechanism.perturb(np.full(100, edge), stream()))
        assert mechanism.mean(np.array([far])) == mechanism.mean(np.array([edge]))
        assert mechanism.variance(np.array([far])) == mechanism.variance(np.array([edge]))


@every
def test_weights_that_are_not_finite_are_refused_and_nothing_is_drawn(mechanism):
    source = stream()
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(ModelError, match="1 of 3 weights are not finite"):
            mechanism.perturb(np.array([0.0, bad, 0.0]), source)
        with pytest.raises(ModelError):
            mechanism.mean(np.array([bad]))
    assert np.array_equal(source.words(4), stream().words(4))


@every
def test_outputs_follow_from_the_stream_alone(mechanism):
    weights = np.random.default_rng(0).uniform(mechanism.low, mechanism.high, 20_000)
    before = weights.copy()
    first = mechanism.perturb(weights, stream())
    assert np.array_equal(first, mechanism.perturb(weights, stream()))
    assert not np.array_equal(first, mechanism.perturb(weights, stream(1)))
    assert np.array_equal(weights, before)
    assert mechanism.perturb(weights.reshape(100, 200).astype(np.float32), stream()).shape == (100, 200)
    assert mechanism.perturb(np.empty(0), stream()).shape == (0,)


@every
def test_outputs_stay_within_the_stated_bound(mechanism):
    samples = mechanism.perturb(np.resize(inputs(mechanism), 50_000), stream())
    bound = np.abs(samples - mechanism.center).max()
    assert bound <= mechanism.largest_output * (1 + 1e-12)
    assert bound >= 0.9 * mechanism.largest_output


@every
def test_impossible_outputs_have_no_likelihood(mechanism):
    outputs = np.array([mechanism.center + 2 * mechanism.largest_output, mechanism.center - 1e6])
    assert np.all(mechanism.log_likelihood(outputs, inputs(mechanism)) == -np.inf)


def test_each_mechanism_has_a_name_and_a_summary():
    assert list(LOCAL_MECHANISMS) == ["srr", "two-point", "grr", "piecewise", "hybrid"]
    assert all(kind.summary and kind.name == name for name, kind in LOCAL_MECHANISMS.items())
