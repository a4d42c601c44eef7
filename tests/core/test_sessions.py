"""Sessions: who may speak when, what is refused, and that refusing changes nothing."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
from tests.support import (
    TinyLearner,
    decode,
    drive,
    drive_with_restarts,
    hello,
    make_aggregation,
    make_plan,
    make_sessions,
    small_federation,
    step,
)

from uldp._version import __version__
from uldp.aggregation.key_agreement import KeyRequest, SiloKeys
from uldp.aggregation.paillier_messages import ChoicesRequest, EncryptedWeights, SealedSeed
from uldp.aggregation.routes import ROUTES
from uldp.errors import MessageRefused, RunError
from uldp.methods.registry import METHODS, lookup
from uldp.methods.user_sum import UserSum
from uldp.privacy.releases import PublicFacts
from uldp.protocol import messages as m
from uldp.protocol.turns import Phase, diagram, sequence, turn, turns
from uldp.rng import Secrets

DIGEST = "d" * 64


def build(name="uldp-avg-w", **fields):
    named = lookup(name)
    defaults = {"rounds": 3}
    if named.with_defaults.privacy_unit is not None and not named.with_defaults.local:
        defaults["noise_multiplier"] = 5.0
    return named.method(**{**defaults, **dict(named.fixed), **fields})


def ask(body, silo="silo-0", digest=DIGEST):
    return m.encode(digest, silo, body)


def greeted(method=None):
    server, silos = make_sessions(method or build(), small_federation())
    step(server, silos)
    return server, silos


@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_to_the_end_and_charges_every_round_once(name):
    server, silos = make_sessions(build(name), small_federation())
    drive(server, silos)
    assert server.round == 3
    assert [entry.round for entry in server.ledger.entries] == [1, 2, 3]
    assert server.requests() == {}


@pytest.mark.parametrize("name", METHODS)
def test_the_same_seed_gives_the_same_model_bit_by_bit(name):
    models = []
    for _ in range(2):
        server, silos = make_sessions(build(name), small_federation(), seed=4)
        drive(server, silos)
        models.append(server.model.tobytes())
    assert models[0] == models[1]


def test_another_seed_gives_another_model():
    models = set()
    for seed in (1, 2):
        server, silos = make_sessions(build(), small_federation(), seed=seed)
        drive(server, silos)
        models.add(server.model.tobytes())
    assert len(models) == 2


@pytest.mark.parametrize("name", METHODS)
def test_saving_and_restoring_after_every_exchange_changes_nothing(name):
    method = build(name)
    if isinstance(method, UserSum):
        method = build(name, sample_rate=0.5)
    server, silos = make_sessions(method, small_federation())
    drive(server, silos)
    expected = server.model.tobytes()
    server = drive_with_restarts(lambda: make_sessions(method, small_federation()))
    assert server.model.tobytes() == expected


REQUESTS = [
    hello(1, 2, 3),
    KeyRequest(b""),
    SiloKeys([], []),
    SealedSeed(b""),
    EncryptedWeights(b""),
    m.CountsRequest(),
    m.UserTotals(b""),
    ChoicesRequest(1, b""),
    m.UpdateRequest(1, b"", b""),
    m.MetricsRequest(1, b""),
    m.Close(),
]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("phase", [*Phase, "introduced", "paired", "blinded"])
@pytest.mark.parametrize("asked", REQUESTS, ids=lambda request: type(request).__name__)
def test_only_the_table_decides_who_may_speak(route, phase, asked):
    table = turns(ROUTES[route])
    if (phase, type(asked)) in table:
        assert turn(table, phase, asked, "x").request is type(asked)
    else:
        with pytest.raises(MessageRefused, match="out of turn"):
            turn(table, phase, asked, "x")


@pytest.mark.parametrize("route", ROUTES)
def test_every_setup_is_one_path_from_new_to_ready(route):
    phase, asked = Phase.NEW, []
    table = turns(ROUTES[route])
    while phase != Phase.READY:
        (request,) = [request for at, request in table if at == phase]
        asked.append(request)
        phase = table[phase, request].phase
    assert asked == [m.Hello, *(exchange.request for exchange in ROUTES[route].setup)]


@pytest.mark.parametrize("rate", [1.0, 0.5])
@pytest.mark.parametrize("method", ["uldp-avg", "uldp-avg-w"])
@pytest.mark.parametrize("name", ["plain", "masked", "paillier"])
def test_every_plan_takes_one_of_the_routes_that_the_docs_draw(name, method, rate):
    kind, facts = make_aggregation(name), PublicFacts(users=6, silos=3, dimension=4)
    assert kind.route(build(method, sample_rate=rate).release(facts)) in ROUTES.values()
    if name == "paillier":
        private = build(method, sample_rate=0.5, sampling="private")
        assert kind.route(private.release(facts)) in ROUTES.values()


@pytest.mark.parametrize(
    ("request_bytes", "reason"),
    [
        (b"", "not a message"),
        (b"\x00garbage", "not a message"),
        (ask(hello(), digest="e" * 64), "experiment"),
        (ask(hello(), silo="silo-1"), "signed for"),
        (ask(hello(3, 7, 4)), "users = 7"),
        (ask(hello(2, 6, 4)), "silos = 2"),
        (ask(hello(3, 6, 5)), "dimension = 5"),
        (ask(hello(uldp_version="0.0.9")), f"runs uldp 0.0.9, this one {__version__}; install"),
        (ask(hello(uldp_version="0.0.9"), digest="e" * 64), "runs uldp 0.0.9"),  # it tells more than two digests
        (ask(hello(layers="f" * 64)), "layers are others"),
        (ask(hello(outputs=bytes(8))), "other outputs before training"),
        (ask(m.Close()), "out of turn"),
        (ask(m.Closed()), "out of turn"),
        (bytes(200_000), "at most"),
    ],
)
def test_a_silo_refuses_what_is_foreign_and_is_not_changed_by_it(request_bytes, reason):
    _, silos = make_sessions(build(), small_federation())
    silo = silos["silo-0"]
    before = silo.save()
    with pytest.raises(MessageRefused, match=reason):
        silo.reply(request_bytes)
    assert silo.save() == before
    silo.reply(ask(hello()))  # and it goes on


def test_unknown_fields_and_versions_are_refused():
    import msgspec

    _, silos = make_sessions(build(), small_federation())
    tree = msgspec.msgpack.decode(ask(hello()))
    for change in ({"version": m.PROTOCOL_VERSION - 1}, {"version": m.PROTOCOL_VERSION + 1}, {"extra": 1}):
        with pytest.raises(MessageRefused):
            silos["silo-0"].reply(msgspec.msgpack.encode({**tree, **change}))


def test_another_protocol_version_is_named_although_its_messages_have_other_fields():
    import msgspec

    _, silos = make_sessions(build(), small_federation())
    body = {"type": "Hello", "silos": 3, "users": 6, "dimension": 4}  # what version 4 said
    old = msgspec.msgpack.encode({"version": 4, "experiment": DIGEST, "silo": "silo-0", "body": body})
    with pytest.raises(MessageRefused, match=f"protocol version 4, here it is {m.PROTOCOL_VERSION}"):
        silos["silo-0"].reply(old)
    claimed = msgspec.msgpack.encode({"version": m.PROTOCOL_VERSION, "body": 1})
    with pytest.raises(MessageRefused, match="not a message of this protocol"):
        silos["silo-0"].reply(claimed)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"uldp_version": "9.9"}, f"runs uldp 9.9, this one {__version__}"),
        ({"users": 7}, "users = 7, here it is 6"),
        ({"layers": "other"}, "layers are others"),
        ({"outputs": b"12345678"}, "other outputs"),
    ],
)
def test_the_server_refuses_a_silo_that_holds_something_else(change, reason):
    server, silos = make_sessions(build(), small_federation())
    server.requests()
    told = {**{name: getattr(hello(), name) for name in m.Hello.__struct_fields__}, "roster": "", **change}
    with pytest.raises(MessageRefused, match=reason) as refused:
        server.receive("silo-1", ask(m.Welcome(**told), silo="silo-1"))
    assert "silo-1" in str(refused.value)
    drive(server, silos)
    assert server.round == 3


def test_first_outputs_are_compared_up_to_rounding():
    ours = hello(outputs=m.pack(np.array([0.25, 0.75])))
    m.check_outputs(hello(outputs=m.pack(np.array([0.25 + 1e-6, 0.75 - 1e-6]))), ours, "silo a")
    for other in (np.array([0.26, 0.74]), np.array([np.nan, 0.75]), np.array([0.25])):
        with pytest.raises(MessageRefused, match="other outputs"):
            m.check_outputs(hello(outputs=m.pack(other)), ours, "silo a")


def test_totals_that_would_give_weights_above_one_are_refused():
    _, silos = greeted()
    counts = decode(silos["silo-0"].reply(ask(m.CountsRequest())), experiment=DIGEST, silo="silo-0", limit=10**6)
    own = m.unpack_counts(counts.counts, 6, 10**6, "x")
    with pytest.raises(MessageRefused, match="smaller than this silo's own count"):
        silos["silo-0"].reply(ask(m.UserTotals(m.pack(np.maximum(own - 1, 0)))))
    with pytest.raises(MessageRefused, match="outside 0"):
        silos["silo-0"].reply(ask(m.UserTotals(m.pack(own - 10**9))))


def test_counts_stay_in_the_silo_when_the_method_does_not_need_them():
    _, silos = greeted(build("uldp-avg"))
    with pytest.raises(MessageRefused, match="out of turn"):
        silos["silo-0"].reply(ask(m.CountsRequest()))


def test_a_method_that_needs_counts_does_not_train_without_them():
    _, silos = greeted(build("uldp-avg-w"))
    with pytest.raises(MessageRefused, match="out of turn"):
        silos["silo-0"].reply(ask(m.UpdateRequest(1, m.pack(np.zeros(4)), b"")))


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (m.UpdateRequest(2, m.pack(np.zeros(4)), b""), "not the next one"),
        (m.UpdateRequest(0, m.pack(np.zeros(4)), b""), "outside the agreed 3 rounds"),
        (m.UpdateRequest(4, m.pack(np.zeros(4)), b""), "outside the agreed 3 rounds"),
        (m.UpdateRequest(-(2**63), m.pack(np.zeros(4)), b""), "outside the agreed 3 rounds"),
        (m.UpdateRequest(1, m.pack(np.zeros(5)), b""), "32 are expected"),
        (m.UpdateRequest(1, m.pack(np.full(4, np.nan)), b""), "NaN"),
        (m.UpdateRequest(1, m.pack(np.zeros(4)), b"\xff"), "sample_rate"),
    ],
)
def test_a_silo_refuses_a_wrong_round_model_or_sample(asked, reason):
    _, silos = greeted(build("uldp-avg"))
    with pytest.raises(MessageRefused, match=reason):
        silos["silo-0"].reply(ask(asked))


def test_a_repeated_request_gets_the_same_bytes_and_a_changed_one_is_refused():
    _, silos = greeted(build("uldp-avg"))
    first = silos["silo-0"].reply(ask(m.UpdateRequest(1, m.pack(np.zeros(4)), b"")))
    assert silos["silo-0"].reply(ask(m.UpdateRequest(1, m.pack(np.zeros(4)), b""))) == first
    with pytest.raises(MessageRefused, match="not the next one"):
        silos["silo-0"].reply(ask(m.UpdateRequest(1, m.pack(np.ones(4)), b"")))


def noise_of(request, method=None, data=None):
    """The noise in a silo's response: with and without noise the sums are the same."""
    answers = []
    for sigma in (5.0, 0.0):
        built = build("uldp-avg", noise_multiplier=sigma, **(method or {}))
        _, silos = make_sessions(built, data or small_federation(), secrets=Secrets.from_key(b"k" * 32))
        silos["silo-0"].reply(ask(hello()))
        body = decode(silos["silo-0"].reply(ask(request)), experiment=DIGEST, silo="silo-0", limit=10**6)
        answers.append(np.frombuffer(body.vector, dtype="<i8"))
    return answers[0] - answers[1]


def test_only_a_repetition_of_the_same_release_carries_the_same_noise():
    """Else equal bytes, or a difference of two responses, would tell about the records without any noise."""
    request = m.UpdateRequest(1, m.pack(np.zeros(4)), b"")
    first = noise_of(request)
    assert (noise_of(request) == first).all()
    empty = dataclasses.replace(
        small_federation(), silos=tuple(s.take(np.zeros(len(s), bool)) for s in small_federation().silos)
    )
    others = {
        "another model": noise_of(m.UpdateRequest(1, m.pack(np.ones(4)), b"")),
        "other records": noise_of(request, data=small_federation(seed=1)),
        "another model, no records": noise_of(m.UpdateRequest(1, m.pack(np.ones(4)), b""), data=empty),
        "no records": noise_of(request, data=empty),
    }
    vectors = [first, *others.values()]
    for i, one in enumerate(vectors):
        for other in vectors[:i]:
            assert (one != other).any()


class Rounded(TinyLearner):
    """Computes what others compute, up to rounding."""

    def user_deltas(self, x, data, local, streams):
        for users, rows in super().user_deltas(x, data, local, streams):
            yield users, rows * (1 + 1e-6)


def test_a_sum_that_was_rounded_otherwise_or_another_scale_gets_noise_of_its_own():
    """The same noise on two sums would show their difference, the same draws at two scales both sums."""
    dimension = 2000
    request = ask(m.UpdateRequest(1, m.pack(np.zeros(dimension)), b""))

    def sent(learner=TinyLearner, **settings):
        method = build("uldp-avg", **settings)
        federation = small_federation(dimension=dimension, scale=0.01)  # small features: nothing diverges
        secrets = Secrets.from_key(b"k" * 32)
        _, silos = make_sessions(method, federation, learner=learner(dimension), secrets=secrets)
        silos["silo-0"].reply(ask(hello(dimension=dimension)))
        body = decode(silos["silo-0"].reply(request), experiment=DIGEST, silo="silo-0", limit=10**6)
        return np.frombuffer(body.vector, dtype="<i8").astype(float)

    first = sent()
    assert (sent() == first).all()
    for other in (sent(Rounded), sent(dropout_tolerance=1), sent(noise_multiplier=5.0 + 1e-9)):
        assert abs(np.corrcoef(first, other)[0, 1]) < 5 / np.sqrt(dimension)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (b"junk", "not a message"),
        (ask(m.Closed()), "Update is expected"),
        (ask(m.Update(2, m.pack(np.zeros(4, np.uint64)), 0)), "round 2"),
        (ask(m.Update(1, m.pack(np.zeros(3, np.uint64)), 0)), "32 are expected"),
        (ask(m.Update(1, m.pack(np.zeros(4, np.uint64)), -1)), "saturated lies between"),
        (ask(m.Update(1, m.pack(np.zeros(4, np.uint64)), 0), digest="f" * 64), "experiment"),
    ],
)
def test_the_server_refuses_a_bad_answer_names_the_silo_and_charges_nothing(reply, reason):
    server, silos = greeted(build("uldp-avg"))
    server.requests()
    before = server.model.tobytes()
    with pytest.raises(MessageRefused, match=reason) as refused:
        server.receive("silo-0", reply)
    assert "silo-0" in str(refused.value)
    assert server.ledger.entries == ()
    assert server.model.tobytes() == before
    drive(server, silos)  # and it goes on
    assert server.round == 3


def test_the_model_does_not_change_before_all_have_answered_and_the_round_is_charged():
    server, silos = greeted(build("uldp-avg"))
    requests = server.requests()
    server.receive("silo-0", silos["silo-0"].reply(requests["silo-0"]))
    with pytest.raises(RunError, match="silo-1, silo-2"):
        server.collect()
    for name in ("silo-1", "silo-2"):
        server.receive(name, silos[name].reply(requests[name]))
    server.collect()
    with pytest.raises(RunError, match="not charged"):
        server.advance()
    assert server.round == 0
    server.charge()
    server.advance()
    assert server.round == 1


def test_a_silo_that_is_not_asked_or_not_known_is_refused():
    server, _ = make_sessions(build(), small_federation())
    with pytest.raises(MessageRefused, match="no silo"):
        server.receive("stranger", b"")
    with pytest.raises(MessageRefused, match="without a request"):
        server.receive("silo-0", b"")


def test_the_budget_ends_the_run_before_the_round_is_asked_for():
    method = build("uldp-avg", rounds=10)
    from uldp.privacy.accountants import account

    release = make_plan(method, small_federation()).release
    budget = account({release.event(3): 4}, 1e-5).value
    server, silos = make_sessions(method, small_federation(), budget=budget)
    drive(server, silos)
    assert server.round == 4
    assert server.finished and not server.ledger.affords(release.event(3), 5)
    assert server.ledger.epsilon().value <= budget


@pytest.mark.parametrize("name", METHODS)
def test_the_wire_shows_how_much_was_cut_off_of_the_method_without_privacy_only(name):
    """Rows far beyond the range: how many coordinates are would tell about the records."""
    has_range = "value_range" in lookup(name).method.__dataclass_fields__
    server, silos = make_sessions(build(name, **({"value_range": 1e-9} if has_range else {})), small_federation())
    told = []
    while requests := server.requests():
        for silo, request in requests.items():
            reply = silos[silo].reply(request)
            body = decode(reply, experiment=DIGEST, silo=silo, limit=10**6)
            told.append(getattr(body, "saturated", 0))
            server.receive(silo, reply)
        server.collect()
        server.charge()
        server.advance()
    assert bool(sum(told)) == (lookup(name).with_defaults.privacy_unit is None)


def test_the_sequence_in_the_docs_is_the_table():
    text = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
    drawn = re.findall(r"```mermaid\n(.*?)\n```", text, flags=re.S)
    shown = (
        *("lattice", "lattice, users sampled in private"),
        *("paillier", "paillier, users sampled in private", "masked, measured by silos"),
    )
    assert drawn == [sequence(ROUTES[route]) for route in shown]


def test_the_diagram_in_the_docs_is_the_table():
    text = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
    assert diagram(ROUTES.values()) in re.findall(r"```mermaid\n(.*?)\n```", text, flags=re.S)
