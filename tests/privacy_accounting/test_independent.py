"""Every private method's epsilon against an accountant that shares no code with ours, over random settings.

The settings of a method are read here once more, from the papers and the proofs, not from its events: what sigma, q, T,
k and |S| mean is part of what is checked.
"""

from __future__ import annotations

import math
import random

import pytest
from tests.privacy_accounting.independent import bracket, gaussian_epsilon
from tests.support import build

from uldp.privacy.accountants import account
from uldp.privacy.releases import PublicFacts

SILOS = 4
FACTS = PublicFacts(users=200, silos=SILOS, dimension=10)
STEP = 2e-4


def claimed(name, delta, **settings):
    """What we say of a whole run."""
    method = build(name, **settings)
    return account({method.release(FACTS).event(SILOS): method.rounds}, delta).value


def gaussian(name, factor):
    """A method whose run is one Gaussian of mu = factor sqrt(T) / sigma."""

    def check(drawn, delta):
        sigma, rounds = round(drawn.uniform(1, 20), 3), drawn.randint(1, 200)
        expected = gaussian_epsilon(factor * math.sqrt(rounds) / sigma, delta)
        found = claimed(name, delta, noise_multiplier=sigma, rounds=rounds)
        # 2^24 fixed-point units to a clip: the discrete noise counts as a Gaussian that is smaller by far less.
        return found, expected * (1 - 1e-9), expected * (1 + 1e-6) + 1e-9

    return check


def sampled(name, make):
    """A method whose run is (sigma, q, k, number) of a sampled Gaussian; ``make`` gives its settings and these."""

    def check(drawn, delta):
        settings, (sigma, rate, size, number) = make(drawn)
        low, high = bracket(sigma, rate, size, number, delta, STEP)
        return claimed(name, delta, **settings), low * (1 - 1e-6), high * (1 + 2e-4) + 1e-9

    return check


def by_users(drawn):
    sigma, rate, rounds = round(drawn.uniform(0.8, 5), 3), round(drawn.uniform(0.02, 0.9), 3), drawn.randint(1, 60)
    settings = {"noise_multiplier": sigma, "sample_rate": rate, "rounds": rounds}
    return settings, (sigma, rate, 1, rounds)


def by_records(size, silos=1):
    def make(drawn):
        sigma, rate = round(drawn.uniform(0.8, 5) * math.sqrt(size), 3), round(drawn.uniform(0.02, 0.5), 3)
        rounds, steps = drawn.randint(1, 4), drawn.randint(1, 10)
        settings = {"noise_multiplier": sigma, "record_rate": rate, "rounds": rounds, "local_steps": steps}
        return settings, (sigma, rate, size, rounds * steps * silos)

    return make


def in_a_central_sum(drawn):
    """Without weights a subject moves the sum by a clip in every silo."""
    settings, (sigma, rate, _, rounds) = by_users(drawn)
    return {**settings, "noise_multiplier": SILOS * sigma}, (sigma, rate, 1, rounds)


CHECKS = {
    "uldp-avg": gaussian("uldp-avg", 1.0),
    "uldp-sgd-w": gaussian("uldp-sgd-w", 1.0),
    "uldp-naive": gaussian("uldp-naive", 2.0),  # a silo's vector with a user and without may point apart
    "auto": gaussian("auto", 1.0),
    "uldp-avg-w": sampled("uldp-avg-w", by_users),
    "uldp-sgd": sampled("uldp-sgd", by_users),
    "central-sub-dp": sampled("central-sub-dp", in_a_central_sum),
    "record-dp": sampled("record-dp", by_records(1)),
    "uldp-group-2": sampled("uldp-group-2", by_records(2)),
    "uldp-group-8": sampled("uldp-group-8", by_records(8)),
    "local-sub-dp": sampled("local-sub-dp", by_records(1, SILOS)),  # every silo's steps count
}


def deviations(name, settings, seed=0):
    """How far our epsilon lies above the lower and below the upper end, relatively; neither may be negative."""
    drawn, found = random.Random(f"{name} {seed}"), []
    for _ in range(settings):
        delta = 10 ** drawn.uniform(-7, -3)
        ours, low, high = CHECKS[name](drawn, delta)
        found.append(((ours - low) / max(low, 1e-9), (high - ours) / max(high, 1e-9)))
    return found


@pytest.mark.parametrize("name", CHECKS)
def test_two_accountants_agree(name):
    assert all(above >= 0 and below >= 0 for above, below in deviations(name, 3))


@pytest.mark.slow
def test_two_accountants_agree_over_many_settings():
    checked = 0
    for name in CHECKS:
        found = deviations(name, 19, seed=1)
        checked += len(found)
        widest = max(above + below for above, below in found)
        print(f"{name}: {len(found)} settings, between brackets of at most {100 * widest:.3g} %")
        assert all(above >= 0 and below >= 0 for above, below in found), name
    assert checked >= 200
