"""CentralSubDP and LocalSubDP: what a subject moves, and what the noise of the published algorithms gives away."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import TinyLearner, build, decode, drive, make_sessions, rows_of, small_federation, step

from uldp.caveats import Severity
from uldp.data.federation import Federation, SiloData
from uldp.errors import ConfigError, MessageRefused
from uldp.privacy.accountants import account
from uldp.privacy.events import Gaussian, Group, PoissonSampled, Repeated
from uldp.privacy.releases import Adversary, PublicFacts
from uldp.privacy.releases.noised_model import sampled_subjects, some_of_each
from uldp.protocol import messages as m
from uldp.research.published_noise import published_noise
from uldp.research.published_subjects import (
    PublishedSettings,
    claimed_and_true,
    epsilon_of_fixed_noise,
    fixed_batch,
    largest_group,
    train,
)
from uldp.rng import Secrets, Streams

FACTS = PublicFacts(users=100, silos=5, dimension=4)
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
    x = np.ones(4) if x is None else x
    ((_, row),) = rows_of(method, x, data, TinyLearner(4), streams=STREAMS, secrets=secrets)
    return -row[0]


def kept(method, data):
    """The records of a silo that take part."""
    return method.release(FACTS).select(data, None, STREAMS)


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
    whole, fewer = (kept(method, one) for one in (data, data.take(data.users != user)))
    assert largest_group(whole.users) <= 4
    moved = np.linalg.norm(one_step(method, whole, seed) - one_step(method, fewer, seed))
    assert moved <= (most or 4) * 0.3 * (1 + 1e-9)


def test_the_bounds_above_are_nearly_attained_so_the_tests_can_fail():
    data = silo_of([8, 1, 1])
    x = np.full(4, 50.0)
    without = data.take(data.users != 0)

    def moved(**fields):
        method = build("local-sub-dp", clip=0.3, record_rate=1.0, **fields)
        before, after = (one_step(method, kept(method, d), x=x) for d in (data, without))
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
    assert method.release(FACTS).event(5) == event
    assert method.release(FACTS).view(Adversary("server")) == event


def test_silos_of_a_subject_and_weights_in_central_sub_dp():
    def multiplier(adversary=None, **fields):
        release = build("central-sub-dp", noise_multiplier=6.0, **fields).release(FACTS)
        seen = release.event(5) if adversary is None else release.view(adversary)
        return seen.noise_multiplier

    assert multiplier() == pytest.approx(6 / 5)
    assert multiplier(max_silos=2) == pytest.approx(3)
    assert multiplier(fraction=0.6) == pytest.approx(2)
    assert multiplier(weighting="records") == multiplier(weighting="uniform") == pytest.approx(6)
    # the server of plain sees each silo's sum, with a fifth of the variance each
    assert multiplier(Adversary("server"), max_silos=2) == pytest.approx(6 / math.sqrt(2 * 5))
    assert multiplier(Adversary("server"), weighting="records") == pytest.approx(6 / math.sqrt(5))


def test_more_silos_than_assumed_are_refused_and_the_assumption_is_stated():
    federation = small_federation(users=6, silos=3)
    facts = PublicFacts(6, 3, 4)
    for name in ("local-sub-dp", "central-sub-dp"):
        release = build(name, max_silos=2, noise_multiplier=1.0).release(facts)
        with pytest.raises(ConfigError, match=r"max_silos: a user has records in more than 2 silos"):
            release.check_counts(federation.counts())
        release.check_counts(np.array([[1, 0], [2, 3], [0, 4]]))
        (assumed,) = [caveat for caveat in release.caveats() if caveat.code == "max-silos"]
        assert "more than 2 silos" in assumed.text and assumed.severity is Severity.WEAKENS
        without = build(name, noise_multiplier=1.0).release(facts)
        assert all(caveat.code != "max-silos" for caveat in without.caveats())


def test_the_statement_says_what_is_sampled_and_what_epsilon_rests_on():
    method = build("local-sub-dp", sampling="items", max_items=5, largest_group=2)
    assert "at most 5 of a subject, of which 2 count in a step" in method.caveats(FACTS)[0].text
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


@pytest.mark.parametrize("name", ["central-sub-dp", "local-sub-dp"])
def test_silos_that_are_not_picked_send_zeros(name):
    fields = {"sample_rate": 0.9} if name == "central-sub-dp" else {}
    server, silos = make_sessions(build(name, rounds=6, fraction=0.67, **fields), small_federation())
    sent = {}
    while requests := server.requests():
        for silo, request in requests.items():
            answer = silos[silo].reply(request)
            body = decode(answer, experiment="d" * 64, silo=silo, limit=10**6)
            if isinstance(body, m.Update):
                sent.setdefault(body.round, []).append(bool(np.frombuffer(body.vector, np.int64).any()))
            server.receive(silo, answer)
        server.collect()
        server.charge()
        server.advance()
    assert [sum(moved) for moved in sent.values()] == [2] * 6


def test_a_silo_refuses_other_numbers_of_picked_silos_than_were_agreed_on():
    server, silos = make_sessions(build("local-sub-dp", rounds=2, fraction=0.34), small_federation())
    step(server, silos)  # the handshake
    ask = m.UpdateRequest(1, m.pack(np.zeros(4)), m.pack_bits(np.ones(3, dtype=np.bool_)))
    before = silos["silo-0"].save()
    with pytest.raises(MessageRefused, match="3 silos were sampled, 1 were agreed on"):
        silos["silo-0"].reply(m.encode("d" * 64, "silo-0", ask))
    assert silos["silo-0"].save() == before


# --- as published: the noise gives the subject away -------------------------------------------------------------


def published(name, **fields):
    return PublishedSettings(algorithm=name, **{"rounds": 1, "clip": 1.0, "epsilon": 2.0, **fields})


def zero_federation(many: int, dimension=4000):
    """Zero features, so that nothing but noise is left; user 0 has ``many`` records in the one silo."""
    users = np.concatenate([np.zeros(many, np.int64), np.arange(1, 9)])
    silo = SiloData("silo-0", np.zeros((len(users), dimension), np.float32), np.zeros(len(users), np.float32), users)
    base = small_federation(users=9, silos=1, dimension=dimension)
    return dataclasses.replace(base, silos=(silo,))


class FromZero(TinyLearner):
    """The model starts at zero, so that what it moves by is the model."""

    def initial(self, streams):
        return np.zeros(self.dimension)


@pytest.mark.parametrize("name", ["central-sub-dp", "local-sub-dp"])
def test_the_size_of_the_noise_tells_a_subject_as_published_and_not_in_our_methods(name):
    dimension = 4000
    local = {"local_steps": 1, "local_lr": 1.0} if name == "local-sub-dp" else {}
    deviations = {}
    for many in (0, 8):
        data = zero_federation(many, dimension)
        outcome = train(published(name, batch_size=16, **local), data, FromZero(dimension), seed=1)
        deviations["published", many] = float(outcome.model.std())
        method = build(name, rounds=1, clip=1.0, noise_multiplier=5.0, **local)
        server, silos = make_sessions(method, data, learner=FromZero(dimension), seed=1)
        drive(server, silos)
        deviations["ours", many] = float(server.model.std())
    error = 5 / math.sqrt(2 * dimension)  # five standard errors of a deviation, relatively
    with_them, without = deviations["published", 8], deviations["published", 0]
    assert with_them > 2 * without  # sigma_8 against sigma_1: one look at one round tells
    assert abs(deviations["ours", 8] / deviations["ours", 0] - 1) < 2 * error


@pytest.mark.parametrize("silos", [1, 3])
def test_published_noise_is_sigma_z_for_every_silo_that_took_part(silos):
    """Without gradients the model is the noise of all silos: sqrt(s) sigma_Z C, divided by s (Algorithm 1)."""
    dimension, size = 20_000, 4
    users = np.repeat(np.arange(4), size)  # a batch of all records: the largest group is ``size``
    zeros = np.zeros((len(users), dimension), np.float32)
    parts = [SiloData(f"silo-{s}", zeros, np.zeros(len(users), np.float32), users) for s in range(silos)]
    empty = dataclasses.replace(parts[0].take(np.zeros(len(users), dtype=bool)), name="empty")  # adds no noise
    data = dataclasses.replace(small_federation(dimension=dimension), silos=(*parts, empty))
    settings_ = published("central-sub-dp", batch_size=16)
    model = train(settings_, data, FromZero(dimension), seed=0).model
    rate = 16 / (16 * silos)
    sigma = published_noise(2.0, 1e-5, size, rate, silos + 1)
    assert sigma == settings_.sigma(size, 16 * silos, settings_.accounted_steps(silos + 1))
    assert sigma > settings_.sigma(1, 16 * silos, settings_.accounted_steps(silos + 1)) > 0
    assert model.std() == pytest.approx(math.sqrt(silos) * sigma / (silos + 1), rel=5 / math.sqrt(2 * dimension))


@pytest.mark.parametrize("name", ["central-sub-dp", "local-sub-dp"])
def test_what_is_published_makes_no_promise_and_says_why(name):
    outcome = train(published(name, batch_size=4, local_steps=2), small_federation(), TinyLearner(4), seed=0)
    told = outcome.to_json()
    assert told["epsilon"] is None and told["claimed_epsilon"] == 2.0
    assert told["guarantee"].startswith("NO GUARANTEE: no finite epsilon holds")
    text = " ".join(told["claimed_and_true"])
    for reason in ("Claimed 2, true: none", "Silos add up", "q is an item's", "fixed size", "D1", "D2", "D3", "D4"):
        assert reason in text


def equal_silos(records, silos=5) -> Federation:
    """So many records in each silo."""
    return small_federation(users=100, silos=silos, records=records)


def test_the_numbers_beside_the_claim_are_those_of_the_accountant():
    """A batch of fixed size lets another item in where one leaves: two clips, so half the noise."""
    local = published("local-sub-dp", rounds=10, local_steps=10, batch_size=8)
    noise = local.sigma(1, 800, 100)
    text = " ".join(claimed_and_true(local, equal_silos(800)))
    for steps, items, says in ((500, 1, "{:.4g} in 5 silos"), (100, 100, "{:.4g} with 100 items")):
        event = Group(items, PoissonSampled(0.01, Gaussian(noise / 2)), 8)
        true = account({event: steps}, 1e-5).value
        assert says.format(true) in text
        found = epsilon_of_fixed_noise(local, 5, noise / 2, 0.01, items=items, of_silos=steps // 100)
        assert found == pytest.approx(true, rel=1e-9)
    central = published("central-sub-dp", rounds=10, batch_size=8)
    noise = central.sigma(1, 4000, 50) * 8 * math.sqrt(5) / 2
    expected = account({Group(5, PoissonSampled(0.01, Gaussian(noise))): 10}, 1e-5).value
    assert f"{expected:.4g} in 5 silos" in " ".join(claimed_and_true(central, equal_silos(800)))


def test_the_claim_is_below_what_a_subject_in_several_silos_faces():
    """LocalSubDP: the same steps in every silo, and the paper counts those of one."""
    local = published("local-sub-dp", rounds=10, local_steps=10, batch_size=8)
    noise = local.sigma(1, 800, local.steps_of_a_silo())
    alone, everywhere = (epsilon_of_fixed_noise(local, 20, noise, 0.01, items=1, of_silos=s) for s in (1, 20))
    assert alone <= local.epsilon < everywhere


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
    """With next to no noise both are plain gradient steps; the published ones are five times smaller, step by step."""
    data = silo_of([3, 3])
    some = SiloData("silo-0", data.features, data.labels, np.arange(6))
    x = np.full(4, 3.0)

    class FromX(TinyLearner):
        def initial(self, streams):
            return x.copy()

    def as_published(lr):
        """The mean change of five silos with the same records."""
        five = tuple(dataclasses.replace(some, name=f"silo-{s}") for s in range(5))
        federation = dataclasses.replace(small_federation(), silos=five)
        fields = {"local_steps": 3, "batch_size": 6, "clip": 20.0, "epsilon": 1e6, "local_lr": lr}
        return train(published("local-sub-dp", **fields), federation, FromX(4), seed=0).model - x

    def ours(lr):
        fields = {"local_steps": 3, "batch_size": 6.0, "clip": 20.0, "items": 1, "local_lr": lr, "record_rate": 1.0}
        return rows_of(build("local-sub-dp", **fields), x, some, TinyLearner(4))[0][1][0]

    assert np.allclose(as_published(0.5), ours(0.1), atol=1e-2)
    assert not np.allclose(as_published(0.5), ours(0.5) / 5, atol=3e-2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"algorithm": "uldp-avg"}, "one of central-sub-dp, local-sub-dp"),
        ({"epsilon": 0.0}, "a positive number"),
        ({"delta": 1.0}, "a probability"),
        ({"batch_size": 2.5}, "whole number"),
        ({"rounds": 0}, "whole number"),
    ],
)
def test_bad_settings_of_the_published_algorithms_get_one_sentence(fields, message):
    with pytest.raises(ConfigError) as caught:
        PublishedSettings(**fields)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["central-sub-dp", "local-sub-dp"])
def test_the_earlier_names_of_the_published_algorithms_say_what_to_run(name):
    with pytest.raises(ConfigError, match=f"`uldp published {name}`"):
        build(f"{name}-published")


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("local-sub-dp", {"sampling": "records"}, "one of subjects, items"),
        ("local-sub-dp", {"items": 0}, "a whole number from 1 to 1,000,000"),
        ("local-sub-dp", {"max_items": 5}, "left out unless"),
        ("local-sub-dp", {"largest_group": 5}, "left out unless"),
        ("local-sub-dp", {"sampling": "items"}, "the public number"),
        ("local-sub-dp", {"sampling": "items", "max_items": 3, "largest_group": 4}, "from 0 (all) to max_items (3)"),
        ("local-sub-dp", {"fraction": 0.0}, "above 0"),
        ("local-sub-dp", {"max_silos": -1}, "from 0 to 10,000"),
        ("central-sub-dp", {"weighting": "loud"}, "one of none, uniform, records"),
        ("central-sub-dp", {"sampling": "private", "sample_rate": 0.5, "fraction": 0.5}, "private sampling"),
    ],
)
def test_bad_settings_get_one_sentence(name, fields, message):
    with pytest.raises(ConfigError) as caught:
        build(name, **fields).release(FACTS).check()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
