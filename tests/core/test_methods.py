"""What methods of per-user rows promise: one person moves the sum by at most C, the noise is what the event says.

The others are in ``test_baselines``.
"""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.guarantees.adversary import OwnCoordinates, federation_of
from tests.support import (
    TinyLearner,
    build,
    decode,
    drive,
    make_plan,
    make_sessions,
    noiseless_total,
    small_federation,
    step,
    step_until,
)

from uldp.data.federation import SiloData
from uldp.errors import ConfigError, DataError, MessageRefused
from uldp.methods.registry import METHODS
from uldp.methods.user_sum import UserSum
from uldp.privacy.accountants import account, account_replace_one
from uldp.privacy.events import Gaussian, NonPrivate, PoissonSampled
from uldp.privacy.ledger import Entry, Ledger
from uldp.privacy.releases import Adversary, PublicFacts, views
from uldp.privacy.releases.base import Release
from uldp.privacy.releases.sums import continuous_multiplier
from uldp.privacy.releases.weights import MAX_COUNT
from uldp.protocol import messages as m
from uldp.rng import Secrets
from uldp.sessions.server import ServerSession
from uldp.vectors import from_residues

PRIVATE = [name for name, named in METHODS.items() if issubclass(named.method, UserSum)]
FACTS = PublicFacts(users=100, silos=5, dimension=4)


@pytest.mark.parametrize("name", PRIVATE)
@given(
    seed=st.integers(0, 10_000),
    user=st.integers(0, 5),
    scale=st.sampled_from([0.01, 1.0, 1e3, 1e30]),
    clip=st.sampled_from([1e-3, 0.1, 7.0]),
    sampled=st.booleans(),
)
@settings(max_examples=60)
def test_removing_a_user_moves_the_sum_by_at_most_the_clip(name, seed, user, scale, clip, sampled):
    federation = small_federation(seed=seed, scale=scale)
    fields = {"local_epochs": 3, "local_lr": 0.1} if "avg" in name else {}
    method = build(name, clip=clip, **fields)
    x = np.random.default_rng(seed).normal(size=4)
    sample = np.random.default_rng(seed + 1).random(federation.users) < 0.5 if sampled else None
    with np.errstate(all="ignore"):
        whole = noiseless_total(method, federation, TinyLearner(4), x, sample)
        without = noiseless_total(method, federation.without(user), TinyLearner(4), x, sample)
    moved = sum((a - b) ** 2 for a, b in zip(whole, without, strict=True))
    release = method.release(PublicFacts(federation.users, len(federation.silos), 4))
    assert moved <= (release.sensitivity * release.encoding.integer_limit) ** 2  # integers: no tolerance


def test_the_bound_is_nearly_attained_so_the_test_above_can_fail():
    federation = small_federation(scale=1e3)
    method = build("uldp-sgd-w", clip=0.1)
    x = np.ones(4)
    moved = [
        math.dist(
            noiseless_total(method, federation, TinyLearner(4), x),
            noiseless_total(method, federation.without(user), TinyLearner(4), x),
        )
        for user in range(federation.users)
    ]
    assert max(moved) > 0.5 * method.release(FACTS).encoding.integer_limit


@pytest.mark.parametrize("name", PRIVATE)
@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_the_realised_noise_of_the_total_is_sigma_times_clip(name, rate):
    dimension = 20_000
    federation = small_federation(users=8, silos=3, dimension=2, records=12)
    federation = dataclasses.replace(
        federation,
        silos=tuple(
            dataclasses.replace(s, features=np.zeros((len(s), dimension), np.float32)) for s in federation.silos
        ),
        test=dataclasses.replace(federation.test, features=np.zeros((20, dimension), np.float32)),
    )
    sigma, clip = 5.0, 0.3
    method = build(name, rounds=1, noise_multiplier=sigma, clip=clip, sample_rate=rate)
    server, silos = make_sessions(method, federation, learner=TinyLearner(dimension))
    units = make_plan(method, federation, dimension).release.encoding.integer_limit
    total = np.zeros(dimension, dtype=np.uint64)
    while requests := server.requests():
        for silo, request in requests.items():
            answer = silos[silo].reply(request)
            body = decode(answer, experiment="d" * 64, silo=silo, limit=10**6)
            if isinstance(body, m.Update):
                total += m.unpack_residues(body.vector, dimension, silo)
            server.receive(silo, answer)
        server.collect()
        server.charge()
        server.advance()
    noise = from_residues(total) * (clip / units)  # zero features: zero gradients, only noise is left
    expected = (sigma * clip) ** 2
    error = 5 * expected * math.sqrt(2 / dimension)  # five standard errors of a variance
    assert abs(noise.var() - expected) < error
    assert abs(noise.mean()) < 5 * sigma * clip / math.sqrt(dimension)


@pytest.mark.parametrize("name", PRIVATE)
def test_the_event_is_the_papers_gaussian(name):
    release = build(name, noise_multiplier=5.0).release(FACTS)
    event = release.event(FACTS.silos)
    assert isinstance(event, Gaussian)
    assert 5.0 - 1e-12 < event.noise_multiplier * release.sensitivity <= 5.0
    sampled = build(name, noise_multiplier=5.0, sample_rate=0.1).release(FACTS).event(FACTS.silos)
    assert isinstance(sampled, PoissonSampled)
    assert sampled.sample_rate == 0.1


@pytest.mark.parametrize("name", PRIVATE)
def test_rounding_at_a_known_point_counts_as_a_unit_per_coordinate(name):
    """Errata U13: a user moves the total by C + sqrt(d) units, not by C (test_exactness has the sums)."""
    method, dimension = build(name, noise_multiplier=5.0), 10**8
    exact, rounded = (
        method.release(PublicFacts(100, 5, dimension, rounding)).event(5).noise_multiplier for rounding in (0, 1)
    )
    units = method.release(FACTS).encoding.integer_limit
    assert rounded * (1 + math.sqrt(dimension) / units) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "adversary", "expected"),
    [
        ("uldp-avg", Adversary("silos"), 11.48),
        ("uldp-avg", Adversary("silos", colluding=2), 13.76),
        ("uldp-avg", Adversary("server"), 9.997),
        ("uldp-avg-w", Adversary("server"), 28.37),
        ("uldp-sgd-w", Adversary("silos"), 11.48),
        ("uldp-sgd-w", Adversary(), 0.758),
    ],
)
def test_who_faces_which_epsilon(name, adversary, expected):
    release = build(name, noise_multiplier=5.0, sample_rate=0.1).release(FACTS)
    assert account(views(release, adversary, [1] * 100), 1e-5).value == pytest.approx(expected, abs=6e-3)


def test_a_limit_of_participations_bounds_what_the_server_learns():
    release = build("uldp-avg", noise_multiplier=5.0, sample_rate=0.1, max_participations=10).release(FACTS)
    rounds = [1] * 100
    assert account(views(release, Adversary("server"), rounds), 1e-5).value == pytest.approx(2.594, abs=1e-3)
    assert account(views(release, Adversary(), rounds), 1e-5).value == pytest.approx(0.758, abs=1e-3)
    # a round that was released three times counts three times, though it is one participation
    once = build("uldp-avg", noise_multiplier=5.0, sample_rate=0.1, max_participations=1).release(FACTS)
    three = account({Gaussian(5.0): 3}, 1e-5).value
    assert account(views(once, Adversary("server"), [1, 3, 1]), 1e-5).value == pytest.approx(three, rel=1e-6)


def test_releases_of_one_round_share_its_sample_for_every_adversary():
    """Three releases of a round are not three rounds: whoever sees them gains more than from fresh samples."""
    release = build("uldp-avg", noise_multiplier=1.0, sample_rate=0.05).release(PublicFacts(100, 20, 4))
    public = account(Ledger(1e-5, None, repeated(release.event(20))).composition(), 1e-5).value
    for adversary in (Adversary("silos", knows_sample=False), Adversary(dropped=1)):
        assert account(views(release, adversary, [3] * 10), 1e-5).value > public
    fresh = account(views(release, Adversary(dropped=1), [1] * 30), 1e-5).value
    assert fresh < public


def repeated(event):
    return tuple(Entry(round_, event, f"{again}") for round_ in range(10) for again in range(3))


def test_compensated_noise_holds_with_shares_missing_or_known():
    release = build("uldp-avg", noise_multiplier=5.0, dropout_tolerance=2).release(FACTS)
    for adversary in (Adversary("silos", colluding=2), Adversary(dropped=2), Adversary("silos", dropped=1)):
        assert account(views(release, adversary, [1] * 100), 1e-5).value == pytest.approx(9.997, abs=1e-3)
    # nobody is missing: more noise than promised, and accounted as such
    expected = account({Gaussian(5.0 * math.sqrt(5 / 3)): 100}, 1e-5).value
    assert account({release.event(FACTS.silos): 100}, 1e-5).value == pytest.approx(expected, rel=1e-9)
    with pytest.raises(ConfigError, match=r"privacy\.dropout_tolerance"):
        build("uldp-avg", noise_multiplier=5.0, dropout_tolerance=5).release(FACTS).check()


def test_a_silent_silo_takes_its_noise_with_it():
    release = build("uldp-avg", noise_multiplier=5.0).release(FACTS)
    assert account({release.event(4): 100}, 1e-5).value == pytest.approx(11.48, abs=6e-3)
    assert release.event(0) == NonPrivate()


def test_a_single_silo_knows_all_of_its_own_noise():
    alone = build("uldp-avg", noise_multiplier=5.0).release(PublicFacts(10, 1, 4))
    assert alone.view(Adversary("silos")) == NonPrivate()


def test_replacing_a_user_is_twice_as_far_as_leaving_one_out():
    release = build("uldp-avg", noise_multiplier=5.0).release(FACTS)
    assert account_replace_one({release.event(5): 100}, 1e-5).value == pytest.approx(24.38, abs=6e-3)


def test_a_release_that_does_not_say_what_others_see_makes_no_claim():
    release = build("uldp-avg", noise_multiplier=5.0).release(FACTS)
    assert Release.view(release, Adversary("server")) == NonPrivate()
    assert Release.view(release, Adversary("silos")) == NonPrivate()
    assert Release.view(release, Adversary()) == release.event(FACTS.silos)


def test_discrete_noise_is_never_accounted_as_more_than_its_continuous_twin():
    """delta of the sum of discrete shares, computed exactly in one dimension, against the accounted Gaussian."""
    from uldp.privacy.gaussian import gaussian_delta

    for scale, shares, units in [(64.0, 1, 128), (64.0, 3, 256), (100.5, 2, 300)]:
        grid = np.arange(-4000, 4001)
        single = np.exp(-(grid**2) / (2 * scale**2))
        single /= single.sum()
        pmf = single
        for _ in range(shares - 1):
            pmf = np.convolve(pmf, single, mode="same")
        shifted = np.roll(pmf, units)
        mu = 1 / continuous_multiplier(scale, shares, units)
        for epsilon in (0.1, 1.0, 3.0):
            exact = np.maximum(shifted - math.exp(epsilon) * pmf, 0).sum()
            assert exact <= gaussian_delta(epsilon, mu) * (1 + 1e-9) + 1e-13


def test_too_small_a_share_of_noise_is_refused_with_the_bound():
    with pytest.raises(ConfigError, match="from 64 up"):
        build("uldp-avg", noise_multiplier=1e-6).release(FACTS).check()


def test_an_overflowing_noise_is_refused():
    with pytest.raises(ConfigError, match="63 are there"):
        build("uldp-avg", noise_multiplier=1e12).release(FACTS).check()
    with pytest.raises(ConfigError, match="can be drawn"):
        build("uldp-avg", noise_multiplier=3e7).release(FACTS).check()


@pytest.mark.parametrize(
    "fields",
    [
        {"clip": 0.0},
        {"clip": math.nan},
        {"clip": -1.0},
        {"clip": 1e-40},
        {"clip": 1e40},
        {"noise_multiplier": -1.0},
        {"noise_multiplier": math.nan},
        {"sample_rate": 0.0},
        {"sample_rate": 1.5},
        {"sample_rate": math.nan},
        {"rounds": 0},
        {"global_lr": 0.0},
        {"weighting": "sizes"},
    ],
)
def test_impossible_settings_are_refused_by_name(fields):
    with pytest.raises(ConfigError, match=next(iter(fields))):
        build("uldp-avg", **fields)


@given(counts=st.lists(st.integers(0, MAX_COUNT) | st.integers(0, 50), min_size=1, max_size=9))
@example(counts=[MAX_COUNT] * 9)
@example(counts=[0, 0])
@example(counts=[1] * 7)
def test_weights_by_records_are_those_of_equation_3_and_sum_to_at_most_one_exactly(counts):
    """No cap, no pseudo-count: n_su / N_u, less than 2^-31 below it, and never above 1 in the sum."""
    total, silos = sum(counts), len(counts)
    facts = PublicFacts(1, silos, 4)
    by_records = build("uldp-avg-w").release(facts)
    weights = [by_records.weights(np.array([count]), np.array([total]))[0] for count in counts]
    exact = [Fraction(float(weight)) for weight in weights]
    assert sum(exact) <= 1
    for weight, count in zip(exact, counts, strict=True):
        assert 0 <= (Fraction(count, total) if total else 0) - weight < Fraction(1, 2**31)
    uniform = Fraction(float(build("uldp-avg").release(facts).weights(np.array([7]), None)[0]))
    assert silos * uniform <= 1 and Fraction(1, silos) - uniform < Fraction(1, 2**31)


def test_uniform_weights_do_not_depend_on_counts():
    weights = build("uldp-avg").release(FACTS).weights
    assert (weights(np.arange(100), None) == weights(np.zeros(100), None)).all()


def test_more_records_of_a_user_than_can_be_counted_are_refused_not_capped(monkeypatch):
    monkeypatch.setattr(SiloData, "counts", lambda self, users: np.array([3, MAX_COUNT + 1]))
    with pytest.raises(DataError, match=r"silo silo-0: a user has more than 2147483648 records"):
        make_sessions(build("uldp-avg-w"), small_federation(users=2))


def test_counts_and_totals_beyond_the_limit_are_refused_by_whoever_gets_them():
    server, silos = make_sessions(build("uldp-avg-w"), small_federation(users=2))
    step(server, silos)
    answers = {name: silos[name].reply(request) for name, request in server.requests().items()}
    many = m.encode("d" * 64, "silo-0", m.Counts(m.pack(np.array([3, MAX_COUNT + 1]))))
    with pytest.raises(MessageRefused, match="a count lies outside 0"):
        server.receive("silo-0", many)
    for name, answer in answers.items():
        server.receive(name, answer)
    totals = m.UserTotals(m.pack(np.array([100, 3 * MAX_COUNT + 1])))
    with pytest.raises(MessageRefused, match="a count lies outside 0"):
        silos["silo-0"].reply(m.encode("d" * 64, "silo-0", totals))


def test_a_server_that_tells_each_silo_other_totals_gets_no_total_under_masks():
    """Each silo's own counts as the totals would make weights that sum to the number of silos."""
    federation = small_federation()
    server, silos = make_sessions(build("uldp-avg-w"), federation, aggregation="masked")
    step_until(m.UserTotals, server, silos)
    for (name, silo), own in zip(silos.items(), federation.counts(), strict=True):
        server.receive(name, silo.reply(m.encode(server.plan.digest, name, m.UserTotals(m.pack(own)))))
    server.collect()
    for name, request in server.requests().items():
        server.receive(name, silos[name].reply(request))
    with pytest.raises(MessageRefused, match="do not add up to a total in range"):
        server.collect()


def test_sgd_descends_and_so_does_avg():
    federation = small_federation(users=20, records=200)
    for name, fields in [("uldp-sgd", {}), ("uldp-avg", {"local_epochs": 2, "local_lr": 0.05}), ("fedavg", {})]:
        method = build(name, rounds=10, **({"clip": 5.0, "global_lr": 3.0, **fields} if name != "fedavg" else fields))
        server, silos = make_sessions(method, federation)
        before = TinyLearner(4).evaluate(server.model, federation.test)["loss"]
        drive(server, silos)
        assert TinyLearner(4).evaluate(server.model, federation.test)["loss"] < before / 2, name


def test_the_server_step_divides_by_the_sampled_share():
    facts = PublicFacts(users=10, silos=2, dimension=1).in_round(1, 2)
    from uldp.methods.base import State

    full = build("uldp-avg", global_lr=4.0).server(State(np.zeros(1)), np.ones(1), facts)
    sampled = build("uldp-avg", global_lr=4.0, sample_rate=0.5).server(State(np.zeros(1)), np.ones(1), facts)
    assert full.x[0] == pytest.approx(4 / 20)
    assert sampled.x[0] == pytest.approx(8 / 20)


@pytest.mark.parametrize("name", PRIVATE)
def test_users_outside_the_sample_contribute_nothing_and_come_back_later(name):
    """What silos compute on, what they send, and what the server asked for are about the same users, in every round."""
    rounds, users, silos = 12, 40, 3
    learner = OwnCoordinates(users, pulling=users)
    method = build(name, rounds=rounds, sample_rate=0.5)
    server, sessions = make_sessions(method, federation_of(np.ones((silos, users), dtype=int)), learner=learner)
    asked, sent = [], []
    while requests := server.requests():
        for silo, request in requests.items():
            reply = sessions[silo].reply(request)
            request, answer = (decode(x, experiment="d" * 64, silo=silo, limit=10**6) for x in (request, reply))
            if isinstance(request, m.UpdateRequest):
                asked.append(m.unpack_bits(request.sample, users, "test"))
                # every user pulls a coordinate of its own, and there is no noise
                sent.append(from_residues(m.unpack_residues(answer.vector, users, "test")) != 0)
            server.receive(silo, reply)
        server.collect()
        server.charge()
        server.advance()
    computed = [
        np.isin(np.arange(users), batch) for each in zip(*learner.batches.values(), strict=True) for batch in each
    ]
    assert np.array_equal(asked, sent) and np.array_equal(asked, computed)
    samples = np.array(asked).reshape(rounds, silos, users)
    assert (samples == samples[:, :1]).all()  # one coin for all silos
    seen = samples[:, 0]
    assert seen.any(axis=0).all()  # Algorithm 4 as printed would lose users for good
    assert not seen.all(axis=0).any()
    assert len({row.tobytes() for row in seen}) == rounds


def test_the_sample_depends_on_secrets_not_on_the_public_streams():
    federation = small_federation()
    method = build("uldp-avg", rounds=1, sample_rate=0.5)
    server, _ = make_sessions(method, federation, seed=0)
    plan = server.plan
    other = ServerSession(plan, np.zeros(plan.facts.dimension), Ledger(1e-5), Secrets.from_key(b"z" * 32))
    assert (server.sampler.users(1) != other.sampler.users(1)).any()
