"""Every sample that an event calls Poisson is one: users and records are taken independently, at the rate it states.

Amplification by sampling is proven for Poisson samples. Samples of a fixed size have the same mean and a larger
epsilon, so the mean alone tells nothing. Here real rounds run, over the registry, and the learner writes down on whom
each computation was made; or the model itself shows it.

Power. 300 samples of 60 users at rate 1/2. Every test below alarms falsely with probability at most 1e-5, and seeds
are fixed. Caught with probability above 0.999: a rate off by 0.035; sizes whose variance is below 0.5 or above 1.9
times that of Poisson samples (a fixed size has none); two users who go together in 9 of 10 samples; a sample that is
used twice.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.guarantees.adversary import (
    GAUSSIAN,
    PAILLIER,
    OwnCoordinates,
    federation_of,
    release,
    took_part,
    with_settings,
)

from uldp.audits.checks import poisson_p_values
from uldp.crypto.transfer import Chooser
from uldp.privacy.events import flatten, parameters

SAMPLES, USERS, RATE = 300, 60, 0.5

VARIANTS = (
    {"sample_rate": RATE},
    {"record_rate": RATE, "local_steps": SAMPLES // 2},
    {"record_rate": RATE, "local_steps": SAMPLES // 2, "sampling": "items", "max_items": 2},
)
CASES = [
    (name, wanted)
    for name in GAUSSIAN
    for wanted in VARIANTS
    if with_settings(name, wanted, noise_multiplier=1.0) is not None
]


def split(users=USERS):
    """Two silos, each with half of the users, one record each: users, records and coins are one and the same."""
    return federation_of(np.repeat(np.eye(2, dtype=int), users // 2, axis=1))


def faults(taken, rate) -> set[str]:
    """What is wrong with (samples, units) coins that should be independent, each true with probability ``rate``."""
    return {what for what, p_value in poisson_p_values(taken, rate).items() if p_value < 1e-5}


def coins(learner, batches):
    """(samples, units): who was in the computations of all silos, one computation after the other."""
    taken = np.zeros((batches, USERS), dtype=np.bool_)
    for computed in learner.batches.values():
        assert len(computed) == batches
        for row, users in enumerate(computed):
            assert len(users) == len(np.unique(users))
            taken[row, users] = True
    return taken


@pytest.mark.parametrize(("name", "wanted"), CASES)
def test_samples_are_poisson_at_the_rate_of_the_event(name, wanted):
    rounds = SAMPLES // wanted.get("local_steps", 1)
    method = with_settings(name, wanted, rounds=rounds, noise_multiplier=1.0)
    learner = OwnCoordinates(2)
    server, _, _ = release(method, split(), learner)
    (event,) = flatten(server.ledger.composition())
    assert parameters(event).sample_rate == RATE
    assert faults(coins(learner, SAMPLES), parameters(event).sample_rate) == set()


@pytest.mark.parametrize("name", GAUSSIAN)
def test_where_the_event_says_nothing_of_samples_everybody_takes_part(name):
    method = with_settings(name, {}, rounds=2, noise_multiplier=1.0, record_rate=1.0, local_steps=1)
    learner = OwnCoordinates(2)
    server, _, _ = release(method, split(), learner)
    assert {parameters(event).sample_rate for event in flatten(server.ledger.composition())} == {1.0}
    assert coins(learner, 2).all()


def test_every_method_with_a_rate_is_tried():
    assert {name for name, _ in CASES} == set(GAUSSIAN) - {"uldp-naive", "auto"}  # neither samples anybody


HIDDEN_SAMPLES, HIDDEN_USERS = 64, 44
"""Fewer, for encryption takes time. A fixed size, two users who always go together or a sample that is used twice are
caught for certain, a rate off by 0.08 with probability 0.999."""


def hidden_samples(**wanted):
    """The server's session and the samples of a run in which silos do not learn whom they are about."""
    method = with_settings("uldp-sgd", wanted, rounds=HIDDEN_SAMPLES, sample_rate=RATE)
    server, taken = took_part(method, split(HIDDEN_USERS), aggregation=PAILLIER)
    assert {parameters(event).sample_rate for event in flatten(server.ledger.composition())} == {RATE}
    return taken


def test_samples_that_are_hidden_in_encrypted_weights_are_poisson():
    assert faults(hidden_samples(), RATE) == set()


def test_samples_drawn_by_oblivious_transfer_are_poisson_for_everybody(monkeypatch):
    """The silos know the slots they chose, the server which slots are real: the sample is Poisson given either."""
    slots = []
    choose = Chooser.choose

    def spy(self, index, *further):
        slots.append(index)
        return choose(self, index, *further)

    monkeypatch.setattr(Chooser, "choose", spy)
    taken = hidden_samples(sampling="private")
    chosen = np.array(slots, dtype=np.bool_).reshape(HIDDEN_SAMPLES, 2, HIDDEN_USERS)
    assert (chosen[:, 0] == chosen[:, 1]).all()  # one of two slots, the same in both silos
    real = taken ^ chosen[:, 0]
    for coins_of_a_party in (taken, chosen[:, 0], real):
        assert faults(coins_of_a_party, RATE) == set()


# --- the test of the test -----------------------------------------------------------------------------------------


def drawn(seed=0):
    return np.random.default_rng(seed).random((SAMPLES, USERS)) < RATE


def fixed_size(taken):
    return np.random.default_rng(1).permuted(np.tile(np.arange(USERS) < USERS * RATE, (SAMPLES, 1)), axis=1)


def all_or_nothing_now_and_then(taken):
    return np.where((np.arange(SAMPLES) % 20 == 0)[:, None], taken[:, :1], taken)


def another_rate(taken):
    return taken | (np.random.default_rng(2).random(taken.shape) < 0.07)


def two_who_go_together(taken):
    seldom = np.random.default_rng(3).random(SAMPLES) < 0.2
    return np.column_stack([np.where(seldom, taken[:, 0], taken[:, 1]), taken[:, 1:]])


def a_sample_used_twice(taken):
    seldom = np.random.default_rng(4).random(USERS) < 0.05
    return np.vstack([np.where(seldom, taken[0], taken[1]), taken[1:]])


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (fixed_size, "variance of the size"),
        (all_or_nothing_now_and_then, "variance of the size"),
        (another_rate, "rate"),
        (two_who_go_together, "pairs"),
        (a_sample_used_twice, "samples"),
    ],
)
def test_wrong_samples_are_noticed(wrong, what):
    assert what in faults(wrong(drawn()), RATE)


def test_right_samples_pass():
    assert [seed for seed in range(30) if faults(drawn(seed), RATE)] == []
