"""``lattice`` gives the total of ``plain``, up to what the ciphertexts' errors may add."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from tests.core.test_sessions import build
from tests.federation.federation_support import saved_state
from tests.protocol.lattice_knowledge import ServerKnowledge
from tests.support import decode, drive, make_sessions, small_federation

from uldp.aggregation import lattice_ring, lookup_aggregation
from uldp.aggregation.base import largest_total
from uldp.aggregation.key_agreement import KeyRequest, SiloKeys
from uldp.aggregation.lattice import automatic_misfit
from uldp.aggregation.lattice_lookup import ERROR_BOUND, WEIGHT_BITS, Roles, Weighting
from uldp.aggregation.lattice_messages import LookUp, RingKey, RingWeights
from uldp.aggregation.lattice_ring import Scheme, cut
from uldp.aggregation.lattice_rows import row_products
from uldp.crypto import ring
from uldp.crypto.ring import LIMBS, MODULUS, PRIMES, N
from uldp.crypto.ring_products import ProductSum
from uldp.errors import ConfigError, MessageRefused, RunError
from uldp.privacy.releases import PublicFacts, sums
from uldp.protocol import messages as m
from uldp.sessions.server import Stage


def inject_noise(monkeypatch, seed=0, scale=2.0**22):
    """The same noise in both aggregations: multiples of a unit, in the order in which silos draw them."""
    generator = np.random.default_rng(seed)
    shift = WEIGHT_BITS - lattice_ring.DITHER_BITS

    def units(count):
        return np.rint(generator.normal(scale=scale, size=count)).astype(np.int64)

    monkeypatch.setattr(sums, "sample_discrete_gaussian", lambda _, count, stream: units(count))
    monkeypatch.setattr(lattice_ring, "sample_discrete_gaussian", lambda _, count, stream: units(count) << shift)


def first_total(monkeypatch, aggregation, method, federation):
    """The first round's total in units."""
    with monkeypatch.context() as patched:
        inject_noise(patched)
        server, silos = make_sessions(method, federation, aggregation=aggregation)
        while server.stage is not Stage.COLLECTED:
            for name, request in server.requests().items():
                server.receive(name, silos[name].reply(request))
            server.collect()
        return np.frombuffer(saved_state(server)["collected"], dtype="<i8")


def error_bound(users, max_records=2000):
    """In units: what truncation costs, twice (before weights here, after them there), the errors, and rounding."""
    return users * (2 + 2 * ERROR_BOUND * max_records / 2.0 ** (WEIGHT_BITS - 24)) + 2


@pytest.mark.parametrize("dimension", [1, 4, 1365, 2048, 2049, 4095, 4097])
@pytest.mark.parametrize("name", ["uldp-avg", "uldp-avg-w"])
def test_the_total_is_that_of_plain_up_to_the_stated_bound(monkeypatch, name, dimension):
    method = build(name, rounds=1)
    federation = small_federation(users=5, dimension=dimension, records=12)
    totals = [first_total(monkeypatch, kind, method, federation) for kind in ("lattice", "plain")]
    assert np.abs(totals[0] - totals[1]).max() <= error_bound(5)
    assert np.abs(totals[1]).max() > 2**20


@pytest.mark.parametrize(
    ("dimension", "users", "ciphertexts"),
    [(1, 4097, 2), (14, 293, 2), (31, 132, 1), (1024, 9, 3), (1365, 7, 3), (2048, 5, 3), (2049, 3, 3), (5000, 2, 2)],
)
def test_users_who_share_a_ciphertext_do_not_meet_in_the_parameters(dimension, users, ciphertexts):
    """The first d coefficients are those of the sum of a_u X_u, exactly, at extreme and random numbers."""
    generator = np.random.default_rng(dimension)
    scheme = Scheme(Weighting(10, 2), Roles(users, 2), None, dimension, 1)
    assert scheme.ciphertexts == ciphertexts and scheme.weight_bytes == 32 + 49152 * ciphertexts
    numbers = [int.from_bytes(generator.bytes(12), "little") % MODULUS for _ in range(users)]
    numbers[:2] = [MODULUS - 1, 0]
    rows = generator.integers(-(2**35), 2**35, (users, dimension))
    rows[0], rows[-1] = 2**35 - 1, 1 - 2**35
    plain = scheme.joined(np.stack([ring.number(number) for number in numbers]))
    plain = np.broadcast_to(plain, (ciphertexts, LIMBS, N))
    products = row_products(scheme, np.stack([plain, np.zeros_like(plain)], axis=1), None)
    order = generator.permutation(users)  # rows come in any order, some at a time

    def weigh(users, rows, weighed):
        weighed[:] = rows
        return 0

    for some in np.array_split(order, 3):
        assert products.add(some, rows[some], weigh) == 0
    total = cut(ring.to_coefficients(products.total()[:, 0]), dimension)
    expected = sum(number * row.astype(object) for number, row in zip(numbers, rows, strict=True))
    for limb, prime in enumerate(PRIMES):
        assert total[limb].tolist() == (expected % prime).tolist()


@pytest.mark.parametrize(("dimension", "ciphertexts", "of_the_group"), [(14, [0], [0]), (1365, [0, 1, 2], [0, 2])])
@pytest.mark.parametrize("present", [[], [4], [6, 0, 3], range(7)])
def test_products_are_those_of_all_users_whoever_has_records(
    monkeypatch, dimension, ciphertexts, of_the_group, present
):
    """Three of seven users share a ciphertext, or all do. Where people take turns, the group alone counts."""
    multiplied = []
    monkeypatch.setattr(ProductSum, "add", lambda self, values, all_of_them, users: multiplied.extend(users.tolist()))
    scheme = Scheme(Weighting(10, 2), Roles(7, 2), None, dimension, 1)
    for members, expected in ((None, ciphertexts), (np.array([1, 0, 0, 0, 0, 0, 1], dtype=bool), of_the_group)):
        products = row_products(scheme, np.zeros((scheme.ciphertexts, 2, LIMBS, N), dtype=np.uint64), members)
        for user in present:
            products.add(np.array([user]), np.ones((1, dimension)), lambda users, rows, weighed: 0)
        products.total()
        assert multiplied == expected
        multiplied.clear()


@pytest.mark.parametrize("present", [[], [4], [6, 0, 3], range(7)])
def test_products_are_those_of_all_users_where_nobody_shares(monkeypatch, present):
    multiplied = []
    monkeypatch.setattr(ProductSum, "add", lambda self, values, all_of_them, users: multiplied.extend(users.tolist()))
    scheme = Scheme(Weighting(10, 2), Roles(7, 2), None, 3000, 1)
    products = row_products(scheme, np.zeros((7, 2, LIMBS, N), dtype=np.uint64), None)
    for user in present:
        products.add(np.array([user]), np.ones((1, 3000)), lambda users, rows, weighed: 0)
    products.total()
    assert sorted(multiplied) == [*range(7)]


# --- what does not fit ------------------------------------------------------------------------------------------------


def refused(**changed):
    known = ("noise_multiplier", "weighting", "dropout_tolerance")
    settings = {key: changed.pop(key) for key in known if key in changed}
    own = ("max_records", "count_unit")
    kind = lookup_aggregation("lattice")(**{key: changed.pop(key) for key in own if key in changed})
    facts = PublicFacts(**{"users": 100, "silos": 3, "dimension": 10, **changed})
    release = build("uldp-avg-w", **{"noise_multiplier": 5.0, **settings}).release(facts)
    kind.check(release, 1)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"silos": 1}, r"data\.silos: lattice takes at least 2 silos: .* take aggregation\.name = 'masked'"),
        ({"users": 2**14 + 1}, r"data\.users: lattice takes from 1 to 16,384 users"),
        ({"dimension": 2**23 + 1}, r"model: lattice takes from 1 to 8,388,608 parameters"),
        ({"noise_multiplier": 0.0173}, r"privacy\.noise_multiplier: at least 0\.0173 with 3 silos"),
        ({"noise_multiplier": 0.0, "silos": 4}, r"privacy\.noise_multiplier: at least 0\.02 with 4 silos"),
        ({"noise_multiplier": 0.0099, "dropout_tolerance": 2}, r"privacy\.noise_multiplier: at least 0\.01 with 3"),
        ({"noise_multiplier": 1e5}, r"privacy\.noise_multiplier: this noise does not fit"),
        ({"max_records": 2}, r"aggregation\.max_records: at least the number of silos \(3\)"),
        ({"max_records": 20_001}, r"aggregation\.max_records: a whole number from 1 to 20,000"),
        ({"max_records": 20, "count_unit": 10}, r"aggregation\.max_records: at least .*\(3, times count_unit: 30\)"),
        ({"max_records": 200_001, "count_unit": 10}, r"aggregation\.max_records: a whole number from 1 to 200,000"),
        ({"count_unit": 0}, r"aggregation\.count_unit: a whole number from 1 to 10,000"),
    ],
)
def test_what_does_not_fit_is_one_sentence_with_the_alternative(changed, says):
    with pytest.raises(ConfigError, match=says):
        refused(**changed)


@pytest.mark.parametrize("tolerance", [0, 1, 2])
def test_the_floor_of_the_noise_holds_for_one_silos_share(tolerance):
    """Of the other silos any may be missing or repeated without; the share that is left is what covers the errors."""
    least = 0.01 * (3 - tolerance) ** 0.5
    refused(noise_multiplier=least * 1.0001, dropout_tolerance=tolerance)  # is not
    with pytest.raises(ConfigError, match="whoever else is missing"):
        refused(noise_multiplier=least * 0.9999, dropout_tolerance=tolerance)


def test_the_edge_of_the_range_is_exact_and_just_beyond_it_is_refused():
    """All users pull one way as far as they may, and noise lies at forty deviations: nothing wraps around."""
    refused(users=2**14, noise_multiplier=1000.0)  # is not
    release = build("uldp-avg-w", noise_multiplier=1000.0).release(PublicFacts(2**14, 3, 10))
    largest = int(largest_total(release)) << WEIGHT_BITS
    assert largest < MODULUS // 2 < 64 * largest
    for total in (largest, -largest):
        phase = np.stack([np.full(3, total % prime, dtype=np.uint64) for prime in PRIMES])
        assert (lattice_ring.decoded(phase, 0) == total >> WEIGHT_BITS).all()
    # With so many silos that the sampler's range is no limit: (2^14 + 40 sigma) 2^76 reaches 2^95 at 12,697.6.
    refused(users=2**14, noise_multiplier=12_690.0, silos=1000)  # is not
    with pytest.raises(ConfigError, match="this noise does not fit"):
        refused(users=2**14, noise_multiplier=12_698.0, silos=1000)


@pytest.mark.parametrize("silos", [2, 3, 16])
def test_the_dithers_mean_is_taken_off(silos):
    dithers = sum(((1 << lattice_ring.DITHER_BITS) - 1) / 2 for _ in range(silos))
    for units in (0, 5, -7):
        total = (units << WEIGHT_BITS) + int(dithers)
        phase = np.stack([np.full(1, total % prime, dtype=np.uint64) for prime in PRIMES])
        assert lattice_ring.decoded(phase, silos).tolist() == [units]


@pytest.mark.parametrize("dimension", [900, 4097])
@pytest.mark.parametrize("settings", [{}, {"sample_rate": 0.5}, {"sample_rate": 0.1, "sampling": "private"}])
def test_costs_are_what_is_sent(settings, dimension):
    method = build("uldp-avg-w", rounds=1, **settings)
    federation = small_federation(users=6, dimension=dimension, records=12)
    server, silos = make_sessions(method, federation, aggregation="lattice")
    costs = server.plan.aggregation.costs(server.plan.release, 1)
    sizes = {}
    while server.stage is not Stage.COLLECTED:
        for name, request in server.requests().items():
            reply = silos[name].reply(request)
            assert max(len(request), len(reply)) <= server.plan.message_limit
            sizes.setdefault(type(read(request, name)).__name__, []).append((len(request), len(reply)))
            server.receive(name, reply)
        server.collect()
    in_rounds = [sizes[kind.__name__] for kind in server.plan.round_requests.values()]
    gets, sends = (sum(exchange[0][way] for exchange in in_rounds) for way in (0, 1))
    assert sends == pytest.approx(costs["update_bytes"], abs=1000)  # names, digests, tags
    assert gets == pytest.approx(costs["request_bytes"], abs=1000)
    in_setup = [kind.__name__ for kind in server.plan.setup]
    setup = sum(sum(sizes[kind][0]) for kind in in_setup)
    assert setup == pytest.approx(costs["setup_bytes"], abs=5000)


@pytest.mark.parametrize(
    ("facts", "settings", "says"),
    [
        ((1000, 3, 5000), {}, ""),
        ((10_000, 3, 30), {"sample_rate": 0.1}, ""),
        ((16_000, 3, 30), {"sample_rate": 0.001, "sampling": "private"}, "lattice would send 134 MB"),
        ((2000, 3, 5000), {"sample_rate": 0.1}, ""),
        ((2100, 3, 5000), {"sample_rate": 0.1}, "lattice would send 103 MB to every silo in every sampled round"),
        ((2**14 + 1, 3, 30), {}, "up to 16,384 users"),
        ((1000, 1, 30), {}, "two silos or more"),
        ((1000, 3, 30), {"weighting": "uniform"}, "no record counts to hide"),
    ],
)
def test_auto_takes_it_where_it_fits(facts, settings, says):
    why_not = automatic_misfit(build("uldp-avg-w", **settings).release(PublicFacts(*facts)))
    assert says in why_not and bool(says) == bool(why_not)


# --- faults -----------------------------------------------------------------------------------------------------------


def step(server, silos):
    for name, request in server.requests().items():
        server.receive(name, silos[name].reply(request))
    server.collect()


def at(request, **settings):
    """A federation of which silos are about to get ``request``."""
    method = build("uldp-avg-w", **{"rounds": 2, **settings})
    server, silos = make_sessions(method, small_federation(users=5, dimension=5), aggregation="lattice")
    while not isinstance(read(server.requests()["silo-1"]), request):
        step(server, silos)
    return server, silos


def read(data, silo="silo-1"):
    return decode(data, experiment="d" * 64, silo=silo, limit=10**9)


def above(data, at=0):
    """The residue at this place as the largest number of six bytes, which is not below its prime."""
    return data[:at] + b"\xff" * 6 + data[at + 6 :]


REQUESTS = {
    "a short server key": (KeyRequest, lambda body: {"modulus": body.modulus[:-1]}, "a server's key of 31 bytes"),
    "a server key of low order": (KeyRequest, lambda body: {"modulus": bytes(32)}, "low order"),
    "a ring key beyond its prime": (RingKey, lambda body: {"public": above(body.public)}, "not below its prime"),
    "a ring key of one limb": (RingKey, lambda body: {"public": body.public[: 6 * 4096]}, "bytes of residues"),
    "somebody else's seed": (RingKey, lambda body: {"sealed": body.sealed[::-1]}, "sealed message was changed"),
    "changed tables": (LookUp, lambda body: {"tables": body.tables[::-1]}, "sealed message was changed"),
    "changed indices": (LookUp, lambda body: {"indices": body.indices[:-1]}, "sealed message was changed"),
    "a weight beyond its prime": (
        RingWeights,
        lambda body: {"weights": above(body.weights, 32)},
        "not below its prime",
    ),
    "weights of four users": (RingWeights, lambda body: {"weights": body.weights[:-49152]}, "weights of 5 users take"),
    "weights in an update": (m.UpdateRequest, lambda body: {"weights": b"x" * 100}, "come once at setup"),
}


@pytest.mark.parametrize("case", REQUESTS)
def test_a_silo_refuses_what_is_malformed_and_changes_nothing(case):
    kind, changed, says = REQUESTS[case]
    server, silos = at(kind)
    silo = silos["silo-1"]
    good = server.requests()["silo-1"]
    body = read(good)
    bad = m.encode("d" * 64, "silo-1", msgspec.structs.replace(body, **changed(body)))
    before = silo.save()
    if case != "a server key of low order":
        with pytest.raises(MessageRefused, match=says):
            silo.reply(bad)
        assert silo.save() == before
        silo.reply(good)
    else:  # it is used when the silos' keys are there
        silo.reply(bad)
        with pytest.raises(MessageRefused, match=says):
            silo.side._pairwise.with_server(bytes(32))


RESPONSES = {
    "an index beyond the table": (RingKey, lambda body: {"counts": b"\xff" * 4 + body.counts[4:]}, "outside the table"),
    "counts of four users": (RingKey, lambda body: {"counts": body.counts[4:]}, "5 indices"),
    "short tables": (RingKey, lambda body: {"tables": body.tables[12:]}, "sealed tables of"),
    "changed entries": (LookUp, lambda body: {"entries": body.entries[::-1]}, "sealed message was changed"),
    "a residue beyond its prime": (m.UpdateRequest, lambda body: {"vector": above(body.vector)}, "not below its prime"),
    "a coefficient beyond d": (
        m.UpdateRequest,
        lambda body: {"vector": body.vector + bytes(12)},
        "5 coefficients and 1",
    ),
    "no second component": (m.UpdateRequest, lambda body: {"vector": body.vector[:60]}, "5 coefficients and 1 blocks"),
    "another round": (m.UpdateRequest, lambda body: {"round": 2}, "answered for round 2"),
}


@pytest.mark.parametrize("case", RESPONSES)
def test_the_server_refuses_what_is_malformed_and_charges_nothing(case):
    kind, changed, says = RESPONSES[case]
    server, silos = at(kind)
    requests = server.requests()
    body = read(silos["silo-1"].reply(requests["silo-1"]))
    with pytest.raises(MessageRefused, match=says):
        server.receive("silo-1", m.encode("d" * 64, "silo-1", msgspec.structs.replace(body, **changed(body))))
    assert server.ledger.entries == ()
    drive(server, silos)
    assert server.round == 2


@pytest.mark.parametrize("case", ["low order", "a silo's own", "another silo's"])
def test_keys_that_are_no_agreement_are_refused(case):
    server, silos = at(SiloKeys)
    keys = read(server.requests()["silo-1"])
    silo = silos["silo-1"].side
    server_key = {"low order": bytes(32), "a silo's own": keys.publics[1], "another silo's": keys.publics[0]}[case]
    silo.respond(KeyRequest(server_key))
    with pytest.raises(MessageRefused):
        silo.respond(keys)


@pytest.mark.parametrize("kind", [RingKey, RingWeights])
def test_silos_that_got_other_keys_or_other_weights_do_not_come_together(kind):
    """Both are well-formed; the silos' masks are bound to what they got, so the total is out of range."""
    server, silos = at(kind)
    field = "public" if kind is RingKey else "weights"
    for name, request in server.requests().items():
        body = read(request, name)
        data = getattr(body, field)
        at_end = int.from_bytes(data[-6:], "little") ^ 1  # another residue, and not the largest
        other = msgspec.structs.replace(body, **{field: data[:-6] + at_end.to_bytes(6, "little")})
        server.receive(name, silos[name].reply(m.encode("d" * 64, name, other if name == "silo-1" else body)))
    server.collect()
    with pytest.raises(MessageRefused, match="do not add up"):
        while True:
            step(server, silos)
    assert server.ledger.entries == ()


OPENED = {
    "an index outside the table": (lambda found: b"\xff\xff\x00\x00" + found[4:], "outside the table"),
    "indices of other users": (lambda found: found[4:], "indices of 4 bytes"),
}


@pytest.mark.parametrize("case", OPENED)
def test_a_keeper_refuses_what_the_server_sealed_for_it_and_changes_nothing(case):
    changed, says = OPENED[case]
    server, silos = at(LookUp)
    good = server.requests()["silo-1"]
    known = ServerKnowledge(server.side)
    key, purpose = known.shared(1), ("indices", known.setup, 0)
    sealed = key.seal(changed(key.open(read(good).indices, *purpose, location="test")), *purpose)
    before = silos["silo-1"].save()
    with pytest.raises(MessageRefused, match=says):
        silos["silo-1"].reply(m.encode("d" * 64, "silo-1", msgspec.structs.replace(read(good), indices=sealed)))
    assert silos["silo-1"].save() == before
    silos["silo-1"].reply(good)


@pytest.mark.parametrize("silos", range(2, 12))
def test_dealer_and_keeper_are_never_one_silo(silos):
    roles = Roles(users=100, silos=silos)
    assert sorted(np.concatenate([roles.dealt_by(silo) for silo in range(silos)])) == list(range(100))
    for dealer in range(silos):
        assert roles.keeper(dealer) != dealer and roles.dealer(roles.keeper(dealer)) == dealer


@pytest.mark.parametrize("sampling", ["open", "private"])
def test_ciphertexts_of_another_round_are_refused_or_open_nothing(sampling):
    """Weights of round 1 under round 2's blinds are uniform: the total is out of range, and nothing is charged."""
    server, silos = at(m.UpdateRequest, sample_rate=0.5, sampling=sampling)
    old = read(server.requests()["silo-1"]).weights
    step(server, silos)
    server.charge()
    server.advance()
    while not isinstance(read(server.requests()["silo-1"]), m.UpdateRequest):
        step(server, silos)
    replies = {}
    for name, request in server.requests().items():
        body = msgspec.structs.replace(read(request, name), weights=old)
        replies[name] = lambda name=name, body=body: silos[name].reply(m.encode("d" * 64, name, body))
    if sampling == "private":
        with pytest.raises(MessageRefused, match="sealed message was changed"):
            replies["silo-0"]()
        return
    for name, reply in replies.items():
        server.receive(name, reply())
    with pytest.raises(MessageRefused, match="do not add up"):
        server.collect()
    assert len(server.ledger.entries) == 1


def test_a_sampled_round_is_repeated_with_its_sample_and_without_a_silo():
    method = build("uldp-avg-w", rounds=2, sample_rate=0.5, dropout_tolerance=1)
    server, silos = make_sessions(method, small_federation(silos=4), aggregation="lattice")
    while server.requests() and server.stage is not Stage.ROUND:
        step(server, silos)
    first = {name: silos[name].reply(request) for name, request in server.requests().items() if name != "silo-2"}
    weights = read(server.requests()["silo-1"]).weights
    server.exclude(["silo-2"])
    again = read(server.requests()["silo-1"])
    assert again.weights == weights and again.present
    for name, request in server.requests().items():
        reply = silos[name].reply(request)
        assert reply != first[name]
        server.receive(name, reply)
    server.collect()
    server.charge()
    server.advance()
    drive(server, silos)  # the silo that was missing takes the next round
    assert server.round == 2 and server.silos_heard == (3, 4)


@pytest.mark.parametrize("measured", [False, True])
@pytest.mark.parametrize("sampling", ["open", "private"])
def test_a_silo_that_was_left_out_of_the_last_sampled_round_is_closed_like_the_others(sampling, measured):
    """It had prepared the round. As long as it is not closed, its secrets stay, and with them rho and its noise."""
    method = build("uldp-avg-w", rounds=2, sample_rate=0.5, sampling=sampling, dropout_tolerance=1)
    federation = small_federation(users=14, silos=4, records=90)  # ten or more whom each silo measures
    if measured:
        federation = replace(federation, holdout=federation.silos)
    server, silos = make_sessions(method, federation, aggregation="lattice")
    while server.round < 1 or server.stage is not Stage.ROUND:
        step(server, silos)
        server.charge()
        server.advance()
        server.requests()
    server.exclude(["silo-2"])
    drive(server, silos)
    assert server.silos_heard == (4, 3) and server.finished
    assert all(silo.closed for silo in silos.values())
    assert bool(server.metrics) == measured


def test_a_silo_that_is_missing_from_a_transfer_cannot_be_left_out():
    method = build("uldp-avg-w", rounds=2, sample_rate=0.5, dropout_tolerance=1)
    server, silos = make_sessions(method, small_federation(silos=4), aggregation="lattice")
    while server.requests() and server.stage is not Stage.PREPARATION:
        step(server, silos)
    with pytest.raises(RunError, match="cannot go on without a silo"):
        server.exclude(["silo-2"])
