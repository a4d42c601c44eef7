"""What the server does with totals is post-processing, for ``auto`` and with every server optimiser.

Two federations that differ in one person are made to release the very same totals; the models must be the same bits.
An optimiser that has looked at anything else than what was released gives itself away.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from tests.support import TinyLearner, build, drive, drive_with_restarts, make_sessions, small_federation

from uldp.methods.base import State
from uldp.methods.recipe import RECIPE
from uldp.methods.server_optimizer import SERVER_OPTIMIZERS, NoisedTotal, ServerOptimizer
from uldp.methods.uldp_avg import UldpAvg
from uldp.privacy.releases import PublicFacts

ROUNDS = 5
FEDERATION = small_federation()
SUMS = ("uldp-avg-w", "uldp-sgd", "central-sub-dp")
CASES = [("auto", None), *((name, optimizer) for name in SUMS for optimizer in ("published", *SERVER_OPTIMIZERS))]


def method_of(name, optimizer, **further):
    chosen = {} if optimizer is None else {"server_optimizer": optimizer}
    return build(name, rounds=ROUNDS, noise_multiplier=2.0, **chosen, **further)


def models(method, federation, replies=None, **options):
    """The model after every round, and what the silos replied; ``replies`` are given instead where they are known."""
    server, silos = make_sessions(method, federation, aggregation="masked", **options)
    said, found = [], []
    while requests := server.requests():
        if replies is None:
            said.append({name: silos[name].reply(request) for name, request in requests.items()})
        else:
            said.append(replies[len(said)])
        for name, reply in said[-1].items():
            server.receive(name, reply)
        server.collect()
        server.charge()
        server.advance()
        found.append(server.model.tobytes())
    return found, said


def same_model_from_the_same_totals(make):
    """``make`` builds the method for a federation, and so could smuggle its records to the server."""
    without = FEDERATION.without(0)
    trained, replies = models(make(FEDERATION), FEDERATION)
    again, _ = models(make(without), without, replies)
    return trained == again


@pytest.mark.parametrize(("name", "optimizer"), CASES)
def test_a_model_follows_from_the_released_totals_alone(name, optimizer):
    assert same_model_from_the_same_totals(lambda federation: method_of(name, optimizer))


@dataclass(frozen=True)
class Peeking(ServerOptimizer):
    """Divides by the number of records, which nobody has released."""

    records: int = 1

    def step(self, state, total, lr):
        return super().step(state, replace(total, people=float(self.records)), lr)


def test_an_optimiser_that_looks_at_data_is_caught():
    def peeking(federation):
        records = sum(map(len, federation.silos))
        method = method_of("uldp-avg-w", "auto")
        return replace(method, recipe=replace(RECIPE, server=Peeking(0.8, records=records)))

    assert not same_model_from_the_same_totals(peeking)


@pytest.mark.parametrize(("name", "optimizer"), CASES)
def test_a_restart_after_every_exchange_changes_no_bit(name, optimizer):
    def make():
        return make_sessions(method_of(name, optimizer), FEDERATION)

    server, silos = make()
    drive(server, silos)
    assert drive_with_restarts(make).model.tobytes() == server.model.tobytes()


@pytest.mark.parametrize(("tolerance", "heard"), [(0, 3), (0, 2), (1, 3), (1, 2)])
def test_the_noise_that_the_server_counts_with_is_there(tolerance, heard, monkeypatch):
    """With silos missing and with shares that allow for it: the variance of totals of nothing but noise."""
    dimension, sigma, clip, seen = 20_000, 3.0, 0.7, []
    silent = replace(FEDERATION, silos=tuple(replace(s, features=s.features * 0) for s in FEDERATION.silos))
    method = build(
        "uldp-avg", rounds=2, noise_multiplier=sigma, clip=clip, server_optimizer="auto", dropout_tolerance=tolerance
    )

    class Still(TinyLearner):
        def user_deltas(self, x, data, local, streams):
            users = np.unique(data.users)
            yield users, np.zeros((len(users), dimension))

    def step(self, state, total, lr):
        seen.append(total)
        return state

    monkeypatch.setattr(ServerOptimizer, "step", step)
    server, silos = make_sessions(method, silent, learner=Still(dimension), min_silos=2)
    while requests := server.requests():
        if heard < 3 and server.stage.value == "round" and not server.missing_silos:
            server.exclude(["silo-2"])
            continue
        for name, request in requests.items():
            server.receive(name, silos[name].reply(request))
        server.collect()
        server.charge()
        server.advance()
    assert len(seen) == 2
    expected = (sigma * clip) ** 2 * heard / (3 - tolerance)
    for total in seen:
        assert total.noise_variance == pytest.approx(expected)
        # Five standard errors of a variance.
        assert abs(total.values.var() / total.noise_variance - 1) < 5 * math.sqrt(2 / dimension)


def test_the_numbers_of_buckets_and_silos_cancel():
    """The same total is the same step, whatever it would be divided by."""
    total = np.array([3.0, -4.0])
    steps = []
    for users, silos, people in ((100, 5, 0), (1000, 5, 100), (1000, 5, 100)):
        facts = PublicFacts(users, silos, 2, people=people).in_round(1, silos)
        for optimizer in SERVER_OPTIMIZERS:
            method = build("uldp-avg", noise_multiplier=1.0, server_optimizer=optimizer)
            steps.append((optimizer, tuple(method.server(State(np.zeros(2)), total, facts).x)))
    assert len(set(steps)) == len(SERVER_OPTIMIZERS)


def test_totals_of_nothing_but_noise_move_the_model_by_less_than_the_steps():
    generator = np.random.default_rng(0)
    for optimizer in ("auto", "adam"):
        state = State(np.zeros(1000))
        for round_ in range(100):
            total = NoisedTotal(generator.normal(size=1000) * 7, 49.0, 10.0, 0.1, 1 - round_ / 100)
            state = SERVER_OPTIMIZERS[optimizer].step(state, total, lr=1.0)
        # 100 steps of 0.1 in one direction would be 5 in each coordinate; independent ones about 0.1 sqrt(100 / 3).
        assert np.sqrt(np.mean(state.x**2)) < 1.0


def test_no_noise_and_no_signal_is_no_step():
    state = SERVER_OPTIMIZERS["auto"].step(State(np.ones(3)), NoisedTotal(np.zeros(3), 0.0, 10.0, 0.1, 1.0), lr=1.0)
    assert (state.x == 1).all()


@pytest.mark.parametrize(
    ("fields", "location"),
    [
        ({"server_optimizer": "lion"}, "method.server_optimizer"),
        ({"server_optimizer": "auto", "global_lr": 80.0}, "method.global_lr"),
        ({"server_lr": 2.0}, "method.server_lr"),
        ({"server_optimizer": "auto", "server_lr": 0.0}, "method.server_lr"),
    ],
)
def test_one_step_has_one_number(fields, location):
    from uldp.errors import ConfigError

    with pytest.raises(ConfigError) as error:
        build("uldp-avg", **fields)
    assert error.value.location == location


def test_auto_is_uldp_avg_with_settings_from_public_facts_alone():
    facts = PublicFacts(users=2000, silos=5, dimension=20)
    method = build("auto", noise_multiplier=30.0).for_facts(facts)
    assert isinstance(method, UldpAvg)
    assert (method.weighting, method.server_optimizer, method.rounds) == ("records", "auto", 100)
    regression = build("auto", noise_multiplier=30.0).for_facts(replace(facts, task="regression", feature_norm=6.0))
    # Squared error diverges inside a silo when 2 lr |x|^2 > 2.
    assert 2 * regression.local_lr * 6.0**2 < 2


def test_rho_does_not_depend_on_the_rounds_at_the_same_epsilon():
    facts = PublicFacts(users=200, silos=5, dimension=50)
    found = [
        build("auto", rounds=rounds, noise_multiplier=2.0 * math.sqrt(rounds)).release(facts).noise_to_signal(rounds)
        for rounds in (1, 10, 100)
    ]
    assert found == pytest.approx([2.0 * math.sqrt(50) / 200] * 3)
