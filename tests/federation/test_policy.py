"""The data owner has the last word: what is refused, what is charged, and that it adds up over experiments."""

import dataclasses
import json

import pytest
from tests.federation.federation_support import SILOS, World, experiment, parties, with_identities
from tests.support import decode

from uldp.errors import BudgetExhausted, ConfigError, RunError
from uldp.privacy.accountants import account
from uldp.privacy.events import NonPrivate
from uldp.privacy.releases import Adversary
from uldp.protocol import messages as m
from uldp.runtimes.flower import federation
from uldp.runtimes.flower.processes import Address
from uldp.runtimes.policy import Charge, LedgerGuard, OwnLedger, Policy, RefusedByOwner, views_of_a_round
from uldp.runtimes.silo_process import ENOUGH_REFUSALS, RefusingSilo, SiloProcess

DELTA = 1e-5


def plan_of(**sections):
    return parties(experiment(**sections))[0].plan


def worst(plan, rounds):
    return max(account({event: rounds}, DELTA).value for event in views_of_a_round(plan).values())


def lines(folder, rehearsal=True):
    file = folder / ("rehearsal-ledger.jsonl" if rehearsal else "ledger.jsonl")
    written = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [line for line in written if not line["answer"]]  # the others say what a charged round came to


def test_a_round_is_charged_for_the_worst_that_it_can_show():
    plain, masked = plan_of(aggregation={"name": "plain"}), plan_of()
    shown = views_of_a_round(masked)
    assert shown["public"] == masked.release.event(3)
    assert shown["silos"] == masked.release.view(Adversary("silos"))
    assert shown["server"] == masked.release.event(3)
    assert views_of_a_round(plain)["server"] == plain.release.view(Adversary("server"))


def test_where_silos_may_be_missing_their_noise_does_not_count():
    drops = plan_of(privacy={"noise_multiplier": 5.0, "dropout_tolerance": 1})
    shown = views_of_a_round(drops)
    assert shown["public"] == drops.release.event(2)
    assert shown["silos"] == drops.release.view(Adversary("silos", dropped=1))
    # Two attempts of one round tell a server what plain does.
    assert shown["server"] == drops.release.view(Adversary("server", sees_silo_sums=True))


def test_what_protects_nobody_is_charged_as_that():
    plan = plan_of()
    assert set(views_of_a_round(plan, "void").values()) == {NonPrivate()}
    with pytest.raises(ConfigError, match="would cost without bound"):
        Policy(max_epsilon=100.0, allow_counts=True).check(experiment(), plan, "void")


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ({"allowed_aggregations": ("paillier",)}, "policy.allowed_aggregations: this silo's owner allows paillier"),
        ({"allowed_methods": ("uldp-sgd", "uldp-avg")}, "allows uldp-sgd, uldp-avg, the experiment has uldp-avg-w"),
        ({"allowed_methods": ()}, "allows none"),
        ({"allow_counts": False}, "policy.allow_counts"),
        ({"max_epsilon": 50.0}, "policy.allow_counts: the experiment shows record counts"),
        (
            {"max_epsilon": 0.5, "allow_counts": True},
            r"policy.max_epsilon: this silo's owner allows epsilon 0.5 at delta 1e-05",
        ),
    ],
)
def test_an_experiment_against_the_policy_is_refused_before_anything_is_made(tmp_path, policy, reason):
    prepared = parties(experiment())[1]["silo-1"]
    with pytest.raises(ConfigError, match=reason):
        SiloProcess(prepared, tmp_path / "silo", "unix:/unused", policy=Policy(**policy))
    assert not (tmp_path / "silo").exists()


def test_a_policy_file(tmp_path):
    file = tmp_path / "policy.toml"
    file.write_text('max_epsilon = 3\ndelta = 1e-6\nallowed_aggregations = ["masked"]\n')
    assert Policy.from_file(file) == Policy(max_epsilon=3.0, delta=1e-6, allowed_aggregations=("masked",))
    for text, reason in (
        ("max_epsilom = 3", "Did you mean 'max_epsilon'"),
        ("max_epsilon = 0", "a positive, finite number"),
        ("max_epsilon = nan", "a finite number"),
        ("delta = 2", "delta"),
        ('against = ["server"]', "'public' belongs to it"),
        ('against = ["public", "moon"]', "some of public, server, silos"),
        ("max_epsilon", "not valid TOML"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=reason):
            Policy.from_file(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        Policy.from_file(tmp_path / "none.toml")


def test_every_round_is_charged_once_whatever_is_repeated(tmp_path):
    def fault(made, name, request):
        made.ask(name, request)
        made.kill(name)
        return made.ask(name, request)

    made = World(tmp_path, experiment(), fault, policy=Policy(max_epsilon=100.0, allow_counts=True))
    made.serving().run()
    made.close()
    for name in SILOS:
        assert [line["round"] for line in lines(tmp_path / name)] == [1, 2, 3]
        assert (tmp_path / name / "rehearsal-ledger.jsonl").stat().st_mode & 0o777 == 0o600


def test_experiments_on_the_same_data_add_up_and_stop_at_the_cap(tmp_path):
    """The first one fits; the second would pass the cap, and is not begun: not even a handshake is answered."""
    plan = parties(experiment())[0].plan
    policy = Policy(max_epsilon=worst(plan, 5) * 1.0001, delta=DELTA, allow_counts=True)
    made = World(tmp_path, experiment(), policy=policy)
    made.serving().run()
    made.close()
    with pytest.raises(BudgetExhausted, match=r"policy.max_epsilon: the experiment would raise"):
        World(tmp_path, experiment(run={"threads": 1, "seed": 1}), policy=policy).silo("silo-1")
    for name in SILOS:
        assert [line["round"] for line in lines(tmp_path / name)] == [1, 2, 3]


def test_a_round_that_passes_the_cap_is_refused_without_a_number(tmp_path):
    """Two runs at once: what the other one spends in the meantime is nobody else's business."""
    built = experiment()
    plan = parties(built)[0].plan
    policy = Policy(max_epsilon=worst(plan, 4) * 1.0001, delta=DELTA, allow_counts=True)
    made = World(tmp_path, built, policy=policy)
    event = views_of_a_round(plan)
    for name in SILOS:
        for round_ in (1, 2, 3):
            made.silo(name).charging.ledger.charge(Charge("another", "s", round_, "c", event))
    with pytest.raises(
        RunError, match="silo-1: refused by its owner, whose policy does not allow this round"
    ) as caught:
        made.serving().run()
    made.close()
    assert "epsilon" not in str(caught.value)
    assert f"{policy.max_epsilon:g}" not in str(caught.value)


def test_a_silo_whose_owner_refuses_says_so_and_nothing_else():
    silo = RefusingSilo("north", "unix:/unused")
    assert not silo.closed
    header, said = silo.respond({"kind": "status"}, b"")
    assert header == {"kind": "refused"} and not silo.closed
    for _ in range(ENOUGH_REFUSALS):
        assert silo.respond({"kind": "request"}, b"whatever") == (header, said)
    assert silo.closed  # said twice, it counts
    sentence = "refused by its owner, whose policy does not allow this experiment; nothing was sent"
    assert said.decode() == f"silo north: {sentence}"


@pytest.mark.parametrize(
    ("error", "heard"),
    [
        (RefusedByOwner("epsilon 0.5", location="policy.max_epsilon"), True),
        (BudgetExhausted("from 1 to 2", location="policy.max_epsilon"), True),
        (ConfigError("another file", location="data"), False),
        (RunError("no disk"), False),
    ],
)
def test_the_server_hears_of_an_owners_refusal_and_of_nothing_else(tmp_path, monkeypatch, error, heard):
    heard_of, said = [], []
    monkeypatch.setattr(federation, "connection_problem", lambda *_: "")
    monkeypatch.setattr(federation, "_tell_refusal", lambda silo, *_: heard_of.append(silo))
    joining = federation.ServerConnection(Address("127.0.0.1", 9), None, None, tmp_path)
    with pytest.raises(type(error), match=error.message), federation.telling_refusals("a", joining, said.append):
        raise error
    assert heard_of == (["a"] if heard else []) and len(said) == heard
    monkeypatch.setattr(federation, "connection_problem", lambda *_: "nobody is there")
    with pytest.raises(type(error)), federation.telling_refusals("a", joining, said.append):
        raise error
    assert len(heard_of) == heard and len(said) == heard  # nobody to tell


def test_a_ledger_that_lost_rounds_and_a_session_that_is_gone_stop_a_silo(tmp_path):
    built = experiment()
    silo = tmp_path / "silo-1"
    prepared = parties(built)[1]["silo-1"]
    with SiloProcess(prepared, silo, "unix:/unused") as process:
        process.charging.before_round(1, "request")
    with pytest.raises(RunError, match="its session is gone"):
        SiloProcess(prepared, silo, "unix:/unused")
    (silo / "rehearsal-ledger.jsonl").unlink()
    with pytest.raises(RunError, match="rolled back or changed: the audit trail"):
        SiloProcess(prepared, silo, "unix:/unused")
    (silo / "rehearsal-trail.jsonl").unlink()
    made = World(tmp_path, built)
    made.serving().run()
    made.close()
    assert SiloProcess(prepared, silo, "unix:/unused").closed


def test_another_answer_to_the_same_question_is_refused(tmp_path):
    event = plan_of().release.event(3)
    ledger = OwnLedger(tmp_path / "ledger.jsonl", Policy())
    ledger.charge(charge(1, event))
    ledger.settle(dataclasses.replace(charge(1, event), response="a"))
    for again in (ledger, OwnLedger(tmp_path / "ledger.jsonl", Policy())):
        again.charge(charge(1, event))
        again.settle(dataclasses.replace(charge(1, event), response="a"))
        with pytest.raises(RunError, match="comes out otherwise"):
            again.settle(dataclasses.replace(charge(1, event), response="b"))
    assert len((tmp_path / "ledger.jsonl").read_text().splitlines()) == 2


def test_a_refused_request_is_not_charged(tmp_path):
    built = experiment()
    plan = parties(built)[0].plan

    def fault(made, name, request):
        body = decode(request, experiment=plan.digest, silo=name, limit=plan.message_limit)
        if isinstance(body, m.UpdateRequest) and body.round == 1:
            other = m.UpdateRequest(2, body.model, body.sample)
            made.ask(name, m.encode(plan.digest, name, other))
        return made.ask(name, request)

    made = World(tmp_path, built, fault)
    made.serving().run()
    made.close()
    assert [line["round"] for line in lines(tmp_path / "silo-1")] == [1, 2, 3]


def test_a_deployment_has_another_ledger_than_its_rehearsal(tmp_path):
    built = with_identities(tmp_path)
    made = World(tmp_path, built, keys=tmp_path)
    made.serving().run()
    made.close()
    assert len(lines(tmp_path / "silo-1", rehearsal=False)) == 3
    assert not lines(tmp_path / "silo-1")


def charge(round_, event, experiment="e", session="s", content="c"):
    return Charge(experiment, session, round_, content, dict.fromkeys(("public", "server", "silos"), event))


def test_a_ledger_is_read_back_and_a_replay_costs_nothing(tmp_path):
    event = plan_of().release.event(3)
    file = tmp_path / "ledger.jsonl"
    ledger = OwnLedger(file, Policy(max_epsilon=100.0))
    ledger.charge(charge(1, event))
    ledger.charge(charge(1, event))
    ledger.charge(charge(1, event, session="another run"))
    spent = ledger.epsilon()
    assert spent == account({event: 2}, DELTA).value
    again = OwnLedger(file, Policy(max_epsilon=100.0))
    assert again.charges == ledger.charges
    assert again.epsilon() == spent
    with pytest.raises(BudgetExhausted, match=r"from .* to .*, its owner allows 0.1"):
        OwnLedger(file, Policy(max_epsilon=0.1)).charge(charge(2, event))
    assert len(file.read_text().splitlines()) == 2
    file.write_text('{"experiment": "e"}\n')
    with pytest.raises(RunError, match="cannot read the entry"):
        OwnLedger(file, Policy())


def lattice_plan(noise=5.0):
    sections = {"aggregation": {"name": "lattice"}, "privacy": {"noise_multiplier": noise}}
    server, _ = parties(experiment(**sections))
    return server, server.plan


def ledger_after_all_rounds(folder, plan, against):
    ledger = OwnLedger(folder / f"{against}.jsonl", Policy(against=("public", against), delta=DELTA))
    guard = LedgerGuard.of(ledger, plan, "session")
    for round_ in range(1, plan.rounds + 1):
        guard.before_round(round_, "request")
        guard.before_response(round_, "request", "content")
    return ledger


@pytest.mark.parametrize("noise", [0.2, 5.0])
def test_the_owners_ledger_counts_what_ciphertexts_leave_in_the_servers_view(tmp_path, noise):
    """As the statement does: under lattice the total carries a part of the encryptions of zero."""
    server, plan = lattice_plan(noise)
    rows = {row.who: row.epsilon for row in server.planned_statement().exposures}
    towards = {who: ledger_after_all_rounds(tmp_path, plan, who) for who in ("server", "silos")}
    assert towards["server"].epsilon() == pytest.approx(rows["the server"], rel=1e-9)
    events_alone = account({views_of_a_round(plan)["server"]: plan.rounds}, DELTA).value
    assert towards["server"].epsilon() > events_alone
    assert towards["silos"].epsilon() == pytest.approx(rows["one silo"], rel=1e-9)
    again = OwnLedger(tmp_path / "server.jsonl", Policy(against=("public", "server"), delta=DELTA))
    assert again.epsilon() == towards["server"].epsilon()


def test_an_experiment_under_lattice_is_refused_for_what_its_ciphertexts_add():
    _, plan = lattice_plan()
    built = experiment(aggregation={"name": "lattice"})
    events_alone = account({views_of_a_round(plan)["server"]: plan.rounds}, DELTA).value
    with pytest.raises(ConfigError, match="towards the server"):
        Policy(max_epsilon=events_alone, delta=DELTA, against=("public", "server")).check(built, plan)
    Policy(max_epsilon=events_alone * 1.001, delta=DELTA, against=("public", "server")).check(built, plan)


def test_entries_of_a_ledger_without_a_distance_are_read_and_a_wrong_one_is_refused(tmp_path):
    _, plan = lattice_plan()
    file = tmp_path / "server.jsonl"
    ledger_after_all_rounds(tmp_path, plan, "server")
    written = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps({**line, "distance": None}) + "\n" for line in written))
    policy = Policy(against=("public", "server"), delta=DELTA)
    assert OwnLedger(file, policy).epsilon() == account({views_of_a_round(plan)["server"]: 3}, DELTA).value
    for wrong in ({"statistical": -1.0, "shift": 0.1}, {"statistical": 0.1}, "much"):
        file.write_text(json.dumps({**written[0], "distance": wrong}) + "\n")
        with pytest.raises(RunError, match="cannot read the entry"):
            OwnLedger(file, policy)
