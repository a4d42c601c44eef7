"""Accuracy that the documents quote, the choice of m and Delta, and settings that are refused."""

from __future__ import annotations

import time

import numpy as np
import pytest

from uldp.errors import ConfigError
from uldp.mechanisms.choose import best_staircase
from uldp.mechanisms.local_registry import local_mechanism
from uldp.mechanisms.staircase import staircase_sizes

EPSILONS = (1.0, 3.0, 5.0)


def rmse(mechanism, clients: int = 100) -> float:
    """Of the mean of clients who share one weight, the weight uniform over the range, in units of r."""
    weights = np.linspace(mechanism.low, mechanism.high, 1501)
    bias = mechanism.mean(weights) - weights
    return float(np.sqrt(np.mean(bias**2 + mechanism.variance(weights) / clients))) / mechanism.radius


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("srr", (0.45, 0.29, 0.26)),
        ("two-point", (0.21, 0.09, 0.08)),
        ("piecewise", (0.21, 0.055, 0.027)),
        ("grr", (0.58, 0.57, 0.53)),
    ],
)
def test_accuracy_is_as_documented(name, expected):
    found = [rmse(local_mechanism(name, epsilon=epsilon)) for epsilon in EPSILONS]
    assert found == pytest.approx(expected, rel=0.05)


def test_the_best_staircase_is_as_documented():
    for epsilon, expected in zip(EPSILONS, (0.40, 0.15, 0.053), strict=True):
        best = best_staircase(epsilon)
        chosen = local_mechanism("srr", epsilon=epsilon, groups=best.groups, delta=best.delta)
        assert best.groups == 2
        assert best.rmse / 0.075 == pytest.approx(expected, rel=0.05)
        assert rmse(chosen) * 0.075 == pytest.approx(best.rmse, rel=1e-9)


def test_published_groups_do_not_come_near_the_weight_for_any_epsilon():
    srr = local_mechanism("srr", epsilon=20.0)
    weights = np.linspace(-0.075, 0.075, 1501)
    deviation = np.sqrt(srr.variance(weights)) / 0.075
    assert deviation.min() == pytest.approx(0.35, abs=0.01) and deviation.max() == pytest.approx(0.42, abs=0.01)
    assert np.abs(srr.mean(weights) - weights).max() / 0.075 == pytest.approx(0.56, abs=0.01)


def test_no_other_staircase_is_better_than_the_chosen_one():
    best = best_staircase(3.0, 0.015, 3)  # 31 values: every whole Delta of every m
    for groups in range(2, 21):
        for delta in range(int(2 * (31 - groups) / groups / (groups - 1)) + 1):
            srr = local_mechanism("srr", epsilon=3.0, radius=0.015, precision=3, groups=groups, delta=float(delta))
            weights = srr.grid.values()
            errors = (srr.mean(weights) - weights) ** 2 + srr.variance(weights) / 100
            assert best.rmse <= np.sqrt(errors.mean()) * (1 + 1e-9)


def test_the_choice_uses_what_is_known_and_is_fast():
    start = time.thread_time()
    assert best_staircase(3.0, spread=0.01).rmse < best_staircase(3.0).rmse / 2
    assert best_staircase(3.0, clients=1).rmse > best_staircase(3.0, clients=1000).rmse
    fine, coarse = best_staircase(3.0, precision=6), best_staircase(3.0, precision=4)
    assert fine.rmse == pytest.approx(coarse.rmse, rel=0.01)
    assert time.thread_time() - start < 20


def test_group_sizes_of_the_errata():
    assert staircase_sizes(1501, 10, 20.0) == (60, 80, 100, 120, 140, 160, 180, 200, 220, 241)


BAD = [
    ("srr", {"epsilon": 0.0}, "method.epsilon_weight", "from 1e-06 to 20, not"),
    ("two-point", {"epsilon": -1.0}, "method.epsilon_weight", "from 1e-06 to 20, not"),
    ("hybrid", {"epsilon": 50.0}, "method.epsilon_weight", "from 1e-06 to 20, not"),
    ("grr", {"epsilon": float("nan")}, "method.epsilon_weight", "finite number"),
    ("srr", {}, "method.epsilon_weight", "give the epsilon"),
    ("srr", {"epsilon": 20.0, "precision": 7}, "method.epsilon_weight", "use a smaller epsilon"),
    ("piecewise", {"epsilon": 1.0, "radius": 0.0}, "method.radius", "from 1e-30 to"),
    ("piecewise", {"epsilon": 1.0, "radius": "wide"}, "method.radius", "finite number"),
    ("two-point", {"epsilon": 1.0, "center": float("inf")}, "method.center", "finite number"),
    ("grr", {"epsilon": 1.0, "radius": 0.00001}, "method.radius", "less than a step"),
    ("srr", {"epsilon": 1.0, "precision": -1}, "method.precision", "whole number"),
    ("srr", {"epsilon": 1.0, "precision": 9}, "method.precision", "use a precision of at most 8"),
    ("grr", {"epsilon": 1.0, "precision": 5000}, "method.precision", "53 bits"),
    ("grr", {"epsilon": 1.0, "center": 1e14}, "method.precision", "53 bits"),
    ("srr", {"epsilon": 1.0, "groups": 0}, "method.groups", "whole number from 1 up"),
    ("srr", {"epsilon": 1.0, "groups": 1502}, "method.groups", "at most 1501"),
    ("srr", {"epsilon": 1.0, "delta": 33.2}, "method.delta_sizes", "at most 33.133"),
    ("srr", {"epsilon": 1.0, "delta": -1.0}, "method.delta_sizes", "from 0 up"),
    ("two-point", {"epsilon": 1.0, "groups": 3}, "method.groups", "has no setting 'groups'"),
    ("ssr", {"epsilon": 1.0}, "method.mechanism", "srr, two-point, grr, piecewise, hybrid. Did you mean 'srr'"),
]


@pytest.mark.parametrize(("name", "settings", "location", "text"), BAD, ids=lambda item: str(item)[:40])
def test_bad_settings_are_refused_with_place_and_remedy(name, settings, location, text):
    with pytest.raises(ConfigError) as caught:
        local_mechanism(name, **settings)
    assert caught.value.location == location and text in caught.value.message
    assert "\n" not in str(caught.value)


def test_bad_questions_to_the_choice_are_refused():
    for settings in ({"spread": 0.0}, {"clients": 0}, {"radius": -1.0}, {"precision": 12}):
        with pytest.raises(ConfigError):
            best_staircase(1.0, **settings)
