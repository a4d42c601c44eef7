"""FedAvg under local DP: what a client sends, what the server makes of it, who takes part, what it costs."""

import numpy as np
import pytest
from tests.core.test_sessions import DIGEST, ask, build
from tests.support import TinyLearner, decode, drive, make_plan, make_sessions, rows_of, small_federation, step

from uldp.errors import ConfigError, MessageRefused
from uldp.mechanisms.local_registry import LOCAL_MECHANISMS, local_mechanism
from uldp.methods.base import State
from uldp.methods.ldp_fedavg import LdpFedAvg
from uldp.privacy.accountants import account
from uldp.privacy.events import LocalReports
from uldp.privacy.ledger import Entry, Ledger
from uldp.privacy.releases import Adversary, PublicFacts
from uldp.privacy.releases.local_perturbation import perturbing_stream
from uldp.privacy.statement import Background, compose
from uldp.protocol import messages as m
from uldp.rng import Secrets, Streams
from uldp.sessions.shuffler import Shuffler
from uldp.vectors import from_residues

FACTS = PublicFacts(users=6, silos=3, dimension=4)
DATA = small_federation().silos[0]


def rows(method, x, data=DATA, key=b"k", learner=None):
    secrets = Secrets.from_key(key * 32)
    ((_, sent),) = rows_of(method, x, data, learner or TinyLearner(4), secrets=secrets, facts=FACTS)
    return sent[0]


def mechanism_of(method, x=None):
    return next(method.release(FACTS).parts(np.zeros(4) if x is None else x))[1]


@pytest.mark.parametrize("mechanism", LOCAL_MECHANISMS)
@pytest.mark.parametrize("sends", ["weights", "deltas"])
def test_what_a_client_sends_is_the_mechanisms_output_of_its_weights(mechanism, sends):
    method = build("ldp-fedavg", mechanism=mechanism, sends=sends, radius=0.5)
    x = np.array([0.1, -0.2, 0.3, 0.0])
    sent = rows(method, x)
    used = mechanism_of(method)
    delta = TinyLearner(4).silo_delta(x, DATA, method.local_training, Streams.from_seed(0))
    values = x + delta if sends == "weights" else delta
    expected = used.perturb(values, perturbing_stream(values, Secrets.from_key(b"k" * 32)))
    assert np.allclose(used.center + used.largest_output * sent, expected, atol=1e-12)
    assert np.abs(sent).max() <= 1 + 1e-12


def test_two_clients_with_other_records_have_outputs_whose_laws_differ_by_at_most_the_mechanisms_ratio():
    """The law of what is sent depends on the data through the clipped weight only."""
    method = build(
        "ldp-fedavg", mechanism="srr", radius=0.01, precision=3, groups=2, delta_sizes=2.0, epsilon_weight=1.0
    )
    used = mechanism_of(method)
    matrix = np.array(used.matrix(), dtype=float)
    assert (matrix.max(axis=0) / matrix.min(axis=0)).max() <= np.exp(1.0)


def test_other_weights_meet_other_draws_even_in_the_same_round():
    """Else two responses that differ in the last bit of training would show their difference without noise."""
    method = build("ldp-fedavg", mechanism="srr", radius=0.5, sends="weights")
    used = mechanism_of(method)
    secrets = Secrets.from_key(b"k" * 32)
    ranks = []
    for shift in (0.0, 0.01):
        values = np.full(4000, 0.1 + shift)
        ranks.append(used.perturb(values, perturbing_stream(values, secrets)) - values)
    assert (np.abs(ranks[0] - ranks[1]) < 1e-9).mean() < 0.01
    same = np.full(4000, 0.1)
    again = [used.perturb(same, perturbing_stream(same, secrets)) for _ in range(2)]
    assert (again[0] == again[1]).all()


def test_what_is_not_a_number_counts_as_the_middle_and_a_raising_model_as_no_change():
    class Broken(TinyLearner):
        def silo_delta(self, x, data, local, streams):
            return np.array([np.nan, np.inf, -np.inf, 0.0])

    class Raising(TinyLearner):
        def silo_delta(self, x, data, local, streams):
            raise ValueError("no")

    method = build("ldp-fedavg", mechanism="two-point")
    for learner in (Broken(4), Raising(4)):
        assert np.isfinite(rows(method, np.zeros(4), learner=learner)).all()


def test_the_server_averages_those_who_took_part():
    method = build("ldp-fedavg", fraction=2 / 3, radius=0.5, sends="deltas")
    used = mechanism_of(method)
    total = 2 * np.array([0.5, -0.5, 0.0, 1.0])  # the normalised outputs of two clients
    state = method.server(State(np.ones(4)), total, FACTS)
    assert np.allclose(state.x, 1 + used.largest_output * total / 2)
    whole = build("ldp-fedavg", fraction=2 / 3, radius=0.5, sends="weights", global_lr=0.5)
    state = whole.server(State(np.ones(4)), total, FACTS)
    assert np.allclose(state.x, 1 + 0.5 * (used.largest_output * total / 2 - 1))


def test_debiasing_maps_the_mean_back():
    method = build("srr-fl", debias=True, epsilon_weight=3.0)
    used = mechanism_of(method)
    w = np.array([-0.05, 0.0, 0.02, 0.07])
    total = 3 * (used.mean(w) - used.center) / used.largest_output
    assert np.allclose(method.server(State(np.zeros(4)), total, FACTS).x, w, atol=2e-3)
    plain = build("srr-fl", epsilon_weight=3.0).server(State(np.zeros(4)), total, FACTS).x
    assert np.abs(plain - w).max() > 0.01


def test_layers_have_settings_of_their_own_and_the_model_says_how_many():
    method = build("ldp-fedavg", radius=(0.1, 0.2), center=(0.0, 1.0)).for_model((1, 3))
    parts = list(method.release(FACTS).parts(np.zeros(4)))
    assert [(part.start, part.stop) for part, _ in parts] == [(0, 1), (1, 4)]
    assert [(one.center, one.radius) for _, one in parts] == [(0.0, 0.1), (1.0, 0.2)]
    with pytest.raises(ConfigError, match="one for each of the model's 3 tensors"):
        build("ldp-fedavg", radius=(0.1, 0.2)).for_model((1, 1, 2))


@pytest.mark.parametrize(
    ("x", "radius"),
    [
        ([0.5, 0.5, 0.5, 0.5], 0.1),  # never less than method.radius
        ([0.44, 0.58, 0.57, 90.0], 0.15),  # twice the median distance from the center: few large weights do not matter
        ([-9.0, 9.0, 7.0, 3.0], 0.2),  # never more than twice method.radius
    ],
)
def test_the_width_of_a_range_may_follow_the_public_model_within_public_bounds(x, radius):
    method = build("ldp-fedavg", ranges="model", sends="weights", radius=0.1, center=0.5)
    used = mechanism_of(method, np.array(x))
    assert used.center == 0.5 and used.radius == pytest.approx(radius, rel=0.11)


def test_a_range_that_follows_the_model_does_not_widen_itself():
    """Two outputs at epsilon 1, five clients: each round's noise is a part of the next round's range."""
    federation = small_federation(silos=5, records=20, seed=3)
    method = build("ldp-fl", ranges="model", radius=0.1, epsilon_weight=1.0, rounds=40)
    server, silos = make_sessions(method, federation)
    drive(server, silos)
    assert np.abs(server.model).max() <= 2 * 0.1 / np.tanh(0.5) * (1 + 1e-9)


def test_a_setting_without_effect_is_said_once():
    counts = np.ones((3, 6), dtype=np.int64)
    told = build("ldp-fedavg", precision=3, groups=2).notes(FACTS, counts)
    assert len(told) == 2 and "method.precision has no effect: mechanism 'piecewise' has none." in told
    assert len(build("ldp-fedavg", mechanism="grr", precision=3, groups=2).notes(FACTS, counts)) == 1
    assert build("srr-fl", precision=5, groups=2).notes(FACTS, counts) == ()


def test_a_bad_entry_of_a_list_is_named():
    with pytest.raises(ConfigError, match=r"method.radius: entry 2 of \[0.1, -1.0\]: from"):
        build("ldp-fedavg", radius=(0.1, -1.0)).for_model((1, 3))
    with pytest.raises(ConfigError, match=r"tensors, not \[0.1, 0.2\]"):
        build("ldp-fedavg", radius=(0.1, 0.2)).for_model((1, 1, 2))


def test_a_fraction_of_the_clients_takes_part_and_the_others_send_zeros():
    server, silos = make_sessions(build("ldp-fedavg", fraction=1 / 3), small_federation())
    step(server, silos)
    seen = set()
    while requests := server.requests():
        body = decode(requests["silo-0"], experiment=DIGEST, silo="silo-0", limit=10**6)
        if not isinstance(body, m.UpdateRequest):
            break
        picked = m.unpack_bits(body.sample, 3, "x")
        assert picked.sum() == 1
        for index, name in enumerate(silos):
            reply = decode(silos[name].reply(requests[name]), experiment=DIGEST, silo=name, limit=10**6)
            assert from_residues(m.unpack_residues(reply.vector, 4, "x")).any() == picked[index]
            server.receive(name, ask(reply, silo=name))
        seen.add(picked.tobytes())
        server.collect()
        server.charge()
        server.advance()
    assert server.round == 3


def test_a_client_refuses_a_question_that_does_not_say_who_takes_part():
    server, silos = make_sessions(build("ldp-fedavg", fraction=1 / 3), small_federation())
    step(server, silos)
    with pytest.raises(MessageRefused, match="sample"):
        silos["silo-0"].reply(ask(m.UpdateRequest(1, m.pack(np.zeros(4)), b"")))


def test_the_event_is_all_weights_of_a_client_for_every_adversary():
    release = build("srr-fl", epsilon_weight=3.0).release(FACTS)
    event = LocalReports(3.0, 4)
    assert release.event(3) == event
    for adversary in (Adversary(), Adversary("server"), Adversary("silos", colluding=2), Adversary(dropped=1)):
        assert release.view(adversary) == event
    assert account({event: 10}, 1e-5).value == pytest.approx(3.0 * 4 * 10, rel=1e-3)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"epsilon_weight": 0.0}, "epsilon_weight"),
        ({"epsilon_weight": 1000.0}, "epsilon_weight"),
        ({"radius": 0.0}, "radius"),
        ({"radius": -1.0}, "radius"),
        ({"mechanism": "srr", "precision": 40}, "precision"),
        ({"mechanism": "srr", "groups": 10**6}, "groups"),
        ({"mechanism": "srr", "delta_sizes": 10.0**6}, "delta"),
        ({"mechanism": "magic"}, "mechanism"),
        ({"fraction": 0.0}, "fraction"),
        ({"fraction": 1.5}, "fraction"),
        ({"sends": "gradients"}, "sends"),
        ({"ranges": "data"}, "ranges"),
        ({"ranges": "model"}, "ranges"),
        ({"dropout_tolerance": 1}, "dropout_tolerance"),
        ({"noise_multiplier": 5.0}, "noise_multiplier"),
        ({"radius": ()}, "radius"),
    ],
)
def test_bad_settings_are_one_sentence_with_their_place(fields, says):
    with pytest.raises(ConfigError) as refused:
        LdpFedAvg(**fields)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_fraction_that_picks_nobody_is_refused():
    with pytest.raises(ConfigError, match="one of 3 silos"):
        make_plan(build("ldp-fedavg", fraction=0.1), small_federation())


def shuffler(clients=3, dimension=4, key=b"s"):
    names = [f"silo-{index}" for index in range(clients)]
    return Shuffler(DIGEST, names, dimension, Secrets.from_key(key * 32)), names


def updates_of(round_, names, vectors):
    return {
        name: ask(m.Update(round_, m.pack(vector), 0), silo=name) for name, vector in zip(names, vectors, strict=True)
    }


def test_the_shuffler_forwards_every_value_at_its_position_and_nobodys_name():
    mixer, names = shuffler(5, 40)
    vectors = np.arange(200, dtype=np.uint64).reshape(5, 40)
    updates = {
        name: ask(m.Update(1, m.pack(vector), 0), silo=name) for name, vector in zip(names, vectors, strict=True)
    }
    mixed = mixer.shuffle(1, updates, 10**6)
    got = np.stack(
        [
            m.unpack_residues(decode(mixed[name], experiment=DIGEST, silo=name, limit=10**6).vector, 40, "x")
            for name in names
        ]
    )
    assert (np.sort(got, axis=0) == vectors).all()
    assert (got != vectors).any(axis=1).all()
    origins = got // 40
    assert any(len(set(row)) > 1 for row in origins.tolist())  # values of one client do not stay together
    again = mixer.shuffle(
        2, {k: ask(m.Update(2, m.pack(v), 0), silo=k) for k, v in zip(names, vectors, strict=True)}, 10**6
    )
    assert again != mixed


def test_other_updates_and_other_rounds_are_mixed_otherwise():
    """Else a round that is computed again, or the next one, would tell which values belong together."""
    mixer, names = shuffler(5, 400)
    vectors = np.arange(2000, dtype=np.uint64).reshape(5, 400)
    orders = []
    for round_, further in ((1, 0), (1, 0), (1, 2000), (2, 0)):
        mixed = mixer.shuffle(round_, updates_of(round_, names, vectors + np.uint64(further)), 10**6)
        bodies = [decode(mixed[name], experiment=DIGEST, silo=name, limit=10**6) for name in names]
        orders.append(np.stack([m.unpack_residues(body.vector, 400, "x") for body in bodies]) % 2000 // 400)
    assert (orders[0] == orders[1]).all()
    for other in orders[2:]:
        assert (orders[0] == other).mean() < 0.2 + 5 * 0.4 / np.sqrt(2000)  # a fifth by chance


def test_all_orders_are_alike():
    """Three clients have six orders: 3000 positions, chi-square with five degrees of freedom at level 1e-4."""
    mixer, names = shuffler(3, 3000)
    vectors = np.repeat(np.arange(3, dtype=np.uint64)[:, None], 3000, axis=1)
    mixed = mixer.shuffle(1, updates_of(1, names, vectors), 10**6)
    bodies = [decode(mixed[name], experiment=DIGEST, silo=name, limit=10**6) for name in names]
    ordered = np.stack([m.unpack_residues(body.vector, 3000, "x") for body in bodies]).astype(int)
    codes, counts = np.unique(ordered[0] * 9 + ordered[1] * 3 + ordered[2], return_counts=True)
    assert len(codes) == 6
    assert ((counts - 500) ** 2 / 500).sum() < 25.7


def test_pairs_leave_after_the_slowest_client_within_the_spread_in_mixed_order():
    names = ["silo-0", "silo-1"]
    mixer = Shuffler(DIGEST, names, 50, Secrets.from_key(b"s" * 32), spread=2.0)
    vectors = np.arange(100, dtype=np.uint64).reshape(2, 50)
    pairs = mixer.pairs(1, vectors, [3.0, 7.5])
    assert len(pairs) == 100
    times = [pair.time for pair in pairs]
    assert times == sorted(times) and times[0] >= 7.5 and times[-1] < 9.5
    assert {(pair.position, pair.value) for pair in pairs} == {
        (j, int(vectors[i, j])) for i in range(2) for j in range(50)
    }
    assert [pair.value // 50 for pair in pairs] != sorted(pair.value // 50 for pair in pairs)


def test_the_shuffler_refuses_what_is_no_update_of_this_round():
    mixer, names = shuffler()
    good = {name: ask(m.Update(1, m.pack(np.zeros(4, np.uint64)), 0), silo=name) for name in names}
    for bad in (m.Closed(), m.Update(2, m.pack(np.zeros(4, np.uint64)), 0), m.Update(1, b"short", 0)):
        with pytest.raises(MessageRefused, match="silo-1"):
            mixer.shuffle(1, {**good, "silo-1": ask(bad, silo="silo-1")}, 10**6)
    with pytest.raises(ConfigError, match="positive time"):
        Shuffler(DIGEST, names, 4, Secrets.from_key(b"s" * 32), spread=0.0)


def test_only_clients_that_are_picked_hide_each_other_behind_the_shuffler():
    """Ten of twenty clients are a crowd of ten."""
    servers = {}
    for silos, fraction in ((20, 0.5), (10, 1.0), (20, 1.0)):
        federation = small_federation(silos=silos)
        method = build("ldp-fedavg", rounds=1, epsilon_weight=0.5, fraction=fraction)
        plan = make_plan(method, federation, aggregation="shuffled")
        ledger = Ledger(1e-5, None, (Entry(1, plan.release.event(silos), "planned"),))
        exposures = compose(plan.release, plan.disclosure, ledger, Background(), simulated=True).exposures
        servers[silos, fraction] = next(row.epsilon for row in exposures if row.who == "the server")
    assert servers[20, 0.5] == servers[10, 1.0] > servers[20, 1.0]


def test_a_run_behind_the_shuffler_gives_the_model_of_plain():
    from uldp.experiment.config import Experiment
    from uldp.runtimes.simulation import run

    found = {}
    for name in ("plain", "shuffled", "masked"):
        tree = {
            "data": {"dataset": "synthetic", "users": 20, "silos": 6, "options": {"records": 200}},
            "method": {"name": "ldp-fedavg", "rounds": 2, "local_epochs": 1, "fraction": 0.5},
            "aggregation": {"name": name},
        }
        result = run(Experiment.from_tree(tree))
        found[name] = (result.model.tobytes(), result.statement)
    assert found["plain"][0] == found["shuffled"][0] == found["masked"][0]
    rows = {exposure.who: exposure.epsilon for exposure in found["shuffled"][1].exposures}
    assert rows["the server"] <= rows["the shuffler"] == found["plain"][1].epsilon
    assert "Client-level local DP" in found["plain"][1].headline()


def test_every_mechanism_learns_something_when_epsilon_is_large():
    federation = small_federation(silos=30, records=20, seed=3)
    for name in LOCAL_MECHANISMS:
        settings = {"epsilon_weight": 8.0, "radius": 1.0, "precision": 2, "delta_sizes": 2.0, "rounds": 8}
        method = build("ldp-fedavg", mechanism=name, **settings)
        server, silos = make_sessions(method, federation)
        start = np.linalg.norm(server.model - 1)
        drive(server, silos)
        if local_mechanism(name, epsilon=8.0).biased:
            continue
        assert np.linalg.norm(server.model - 1) < start
