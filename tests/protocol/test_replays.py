"""Starting again, from before the setup or from a saved state, shows nobody more than one run does."""

import dataclasses

import numpy as np
import pytest
from tests.core.test_sessions import DIGEST, ask, build
from tests.protocol.test_exactness import layout_of
from tests.support import decode, drive, hello, make_sessions, small_federation, step, step_until

from uldp.aggregation.key_agreement import KeyRequest, SiloKeys
from uldp.aggregation.paillier_messages import ChoicesRequest, EncryptedWeights, SealedSeed
from uldp.crypto.integers import unpack
from uldp.data.federation import SiloData
from uldp.errors import MessageRefused, RunError
from uldp.protocol import messages as m
from uldp.rng import Secrets

SECRETS = Secrets.from_key(b"s" * 32)
USER = 3


def with_one_record_more(federation, silo):
    data = federation.silos[silo]
    features, labels = (
        np.concatenate([data.features, data.features[:1]]),
        np.concatenate([data.labels, data.labels[:1]]),
    )
    more = SiloData(data.name, features, labels, np.append(data.users, USER))
    return dataclasses.replace(federation, silos=tuple(more if s is data else s for s in federation.silos))


def run_until(request, federation, aggregation="paillier", **options):
    method = build("uldp-avg-w", **options)
    server, silos = make_sessions(method, federation, aggregation=aggregation, secrets=SECRETS)
    step_until(request, server, silos)
    return server, silos


def body_of(silo, request):
    return decode(silo.reply(request), experiment=DIGEST, silo=silo.name, limit=10**7)


def both(request, **options):
    federation = small_federation()
    return [run_until(request, f, **options) for f in (federation, with_one_record_more(federation, 2))]


def test_blinded_counts_of_changed_records_share_no_mask():
    """With the same masks their difference times the inverse would be 16 / D_u: the exact total."""
    (server, silos), (_, changed) = both(SealedSeed)
    n, width = server.side.key.public.n, server.side.key.public.plain_width
    request = server.requests()["silo-2"]
    first = unpack(body_of(silos["silo-2"], request).shares, width, 6, "x")
    with pytest.raises(MessageRefused, match="sealed"):
        changed["silo-2"].reply(request)
    other = run_until(SealedSeed, with_one_record_more(small_federation(), 2))
    second = unpack(body_of(other[1]["silo-2"], other[0].requests()["silo-2"]).shares, width, 6, "x")
    assert all((a - b) % n != 0 for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("changed", [1, 2])
def test_blinds_never_serve_two_setups_whichever_silo_changed(changed):
    """With the same blinds the ratio of two blinded denominators would be D / D': exact record totals."""
    federation = small_federation()
    inverses = []
    for each in (federation, with_one_record_more(federation, changed)):
        server, _ = run_until(EncryptedWeights, each)
        key = server.side.key
        weights = unpack(server.side.ask(EncryptedWeights, "silo-0").weights, key.public.width, 6, "x")
        inverses.append([key.decrypt(c) for c in weights])
    n = key.public.n
    small = {a * pow(b, -1, int(n)) % int(n) for a in range(1, 500, 16) for b in range(1, 500, 16)}
    ratios = [int(a * pow(int(b), -1, int(n)) % n) for a, b in zip(*inverses, strict=True)]
    assert not small & set(ratios)


def test_keys_of_slots_never_seal_two_different_offers():
    """With the same keys and other contents, the difference of two offers would open all slots."""
    federation = small_federation()
    seen = []
    for each in (federation, with_one_record_more(federation, 1)):
        server, silos = run_until(ChoicesRequest, each, sample_rate=0.3, sampling="private")
        request = server.requests()["silo-2"]
        asked = decode(request, experiment=DIGEST, silo="silo-2", limit=10**7)
        seen.append((asked.offer, body_of(silos["silo-2"], request).points))
    assert seen[0][0] != seen[1][0]
    points = [np.frombuffer(chosen, np.uint8).reshape(-1, 32) for _, chosen in seen]
    assert (points[0] != points[1]).any(axis=1).all()


def test_a_silo_with_changed_records_does_not_take_up_the_old_keys():
    (server, _), (_, changed) = both(SiloKeys)
    with pytest.raises(MessageRefused, match="another key as this silo's"):
        changed["silo-2"].reply(server.requests()["silo-2"])


@pytest.mark.parametrize(("aggregation", "size"), [("masked", 8), ("paillier", 128), ("lattice", 6)])
def test_a_second_setup_meets_other_masks_even_in_silos_that_did_not_change(aggregation, size):
    answers = []
    noise = 1.0 if aggregation == "lattice" else 0.0  # which needs some
    for server, silos in both(m.UpdateRequest, aggregation=aggregation, noise_multiplier=noise):
        answers.append(body_of(silos["silo-0"], server.requests()["silo-0"]).vector)
    first, second = (np.frombuffer(vector, dtype=np.uint8).reshape(-1, size) for vector in answers)
    assert (first != second).any(axis=1).all()
    if aggregation == "paillier":
        key = server.side.key
        ratios = [
            a * pow(int(b), -1, int(key.public.n2)) % key.public.n2
            for a, b in zip(unpack(answers[0], 128, 4, "x"), unpack(answers[1], 128, 4, "x"), strict=True)
        ]
        # With the same masks, noise, dither and residues the ratio would be a multiple of L / (D D') of small size.
        assert all(key.nth_root(ratio) != 1 for ratio in ratios)


def test_other_weights_meet_other_noise_and_other_residues():
    """A server that sends other weights to a silo from before the setup must not find the same noise under both."""
    answers = []
    for change in (False, True):
        server, silos = run_until(EncryptedWeights, small_federation())
        silo = silos["silo-0"]
        asked = decode(server.requests()["silo-0"], experiment=DIGEST, silo="silo-0", limit=10**7)
        weights = asked.weights
        if change:
            ciphertexts = unpack(weights, 128, 6, "x")
            n2 = server.side.key.public.n2
            weights = b"".join(int(c * c % n2).to_bytes(128, "little") for c in ciphertexts)
        silo.reply(ask(EncryptedWeights(weights)))
        request = ask(m.UpdateRequest(1, m.pack(np.zeros(4)), b""))
        answers.append(unpack(body_of(silo, request).vector, 128, 4, "x"))
    key = server.side.key
    ratios = [a * pow(int(b), -1, int(key.public.n2)) % key.public.n2 for a, b in zip(*answers, strict=True)]
    multiple = layout_of(server.plan).multiple
    assert all(key.decrypt(ratio) % multiple != 0 for ratio in ratios)


def test_the_server_never_encrypts_two_numbers_with_the_same_randomness():
    """Else a silo that keeps both messages learns the difference of the plaintexts."""
    weights = []
    for server, _ in both(EncryptedWeights):
        asked = decode(server.requests()["silo-1"], experiment=DIGEST, silo="silo-1", limit=10**7)
        weights.append(unpack(asked.weights, 128, 6, "x"))
    key = server.side.key
    roots = [[key.nth_root(c) for c in each] for each in weights]
    assert not set(roots[0]) & set(roots[1])


def test_a_saved_silo_refuses_to_go_on_with_other_records():
    for aggregation in ("plain", "masked", "paillier", "lattice"):
        server, silos = run_until(m.UpdateRequest, small_federation(), aggregation)
        saved = silos["silo-2"].save()
        _, changed = make_sessions(
            build("uldp-avg-w"),
            with_one_record_more(small_federation(), 2),
            aggregation=aggregation,
            secrets=SECRETS,
        )
        with pytest.raises(RunError, match="records are not those it began with"):
            changed["silo-2"].restore(saved)
        drive(server, silos)


def test_a_saved_state_of_other_secrets_is_refused():
    _, silos = run_until(m.UpdateRequest, small_federation())
    saved = silos["silo-2"].save()
    _, others = make_sessions(
        build("uldp-avg-w"),
        small_federation(),
        aggregation="paillier",
        secrets=Secrets.from_key(b"o" * 32),
    )
    with pytest.raises(RunError, match="unreadable"):
        others["silo-2"].restore(saved)


def test_a_stale_key_that_is_well_signed_stops_the_round_uncharged():
    """The server relays silo 1's key of an earlier run to silo 0: their masks do not cancel, and the total shows it."""
    method = build("uldp-avg", rounds=3)
    _, earlier = make_sessions(method, small_federation(seed=5), aggregation="masked", secrets=SECRETS)
    server, silos = make_sessions(method, small_federation(), aggregation="masked", secrets=SECRETS)
    step(server, silos)
    earlier["silo-1"].reply(ask(hello(), silo="silo-1"))
    stale = body_of(earlier["silo-1"], ask(KeyRequest(b""), silo="silo-1"))
    step(server, silos)
    keys = server.side.ask(SiloKeys, "silo-0")
    told = SiloKeys(
        [keys.publics[0], stale.public, keys.publics[2]], [keys.signatures[0], stale.signature, keys.signatures[2]]
    )
    for name, request in server.requests().items():
        server.receive(name, silos[name].reply(ask(told) if name == "silo-0" else request))
    server.collect()
    for name, request in server.requests().items():
        server.receive(name, silos[name].reply(request))
    with pytest.raises(MessageRefused, match="do not add up"):
        server.collect()
    assert server.ledger.entries == ()
