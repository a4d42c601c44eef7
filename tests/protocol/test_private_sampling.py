"""Users sampled by oblivious transfer: the right rate, the right sums, and nobody knows who."""

import math

import msgspec
import numpy as np
import pytest
from scipy import stats
from tests.core.test_sessions import DIGEST, ask, build
from tests.support import (
    SMALL_KEY,
    decode,
    drive,
    drive_with_restarts,
    make_aggregation,
    make_plan,
    make_sessions,
    set_model,
    small_federation,
    step,
    step_until,
    with_paillier_weights,
)

from uldp.aggregation import offers, paillier_silo
from uldp.aggregation.base import RoundRequest
from uldp.aggregation.offers import make_offer
from uldp.aggregation.paillier_messages import Choices, ChoicesRequest
from uldp.aggregation.paillier_silo import PaillierSilo
from uldp.crypto.integers import unpack
from uldp.crypto.keys import unseal
from uldp.errors import ConfigError, MessageRefused
from uldp.privacy.accountants import account
from uldp.privacy.releases import Adversary, PublicFacts, views
from uldp.protocol import messages as m
from uldp.rng import Secrets

WIDTH = SMALL_KEY // 4


def method_of(rate=0.5, **options):
    return build("uldp-avg-w", **{"sample_rate": rate, "sampling": "private", **options})


def sessions(rate=0.5, federation=None, aggregation="paillier", key=b"p", **options):
    return make_sessions(
        method_of(rate, **options),
        federation or small_federation(),
        aggregation=aggregation,
        secrets=Secrets.from_key(key * 32),
    )


def until(request, *arguments, **options):
    server, silos = sessions(*arguments, **options)
    step_until(request, server, silos)
    return server, silos


def read(message, silo="silo-0"):
    return decode(message, experiment=DIGEST, silo=silo, limit=10**8)


def opened(server, silo, request):
    """Whose weights open to something else than zero: a test that holds all keys may look."""
    body = read(request, silo.name)
    data = silo.side.opened_weights(RoundRequest(body.round, "", body.weights, server.side.offer(body.round)))
    return np.array([server.side.key.decrypt(c) != 0 for c in unpack(data, WIDTH, silo.plan.facts.users, "x")])


@pytest.mark.parametrize("aggregation", ["paillier", "packed"])
@pytest.mark.parametrize("rate", [0.5, 0.3, 1 / 3])
def test_it_runs_to_the_end_and_saving_changes_nothing(rate, aggregation):
    server, silos = sessions(rate, aggregation=aggregation)
    drive(server, silos)
    assert server.round == 3 and len(server.ledger.entries) == 3
    expected = server.model.tobytes()
    server = drive_with_restarts(lambda: sessions(rate, aggregation=aggregation))
    assert server.model.tobytes() == expected


@pytest.mark.parametrize("rate", [0.5, 0.3])
def test_the_sums_are_those_of_the_same_sample_in_the_clear(rate):
    federation = small_federation(users=12, records=40)
    kind = make_aggregation("paillier", max_records=18)
    server, silos = until(m.UpdateRequest, rate, federation, kind, noise_multiplier=0.0)
    for _ in range(3):
        requests = server.requests()
        samples = [opened(server, silos[name], requests[name]) for name in silos]
        assert all((sample == samples[0]).all() for sample in samples)  # all silos take the same slot
        before = server.model.copy()
        step(server, silos)
        method = build("uldp-avg-w", sample_rate=rate, noise_multiplier=0.0, rounds=1)
        plain, others = make_sessions(with_paillier_weights(method, kind), federation)
        set_model(plain, before)
        plain.sampler.users = lambda round_, sample=samples[0]: sample
        drive(plain, others)
        # truncation of each user in each silo, and the dithers
        unit = server.plan.release.encoding.limit / 2**24
        step_size = 1.0 / (rate * 12 * 3)
        assert np.abs(server.model - plain.model).max() <= (12 * 3 + 12 + 3) * unit * step_size
        if server.round < 3:
            step(server, silos)  # the next choices


@pytest.mark.parametrize(("rate", "slots"), [(0.5, (1, 2)), (0.3, (3, 10)), (1 / 3, (1, 3)), (0.001, (1, 1000))])
def test_the_rate_is_a_ratio_of_slots(rate, slots):
    assert method_of(rate).user_sampling.slots == slots


@pytest.mark.parametrize(("rate", "chosen", "slots"), [(0.5, 1, 2), (0.3, 3, 10)])
def test_the_realised_rate_is_m_of_p(rate, chosen, slots):
    """1200 users and rounds: a rate that is off by 0.08 would be noticed with probability above 0.98."""
    hits = total = 0
    for key in range(2):
        server, silos = until(m.UpdateRequest, rate, small_federation(users=200, records=1), key=bytes([65 + key]))
        for _ in range(3):
            taken = opened(server, silos["silo-0"], server.requests()["silo-0"])
            hits, total = hits + int(taken.sum()), total + len(taken)
            step(server, silos)
            if server.round < 3:
                step(server, silos)
    assert total == 1200
    assert stats.binomtest(hits, total, chosen / slots).pvalue > 0.001


def test_who_is_sampled_changes_from_round_to_round_and_with_either_partys_secrets():
    samples = []
    for key in (b"a", b"b"):
        server, silos = until(m.UpdateRequest, 0.5, small_federation(users=60, records=1), key=key)
        for _ in range(2):
            samples.append(opened(server, silos["silo-0"], server.requests()["silo-0"]).tobytes())
            step(server, silos)
            step(server, silos)
    assert len(set(samples)) == 4


def observed(count):
    """What a silo sees of each user (the place that its slot opens), and whether the user was sampled."""
    places, sampled = [], []
    keys = [bytes([slot]) * 32 for slot in range(4)]
    for trial in range(count):
        stream = Secrets.from_key(b"t" * 32).child(trial).stream()
        offer = make_offer(keys, 1, b"real", b"zero", stream)
        index = trial % 4
        size = (len(offer) - 2 * (4 + 16)) // 4
        places.append(unseal(keys[index], offer[size * index : size * (index + 1)], "x", "does not open")[0])
        sampled.append(offers.open_offer(offer, 4, index, keys[index], "x") == b"real")
    return np.array(places), np.array(sampled)


def test_the_place_that_a_slot_opens_tells_a_silo_nothing(monkeypatch):
    """800 offers of one real slot in four: a leak of the place in one of ten offers would be caught."""
    places, sampled = observed(800)
    assert stats.binomtest(int(sampled.sum()), 800, 0.25).pvalue > 0.001
    table = [[int(((places == p) & (sampled == s)).sum()) for p in (0, 1)] for s in (False, True)]
    assert stats.chi2_contingency(table).pvalue > 0.001

    original = offers.uniform_below
    monkeypatch.setattr(
        offers, "uniform_below", lambda stream, bound, count: [0] if bound == 2 else original(stream, bound, count)
    )
    places, sampled = observed(800)  # a planted leak: the order is not mixed
    table = [[int(((places == p) & (sampled == s)).sum()) for p in (0, 1)] for s in (False, True)]
    assert stats.chi2_contingency(table).pvalue < 1e-6


def server_view(count):
    """Bits of the points that the server gets from ``count`` federations of eight users."""
    bits = []
    for trial in range(count):
        server, silos = until(ChoicesRequest, 0.25, small_federation(users=8, records=2), key=bytes([trial + 1]))
        body = read(silos["silo-0"].reply(server.requests()["silo-0"]))
        points = np.frombuffer(body.points, dtype=np.uint8).reshape(-1, 32)
        bits.append(np.unpackbits(points, axis=1))
    return np.concatenate(bits)


def test_the_points_tell_the_server_nothing_about_the_slots(monkeypatch):
    """Points of users who all choose slot 0 and of users who all choose slot 3 are spread alike, bit by bit."""
    views = {}
    original = paillier_silo.uniform_below
    for index in (0, 3):
        monkeypatch.setattr(
            paillier_silo,
            "uniform_below",
            lambda stream, bound, count, index=index: [index] * count if bound == 4 else original(stream, bound, count),
        )
        views[index] = server_view(30)
    ones = [view.sum(axis=0).astype(float) for view in views.values()]
    size = len(views[0])
    deviations = np.abs(ones[0] - ones[1]) / math.sqrt(size / 2)
    assert deviations.max() < 4.5  # 256 bits: 4.5 deviations happen to one of 500 such tests

    # a planted leak: b is forgotten, so that equal slots give equal points
    respond = PaillierSilo.respond

    def leaking(side, body):
        response = respond(side, body)
        return Choices(1, _without_b(side, body.offer, index)) if isinstance(body, ChoicesRequest) else response

    monkeypatch.setattr(PaillierSilo, "respond", leaking)
    assert len(np.unique(server_view(3), axis=0)) < 8


def _without_b(side, offer, index):
    return offer * side.context.facts.users if index else bytes(32)


def test_a_silo_refuses_an_offer_with_fewer_slots_a_replayed_or_a_changed_one():
    server, silos = until(m.UpdateRequest, 0.25)
    first = read(server.requests()["silo-0"])
    silo = silos["silo-0"]
    before = silo.save()
    size = offers.user_bytes(4, WIDTH)
    slot = 49
    fewer = b"".join(first.weights[i * size : (i + 1) * size][slot:] for i in range(6))
    sealed = bytearray(first.weights)
    for user in range(6):
        for position in range(4):
            sealed[user * size + slot * position] ^= 1
    bad = {"6 users take": fewer, "does not open": bytes(sealed), "weights come": b"", "6 users": first.weights[:-1]}
    for reason, weights in bad.items():
        with pytest.raises(MessageRefused, match=reason):
            silo.reply(ask(msgspec.structs.replace(first, weights=weights)))
        assert silo.save() == before
    step(server, silos)
    step(server, silos)
    replayed = msgspec.structs.replace(read(server.requests()["silo-0"]), weights=first.weights)
    with pytest.raises(MessageRefused, match="does not open"):
        silo.reply(ask(replayed))
    drive(server, silos)
    assert server.round == 3


@pytest.mark.parametrize("point", [b"", bytes(32), bytes(31), (1).to_bytes(32, "little"), b"\xff" * 32])
def test_malformed_points_are_refused_by_both_sides(point):
    server, silos = until(ChoicesRequest)
    silo = silos["silo-0"]
    before = silo.save()
    with pytest.raises(MessageRefused, match="silo-0: a point"):
        silo.reply(ask(ChoicesRequest(1, point)))
    assert silo.save() == before
    server.requests()
    with pytest.raises(MessageRefused, match="silo-0"):
        server.receive("silo-0", ask(Choices(1, point * 6)))
    with pytest.raises(MessageRefused, match="round 2"):
        server.receive("silo-0", ask(Choices(2, point * 6)))
    drive(server, silos)
    assert server.round == 3


def test_silos_that_choose_otherwise_are_refused():
    server, silos = until(ChoicesRequest)
    requests = server.requests()
    server.receive("silo-0", silos["silo-0"].reply(requests["silo-0"]))
    good = read(silos["silo-1"].reply(requests["silo-1"]), "silo-1")
    points = good.points[32:] + good.points[:32]
    server.receive("silo-1", ask(Choices(1, points), silo="silo-1"))
    server.receive("silo-2", silos["silo-2"].reply(requests["silo-2"]))
    with pytest.raises(MessageRefused, match="silo-1: chose other slots than silo silo-0"):
        server.collect()
    drive(server, silos)


def test_a_second_offer_in_a_round_is_out_of_turn_and_hides_the_slot_afresh():
    server, silos = until(ChoicesRequest)
    silo = silos["silo-0"]
    first = read(silo.reply(server.requests()["silo-0"]))
    with pytest.raises(MessageRefused, match="out of turn"):
        silo.reply(ask(ChoicesRequest(1, server.side.offer(2))))
    _, again = until(ChoicesRequest)
    other = read(again["silo-0"].reply(ask(ChoicesRequest(1, server.side.offer(2)))))
    assert first.points != other.points


def test_the_server_and_the_silos_gain_by_amplification():
    release = method_of(0.1, noise_multiplier=5.0, rounds=100).release(PublicFacts(100, 5, 4))
    public = account(views(release, Adversary(), [1] * 100), 1e-5).value
    server = Adversary("server", sees_silo_sums=False, knows_sample=False)
    assert account(views(release, server, [1] * 100), 1e-5).value == pytest.approx(public, rel=1e-9)
    known = Adversary("server", sees_silo_sums=False, knows_sample=True)
    assert account(views(release, known, [1] * 100), 1e-5).value > 10 * public


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sample_rate": 1.0}, "0 < m < P"),
        ({"sample_rate": 0.123456789}, "10 / 81"),
        ({"sample_rate": 0.00001}, "1 / 1000"),
        ({"sample_rate": 0.99999}, "999 / 1000"),
        ({"sample_rate": 0.5, "max_participations": 3}, "nobody can count"),
        ({"sampling": "secret"}, "one of open, private"),
    ],
)
def test_what_cannot_be_sampled_in_private_is_one_sentence(options, says):
    with pytest.raises(ConfigError, match=says):
        method_of(**{"rate": 0.5, **{("rate" if k == "sample_rate" else k): v for k, v in options.items()}})


@pytest.mark.parametrize("aggregation", ["plain", "masked"])
def test_private_sampling_needs_paillier(aggregation):
    with pytest.raises(ConfigError, match="'paillier'"):
        make_plan(method_of(), small_federation(), aggregation=aggregation)
