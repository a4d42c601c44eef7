"""ULDP-NAIVE, ULDP-GROUP and record-level DP: how far one user moves what is sent, and the noise that is there."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.guarantees.adversary import OwnCoordinates, federation_of
from tests.support import (
    TinyLearner,
    build,
    decode,
    drive,
    hello,
    make_plan,
    make_sessions,
    noiseless_total,
    rows_of,
    small_federation,
)

from uldp.data.federation import Federation, Records, SiloData, Task
from uldp.errors import ConfigError, MessageRefused
from uldp.mechanisms.gaussian import sample_gaussian
from uldp.privacy.accountants import account
from uldp.privacy.events import Gaussian, Group, NonPrivate, PoissonSampled, Repeated, Spread
from uldp.privacy.releases import Adversary, PublicFacts, views
from uldp.privacy.releases.counts import keep_counts
from uldp.privacy.releases.noised_model import selected_records
from uldp.rng import Secrets, Streams
from uldp.sessions.silo import SiloSession

FACTS = PublicFacts(users=100, silos=5, dimension=4)


# --- ULDP-NAIVE -----------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 10_000), user=st.integers(0, 5), scale=st.sampled_from([0.01, 1.0, 1e3, 1e30]))
@settings(max_examples=60)
def test_naive_one_user_moves_the_sum_by_at_most_two_clips_per_silo(seed, user, scale):
    federation = small_federation(seed=seed, scale=scale)
    method = build("uldp-naive", clip=0.1, local_epochs=3, local_lr=0.1)
    x = np.random.default_rng(seed).normal(size=4)
    with np.errstate(all="ignore"):
        whole = noiseless_total(method, federation, TinyLearner(4), x)
        without = noiseless_total(method, federation.without(user), TinyLearner(4), x)
    moved = sum((a - b) ** 2 for a, b in zip(whole, without, strict=True))
    assert moved <= (2 * len(federation.silos) * method.release(FACTS).encoding.integer_limit) ** 2


def test_naive_two_clips_per_silo_are_attained_so_the_papers_bound_is_too_small():
    """User 0's records outweigh the others' and pull the other way, in every silo."""
    silos = tuple(
        SiloData(
            f"silo-{s}", np.ones((3, 1), np.float32), np.array([-100.0, 1.0, 1.0], np.float32), np.array([0, 1, 2])
        )
        for s in range(3)
    )
    federation = Federation("opposed", silos, 3, Task(0), Records(np.ones((1, 1), np.float32), np.ones(1, np.float32)))
    method = build("uldp-naive", clip=0.1, local_epochs=1, local_lr=1.0)
    with_user = noiseless_total(method, federation, TinyLearner(1), np.zeros(1))
    without = noiseless_total(method, federation.without(0), TinyLearner(1), np.zeros(1))
    assert abs(with_user[0] - without[0]) > 0.999 * 2 * 3 * method.release(FACTS).encoding.integer_limit


def test_naive_realised_noise_of_the_mean_is_sigma_times_clip():
    dimension = 20_000
    federation = small_federation(users=8, silos=3, dimension=2, records=12)
    zero = tuple(dataclasses.replace(s, features=np.zeros((len(s), dimension), np.float32)) for s in federation.silos)
    federation = dataclasses.replace(
        federation,
        silos=zero,
        test=dataclasses.replace(federation.test, features=np.zeros((20, dimension), np.float32)),
    )
    method = build("uldp-naive", rounds=1, noise_multiplier=5.0, clip=0.3)
    server, silos = make_sessions(method, federation, learner=TinyLearner(dimension))
    before = server.model.copy()
    drive(server, silos)
    noise = server.model - before
    assert noise.var() == pytest.approx((5.0 * 0.3) ** 2, rel=5 * math.sqrt(2 / dimension))


def test_naive_numbers_of_the_statement():
    method = build("uldp-naive", noise_multiplier=5.0)
    release = method.release(FACTS)
    assert account({release.event(5): 100}, 1e-5).value == pytest.approx(24.38, abs=6e-3)
    seen = views(release, Adversary("server"), [1] * 100)
    assert account(seen, 1e-5).value == pytest.approx(24.38, abs=6e-3)
    # a silent silo takes its noise with it, and what a user could have moved in it
    assert account({release.event(4): 100}, 1e-5).value < 24.38
    assert method.release(PublicFacts(100, 1, 4)).view(Adversary("silos")) == NonPrivate()


# --- ULDP-GROUP: which records take part ----------------------------------------------------------------------

counts_matrices = st.lists(st.lists(st.integers(0, 40), min_size=3, max_size=3), min_size=1, max_size=8)


@given(counts=counts_matrices, size=st.integers(1, 30))
def test_group_keeps_at_most_k_of_a_user_and_drops_nothing_it_need_not(counts, size):
    counts = np.array(counts).T
    kept = keep_counts(counts, size)
    assert (kept <= counts).all() and (kept >= 0).all()
    assert (kept.sum(axis=0) == np.minimum(counts.sum(axis=0), size)).all()


@given(counts=counts_matrices, size=st.integers(1, 30), user=st.integers(0, 7))
def test_group_one_users_counts_change_nobody_elses_share(counts, size, user):
    counts = np.array(counts).T
    user %= counts.shape[1]
    without = counts.copy()
    without[:, user] = 0
    others = np.arange(counts.shape[1]) != user
    assert (keep_counts(counts, size)[:, others] == keep_counts(without, size)[:, others]).all()


@given(seed=st.integers(0, 1000), size=st.integers(1, 6), user=st.integers(0, 5))
@settings(max_examples=50)
def test_group_removing_a_user_takes_away_at_most_k_records_and_nobody_elses(seed, size, user):
    federation = small_federation(seed=seed, records=25)
    release = build("uldp-group", group_size=size).release(PublicFacts(federation.users, 3, 4))

    def taking_part(fed):
        told = release.exchange.totals(fed.counts())
        kept = [release.select(s, told[i], Streams.from_seed(3).child(i)) for i, s in enumerate(fed.silos)]
        return {(s.name, row.tobytes()): int(u) for s in kept for row, u in zip(s.features, s.users, strict=True)}

    before, after = taking_part(federation), taking_part(federation.without(user))
    assert after.items() <= before.items()
    gone = before.keys() - after.keys()
    assert len(gone) <= size
    assert {before[record] for record in gone} <= {user}


def test_group_flags_do_not_depend_on_where_other_records_stand():
    users = np.array([0, 1, 0, 2, 0, 1, 1, 1])
    told = np.array([2, 2, 1])
    streams = Streams.from_seed(0)
    whole = selected_records(users, told, streams)
    without = selected_records(users[users != 2], told, streams)
    assert (whole[users != 2] == without).all()
    assert [int(whole[users == u].sum()) for u in range(3)] == [2, 2, 1]


def test_group_median_and_max_are_read_from_users_who_have_records():
    totals = np.array([0, 1, 2, 9, 0])
    for name, size in (("uldp-group-median", 2), ("uldp-group-max", 9), ("uldp-group-8", 8)):
        release = build(name, noise_multiplier=1.0).for_data(totals).release(FACTS)
        assert release.group_size == release.exchange.size == size
        assert release.event(5).event.size == size
    fitted = build("uldp-group-max").for_data(totals)
    assert any("read from the data" in caveat.text for caveat in fitted.caveats(FACTS))
    with pytest.raises(ConfigError, match="depends on the data"):
        build("uldp-group-max", noise_multiplier=1.0).release(FACTS)


def test_group_a_server_cannot_have_more_records_kept_than_agreed():
    exchange = build("uldp-group", group_size=2).release(FACTS).exchange
    exchange.check(np.array([1, 5]), np.array([1, 2]))
    for told in ([2, 2], [1, 3]):
        with pytest.raises(MessageRefused):
            exchange.check(np.array([1, 5]), np.array(told))


# --- DP-SGD ---------------------------------------------------------------------------------------------------


def test_dp_sgd_clips_every_record_and_divides_by_the_public_number():
    federation = small_federation(silos=1, records=10, scale=3.0)
    data, x = federation.silos[0], np.ones(4)
    method = build("record-dp", clip=0.5, local_steps=2, local_lr=0.2, record_rate=1.0, batch_size=7.0)
    ((_, sent),) = rows_of(method, x, data, TinyLearner(4))
    now = x.copy()
    for _ in range(2):
        gradients = data.features.astype(float) * (data.features @ now - data.labels)[:, None]
        norms = np.linalg.norm(gradients, axis=1)
        assert (norms > 0.5).any()
        now = now - 0.2 / 7.0 * (gradients * np.minimum(1, 0.5 / norms)[:, None]).sum(axis=0)
    assert sent[0] == pytest.approx(now - x, abs=1e-12)


def test_dp_sgd_noise_is_sigma_times_clip_in_every_step_even_without_records():
    empty = small_federation(silos=1, dimension=2).silos[0].take(np.zeros(30, dtype=bool))
    empty = dataclasses.replace(empty, features=np.zeros((0, 20_000), np.float32))
    method = build("uldp-group", noise_multiplier=3.0, clip=0.5, local_steps=4, local_lr=0.2, batch_size=2.0)
    start = np.zeros(20_000)
    ((_, sent),) = rows_of(method, start, empty, TinyLearner(20_000))
    assert sent[0].var() == pytest.approx(4 * (0.2 / 2.0 * 3.0 * 0.5) ** 2, rel=5 * math.sqrt(2 / 20_000))


def test_dp_sgd_a_record_without_a_finite_gradient_counts_as_nothing():
    data = small_federation(silos=1, records=5).silos[0]
    spoiled = dataclasses.replace(data, features=np.where(np.arange(5)[:, None] == 2, np.float32("nan"), data.features))
    rest = data.take(np.arange(5) != 2)
    method = build("record-dp", record_rate=1.0, local_steps=3)
    sent = [rows_of(method, np.ones(4), each, TinyLearner(4))[0][1] for each in (spoiled, rest)]
    assert np.isfinite(sent[0]).all()
    assert sent[0] == pytest.approx(sent[1])


def test_gaussian_samples_follow_the_normal_distribution():
    from scipy import stats

    samples = sample_gaussian(2.0, 100_001, Secrets.simulated_from_seed(0).stream())
    assert len(samples) == 100_001
    assert stats.kstest(samples / 2.0, "norm").pvalue > 1e-3
    halves = len(samples) // 2
    assert abs(np.corrcoef(samples[:halves], samples[halves : 2 * halves])[0, 1]) < 5 / math.sqrt(halves)


def test_dp_sgd_events():
    step = PoissonSampled(0.05, Gaussian(2.0))
    record = build("record-dp", noise_multiplier=2.0, local_steps=30)
    group = build("uldp-group", noise_multiplier=2.0, local_steps=30, group_size=4)
    assert record.release(FACTS).event(5) == Repeated(30, step)
    released = group.release(FACTS)
    assert released.event(5) == Repeated(30, Group(4, step))
    # every silo adds all of its noise: nobody else's is missing from it
    for adversary in (Adversary("server"), Adversary("silos", colluding=3), Adversary(dropped=2)):
        assert released.view(adversary) == released.event(5)
    assert build("uldp-group").release(FACTS).event(5) == NonPrivate()


def test_dp_sgd_silos_have_rates_and_steps_of_their_own():
    federation = small_federation(silos=3)
    names = tuple(silo.name for silo in federation.silos)
    facts = PublicFacts(100, 3, 20_000, silo_names=names)
    settings_ = {"noise_multiplier": 3.0, "record_rate": (0.1, 0.2, 0.1), "local_steps": (8, 2, 8)}
    release = build("uldp-group", group_size=2, clip=0.5, local_lr=0.2, batch_size=2.0, **settings_).release(facts)
    release.check()
    steps = [(8, PoissonSampled(0.1, Gaussian(3.0))), (2, PoissonSampled(0.2, Gaussian(3.0)))]
    assert release.event(3) == Spread(2, (steps[0], steps[1], steps[0]))
    for silo, number in zip(federation.silos, (8, 2, 8), strict=True):
        empty = dataclasses.replace(silo.take(np.zeros(len(silo), dtype=bool)), features=np.zeros((0, 20_000), "f4"))
        args = (TinyLearner(20_000), Streams.from_seed(0), Secrets.simulated_from_seed(0))
        ((_, sent),) = release.rows(build("uldp-group"), np.zeros(20_000), empty, *args)
        assert sent[0].var() == pytest.approx(number * (0.2 / 2.0 * 3.0 * 0.5) ** 2, rel=5 * math.sqrt(2 / 20_000))
    alike = dataclasses.replace(release, rate=(0.1, 0.1, 0.1), steps=8)
    assert alike.event(3) == dataclasses.replace(release, rate=0.1, steps=8).event(3)
    with pytest.raises(ConfigError, match="one for each of the 3 silos"):
        dataclasses.replace(release, rate=(0.1, 0.2)).check()
    with pytest.raises(ConfigError, match="one number for all silos"):
        build("local-sub-dp", record_rate=(0.1, 0.2))


@pytest.mark.parametrize(
    ("fields", "location"),
    [
        ({"group_size": 0}, "group_size"),
        ({"record_rate": (0.1, 1.5)}, "record_rate"),
        ({"group_size": "mean"}, "group_size"),
        ({"record_rate": 0.0}, "record_rate"),
        ({"local_steps": 0}, "local_steps"),
        ({"batch_size": 0}, "batch_size"),
        ({"dropout_tolerance": 1}, "dropout_tolerance"),
        ({"noise_multiplier": 1e-200}, "noise_multiplier"),
        ({"record_rate": 1e-300}, "record_rate"),
        ({"group_size": 10**9}, "group_size"),
    ],
)
def test_bad_settings(fields, location):
    with pytest.raises(ConfigError, match=location):
        build("uldp-group", **fields)


def test_methods_that_send_one_row_per_silo_take_any_number_of_users():
    for name in ("fedavg", "uldp-naive", "uldp-group", "record-dp"):
        method = build(name, **({} if name == "fedavg" else {"noise_multiplier": 5.0}))
        method.release(PublicFacts(10_000_000, 5, 10)).check()


def test_naive_refuses_to_compensate_for_silos_whose_absence_costs_nothing():
    with pytest.raises(ConfigError, match="dropout_tolerance"):
        build("uldp-naive", dropout_tolerance=1)


def test_naive_a_model_that_raises_on_one_record_tells_nothing():
    class Raises(TinyLearner):
        def silo_delta(self, x, data, local, streams):
            raise RuntimeError("a record with a value above 50")

    method = build("uldp-naive", clip=0.1)
    assert noiseless_total(method, small_federation(), Raises(4), np.ones(4)) == [0, 0, 0, 0]


def test_noise_inside_a_silo_is_never_used_for_two_different_releases():
    """With secrets from the OS: other kept records, or a sum that was rounded otherwise, get other noise."""
    federation = small_federation(records=20)
    method = build("uldp-group", rounds=1, group_size=3, noise_multiplier=1e6, local_steps=1, record_rate=1.0)
    key = Secrets.from_os()

    def sent(kept_less, scale=1.0):
        from uldp.protocol import messages as m

        data = dataclasses.replace(federation.silos[0], features=federation.silos[0].features)
        plan = make_plan(method, federation)

        class Rounded(TinyLearner):
            def clipped_sums(self, data, clip):
                exact = super().clipped_sums(data, clip)
                return lambda *arguments: exact(*arguments) * scale

        silo = SiloSession(plan, data, Rounded(4), Streams.from_seed(0), key)
        told = np.minimum(data.counts(6), 1)
        told[0] -= kept_less

        def ask(body):
            return decode(
                silo.reply(m.encode(plan.digest, data.name, body)), experiment=plan.digest, silo=data.name, limit=10**6
            )

        for body in (hello(), m.CountsRequest(), m.UserTotals(m.pack(told))):
            ask(body)
        return np.frombuffer(ask(m.UpdateRequest(1, m.pack(np.ones(4)), b"")).vector, dtype="<i8").astype(float)

    unit = method.release(FACTS).encoding.integer_limit / method.value_range * method.local_lr / method.batch_size
    assert (sent(0) == sent(0)).all()
    for other in (sent(1), sent(0, 1 + 1e-12)):
        # one record moves the sum by at most the clip; the noise is a million times that
        assert np.abs(sent(0) - other).max() / unit > 100 * method.clip


def test_batches_are_never_used_for_two_different_releases():
    """Another model, other records, others of them kept, or other settings draw anew."""
    users = 200

    def batch(x=0.0, label=0.0, keep=users, **settings):
        from uldp.protocol import messages as m

        method = build("uldp-group", rounds=1, group_size=3, noise_multiplier=1.0, record_rate=0.5, local_steps=1)
        federation = federation_of(np.ones((1, users), dtype=int))
        data = dataclasses.replace(federation.silos[0], labels=np.full(users, label, np.float32))
        learner = OwnCoordinates(4)
        plan = make_plan(dataclasses.replace(method, **settings), federation)
        silo = SiloSession(plan, data, learner, Streams.from_seed(0), Secrets.from_key(b"k" * 32))
        told = (np.arange(users) < keep).astype(np.int64)
        for body in (
            hello(1, users),
            m.CountsRequest(),
            m.UserTotals(m.pack(told)),
            m.UpdateRequest(1, m.pack(np.full(4, x)), b""),
        ):
            silo.reply(m.encode(plan.digest, data.name, body))
        return np.isin(np.arange(100), learner.batches[data.name][0])

    first = batch()
    assert (batch() == first).all()
    for other in (batch(x=1.0), batch(label=1.0), batch(keep=users - 1), batch(clip=2.0)):
        assert abs(np.corrcoef(first, other)[0, 1]) < 5 / math.sqrt(100)
