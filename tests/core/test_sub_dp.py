"""CentralSubDP and LocalSubDP: what a subject moves, what the noise of the published mode gives away."""

import dataclasses
import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import TinyLearner, build, drive, make_sessions, small_federation, step

from uldp.data.federation import SiloData
from uldp.errors import ConfigError, MessageRefused
from uldp.methods.base import Facts, Observer
from uldp.methods.subjects import fixed_batch, largest_group, sampled_subjects, some_of_each
from uldp.privacy.accountants import account
from uldp.privacy.events import Gaussian, Group, NonPrivate, PoissonSampled, Repeated
from uldp.protocol import messages as m
from uldp.rng import Secrets, Streams
from uldp.vectors import from_words

FACTS = Facts(users=100, silos=5, dimension=4)
STREAMS = Streams.from_seed(0)


def silo_of(counts, dimension=4, seed=0) -> SiloData:
    """A silo in which user u has counts[u] records."""
    users = np.repeat(np.arange(len(counts)), counts)
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(users))
    features = generator.normal(size=(len(users), dimension)).astype(np.float32)
    return SiloData("silo-0", features, features.sum(axis=1), users[order])


def one_step(method, data, seed=3, x=None):
    """The sum of one local step of LocalSubDP without noise, from the change it makes."""
    method = dataclasses.replace(method, local_steps=1, local_lr=1.0, batch_size=1.0)
    secrets = Secrets.simulated_from_seed(seed)
    ((_, row),) = method.silo(np.ones(4) if x is None else x, data, TinyLearner(4), STREAMS, secrets)
    return -row[0]


# --- sampling and choosing -------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 6), min_size=1, max_size=8), st.integers(1, 4), st.integers(0, 7))
def test_at_most_k_items_of_everybody_and_nobody_elses_choice_moves(counts, most, leaves):
    data = silo_of(counts)
    chosen = some_of_each(data.users, most, STREAMS)
    assert np.array_equal(np.bincount(data.users[chosen], minlength=len(counts)), np.minimum(counts, most))
    stay = data.users != leaves
    assert np.array_equal(chosen[stay], some_of_each(data.users[stay], most, STREAMS))


def test_every_item_is_chosen_about_as_often():
    users = np.zeros(5, dtype=np.int64)
    hits = sum(some_of_each(users, 2, Streams.from_seed(seed)).astype(int) for seed in range(4000))
    assert np.abs(hits / 4000 - 2 / 5).max() < 5 * math.sqrt(0.24 / 4000)


@given(st.integers(0, 1000), st.integers(0, 7))
@settings(max_examples=30)
def test_subjects_are_sampled_whole_and_nobodys_coin_moves_when_others_leave(seed, leaves):
    users = np.random.default_rng(seed).integers(0, 8, 40)
    secrets = Secrets.simulated_from_seed(seed)
    taken = sampled_subjects(users, 0.5, secrets.stream())
    for user in np.unique(users):
        assert len(set(taken[users == user])) == 1
    stay = users != leaves
    if stay.any() and users[stay].max() == users.max():
        assert np.array_equal(taken[stay], sampled_subjects(users[stay], 0.5, secrets.stream()))


def test_a_fixed_batch_has_its_size_and_takes_all_alike():
    batches = [fixed_batch(10, 4, Secrets.simulated_from_seed(seed).stream()) for seed in range(4000)]
    assert all(len(set(batch.tolist())) == 4 for batch in batches)
    assert np.abs(np.bincount(np.concatenate(batches), minlength=10) / 4000 - 0.4).max() < 0.04
    assert fixed_batch(3, 8, Secrets.simulated_from_seed(0).stream()).tolist() == [0, 1, 2]


# --- sound: one subject moves a step by at most so many clips ---------------------------------------------------


@given(st.integers(0, 10_000), st.integers(0, 5), st.sampled_from([1, 3, 50]), st.sampled_from([1.0, 0.5]))
@settings(max_examples=60)
def test_a_subject_moves_a_step_of_local_sub_dp_by_one_clip(seed, user, items, rate):
    data = silo_of(np.random.default_rng(seed).integers(0, 9, 6), seed=seed)
    method = build("local-sub-dp", clip=0.3, items=items, record_rate=rate)
    without = data.take(data.users != user)
    moved = np.linalg.norm(one_step(method, data, seed) - one_step(method, without, seed))
    assert moved <= 0.3 * (1 + 1e-9)


@given(st.integers(0, 10_000), st.integers(0, 5), st.sampled_from([0, 2]))
@settings(max_examples=60)
def test_with_items_sampled_a_subject_moves_a_step_by_its_largest_group(seed, user, most):
    data = silo_of(np.random.default_rng(seed).integers(0, 9, 6), seed=seed)
    method = build("local-sub-dp", clip=0.3, sampling="items", record_rate=1.0, max_items=4, largest_group=most)
    kept, fewer = (method.kept(one, None, STREAMS) for one in (data, data.take(data.users != user)))
    assert largest_group(kept.users) <= 4
    moved = np.linalg.norm(one_step(method, kept, seed) - one_step(method, fewer, seed))
    assert moved <= (most or 4) * 0.3 * (1 + 1e-9)


def test_the_bounds_above_are_nearly_attained_so_the_tests_can_fail():
    data = silo_of([8, 1, 1])
    x = np.full(4, 50.0)
    without = data.take(data.users != 0)

    def moved(**fields):
        method = build("local-sub-dp", clip=0.3, record_rate=1.0, **fields)
        before, after = (one_step(method, method.kept(d, None, STREAMS), x=x) for d in (data, without))
        return np.linalg.norm(before - after)

    assert moved() > 0.29
    assert moved(sampling="items", max_items=8) > 0.8  # one at a time they add up


@pytest.mark.parametrize(
    ("fields", "event"),
    [
        ({}, Repeated(50, PoissonSampled(0.1, Gaussian(2.0)))),
        ({"max_silos": 2}, Repeated(20, PoissonSampled(0.1, Gaussian(2.0)))),
        ({"fraction": 0.6}, Repeated(30, PoissonSampled(0.1, Gaussian(2.0)))),
        ({"sampling": "items", "max_items": 7}, Repeated(50, Group(7, PoissonSampled(0.1, Gaussian(2.0))))),
        (
            {"sampling": "items", "max_items": 7, "largest_group": 3, "max_silos": 1},
            Repeated(10, Group(7, PoissonSampled(0.1, Gaussian(2.0)), 3)),
        ),
    ],
)
def test_the_event_of_local_sub_dp_counts_every_silo_of_a_subject(fields, event):
    method = build("local-sub-dp", noise_multiplier=2.0, local_steps=10, record_rate=0.1, **fields)
    assert method.event(FACTS, 5) == event
    assert method.seen_by(FACTS, Observer("server")) == event


def test_silos_of_a_subject_and_weights_in_central_sub_dp():
    def multiplier(observer=None, **fields):
        method = build("central-sub-dp", noise_multiplier=6.0, **fields)
        seen = method.event(FACTS, 5) if observer is None else method.seen_by(FACTS, observer)
        return seen.noise_multiplier

    assert multiplier() == pytest.approx(6 / 5)
    assert multiplier(max_silos=2) == pytest.approx(3)
    assert multiplier(fraction=0.6) == pytest.approx(2)
    assert multiplier(weighting="records") == multiplier(weighting="uniform") == pytest.approx(6)
    # the server of plain sees each silo's sum, with a fifth of the variance each
    assert multiplier(Observer("server"), max_silos=2) == pytest.approx(6 / math.sqrt(2 * 5))
    assert multiplier(Observer("server"), weighting="records") == pytest.approx(6 / math.sqrt(5))


def test_more_silos_than_assumed_are_refused_and_the_assumption_is_stated():
    federation = small_federation(users=6, silos=3)
    facts = Facts(6, 3, 4)
    method = build("local-sub-dp", max_silos=2, noise_multiplier=1.0)
    with pytest.raises(ConfigError, match=r"max_silos: somebody has records in more than 2 silos"):
        method.check_counts(facts, federation.counts())
    method.check_counts(facts, np.array([[1, 0], [2, 3], [0, 4]]))
    assert "more than 2 silos" in method.assumptions(facts)[0]
    assert build("local-sub-dp").assumptions(facts) == ()


def test_the_statement_says_what_is_sampled_and_what_epsilon_rests_on():
    method = build("local-sub-dp", sampling="items", max_items=5, largest_group=2)
    assert "at most 5 of a subject, of which 2 count in a step" in method.caveats(FACTS)[0]
    assert "as a whole" not in " ".join(method.corrections())
    assert "as a whole" in " ".join(build("local-sub-dp").corrections())


def test_with_records_weights_central_sub_dp_with_all_items_is_uldp_sgd_but_for_its_step():
    federation = small_federation()
    models = {}
    for name, fields in (
        ("uldp-sgd-w", {"global_lr": 3.0}),
        ("central-sub-dp", {"weighting": "records", "items": 10**6, "global_lr": 1.0}),
    ):
        server, silos = make_sessions(build(name, rounds=3, clip=0.5, noise_multiplier=1.0, **fields), federation)
        drive(server, silos)
        models[name] = server.model
    assert np.allclose(*models.values(), rtol=1e-12)


# --- picking silos and subjects ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["central-sub-dp", "local-sub-dp", "central-sub-dp-published"])
def test_silos_that_are_not_picked_send_zeros(name):
    fields = {"claimed_epsilon": 5.0} if "published" in name else {}
    if name == "central-sub-dp":
        fields["sample_rate"] = 0.9
    server, silos = make_sessions(build(name, rounds=6, fraction=0.67, **fields), small_federation())
    sent = {}
    while requests := server.requests():
        for silo, request in requests.items():
            answer = silos[silo].reply(request)
            body = m.decode(answer, experiment="d" * 64, silo=silo, limit=10**6)
            if isinstance(body, m.Update):
                sent.setdefault(body.round, []).append(bool(np.frombuffer(body.vector, np.int64).any()))
            server.receive(silo, answer)
        server.collect()
        server.charge()
        server.advance()
    assert [sum(moved) for moved in sent.values()] == [2] * 6


def test_a_silo_refuses_other_numbers_of_picked_silos_than_were_agreed_on():
    server, silos = make_sessions(build("local-sub-dp", rounds=2, fraction=0.34), small_federation())
    step(server, silos)  # the greeting
    ask = m.AskUpdate(1, m.pack(np.zeros(4)), m.pack_bits(np.ones(3, dtype=np.bool_)))
    before = silos["silo-0"].save()
    with pytest.raises(MessageRefused, match="3 silos were picked, 1 were agreed on"):
        silos["silo-0"].reply(m.encode("d" * 64, "silo-0", ask))
    assert silos["silo-0"].save() == before


# --- published: the noise gives the subject away ----------------------------------------------------------------


def totals_of(method, federation, dimension, seed):
    """The released totals of one round, as numbers."""
    server, silos = make_sessions(method, federation, learner=TinyLearner(dimension), seed=seed)
    found = []
    advance = server.advance

    def spy():
        if server._sum is not None:
            found.append(from_words(server._sum) / method.encoding(server._plan.facts).units)
        advance()

    server.advance = spy
    drive(server, silos)
    return found[0]


def zero_federation(many: int, dimension=4000):
    """Zero features, so that nothing but noise is left; user 0 has ``many`` records in the one silo."""
    users = np.concatenate([np.zeros(many, np.int64), np.arange(1, 9)])
    silo = SiloData("silo-0", np.zeros((len(users), dimension), np.float32), np.zeros(len(users), np.float32), users)
    base = small_federation(users=9, silos=1, dimension=dimension)
    return dataclasses.replace(base, silos=(silo,))


@pytest.mark.parametrize("name", ["central-sub-dp", "local-sub-dp"])
def test_the_size_of_the_noise_tells_a_subject_in_published_mode_and_not_in_sound_mode(name):
    dimension = 4000
    local = {"local_steps": 1, "local_lr": 1.0} if name == "local-sub-dp" else {}
    deviations = {}
    for mode in ("published", "sound"):
        noise = {"claimed_epsilon": 2.0} if mode == "published" else {"noise_multiplier": 5.0}
        method = build(name, rounds=1, clip=1.0, batch_size=16, mode=mode, **local, **noise)
        for many in (0, 8):
            total = totals_of(method, zero_federation(many, dimension), dimension, seed=1)
            deviations[mode, many] = float(total.std())
    error = 5 / math.sqrt(2 * dimension)  # five standard errors of a deviation, relatively
    with_them, without = deviations["published", 8], deviations["published", 0]
    assert with_them > 2 * without  # sigma_8 against sigma_1: one look at one round tells
    assert abs(deviations["sound", 8] / deviations["sound", 0] - 1) < 2 * error


def test_published_noise_is_sigma_z_for_every_silo_that_took_part():
    method = build("central-sub-dp-published", rounds=1, claimed_epsilon=2.0, batch_size=16, clip=1.0)
    method = method.fitted(np.array([16]))
    facts = Facts(9, 3, 4)
    one, three = (method.server_noise(facts, remarks) for remarks in ([8, 0, 0], [8, 8, 8]))
    assert three == pytest.approx(math.sqrt(3) * one)
    assert method.server_noise(facts, [0, 0, 0]) == 0
    assert one > method.server_noise(facts, [1, 0, 0]) > 0


@pytest.mark.parametrize("name", ["central-sub-dp-published", "local-sub-dp-published"])
def test_published_mode_makes_no_promise_and_says_why(name):
    method = build(name, claimed_epsilon=2.0).fitted(np.full(100, 20))
    assert method.event(FACTS, 5) == NonPrivate()
    assert method.seen_by(FACTS, Observer("server")) == NonPrivate()
    assert "claims epsilon 2" in method.void
    text = " ".join(method.caveats(FACTS))
    for reason in ("Claimed 2, true: none", "Silos add up", "q is an item's", "fixed size", "D1", "D2", "D3", "D4"):
        assert reason in text


def test_the_numbers_of_the_published_statement_are_those_of_the_accountant():
    """A batch of fixed size lets another item in where one leaves: two clips, so half the noise."""
    method = build("local-sub-dp-published", rounds=10, local_steps=10, batch_size=8)
    method = method.claiming(2.0, 1e-5, FACTS).fitted(np.full(100, 40))  # 800 records in each of 5 silos
    noise = method.sigma(1, 800, 100)
    text = " ".join(method.caveats(FACTS))
    for steps, items, says in ((500, 1, "{:.4g} in 5 silos"), (100, 100, "{:.4g} with 100 items")):
        event = Group(items, PoissonSampled(0.01, Gaussian(noise / 2)), 8)
        assert says.format(account({event: steps}, 1e-5).value) in text
    central = build("central-sub-dp-published", rounds=10, batch_size=8)
    central = central.claiming(2.0, 1e-5, FACTS).fitted(np.full(100, 40))
    noise = central.sigma(1, 4000, 50) * 8 * math.sqrt(5) / 2
    expected = account({Group(5, PoissonSampled(0.01, Gaussian(noise))): 10}, 1e-5).value
    assert f"{expected:.4g} in 5 silos" in " ".join(central.caveats(FACTS))


def test_two_clips_are_attained_by_a_batch_of_fixed_size():
    """One subject pulls one way, all others the other way; where it leaves, another one takes its place."""
    users = np.arange(6)
    features = np.ones((6, 1), dtype=np.float32)
    labels = np.where(users == 0, 1e6, -1e6).astype(np.float32)
    data = SiloData("silo-0", features, labels, users)
    learner = TinyLearner(1)
    sums = []
    for some in (data, data.take(users != 0)):
        clipped = learner.clipped_sums(some, 1.0)
        sums.append({round(float(clipped(np.zeros(1), np.array(b), 0, STREAMS)[0]), 6) for b in ((0, 1, 2), (1, 2, 3))})
    assert sums == [{1.0, 3.0}, {3.0}]  # with the subject in the batch it is 2 - 1, without 3


def test_local_sub_dp_divides_every_step_by_the_number_of_silos_as_printed():
    data = silo_of([3, 3])
    x = np.full(4, 3.0)

    def change(mode, lr):
        noise = {"claimed_epsilon": 1e6, "picked_silos": 5} if mode == "published" else {"record_rate": 1.0}
        fields = {"local_steps": 3, "batch_size": 6.0, "clip": 20.0, "items": 1, "local_lr": lr}
        method = build("local-sub-dp", mode=mode, **fields, **noise)
        some = SiloData("silo-0", data.features, data.labels, np.arange(6))
        return next(method.silo(x, some, TinyLearner(4), STREAMS, Secrets.simulated_from_seed(0)))[1][0]

    # with next to no noise both are plain gradient steps; the published ones are five times smaller, step by step
    assert np.allclose(change("published", 0.5), change("sound", 0.1), atol=1e-2)
    assert not np.allclose(change("published", 0.5), change("sound", 0.5) / 5, atol=3e-2)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("local-sub-dp", {"mode": "loud"}, "one of sound, published"),
        ("local-sub-dp", {"sampling": "records"}, "one of subjects, items"),
        ("local-sub-dp", {"items": 0}, "a whole number from 1 to 1,000,000"),
        ("local-sub-dp", {"max_items": 5}, "left out unless"),
        ("local-sub-dp", {"largest_group": 5}, "left out unless"),
        ("local-sub-dp", {"sampling": "items"}, "the public number"),
        ("local-sub-dp", {"sampling": "items", "max_items": 3, "largest_group": 4}, "at most max_items (3)"),
        ("local-sub-dp-published", {"sampling": "items", "max_items": 3}, "left out with mode"),
        ("local-sub-dp", {"fraction": 0.0}, "above 0"),
        ("local-sub-dp", {"max_silos": -1}, "from 0 to 10,000"),
        ("local-sub-dp-published", {"noise_multiplier": 1.0}, "follows from privacy.epsilon"),
        ("local-sub-dp-published", {"batch_size": 2.5}, "whole number"),
        ("central-sub-dp", {"weighting": "loud"}, "one of none, uniform, records"),
        ("central-sub-dp-published", {"sample_rate": 0.5}, "1 with mode"),
        ("central-sub-dp-published", {"weighting": "records"}, "'none' with mode"),
        ("central-sub-dp", {"sampling": "private", "sample_rate": 0.5, "fraction": 0.5}, "private sampling"),
    ],
)
def test_bad_settings_get_one_sentence(name, fields, message):
    with pytest.raises(ConfigError) as caught:
        build(name, **fields)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_remark_that_no_batch_can_have_is_refused():
    method = build("central-sub-dp-published", rounds=1, claimed_epsilon=2.0, batch_size=4)
    server, silos = make_sessions(method, small_federation())
    while not server.in_round:
        for name, request in server.requests().items():
            server.receive(name, silos[name].reply(request))
        server.collect()
        server.requests()
    name, request = next(iter(server.requests().items()))
    answer = m.decode(silos[name].reply(request), experiment="d" * 64, silo=name, limit=10**6)
    for remark in (-1, 5):
        with pytest.raises(MessageRefused, match="remark lies between 0 and 4"):
            server.receive(name, m.encode("d" * 64, name, msgspec.structs.replace(answer, remark=remark)))
