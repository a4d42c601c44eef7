"""A round repeated without silos: the same noised sums under other masks, charged for the noise that is there."""

import dataclasses

import msgspec
import numpy as np
import pytest
from tests.core.test_sessions import DIGEST, build
from tests.federation.federation_support import saved_state
from tests.support import decode, drive, make_plan, make_sessions, small_federation, step

from uldp.errors import BudgetExhausted, ConfigError, MessageRefused, RunError
from uldp.privacy.accountants import account
from uldp.privacy.ledger import Ledger
from uldp.protocol import messages as m
from uldp.rng import Secrets
from uldp.sessions.server import Stage

SECRETS = Secrets.from_key(b"s" * 32)
KINDS = ["plain", "masked", "lattice"]
GONE = "silo-1"


def sessions(aggregation="masked", silos=4, **options):
    method = build("uldp-avg-w", **{"dropout_tolerance": 2, **options})
    return make_sessions(method, small_federation(silos=silos), aggregation=aggregation, secrets=SECRETS)


def in_round(aggregation="masked", round_=1, **options):
    """Sessions that wait for the updates of a round."""
    server, silos = sessions(aggregation, **options)
    while server.requests() and not (server.round == round_ - 1 and server.stage is Stage.ROUND):
        step(server, silos)
    return server, silos


def attempt(server, silos, without=()):
    """Ask everybody who is asked, but for some who are away."""
    answers = {}
    for name, request in server.requests().items():
        if name not in without:
            answers[name] = silos[name].reply(request)
            server.receive(name, answers[name])
    return answers


def words(reply, silo):
    body = decode(reply, experiment=DIGEST, silo=silo, limit=10**6)
    return np.frombuffer(body.vector, dtype="<u8")


def noised_sum(silo):
    return saved_state(silo)["released"]["noised_sum"]


def finish_round(server):
    server.collect()
    entry = server.charge()
    server.advance()
    return entry


@pytest.mark.parametrize("aggregation", KINDS[:2])  # whose sums are residues
def test_the_total_of_a_repeated_round_is_that_of_the_silos_that_are_there(aggregation):
    server, silos = in_round(aggregation)
    attempt(server, silos, without=[GONE])
    server.exclude([GONE])
    answers = attempt(server, silos)
    assert set(answers) == set(silos) - {GONE}
    noised = [np.frombuffer(noised_sum(silos[name]), dtype="<u8") for name in answers]
    server.collect()
    total = np.frombuffer(saved_state(server)["collected"], dtype="<u8")
    assert np.array_equal(total, np.sum(noised, axis=0, dtype=np.uint64))


@pytest.mark.parametrize("aggregation", KINDS)
def test_a_repeated_round_computes_nothing_anew(aggregation, monkeypatch):
    server, silos = in_round(aggregation)
    first = attempt(server, silos, without=[GONE])
    before = {name: noised_sum(silos[name]) for name in first}
    server.exclude([GONE])
    monkeypatch.setattr(type(server.plan.release), "rows", None)
    second = attempt(server, silos)
    assert {name: noised_sum(silos[name]) for name in second} == before
    for name in second:
        same = np.array_equal(words(first[name], name), words(second[name], name))
        assert same == (aggregation == "plain")  # under masks no word is as it was


def test_under_masks_the_two_attempts_of_a_silo_share_no_mask():
    """Equal masks would show as a difference of zero; fresh ones look uniform."""
    server, silos = in_round(silos=5, dropout_tolerance=3)
    first = attempt(server, silos, without=[GONE])
    server.exclude([GONE])
    second = attempt(server, silos)
    for name in second:
        assert (words(first[name], name) != words(second[name], name)).all()


def test_another_question_in_the_same_round_meets_other_masks():
    """A silo that starts again from an older state could be asked twice: the difference must not be without masks."""

    def answer(aggregation, x):
        _, silos = in_round(aggregation, noise_multiplier=0.0)
        request = m.encode(DIGEST, "silo-0", m.UpdateRequest(1, m.pack(np.full(4, x)), b""))
        return words(silos["silo-0"].reply(request), "silo-0")

    masked, plain = (answer(kind, 0.0) - answer(kind, 1.0) for kind in ("masked", "plain"))
    assert (masked != plain).all()


@pytest.mark.parametrize("aggregation", KINDS)
def test_the_ledger_is_charged_for_the_noise_that_is_there(aggregation):
    server, silos = in_round(aggregation)
    attempt(server, silos, without=[GONE])
    server.exclude([GONE])
    attempt(server, silos)
    entry = finish_round(server)
    release = server.plan.release
    assert entry.event == release.event(3) != release.event(4)
    assert server.silos_heard == (3,)
    drive(server, silos)
    assert server.silos_heard == (3, 4, 4)
    assert [entry.round for entry in server.ledger.entries] == [1, 2, 3]


@pytest.mark.parametrize("aggregation", KINDS)
@pytest.mark.parametrize("computed", [False, True])
def test_a_silo_that_was_left_out_comes_back_in_the_next_round(aggregation, computed):
    server, silos = in_round(aggregation)
    if computed:  # its response got lost on the way
        silos[GONE].reply(server.requests()[GONE])
    attempt(server, silos, without=[GONE])
    server.exclude([GONE])
    assert server.missing_silos == (GONE,)
    attempt(server, silos)
    finish_round(server)
    assert server.missing_silos == ()
    assert set(server.requests()) == set(silos)
    drive(server, silos)
    assert server.round == 3


def test_a_late_answer_of_the_first_attempt_is_not_taken_for_one_of_the_second():
    server, silos = in_round()
    late = {name: silos[name].reply(request) for name, request in server.requests().items()}
    server.exclude([GONE])
    server.requests()
    with pytest.raises(MessageRefused, match="attempt with other silos"):
        server.receive("silo-0", late["silo-0"])
    with pytest.raises(MessageRefused, match="without a request"):
        server.receive(GONE, late[GONE])
    attempt(server, silos)
    finish_round(server)


def asked(server, name, **changes):
    """The server's request to a silo, changed."""
    body = decode(server.requests()[name], experiment=DIGEST, silo=name, limit=10**6)
    return m.encode(DIGEST, name, msgspec.structs.replace(body, **changes))


def bits(*present):
    return m.pack_bits(np.array(present, dtype=np.bool_))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"present": bits(1, 0, 0, 0)}, "needs 2 of them"),
        ({"present": bits(0, 1, 1, 1)}, "left out of"),
        ({"present": bits(1, 1, 1, 1)}, "needs 2 of them"),
        ({"present": b"\x80\x00"}, "1 are expected"),
        ({"present": bits(1, 0, 1, 1), "model": m.pack(np.ones(4))}, "another model or sample"),
        ({"model": m.pack(np.ones(4))}, "another model or sample"),
        ({"round": 3, "sample": b"\xff"}, "sample"),
    ],
)
@pytest.mark.parametrize("aggregation", KINDS)
def test_a_silo_refuses_other_repetitions_and_is_not_changed_by_them(aggregation, changes, reason):
    server, silos = in_round(aggregation)
    silo = silos["silo-0"]
    silo.reply(server.requests()["silo-0"])
    before = silo.save()
    with pytest.raises(MessageRefused, match=reason):
        silo.reply(asked(server, "silo-0", **changes))
    assert silo.save() == before


@pytest.mark.parametrize("present", [bits(1, 0, 0, 0), bits(0, 1, 1, 1)])
def test_the_first_attempt_is_checked_in_the_same_way(present):
    server, silos = in_round()
    with pytest.raises(MessageRefused, match=r"needs 2|left out"):
        silos["silo-0"].reply(asked(server, "silo-0", present=present))


def test_silos_only_become_fewer_within_a_round():
    """A server that leaves out one after the other and lets them come back would learn everybody's noised sum."""
    server, silos = in_round()
    silo = silos["silo-0"]
    silo.reply(server.requests()["silo-0"])
    silo.reply(asked(server, "silo-0", present=bits(1, 0, 1, 1)))
    for present in (bits(1, 1, 0, 1), b""):
        with pytest.raises(MessageRefused, match="does not come back"):
            silo.reply(asked(server, "silo-0", present=present))
    silo.reply(asked(server, "silo-0", present=bits(1, 0, 0, 1)))


def test_a_round_is_not_repeated_after_the_next_one_has_begun():
    server, silos = in_round()
    old = asked(server, "silo-0", present=bits(1, 0, 1, 1))
    attempt(server, silos)
    finish_round(server)
    attempt(server, silos)
    with pytest.raises(MessageRefused, match="not the next one"):
        silos["silo-0"].reply(old)


def test_what_two_attempts_tell_a_server_that_lies():
    """Their difference is the noised sum of whoever was left out: as under plain, and no more than that."""
    server, silos = in_round()
    first = {name: silos[name].reply(request) for name, request in server.requests().items()}
    present = bits(1, 0, 1, 1)
    second = {name: silos[name].reply(asked(server, name, present=present)) for name in silos if name != GONE}
    totals = [
        np.sum([words(reply, name) for name, reply in replies.items()], axis=0, dtype=np.uint64)
        for replies in (first, second)
    ]
    noised = np.frombuffer(noised_sum(silos[GONE]), dtype="<u8")
    assert np.array_equal(totals[0] - totals[1], noised)
    assert server.plan.release.silo_noise_std > 0  # it is not bare


def test_silos_that_were_told_different_sets_cancel_nothing():
    server, silos = in_round()
    told = {"silo-0": bits(1, 0, 1, 1), "silo-2": bits(1, 1, 1, 0), "silo-3": bits(1, 0, 1, 1)}
    vectors = [words(silos[name].reply(asked(server, name, present=present)), name) for name, present in told.items()]
    noised = [np.frombuffer(noised_sum(silos[name]), dtype="<u8") for name in told]
    left = np.sum(vectors, axis=0, dtype=np.uint64) - np.sum(noised, axis=0, dtype=np.uint64)
    assert (np.abs(left.astype(np.int64).astype(float)) > 2.0**40).all()


def test_the_server_does_not_go_below_the_least_number_of_silos():
    server, silos = in_round()
    attempt(server, silos, without=["silo-0", "silo-1", "silo-2"])
    with pytest.raises(RunError, match=r"1 silos are left, and a round needs 2 \(aggregation.min_silos\)"):
        server.exclude(["silo-0", "silo-1", "silo-2"])
    assert set(server.requests()) == {"silo-0", "silo-1", "silo-2"}  # nothing changed
    for name in ("silo-0", "silo-1"):
        server.exclude([name])
        server.requests()
    attempt(server, silos)
    finish_round(server)
    assert server.silos_heard == (2,)


def test_a_round_that_the_budget_does_not_afford_with_fewer_silos_is_not_made():
    method = build("uldp-avg", dropout_tolerance=2, rounds=1)
    server, silos = make_sessions(method, small_federation(silos=4), aggregation="masked", secrets=SECRETS)
    budget = account({server.plan.release.event(4): 1}, 1e-5).value
    server.ledger = Ledger(1e-5, budget * 1.001)
    while server.stage is not Stage.ROUND:
        step(server, silos)
        server.requests()
    with pytest.raises(BudgetExhausted, match="without silo-1 and their noise"):
        server.exclude([GONE])
    attempt(server, silos)
    finish_round(server)


def test_paillier_cannot_go_on_without_a_silo():
    server, silos = in_round("paillier")
    with pytest.raises(RunError, match="under paillier the run cannot go on without a silo"):
        server.exclude([GONE])
    with pytest.raises(MessageRefused, match="needs 4 of them"):
        silos["silo-0"].reply(asked(server, "silo-0", present=bits(1, 0, 1, 1)))


def test_nobody_is_left_out_of_the_setup():
    server, _ = sessions()
    server.requests()
    with pytest.raises(RunError, match="before the first round"):
        server.exclude([GONE])


@pytest.mark.parametrize("aggregation", KINDS)
def test_responses_to_close_may_be_missing(aggregation):
    server, silos = sessions(aggregation, rounds=1)
    while server.round < 1:
        step(server, silos)
    server.requests()
    assert server.stage is Stage.CLOSING
    server.exclude([GONE])
    attempt(server, silos)
    server.collect()
    assert server.requests() == {}


@pytest.mark.parametrize("aggregation", KINDS)
def test_both_sides_may_be_restarted_between_the_attempts(aggregation):
    server, silos = in_round(aggregation)
    attempt(server, silos, without=[GONE])
    server.exclude([GONE])
    saved, states = server.save(), {name: silo.save() for name, silo in silos.items()}
    expected = attempt(server, silos)
    again, others = sessions(aggregation)
    again.restore(saved)
    for name, state in states.items():
        others[name].restore(state)
    assert again.missing_silos == (GONE,)
    assert attempt(again, others) == expected
    again.collect()
    collected = again.save()
    third, _ = sessions(aggregation)
    third.restore(collected)
    assert third.charge() == again.charge()


@pytest.mark.parametrize("aggregation", KINDS)
def test_identical_requests_get_identical_bytes_in_every_attempt(aggregation):
    server, silos = in_round(aggregation)
    request = server.requests()["silo-0"]
    assert silos["silo-0"].reply(request) == silos["silo-0"].reply(request)
    repeated = asked(server, "silo-0", present=bits(1, 0, 1, 1))
    assert silos["silo-0"].reply(repeated) == silos["silo-0"].reply(repeated)


def test_by_default_all_must_be_there_but_those_whose_absence_is_tolerated():
    federation = small_federation(silos=4)
    for tolerance, least in ((0, 4), (1, 3), (2, 2), (3, 2)):
        assert make_plan(build("uldp-avg", dropout_tolerance=tolerance), federation).required_silos == least
    plan = make_plan(build("uldp-avg"), federation)
    assert dataclasses.replace(plan, min_silos=3).required_silos == 3
    for wrong in (1, 5):
        with pytest.raises(ConfigError, match="from 2 to the number of silos"):
            dataclasses.replace(plan, min_silos=wrong)
    with pytest.raises(ConfigError, match="cannot go on without a silo"):
        dataclasses.replace(make_plan(build(), federation, aggregation="paillier"), min_silos=3)


def test_without_repetitions_a_silo_keeps_no_noised_sum():
    server, silos = make_sessions(build(), small_federation(), aggregation="masked", secrets=SECRETS)
    while server.round < 1:
        step(server, silos)
    assert all(saved_state(silo)["released"] is None for silo in silos.values())


def test_the_sum_is_forgotten_when_all_is_over():
    server, silos = sessions()
    drive(server, silos)
    assert all(saved_state(silo)["released"] is None for silo in silos.values())


@pytest.mark.parametrize("aggregation", KINDS)
def test_a_silo_that_starts_again_from_an_older_state_has_one_noised_sum_for_a_round(aggregation):
    """Whatever set of silos it is asked about: another sum would be a second release with fresh noise."""
    server, silos = in_round(aggregation)
    older = silos["silo-0"].save()
    model, sample = m.pack(server.model), b""
    sums = []
    for present in (b"", m.pack_bits(np.array([1, 1, 0, 1], bool)), m.pack_bits(np.array([1, 0, 1, 1], bool))):
        silos["silo-0"].restore(older)
        ask = m.UpdateRequest(1, model, sample, b"", present)
        silos["silo-0"].reply(m.encode(DIGEST, "silo-0", ask))
        sums.append(noised_sum(silos["silo-0"]))
    assert sums[0] == sums[1] == sums[2]
