"""Metrics of hold-out people: exact totals, nothing else told, asked once, and no hold-out person in training."""

import dataclasses

import numpy as np
import pytest
from tests.support import TinyLearner, build, decode, drive, drive_with_restarts, make_sessions, small_federation, step

from uldp.data.federation import Records
from uldp.data.holdout import held_out_places, with_holdout
from uldp.errors import ConfigError, MessageRefused
from uldp.privacy.sentences import MIN_HOLDOUT_PEOPLE
from uldp.protocol import messages as m
from uldp.rng import Secrets, Streams
from uldp.sessions.holdout import MAX_VALUE, SCALE, holdout_means, holdout_sums
from uldp.sessions.server import Stage
from uldp.sessions.silo import Owner

DIGEST = "d" * 64
METHOD = build("uldp-avg-w", rounds=2, noise_multiplier=5.0)
AGGREGATIONS = ("plain", "masked", "lattice", "paillier")


def federation(users=80, records=200, fraction=0.4, **fields):
    return with_holdout(small_federation(users=users, records=records, **fields), fraction, Streams.from_seed(0))


def sessions(aggregation="masked", data=None, **fields):
    return make_sessions(METHOD, data or federation(), aggregation=aggregation, **fields)


def until_measured(server, silos):
    """Everything up to the request for metrics."""
    while True:
        requests = server.requests()
        if server.stage is Stage.METRICS:
            return requests
        for name, request in requests.items():
            server.receive(name, silos[name].reply(request))
        server.collect()
        server.charge()
        server.advance()


def body_of(message, name):
    return decode(message, experiment=DIGEST, silo=name, limit=10**7)


# --- who is held out


def test_a_person_is_held_out_in_all_silos_or_in_none():
    whole = small_federation(users=200, records=900)
    split = with_holdout(whole, 0.3, Streams.from_seed(7))
    kept = {int(user) for silo in split.silos for user in silo.users}
    held = {int(user) for silo in split.holdout for user in silo.users}
    assert not kept & held
    assert 0.2 < len(held) / len(kept | held) < 0.4
    for before, silo, other in zip(whole.silos, split.silos, split.holdout, strict=True):
        assert len(silo) + len(other) == len(before)
        assert silo.name == other.name == before.name


def test_nobody_s_coming_or_going_moves_anybody_else():
    users = np.arange(500)
    chosen = held_out_places(users, 0.3, Streams.from_seed(1))
    for part in (users[::7], users[::-1], np.repeat(users, 2)):
        assert (held_out_places(part, 0.3, Streams.from_seed(1)) == chosen[part]).all()
    assert (held_out_places(users, 0.3, Streams.from_seed(2)) != chosen).any()


def test_without_a_fraction_nothing_is_held_out():
    whole = small_federation()
    split = with_holdout(whole, 0.0, Streams.from_seed(0))
    assert split.holdout == ()
    assert [silo.digest() for silo in split.silos] == [silo.digest() for silo in whole.silos]


# --- totals


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_metrics_are_those_of_all_hold_out_records_together(aggregation):
    data = federation()
    server, silos = sessions(aggregation, data)
    drive(server, silos)
    features = np.concatenate([silo.features for silo in data.holdout])
    labels = np.concatenate([silo.labels for silo in data.holdout])
    values = TinyLearner(4).record_metrics(server.model, Records(features, labels)).mean(axis=0)
    assert server.metrics["holdout_records"] == len(labels)
    assert server.metrics["holdout_loss"] == pytest.approx(values[0], abs=2 / SCALE)
    assert server.metrics["holdout_mae"] == pytest.approx(3 * values[1], abs=6 / SCALE)


@pytest.mark.parametrize("aggregation", AGGREGATIONS[1:])
def test_totals_under_masks_are_the_sums_that_plain_shows_exactly(aggregation):
    """At the same model: the residues of a silo say nothing, and those of all are the total, bit by bit."""
    data = federation()
    residues = {}
    for name in ("plain", aggregation):
        server, silos = sessions(name, data)
        until_measured(server, silos)
        request = m.MetricsRequest(2, m.pack(np.ones(4)))
        answers = {s: body_of(silos[s].reply(m.encode(DIGEST, s, request)), s).sums for s in silos}
        residues[name] = np.stack([m.unpack_residues(answer, 3, "x") for answer in answers.values()])
    assert (residues["plain"].sum(axis=0) == residues[aggregation].sum(axis=0)).all()
    assert (residues["plain"] != residues[aggregation]).all()
    assert (residues["plain"][:, 2] == [len(silo) for silo in data.holdout]).all()
    # Each masked residue is uniform modulo 2^64: of nine, some are far beyond any sum.
    assert (residues[aggregation] > 2**60).any()


def test_masks_of_metrics_are_bound_to_the_model_that_is_asked_about():
    answers = []
    for x in (np.ones(4), np.zeros(4)):
        server, silos = sessions(data=federation(fraction=0.01))  # sums are zero: what is seen is the mask
        until_measured(server, silos)
        answers.append(
            body_of(silos["silo-0"].reply(m.encode(DIGEST, "silo-0", m.MetricsRequest(2, m.pack(x)))), "silo-0")
        )
    assert answers[0].sums != answers[1].sums


def test_other_hold_out_records_have_other_keys():
    """Else two different sums would lie under one mask, and their difference would show."""
    data = federation()
    changed = dataclasses.replace(data, holdout=(data.holdout[0].take(slice(1, None)), *data.holdout[1:]))
    keys = []
    for each in (data, changed):
        server, silos = sessions(data=each, secrets=Secrets.from_key(b"k" * 32))
        step(server, silos)
        request = server.requests()["silo-0"]
        keys.append(body_of(silos["silo-0"].reply(request), "silo-0").public)
    assert keys[0] != keys[1]


def test_a_value_that_is_no_number_counts_as_the_largest():
    class Broken(TinyLearner):
        def record_metrics(self, x, records):
            values = np.zeros((len(records), 2))
            values[0] = (np.nan, np.inf)
            values[1] = (-1.0, 1e300)
            return values

    sums = holdout_sums(np.zeros(4), federation().holdout[0], Broken(4), TinyLearner.mean_metrics)
    assert sums[0] == MAX_VALUE * SCALE
    assert sums[1] == 2 * MAX_VALUE * SCALE


@pytest.mark.parametrize("total", [[-1, 0, 5], [0, 0, -5], [1, 0, 0], [2**62, 0, 2**10], [0, 0, 2**40]])
def test_a_total_that_cannot_be_one_is_no_metric(total):
    assert holdout_means(np.array(total), TinyLearner.mean_metrics) is None


# --- few people


def test_a_silo_with_few_hold_out_people_counts_none_of_them():
    data = federation()
    few = np.unique(data.holdout[1].users)[: MIN_HOLDOUT_PEOPLE - 1]
    small = data.holdout[1].take(np.isin(data.holdout[1].users, few))
    assert len(small) >= MIN_HOLDOUT_PEOPLE - 1
    data = dataclasses.replace(data, holdout=(data.holdout[0], small, data.holdout[2]))
    server, silos = sessions(data=data)
    drive(server, silos)
    assert server.metrics["holdout_records"] == len(data.holdout[0]) + len(data.holdout[2])


def test_silos_without_hold_out_records_answer_like_the_others():
    nobody = tuple(silo.take(np.zeros(len(silo), dtype=bool)) for silo in federation().holdout)
    server, silos = sessions(data=dataclasses.replace(federation(), holdout=nobody))
    drive(server, silos)
    assert server.round == 2
    assert server.metrics == {}


# --- training


@pytest.mark.parametrize("name", ["uldp-avg", "uldp-avg-w", "uldp-sgd", "uldp-naive", "uldp-group", "record-dp"])
def test_removing_a_hold_out_person_changes_no_update(name):
    """Their records reach no sum, no count, no weight and no noise; only the metrics know them."""
    fields = {"group_size": 2} if name == "uldp-group" else {}
    method = build(name, rounds=2, noise_multiplier=5.0, **fields)
    data = federation()
    person = int(data.holdout[0].users[0])
    sent = []
    for each in (data, data.without(person)):
        server, silos = make_sessions(method, each, secrets=Secrets.from_key(b"k" * 32))
        answers = []
        while requests := server.requests():
            for silo, request in requests.items():
                answer = silos[silo].reply(request)
                answers.append((server.stage is Stage.METRICS, answer))
                server.receive(silo, answer)
            server.collect()
            server.charge()
            server.advance()
        sent.append(answers)
    for (measuring, one), (_, other) in zip(*sent, strict=True):
        assert measuring or one == other
    assert any(one != other for (_, one), (_, other) in zip(*sent, strict=True))


# --- when it is asked


def test_it_is_asked_once_at_the_end_and_no_round_comes_after():
    server, silos = sessions()
    requests = until_measured(server, silos)
    assert server.round == 2
    silo = silos["silo-0"]
    first = silo.reply(requests["silo-0"])
    assert silo.reply(requests["silo-0"]) == first
    for request in (m.MetricsRequest(2, m.pack(np.zeros(4))), m.UpdateRequest(2, m.pack(np.zeros(4)), b"")):
        with pytest.raises(MessageRefused, match="out of turn: a silo that is measured takes Close"):
            silo.reply(m.encode(DIGEST, "silo-0", request))


def test_it_is_not_asked_where_the_experiment_does_not_say_so():
    server, silos = make_sessions(METHOD, small_federation(), aggregation="masked")
    while server.round < 2:
        step(server, silos)
    with pytest.raises(MessageRefused, match="out of turn"):
        silos["silo-0"].reply(m.encode(DIGEST, "silo-0", m.MetricsRequest(2, m.pack(np.zeros(4)))))


@pytest.mark.parametrize("round_", [0, 1, 3])
def test_another_round_is_refused(round_):
    server, silos = sessions()
    until_measured(server, silos)
    with pytest.raises(MessageRefused, match=f"after round {round_} of 2; the last one here was 2"):
        silos["silo-0"].reply(m.encode(DIGEST, "silo-0", m.MetricsRequest(round_, m.pack(np.zeros(4)))))


def test_it_is_not_answered_before_a_round_was():
    server, silos = sessions()
    while server.stage is not Stage.ROUND:
        for name, request in server.requests().items():
            if server.stage is not Stage.ROUND:
                server.receive(name, silos[name].reply(request))
        if server.stage is not Stage.ROUND:
            server.collect()
    with pytest.raises(MessageRefused, match="after round 1 of 2; the last one here was 0"):
        silos["silo-0"].reply(m.encode(DIGEST, "silo-0", m.MetricsRequest(1, m.pack(np.zeros(4)))))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_saving_and_restoring_after_every_exchange_changes_nothing(aggregation):
    server, silos = sessions(aggregation)
    drive(server, silos)
    again = drive_with_restarts(lambda: sessions(aggregation))
    assert again.metrics == server.metrics != {}
    assert again.model.tobytes() == server.model.tobytes()


# --- without a silo


def test_without_one_silo_there_are_no_metrics_and_nobody_is_asked_again():
    """Two totals over different silos would show the difference: the sums of one."""
    server, silos = sessions()
    requests = until_measured(server, silos)
    for name in ("silo-0", "silo-1"):
        server.receive(name, silos[name].reply(requests[name]))
    server.exclude(["silo-2"])
    assert server.stage is not Stage.METRICS
    server.requests()
    assert server.stage is Stage.CLOSING
    drive(server, silos)
    assert server.metrics == {}
    assert all(silo.closed for silo in silos.values())


def test_an_owner_may_forbid_it():
    server, silos = sessions()
    requests = until_measured(server, silos)
    silo = sessions(owners={"silo-1": Owner(allow_metrics=False)})[1]["silo-1"]
    silo.restore(silos["silo-1"].save())
    before = silo.save()
    with pytest.raises(MessageRefused, match=r"its owner does not allow metrics .* \(policy.allow_metrics\)"):
        silo.reply(requests["silo-1"])
    assert silo.save() == before
    silo.reply(m.encode(DIGEST, "silo-1", m.Close()))
    assert silo.closed


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (m.Metrics(1, bytes(24)), "after round 1, not 2"),
        (m.Metrics(2, bytes(16)), "24 are expected"),
        (m.Closed(), "Metrics is expected"),
    ],
)
def test_the_server_refuses_a_bad_answer(answer, reason):
    server, silos = sessions()
    until_measured(server, silos)
    with pytest.raises(MessageRefused, match=reason):
        server.receive("silo-0", m.encode(DIGEST, "silo-0", answer))
    drive(server, silos)
    assert server.metrics


def test_masks_that_do_not_cancel_give_no_metric_and_do_not_stop_the_run():
    server, silos = sessions()
    requests = until_measured(server, silos)
    for name, request in requests.items():
        silos[name].reply(request)
        server.receive(name, m.encode(DIGEST, name, m.Metrics(2, m.pack(np.full(3, 2**62, dtype=np.uint64)))))
    server.collect()
    drive(server, silos)
    assert server.metrics == {}
    assert server.round == 2


def test_clients_that_trust_nobody_are_not_asked():
    with pytest.raises(ConfigError, match="local DP trusts no server"):
        make_sessions(build("ldp-fedavg", rounds=2), federation())
