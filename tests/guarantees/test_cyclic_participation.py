"""People take turns: a user's records move the rounds of one group only, and epsilon is that of the worst group.

Planted here, and caught: a group that shifts from round to round, and a user in two groups.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm
from tests.guarantees.adversary import PAILLIER, federation_of, took_part
from tests.support import build, drive_with_restarts, make_plan, make_sessions, step

from uldp.errors import BudgetExhausted, ConfigError, RunError
from uldp.experiment.build import prepare
from uldp.experiment.config import Experiment
from uldp.privacy.accountants import account
from uldp.privacy.events import Gaussian, PoissonSampled
from uldp.privacy.ledger import Entry, Ledger
from uldp.privacy.releases import Participation
from uldp.privacy.releases import sampling as sampling_module
from uldp.privacy.statement import Background, compose
from uldp.runtimes.policy import Charge, LedgerGuard, OwnLedger, Policy

ROUNDS, GROUPS, USERS = 12, 4, 40
FEDERATION = federation_of(np.ones((3, USERS), dtype=int))
NAMES = ("auto", "uldp-avg", "uldp-avg-w", "uldp-sgd", "central-sub-dp")


def cyclic(name="uldp-avg", rounds=ROUNDS, **further):
    return build(name, rounds=rounds, participation_groups=GROUPS, **further)


def rounds_of_users(method=None, aggregation="plain"):
    """(rounds, users): whom the totals follow in each round. Every user pulls a coordinate of its own."""
    return took_part(method or cyclic(), FEDERATION, aggregation=aggregation)[1]


def each_user_is_in_one_group(taken) -> bool:
    """Whether everybody takes part, always in the same turn of a cycle, and so in every ``GROUPS``-th round."""
    first = taken.argmax(axis=0)
    turns = np.arange(len(taken))[:, None] % GROUPS
    return bool(taken.any(axis=0).all() and (taken == (turns == first % GROUPS)).all() and first.max() < GROUPS)


@pytest.mark.parametrize("aggregation", ["plain", "masked", PAILLIER], ids=str)
def test_a_user_moves_only_the_rounds_of_its_group(aggregation):
    taken = rounds_of_users(aggregation=aggregation)
    assert each_user_is_in_one_group(taken)
    assert (taken.sum(axis=0) == math.ceil(ROUNDS / GROUPS)).all()


@pytest.mark.parametrize("name", NAMES)
def test_records_of_other_groups_are_not_looked_at(name):
    """The model of a round is the same bits without a user, up to the first round of the user's group."""
    method, user = cyclic(name, noise_multiplier=1.0), 7
    models = []
    for federation in (FEDERATION, FEDERATION.without(user)):
        server, silos = make_sessions(method, federation)
        found = []
        while step(server, silos):
            found.append(server.model.tobytes())
        models.append(found[-ROUNDS - 1 : -1])
    turn = next(t for t in range(1, GROUPS + 1) if Participation(GROUPS).members(USERS, t)[user])
    same = [one == other for one, other in zip(*models, strict=True)]
    assert same[: turn - 1] == [True] * (turn - 1) and not same[turn - 1]


def test_a_group_that_shifts_is_caught(monkeypatch):
    members = Participation.members

    def shifting(self, users, round_):
        return np.roll(members(self, users, round_), round_ // GROUPS)

    monkeypatch.setattr(Participation, "members", shifting)
    assert not each_user_is_in_one_group(rounds_of_users())


def test_a_user_in_two_groups_is_caught(monkeypatch):
    members = Participation.members

    def doubled(self, users, round_):
        found = members(self, users, round_).copy()
        found[3] |= round_ % GROUPS in (0, 1)
        return found

    monkeypatch.setattr(Participation, "members", doubled)
    assert not each_user_is_in_one_group(rounds_of_users())


def test_groups_are_the_same_everywhere_and_alike_in_size():
    """Pinned: parties that hashed differently would have one person in two groups."""
    groups = sampling_module._group_of_users(10_000, 10)
    assert groups[:12].tolist() == [9, 6, 9, 4, 5, 9, 3, 4, 7, 7, 5, 4]
    assert (groups == sampling_module._group_of_users(20_000, 10)[:10_000]).all()
    sizes = np.bincount(groups.astype(int))
    assert len(sizes) == 10 and abs(sizes - 1000).max() < 5 * math.sqrt(1000)


def prepared(seed, aggregation, rounds=ROUNDS):
    tree = {
        "data": {"dataset": "synthetic", "users": 500, "silos": 2, "options": {"records": 500}},
        "method": {"name": "uldp-avg", "rounds": rounds, "participation_groups": GROUPS},
        "privacy": {"noise_multiplier": 5.0},
        "aggregation": {"name": aggregation},
        "run": {"seed": seed},
    }
    return prepare(Experiment.from_tree(tree)).plan


def test_groups_are_an_experiments_own_and_the_same_under_every_aggregation():
    """Who is together in one experiment is together in another by chance only: with one in four."""
    plan, same = prepared(0, "masked"), prepared(0, "plain")
    turns = [plan.release.participation.members(500, t) for t in range(1, GROUPS + 1)]
    assert np.sum(turns, axis=0).tolist() == [1] * 500
    assert all((same.release.participation.members(500, t + 1) == turns[t]).all() for t in range(GROUPS))
    for other in (prepared(1, "masked"), prepared(0, "masked", ROUNDS + 1)):
        assert other.digest != plan.digest
        together = [(turn & other.release.participation.members(500, t + 1)).sum() for t, turn in enumerate(turns)]
        assert abs(sum(together) - 125) < 5 * math.sqrt(500 * 3 / 16)


def by_hand(sigma, rounds, delta):
    """Epsilon of so many Gaussians: mu^2 adds up, and delta(epsilon) is that of Balle and Wang's Theorem 8."""
    mu = math.sqrt(rounds) / sigma
    low, high = 0.0, 100.0
    for _ in range(200):
        middle = (low + high) / 2
        lost = norm.cdf(mu / 2 - middle / mu) - math.exp(middle) * norm.cdf(-mu / 2 - middle / mu)
        low, high = (middle, high) if lost > delta else (low, middle)
    return high


def test_the_accountants_number_is_that_of_a_users_own_rounds():
    """Sigma 5, 60 rounds, 10 groups: six Gaussians, 1.948; all rounds would be 7.33."""
    assert by_hand(5.0, 6, 1e-5) == pytest.approx(1.948, abs=5e-4)
    method = build("uldp-avg", rounds=60, noise_multiplier=5.0, participation_groups=10)
    server, silos = make_sessions(method, FEDERATION, aggregation="masked")
    while step(server, silos):
        pass
    assert server.ledger.epsilon().value == pytest.approx(by_hand(5.0, 6, 1e-5), abs=1e-6)
    assert [entry.group for entry in server.ledger.entries] == [t % 10 for t in range(60)]
    plan = make_plan(method, FEDERATION, aggregation="masked")
    told = compose(
        plan.release, plan.disclosure, server.ledger, Background(), simulated=True, silos_heard=server.silos_heard
    )
    stated = {row.who: row.epsilon for row in told.exposures}
    assert stated["the server"] == pytest.approx(1.948, abs=5e-4) == told.epsilon
    # One silo knows its own share of the noise: a third of the variance.
    assert stated["one silo"] == pytest.approx(by_hand(5.0 * math.sqrt(2 / 3), 6, 1e-5), abs=1e-5)


def test_where_the_server_sees_every_silo_it_faces_more_of_the_same_rounds():
    method = build("uldp-avg-w", rounds=ROUNDS, noise_multiplier=5.0, participation_groups=GROUPS)
    server, silos = make_sessions(method, FEDERATION, aggregation="plain")
    while step(server, silos):
        pass
    plan = make_plan(method, FEDERATION)
    told = compose(plan.release, plan.disclosure, server.ledger, Background(), simulated=True)
    stated = {row.who: row.epsilon for row in told.exposures}
    assert stated["the server"] == pytest.approx(by_hand(5.0 / math.sqrt(3), ROUNDS // GROUPS, 1e-5), abs=1e-4)


@pytest.mark.parametrize(("rounds", "groups", "most"), [(60, 10, 6), (61, 10, 7), (10, 10, 1), (7, 1, 7)])
def test_a_user_counts_the_rounds_that_are_not_whole_cycles_too(rounds, groups, most):
    turns = Participation(groups)
    counted = Counter(turns.group(t) for t in range(1, rounds + 1))
    assert turns.rounds_of_a_user(rounds) == max(counted.values()) == most


def test_the_worst_group_counts_with_its_repeated_rounds_and_missing_silos():
    noise, less = Gaussian(5.0), Gaussian(5.0 * math.sqrt(2 / 3))
    entries = [Entry(t, noise, f"total {t}", group=(t - 1) % 2) for t in range(1, 7)]
    ledger = Ledger(1e-5, None, tuple(entries))
    assert ledger.epsilon().value == pytest.approx(by_hand(5.0, 3, 1e-5), abs=1e-6)
    # A round of group 1 again, without a silo: the loss of group 1 is now that of four releases.
    ledger.charge(Entry(2, less, "repeated", group=1))
    assert ledger.epsilon().value == pytest.approx(account({noise: 3, less: 1}, 1e-5).value, abs=1e-6)
    # Rounds of group 0 cost nothing while they stay below.
    before = ledger.epsilon().value
    ledger.charge(Entry(7, less, "total 7", group=0))
    assert ledger.epsilon().value == pytest.approx(before)
    # A release about everybody is about every group.
    ledger.charge(Entry(8, noise, "everybody"))
    assert ledger.epsilon().value == pytest.approx(account({noise: 4, less: 1}, 1e-5).value, abs=1e-6)


def test_an_entry_keeps_its_group_on_disk_and_groups_are_of_gaussians():
    entry = Entry(3, Gaussian(5.0), "digest", group=2)
    assert Entry.from_json(entry.to_json()) == entry
    with pytest.raises(RunError):
        Entry(3, PoissonSampled(0.1, Gaussian(5.0)), "digest", group=2)


def test_a_budget_ends_where_the_next_group_would_pass_it():
    method = cyclic(noise_multiplier=5.0)
    server, silos = make_sessions(method, FEDERATION, budget=by_hand(5.0, 2, 1e-5) + 1e-6)
    while step(server, silos):
        pass
    assert server.round == 2 * GROUPS
    with pytest.raises(BudgetExhausted):
        server.ledger.charge(Entry(server.round + 1, Gaussian(5.0), "another", group=0))


def test_a_restart_forgets_no_turn():
    def make():
        return make_sessions(cyclic("auto", noise_multiplier=1.0), FEDERATION)

    server, silos = make()
    while step(server, silos):
        pass
    again = drive_with_restarts(make)
    assert again.model.tobytes() == server.model.tobytes()


def test_the_silos_own_ledger_counts_the_worst_group(tmp_path):
    shown = dict.fromkeys(("public", "server", "silos"), Gaussian(5.0))
    ledger = OwnLedger(tmp_path / "ledger.jsonl", Policy(delta=1e-5))
    guard = LedgerGuard(ledger, "experiment", "session", shown, Participation(10))
    for round_ in range(1, 61):
        guard.before_round(round_, f"request {round_}")
    assert ledger.epsilon() == pytest.approx(by_hand(5.0, 6, 1e-5), abs=1e-6)
    assert OwnLedger(tmp_path / "ledger.jsonl", Policy(delta=1e-5)).epsilon() == ledger.epsilon()
    # Another experiment's worst group may be the same person's.
    other = replace(guard, experiment="another")
    other.before_round(1, "request")
    assert ledger.epsilon() == pytest.approx(by_hand(5.0, 7, 1e-5), abs=1e-6)
    assert isinstance(ledger.charges[0], Charge)


def test_rho_is_the_square_root_of_the_groups_times_that_of_everybody():
    """At the same epsilon, whatever the number of rounds."""
    plan = make_plan(cyclic(noise_multiplier=10.0 * math.sqrt(ROUNDS / GROUPS)), FEDERATION)
    full = make_plan(build("uldp-avg", rounds=ROUNDS, noise_multiplier=10.0 * math.sqrt(ROUNDS)), FEDERATION)
    ratio = plan.release.noise_to_signal(ROUNDS) / full.release.noise_to_signal(ROUNDS)
    assert ratio == pytest.approx(math.sqrt(GROUPS))


@pytest.mark.parametrize(
    ("fields", "location"),
    [
        ({"participation_groups": 0}, "method.participation_groups"),
        ({"participation_groups": 13}, "method.participation_groups"),
        ({"participation_groups": 2, "sample_rate": 0.5}, "method.sample_rate"),
    ],
)
def test_settings_that_cannot_be(fields, location):
    with pytest.raises(ConfigError) as error:
        build("uldp-avg", rounds=12, **fields)
    assert error.value.location == location
