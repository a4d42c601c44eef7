"""Every aggregation gives the total of the silos' sums, and every method runs on it."""

import itertools
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from gmpy2 import mpz
from tests.core.test_sessions import build
from tests.support import (
    drive,
    drive_with_restarts,
    make_aggregation,
    make_plan,
    make_sessions,
    small_federation,
    with_paillier_weights,
)

from uldp.aggregation import AGGREGATIONS, lookup_aggregation
from uldp.aggregation.base import largest_total
from uldp.aggregation.lattice import LatticeWeighting, automatic
from uldp.aggregation.lattice_ring import weight_bytes
from uldp.crypto.paillier import signed_residue
from uldp.errors import ConfigError
from uldp.methods.registry import METHODS
from uldp.privacy.releases import PublicFacts
from uldp.rng import Secrets


def fits(aggregation, method) -> bool:
    built = build(method)
    if aggregation == "shuffled":
        return built.local
    release = built.for_data(np.array([1])).release(PublicFacts(users=6, silos=3, dimension=4))
    return aggregation not in ("paillier", "packed", "lattice") or release.user_weighting is not None


KINDS = ["plain", "masked", "lattice", "paillier", "packed"]
PAIRS = [(a, name) for a in [*KINDS, "shuffled"] for name in METHODS if fits(a, name)]


def alike(method, aggregation):
    """Under paillier the weights are others: a method that is compared with it applies those."""
    kind = make_aggregation(aggregation)
    return with_paillier_weights(method, kind) if aggregation in ("paillier", "packed") else method


def trained(aggregation, method, **options):
    server, silos = make_sessions(method, small_federation(), aggregation=aggregation, **options)
    drive(server, silos)
    return server


@pytest.mark.parametrize(("aggregation", "name"), PAIRS)
def test_every_method_runs_on_every_aggregation_that_takes_it(aggregation, name):
    server = trained(aggregation, build(name))
    assert server.round == 3
    assert [entry.round for entry in server.ledger.entries] == [1, 2, 3]
    assert server.requests() == {}


@pytest.mark.parametrize("name", METHODS)
def test_masked_gives_the_model_of_plain_bit_by_bit(name):
    method = build(name)
    assert trained("masked", method).model.tobytes() == trained("plain", method).model.tobytes()


@pytest.mark.parametrize("rate", [1.0, 0.5])
@pytest.mark.parametrize("aggregation", KINDS)
def test_saving_and_restoring_after_every_exchange_changes_nothing(aggregation, rate):
    method = build("uldp-avg-w", sample_rate=rate)
    expected = trained(aggregation, method).model.tobytes()
    server = drive_with_restarts(lambda: make_sessions(method, small_federation(), aggregation=aggregation))
    assert server.model.tobytes() == expected


def test_all_aggregations_are_tested():
    assert {kind for kind, _ in PAIRS} == {*AGGREGATIONS, "packed"}


@pytest.mark.parametrize("name", [name for name in METHODS if not fits("shuffled", name)])
def test_a_shuffler_takes_only_what_clients_perturbed_themselves(name):
    with pytest.raises(ConfigError, match="perturb by themselves"):
        make_plan(build(name), small_federation(), aggregation="shuffled")


@pytest.mark.parametrize("aggregation", KINDS)
def test_the_same_secrets_give_the_same_run_and_others_another(aggregation):
    method = build("uldp-avg-w")
    models = [
        trained(aggregation, method, secrets=Secrets.from_key(key)).model.tobytes()
        for key in (b"a" * 32, b"a" * 32, b"b" * 32)
    ]
    assert models[0] == models[1] != models[2]


@pytest.mark.parametrize("silos", [1, 2, 5])
@pytest.mark.parametrize("aggregation", [kind for kind in KINDS if kind != "lattice"])  # which needs noise
def test_any_number_of_silos(aggregation, silos):
    method = build("uldp-avg-w", noise_multiplier=0.0)
    federation = small_federation(silos=silos)
    models = []
    for kind in ("plain", aggregation):
        server, sessions = make_sessions(alike(method, aggregation), federation, aggregation=kind)
        drive(server, sessions)
        models.append(server.model)
    assert np.allclose(*models, atol=1e-5)


@pytest.mark.parametrize("aggregation", ["lattice", "paillier"])
@pytest.mark.parametrize("name", [name for name in METHODS if not fits("paillier", name)])
def test_methods_that_do_not_weigh_single_users_are_refused_where_weights_are_hidden(name, aggregation):
    with pytest.raises(ConfigError, match="masked"):
        make_plan(build(name), small_federation(), aggregation=aggregation)


def test_paillier_refuses_weights_that_do_not_fit_its_key():
    kind = make_aggregation("paillier", max_records=300)
    fits = r"take aggregation\.pseudo_count = 1, .*, or lower aggregation\.max_records to \d+, or raise .*key_bits"
    with pytest.raises(ConfigError, match=fits):
        make_plan(build("uldp-avg-w"), small_federation(), aggregation=kind)
    make_plan(build("uldp-avg-w"), small_federation(), aggregation=replace(kind, pseudo_count=1))
    lowered = re.search(r"max_records to (\d+)", refusal(kind)).group(1)
    make_plan(build("uldp-avg-w"), small_federation(), aggregation=replace(kind, max_records=int(lowered)))


def refusal(kind) -> str:
    with pytest.raises(ConfigError) as refused:
        make_plan(build("uldp-avg-w"), small_federation(), aggregation=kind)
    return str(refused.value)


@pytest.mark.parametrize("most", [10**6, 10**20])
def test_an_absurd_number_of_records_is_refused_at_once(most):
    assert f"up to {most} records of a person" in refusal(make_aggregation("paillier", max_records=most))


def test_paillier_needs_a_record_for_every_silo():
    with pytest.raises(ConfigError, match=r"aggregation\.max_records: at least the number of silos \(3\)"):
        make_plan(build("uldp-avg-w"), small_federation(), aggregation=make_aggregation("paillier", max_records=2))
    for fields in ({"max_records": 0}, {"pseudo_count": 0}, {"pseudo_count": 1025}):
        with pytest.raises(ConfigError, match=next(iter(fields))):
            make_aggregation("paillier", **fields)


def test_paillier_says_whom_its_cap_touches_and_what_it_costs():
    kind, facts = make_aggregation("paillier", max_records=10), PublicFacts(4, 2, 3)
    release = build("uldp-avg-w").release(facts)
    counts = np.array([[30, 5, 0, 6], [10, 5, 0, 0]])
    (note,) = kind.notes(release, counts)
    assert "at most 5 records of a person in a silo" in note and "2 of the 3 people with records have more" in note
    # of the two: 30/40 and 6/6 by Eq. 3; 16 * 5 / (16 * 10 + 1) and 16 * 5 / (16 * 5 + 1) under the cap
    assert f"{(80 / 161 + 80 / 81) / 2:.3f} instead of {(30 / 40 + 6 / 6) / 2:.3f}" in note
    (own,) = kind.notes(release, counts[:1])
    assert own.endswith("2 of the 3 people with records have more here.")
    assert kind.notes(release, np.minimum(counts, 5)) == ()
    assert kind.notes(build("uldp-avg").release(facts), counts) == ()
    assert make_aggregation("masked").notes(release, counts) == ()


@pytest.mark.parametrize("rate", [1.0, 0.5])
@pytest.mark.parametrize("dimension", [1, 2, 3, 4, 7])
def test_packed_and_unpacked_give_the_same_model(rate, dimension):
    method = build("uldp-avg-w", sample_rate=rate)
    federation = small_federation(dimension=dimension)
    models = []
    for kind in ("paillier", "packed"):
        server, silos = make_sessions(method, federation, aggregation=kind)
        drive(server, silos)
        models.append(server.model.tobytes())
    assert models[0] == models[1]


@pytest.mark.parametrize("name", ["uldp-avg", "uldp-avg-w"])
def test_no_slot_overflows_at_the_edge_of_the_checked_range(name):
    """All rows at the clip, noise at forty deviations, dithers at their ends: every slot decodes, whatever its sign."""
    kind = lookup_aggregation("paillier")(key_bits=2048, max_records=30)
    plan = make_plan(build(name), small_federation(dimension=100), 100, kind)
    layout = kind.layout(plan.release, plan.rounds)
    assert layout.slots > 4
    largest = math.floor(largest_total(plan.release))
    edges = [layout.multiple * largest + 3 * (layout.multiple - 1), -layout.multiple * largest, 0, 1, -1]
    for pattern in itertools.product(edges[:2], repeat=3):
        values = [pattern[i % 3] for i in range(layout.slots)] + edges[2:]
        values += [edges[0]] * (100 - len(values))
        packed = layout.pack(values)
        n = mpz(1) << 2047  # the smallest modulus of 2048 bits
        assert layout.unpack([signed_residue(x % n, n) for x in packed]) == values
    assert layout.width * layout.slots < 2048 <= layout.width * (layout.slots + 1)
    # one bit less would not do
    assert abs(edges[0]) >= 2 ** (layout.width - 2) or abs(edges[1]) >= 2 ** (layout.width - 2)


def test_slots_that_do_not_fit_are_refused_with_how_many_do():
    kind = lookup_aggregation("paillier")(key_bits=512, slots=9, max_records=30)
    with pytest.raises(ConfigError, match="at most 2 coordinates of"):
        make_plan(build("uldp-avg-w"), small_federation(), aggregation=kind)
    with pytest.raises(ConfigError, match="at least 1"):
        lookup_aggregation("paillier")(slots=0)


def test_the_planner_packs_where_it_pays():
    facts = PublicFacts(users=100, silos=5, dimension=1000, rounding=1)
    kind, by_records = lookup_aggregation("paillier")(), build("uldp-avg-w").release(facts)
    assert kind.layout(by_records, rounds=3).slots == 1
    assert replace(kind, max_records=100, pseudo_count=1).layout(by_records, rounds=3).slots >= 16
    assert kind.layout(build("uldp-avg").release(facts), rounds=3).slots >= 60


def test_an_unknown_aggregation_is_named_with_the_known_ones():
    with pytest.raises(ConfigError, match="Known: plain, masked, lattice, paillier, shuffled"):
        lookup_aggregation("maskd")


@pytest.mark.parametrize("bits", [0, 96, 1000, 10**6])
def test_sizes_of_keys_that_make_no_sense_are_refused(bits):
    with pytest.raises(ConfigError, match="key_bits"):
        lookup_aggregation("paillier")(key_bits=bits)


CHOICES = {
    "lattice: weights depend on record counts": {"method": {"name": "uldp-avg-w"}},
    "lattice: sampling in private": {"method": {"name": "uldp-avg", "sample_rate": 0.5, "sampling": "private"}},
    "masked: there are no record counts": {"method": {"name": "uldp-avg"}},
    "masked: there are no": {"method": {"name": "uldp-naive"}},
    "masked: lattice takes two silos": {"method": {"name": "uldp-avg-w"}, "data": {"silos": 1}},
    "masked: lattice would send 147 MB": {
        "method": {"name": "uldp-avg-w", "sample_rate": 0.5},
        "data": {"users": 3000},
        "model": {"name": "mlp", "options": {"hidden": [200]}},
    },
    "masked: lattice does not fit: privacy.noise_multiplier: at least 0.0173 with 3 silos": {
        "method": {"name": "uldp-avg-w"},
        "privacy": {"noise_multiplier": 0.015},
    },
}


@pytest.mark.parametrize("expected", CHOICES)
def test_auto_takes_lattice_where_counts_are_to_be_hidden_and_it_fits(expected):
    from uldp.experiment.build import prepare
    from uldp.experiment.config import Experiment

    changed = CHOICES[expected]
    tree = {
        "data": {"dataset": "synthetic", "users": 20, "silos": 3, "options": {"records": 200}},
        "model": {"name": "logistic"},
        "method": {"rounds": 2},
        "privacy": {"noise_multiplier": 5.0},
    }
    tree = {key: {**value, **changed.get(key, {})} for key, value in tree.items()}
    ready = prepare(Experiment.from_tree(tree))
    plan = ready.plan
    assert f"{plan.aggregation.name}: {plan.aggregation_reason}".startswith(expected)
    if plan.aggregation.name == "lattice" and plan.release.exchange is not None:
        marked = {row.who: row.counts for row in ready.planned_statement().exposures}
        assert [who for who, star in marked.items() if star] == ["two colluding silos", "the server and one silo"]


@pytest.mark.parametrize(
    ("users", "silos", "most"),
    [(20, 2, 2000), (2082, 2, 2000), (2084, 2, 1998), (8000, 3, 780), (16_384, 2, 253), (16_384, 500, 2000)],
)
def test_auto_counts_as_many_records_as_its_tables_have_room_for(users, silos, most):
    """Of many users in few silos fewer records count, so that what a silo gets and sends of tables is 50 MB at most."""
    release = build("uldp-avg-w", noise_multiplier=5.0).release(PublicFacts(users, silos, 10))

    def tables(max_records):
        return 2 * 12 * -(-users // silos) * (max_records + 1)

    found = automatic(release, workers=1)
    assert found == LatticeWeighting(max_records=most)
    assert tables(most) <= 50_000_000 and (most == 2000 or tables(most + 1) > 50_000_000)
    other = (
        users * 4 + -(-users // silos) * 16 + 49_152 + weight_bytes(users, 10)
    )  # counts, places, entries, ciphertexts
    assert found.costs(release, 1)["setup_bytes"] <= tables(most) + other
