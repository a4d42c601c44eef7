"""What goes wrong on the way is refused, the silo is named, nothing changes, nothing is charged."""

import dataclasses
import functools

import msgspec
import numpy as np
import pytest
from tests.core.test_sessions import DIGEST, ask, build
from tests.support import NO_OWNERS, TinyLearner, decode, drive, make_sessions, small_federation, step_until

from uldp.aggregation.key_agreement import KeyRequest, SealedSeeds, SiloKeys
from uldp.aggregation.paillier_messages import BlindedShares, EncryptedWeights, SealedSeed
from uldp.crypto.integers import pack, unpack
from uldp.errors import ConfigError, MessageRefused, RunError
from uldp.protocol import messages as m
from uldp.protocol.turns import Phase
from uldp.rng import Secrets, Streams
from uldp.sessions.server import Stage
from uldp.sessions.silo import Owner, ReleaseGuard, SiloSession, signing_key

WIDTH = 128  # bytes of a ciphertext under a key of 512 bits


def sessions(aggregation="paillier", owners=NO_OWNERS, **options):
    method = build("uldp-avg-w", **options)
    return make_sessions(method, small_federation(), aggregation=aggregation, owners=owners)


def until(request, aggregation="paillier", owners=NO_OWNERS, **options):
    """A server that waits for the responses to ``request``, and its silos."""
    server, silos = sessions(aggregation, owners, **options)
    step_until(request, server, silos)
    return server, silos


def answers(server, silos):
    return {
        name: decode(silos[name].reply(request), experiment=DIGEST, silo=name, limit=10**7)
        for name, request in server.requests().items()
    }


def refused(server, name, body, reason):
    """The server refuses ``body``, and is as it was."""
    model, entries = server.model.tobytes(), server.ledger.entries
    with pytest.raises(MessageRefused, match=reason) as error:
        server.receive(name, ask(body, silo=name))
    assert name in str(error.value)
    assert (server.model.tobytes(), server.ledger.entries) == (model, entries)


def goes_on(server, silos):
    drive(server, silos)
    assert server.round == 3


@pytest.mark.parametrize("aggregation", ["masked", "paillier", "lattice"])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"public": bytes(32)}, "signature"),
        ({"public": b"short"}, "wrong length"),
        ({"signature": bytes(64)}, "signature"),
        ({"signature": b""}, "wrong length"),
    ],
)
def test_the_server_refuses_a_key_without_the_right_signature(aggregation, change, reason):
    server, silos = until(KeyRequest, aggregation)
    key = answers(server, silos)["silo-1"]
    refused(server, "silo-1", msgspec.structs.replace(key, **change), reason)
    refused(server, "silo-1", answers(server, silos)["silo-0"], "signature")
    goes_on(server, silos)


def relayed(server, **changes):
    return ask(msgspec.structs.replace(server.side.ask(SiloKeys, "silo-0"), **changes))


@pytest.mark.parametrize("aggregation", ["masked", "paillier", "lattice"])
def test_a_silo_notices_a_server_that_puts_its_own_key_in_between(aggregation):
    server, silos = until(SiloKeys, aggregation)
    keys = server.side.ask(SiloKeys, "silo-0")
    eve = signing_key(Secrets.from_key(b"e" * 32), 0)
    stranger = bytes(range(32))
    modulus = server.side.ask(KeyRequest, "silo-0").modulus
    forged = eve.sign("uldp key agreement", DIGEST, "silo-1", modulus, stranger)
    cases = {
        "signature": {"publics": [keys.publics[0], stranger, keys.publics[2]]},
        "somebody may sit in between": {
            "publics": [keys.publics[0], stranger, keys.publics[2]],
            "signatures": [keys.signatures[0], forged, keys.signatures[2]],
        },
        "same public key": {"publics": [keys.publics[0], keys.publics[2], keys.publics[2]]},
        "as this silo's": {"publics": [stranger, *keys.publics[1:]]},
        "2 keys came, 3 are expected": {"publics": keys.publics[:2], "signatures": keys.signatures[:2]},
    }
    before = silos["silo-0"].save()
    for reason, changes in cases.items():
        with pytest.raises(MessageRefused, match=reason):
            silos["silo-0"].reply(relayed(server, **changes))
        assert silos["silo-0"].save() == before
    goes_on(server, silos)


def test_a_key_of_low_order_is_refused_though_it_is_signed():
    """A silo that signs such a key is caught by the others: the secret with it would be known to all."""
    server, silos = until(SiloKeys, "masked")
    keys = server.side.ask(SiloKeys, "silo-0")
    low = bytes(32)
    signer = signing_key(Secrets.simulated_from_seed(0), 1)
    signature = signer.sign("uldp key agreement", DIGEST, "silo-1", b"", low)
    told = SiloKeys([keys.publics[0], low, keys.publics[2]], [keys.signatures[0], signature, keys.signatures[2]])
    with pytest.raises(MessageRefused, match="silo-1: its public key is not usable"):
        silos["silo-0"].reply(ask(told))


def test_silos_that_were_told_different_moduli_do_not_come_together():
    server, silos = until(KeyRequest)
    other, _ = make_sessions(
        build("uldp-avg-w"),
        small_federation(),
        aggregation="paillier",
        secrets=Secrets.from_key(b"o" * 32),
    )
    silos["silo-0"].reply(ask(other.side.ask(KeyRequest, "silo-0")))
    for name in ("silo-1", "silo-2"):
        server.receive(name, silos[name].reply(server.requests()[name]))
    with pytest.raises(MessageRefused, match="signature"):
        server.receive("silo-0", silos["silo-0"].reply(ask(other.side.ask(KeyRequest, "silo-0"))))


@pytest.mark.parametrize(
    ("modulus", "reason"),
    [
        (b"", "take 64 bytes"),
        (bytes(64), "512 bits"),
        (b"\x01" + bytes(62) + b"\x80", "small factor"),
        (b"\xff" * 64, "factor"),
    ],
)
def test_a_silo_refuses_a_modulus_that_is_none(modulus, reason):
    _, silos = until(KeyRequest)
    before = silos["silo-0"].save()
    with pytest.raises(MessageRefused, match=reason):
        silos["silo-0"].reply(ask(KeyRequest(modulus)))
    assert silos["silo-0"].save() == before


def test_a_seed_that_was_changed_or_is_another_silos_is_refused():
    server, silos = until(SealedSeed)
    sealed = [server.side.ask(SealedSeed, name).sealed for name in ("silo-1", "silo-2")]
    before = silos["silo-1"].save()
    for wrong in (sealed[1], b"", sealed[0][:-1] + bytes([sealed[0][-1] ^ 1])):
        with pytest.raises(MessageRefused, match="sealed"):
            silos["silo-1"].reply(ask(SealedSeed(wrong), silo="silo-1"))
        assert silos["silo-1"].save() == before
    with pytest.raises(MessageRefused, match="draws the seed"):
        silos["silo-0"].reply(ask(SealedSeed(sealed[0])))
    goes_on(server, silos)


@pytest.mark.parametrize("aggregation", ["paillier", "lattice"])
def test_the_server_refuses_sealed_seeds_from_the_wrong_silo_or_of_another_number(aggregation):
    server, silos = until(SiloKeys, aggregation)
    found = answers(server, silos)
    refused(server, "silo-0", SealedSeeds([]), "0 sealed seeds, 2 are expected")
    refused(server, "silo-0", SealedSeeds(found["silo-0"].sealed * 2), "4 sealed seeds")
    refused(server, "silo-1", found["silo-0"], "2 sealed seeds, 0 are expected")
    refused(server, "silo-0", SealedSeeds([b"x", b"y"]), "sealed seeds")
    goes_on(server, silos)


def test_the_server_refuses_blinded_counts_of_a_wrong_number_of_users_or_out_of_range():
    server, silos = until(SealedSeed)
    found = answers(server, silos)["silo-2"].shares
    refused(server, "silo-2", BlindedShares(found[:-64]), "6 numbers of 64 bytes take 384 bytes")
    refused(server, "silo-2", BlindedShares(found + found[:64]), "448")
    refused(server, "silo-2", BlindedShares(b"\xff" * len(found)), "not a residue")
    goes_on(server, silos)


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_a_silo_refuses_weights_of_a_wrong_number_of_users_or_outside_the_group(rate):
    request = EncryptedWeights if rate == 1 else m.UpdateRequest
    server, silos = until(request, sample_rate=rate)
    asked = decode(server.requests()["silo-1"], experiment=DIGEST, silo="silo-1", limit=10**7)
    n, n2 = server.side.key.public.n, server.side.key.public.n2
    good = unpack(asked.weights, WIDTH, 6, "x")
    bad = {
        "6 numbers of 128 bytes": asked.weights[:-WIDTH],
        "out of range": pack([0, *good[1:]], WIDTH),
        "ciphertext 5 is out of range": pack([*good[:-1], n2 + 1], WIDTH),
        "factor in common": pack([*good[:-1], n], WIDTH),
    }
    before = silos["silo-1"].save()
    for reason, weights in bad.items():
        with pytest.raises(MessageRefused, match=reason) as error:
            silos["silo-1"].reply(ask(msgspec.structs.replace(asked, weights=weights), silo="silo-1"))
        assert "silo-1" in str(error.value)
        assert silos["silo-1"].save() == before
    goes_on(server, silos)


def test_the_server_refuses_ciphertexts_outside_the_group_or_of_another_round():
    server, silos = until(m.UpdateRequest)
    update = answers(server, silos)["silo-0"]
    n2 = server.side.key.public.n2
    good = unpack(update.vector, WIDTH, 4, "x")
    bad = {
        "out of range": [0, *good[1:]],
        "ciphertext 3 is out of range": [*good[:-1], n2],
        "factor in common": [*good[:-1], server.side.key.p * 7],
    }
    for reason, vector in bad.items():
        refused(server, "silo-0", msgspec.structs.replace(update, vector=pack(vector, WIDTH)), reason)
    refused(server, "silo-0", msgspec.structs.replace(update, vector=update.vector[:-1]), "4 numbers of 128 bytes")
    refused(server, "silo-0", msgspec.structs.replace(update, round=2), "round 2")
    goes_on(server, silos)


@pytest.mark.parametrize("aggregation", ["paillier", "lattice"])
@pytest.mark.parametrize("sampling", ["open", "private"])
def test_a_round_with_malformed_weights_is_refused_before_its_owner_is_charged(sampling, aggregation):
    begun = []

    class Guard(ReleaseGuard):
        def before_round(self, round_, request):
            begun.append(round_)

    owners = {"silo-0": Owner(guard=Guard())}
    server, silos = until(m.UpdateRequest, aggregation, owners, sample_rate=0.5, sampling=sampling)
    request = server.requests()["silo-0"]
    body = decode(request, experiment=DIGEST, silo="silo-0", limit=10**7)
    for weights in (body.weights[:-1], b"\xff" * len(body.weights), body.weights + b"\0"):
        with pytest.raises(MessageRefused):
            silos["silo-0"].reply(ask(msgspec.structs.replace(body, weights=weights)))
    assert begun == []
    silos["silo-0"].reply(request)
    assert begun == [1]
    goes_on(server, silos)


def test_ciphertexts_that_do_not_add_up_are_refused_uncharged_and_can_be_asked_for_again():
    server, silos = until(m.UpdateRequest)
    for name, body in answers(server, silos).items():
        vector = pack([3, 5, 7, 11], WIDTH) if name == "silo-1" else body.vector
        server.receive(name, ask(msgspec.structs.replace(body, vector=vector), silo=name))
    before = server.model.tobytes()
    with pytest.raises(MessageRefused, match="do not add up"):
        server.collect()
    assert server.ledger.entries == () and server.model.tobytes() == before and server.stage is not Stage.COLLECTED
    goes_on(server, silos)


def test_blinded_counts_without_an_inverse_are_refused_and_can_be_asked_for_again():
    server, silos = until(SealedSeed)
    server.requests()
    users, width = 6, 64
    for name in ("silo-0", "silo-1", "silo-2"):
        server.receive(name, ask(BlindedShares(pack([0] * users, width)), silo=name))
    with pytest.raises(MessageRefused, match="no inverse"):
        server.collect()
    goes_on(server, silos)


@pytest.mark.parametrize("aggregation", ["plain", "masked", "paillier", "lattice"])
def test_a_silent_silo_stops_the_round_before_anything_is_charged(aggregation):
    server, silos = until(m.UpdateRequest, aggregation)
    for name, body in answers(server, silos).items():
        if name != "silo-2":
            server.receive(name, ask(body, silo=name))
    with pytest.raises(RunError, match="no response yet from silo-2"):
        server.collect()
    assert server.ledger.entries == ()
    goes_on(server, silos)


def test_silos_with_other_rosters_are_found_at_the_handshake():
    rosters = {"silo-0": "one", "silo-1": "one", "silo-2": "other"}
    server, silos = sessions("masked", {name: Owner(roster=roster) for name, roster in rosters.items()})
    requests = server.requests()
    for name in ("silo-0", "silo-1"):
        server.receive(name, silos[name].reply(requests[name]))
    with pytest.raises(MessageRefused, match="silo-2: has another roster"):
        server.receive("silo-2", silos["silo-2"].reply(requests["silo-2"]))


@pytest.mark.parametrize("aggregation", ["masked", "paillier", "lattice"])
def test_a_silo_needs_the_signing_key_whose_public_half_is_agreed_on(aggregation):
    server, _ = sessions(aggregation)
    data, secrets = small_federation().silos[1], Secrets.simulated_from_seed(0)
    begin = functools.partial(SiloSession, data=data, learner=TinyLearner(4), streams=Streams.from_seed(0))
    stranger = signing_key(Secrets.from_key(b"x" * 32), 1)
    begin(server.plan, secrets=secrets)
    with pytest.raises(ConfigError, match="silo-1: its signing key"):
        begin(server.plan, secrets=secrets, owner=Owner(stranger))
    with pytest.raises(ConfigError, match="its signing key"):
        begin(dataclasses.replace(server.plan, identities=()), secrets=secrets)
    assert server.requests()


def test_masks_of_two_requests_differ_so_that_responses_cannot_be_subtracted():
    """Else a server that asks twice learns the difference of two sums of one silo."""
    vectors = []
    for shift in (0.0, 1.0):
        _, silos = until(m.UpdateRequest, "masked", noise_multiplier=0.0)
        request = ask(m.UpdateRequest(1, m.pack(np.full(4, shift)), b""))
        reply = decode(silos["silo-0"].reply(request), experiment=DIGEST, silo="silo-0", limit=10**6)
        vectors.append(np.frombuffer(reply.vector, dtype="<u8"))
    difference = (vectors[0] - vectors[1]).view(np.int64)
    assert (np.abs(difference.astype(float)) > 2.0**40).all()  # sums differ by less than 6 users times 2^24


def test_setup_requests_come_once():
    server, silos = until(m.UpdateRequest)
    asked = {
        KeyRequest: server.side.ask(KeyRequest, "silo-0"),
        SiloKeys: server.side.ask(SiloKeys, "silo-0"),
        SealedSeed: SealedSeed(b""),
        m.CountsRequest: m.CountsRequest(),
        m.UserTotals: m.UserTotals(m.pack(np.zeros(6, np.int64))),
    }
    for body in asked.values():
        with pytest.raises(MessageRefused, match="out of turn"):
            silos["silo-0"].reply(ask(body))
    assert silos["silo-0"].phase == Phase.READY
