"""What a silo's owner relies on: one ledger, one noise, a policy that is not forgotten, and a way out."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace

import msgspec
import pytest
from tests.federation.federation_support import SILOS, World, experiment, parties, with_identities
from typer.testing import CliRunner

from uldp.cli.app import app
from uldp.cli.join import default_state
from uldp.errors import ConfigError, MessageRefused, RunError, printable
from uldp.experiment.parties import check_deployable
from uldp.runs.files import append_line, lock, read_lines, stored_key
from uldp.runtimes.flower import checks, credentials, federation
from uldp.runtimes.flower.processes import Address
from uldp.runtimes.policy import Charge, OwnLedger, Policy, views_of_a_round
from uldp.runtimes.serving import FailedResponse
from uldp.runtimes.silo_process import SiloProcess
from uldp.runtimes.silo_state import SiloState, experiments_in


@pytest.fixture
def keys(tmp_path):
    credentials.make_silo_keys("ward-a", tmp_path / "keys")
    return tmp_path / "keys"


def test_keys_answer_from_one_folder_of_state_only(tmp_path, keys):
    """A second folder has an empty ledger, and other noise for a round that was answered from the first."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir(mode=0o700)
    credentials.tie_to_state(keys, tmp_path / "one")
    credentials.tie_to_state(keys, tmp_path / "one")
    with pytest.raises(ConfigError, match=r"--state: these keys were used with another folder"):
        credentials.tie_to_state(keys, tmp_path / "two")
    assert str(tmp_path / "one") in (keys / "state.id").read_text()
    assert (keys / "state.id").stat().st_mode & 0o777 == 0o600


def test_without_a_word_the_state_lies_with_the_keys_whatever_the_silo_is_called(keys):
    assert default_state("ward-a", keys) == default_state("ward_a", keys) == keys / "state"


def test_private_keys_that_others_may_read_are_refused(keys):
    for name in ("identity.key", "node.key"):
        (keys / name).chmod(0o640)
        with pytest.raises(ConfigError, match=r"others may read it \(mode 640\); chmod 600"):
            credentials.public_keys("ward-a", keys)
        (keys / name).chmod(0o600)


def test_a_silo_that_was_under_a_policy_does_not_go_on_without(tmp_path):
    state = tmp_path / "silo-1"
    policy = tmp_path / "mine.toml"
    policy.write_text("max_epsilon = 100.0\nallow_counts = true\n")
    assert Policy.of_silo(state) == Policy()
    SiloProcess(parties(experiment())[1]["silo-1"], state, "unix:/unused", policy=Policy.of_silo(state, policy)).close()
    with pytest.raises(ConfigError, match="this silo was under a policy before"):
        Policy.of_silo(state)
    assert Policy.of_silo(state, policy).max_epsilon == 100.0
    (state / "policy.known").unlink()  # its owner's own decision
    assert Policy.of_silo(state) == Policy()


def test_a_policy_on_a_disk_that_is_not_there_is_no_missing_policy(tmp_path):
    (tmp_path / "policy.toml").symlink_to(tmp_path / "unmounted" / "policy.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        Policy.of_silo(tmp_path)


def test_at_its_start_a_silo_says_its_policy_and_what_was_spent(tmp_path, caplog):
    made = World(tmp_path, experiment())
    made.serving().run()
    made.close()
    with caplog.at_level("INFO", logger="uldp.silo"):
        SiloProcess(parties(experiment())[1]["silo-1"], tmp_path / "silo-1", "unix:/unused").close()
    assert "no policy: nothing is capped" in caplog.text
    ledger = OwnLedger(tmp_path / "silo-1" / "rehearsal-ledger.jsonl", Policy())
    assert f"epsilon {ledger.epsilon():.4g} spent so far in 1 experiment" in caplog.text
    assert str(Policy(max_epsilon=2.0, allowed_methods=("fedavg",))) == (
        "policy: epsilon 2 at delta 1e-05 against public, server, silos, methods fedavg, "
        "record counts may not be shown, no metrics of hold-out people"
    )


def test_a_ledger_that_lost_an_experiment_stops_the_silo_also_in_the_next_one(tmp_path):
    made = World(tmp_path, experiment())
    made.serving().run()
    made.close()
    ledger = tmp_path / "silo-1" / "rehearsal-ledger.jsonl"
    kept = ledger.read_bytes()
    ledger.unlink()
    other = World(tmp_path, experiment(run={"threads": 1, "seed": 1}))
    with pytest.raises(RunError, match=r"round 3 of experiment [0-9a-f]{12} was released from here"):
        other.silo("silo-1")
    ledger.write_bytes(kept)
    other.silo("silo-1")
    other.close()


def test_a_last_line_counts_without_its_newline_and_a_half_one_does_not(tmp_path):
    file = tmp_path / "l.jsonl"
    for number in (1, 2):
        append_line(file, {"number": number})
    file.write_bytes(file.read_bytes().rstrip(b"\n"))
    assert [line["number"] for line in read_lines(file)] == [1, 2]
    append_line(file, {"number": 3})
    assert [line["number"] for line in read_lines(file)] == [1, 2, 3]
    file.write_bytes(file.read_bytes() + b'{"number": 4')
    assert [line["number"] for line in read_lines(file)] == [1, 2, 3]
    append_line(file, {"number": 5})
    assert [line["number"] for line in read_lines(file)] == [1, 2, 3, 5]


def test_a_silo_that_missed_the_response_to_close_can_leave_and_its_secrets_are_gone(tmp_path):
    """With a response to Close the secrets are destroyed; without one their owner can do it."""
    (tmp_path / "k").mkdir()
    built = with_identities(tmp_path / "k", privacy={"noise_multiplier": 5.0})

    def fault(made, name, request):
        last = made.running.get("silo-3") and made.silo("silo-3").respond({"kind": "status"}, b"")[0]["round"] == 3
        return FailedResponse("gone") if name == "silo-3" and last and b"Close" in request else made.ask(name, request)

    made = World(tmp_path, built, fault, keys=tmp_path / "k")
    made.serving().run()
    made.close()
    over = {name: experiments_in(tmp_path / name)[0] for name in SILOS}
    assert over["silo-1"].over and not over["silo-3"].over and over["silo-3"].round == 3
    assert over["silo-3"].secrets and not over["silo-1"].secrets
    key = tmp_path / "silo-3" / "experiments" / over["silo-3"].digest / "secrets.key"
    assert key.exists()
    command = CliRunner()
    assert "not over" in command.invoke(app, ["leave", str(tmp_path / "silo-3")]).stdout
    wrong = command.invoke(app, ["leave", str(tmp_path / "silo-3"), "--experiment", "zz"])
    assert wrong.exit_code == 2 and "0 experiments" in wrong.stderr
    done = command.invoke(app, ["leave", str(tmp_path / "silo-3"), "--experiment", over["silo-3"].digest[:8], "--json"])
    found = json.loads(done.stdout)[0]
    assert found["over"] and not found["secrets"] and not key.exists()
    saved = SiloState(tmp_path / "silo-3", over["silo-3"].digest).load()
    assert made.silo("silo-3").closed and msgspec.msgpack.decode(saved)["released"] is None
    made.close()


def test_an_experiment_s_folder_that_is_lost_is_not_begun_anew(tmp_path):
    """With other secrets every round would be released a second time, with fresh noise."""
    (tmp_path / "k").mkdir()
    built = with_identities(tmp_path / "k", privacy={"noise_multiplier": 5.0})
    made = World(tmp_path, built, keys=tmp_path / "k")
    made.serving().run()
    made.close()
    shutil.rmtree(tmp_path / "silo-1" / "experiments")
    with pytest.raises(RunError, match="has responded in the experiment, and its session is gone"):
        made.silo("silo-1")


def test_two_answers_to_one_round_share_its_sample_whatever_secrets_they_are_from(tmp_path):
    """Composed as if they had samples of their own they would cost less."""
    event = views_of_a_round(parties(experiment(method={"sample_rate": 0.1}))[0].plan)
    rounds = range(1, 30)
    public = Policy(against=("public",))
    twice, apart = OwnLedger(tmp_path / "a", public), OwnLedger(tmp_path / "b", public)
    for number in rounds:
        for session in ("one", "two"):
            twice.charge(Charge("e", session, number, session, event))
            apart.charge(Charge("e", session, number + 100 * (session == "two"), session, event))
    assert twice.epsilon() > apart.epsilon()


def test_one_damaged_session_of_old_does_not_keep_a_silo_from_other_experiments(tmp_path, caplog):
    made = World(tmp_path, experiment())
    made.serving().run()
    made.close()
    old = next((tmp_path / "silo-1" / "experiments").glob("*/session.bin"))
    old.write_bytes(old.read_bytes()[:-1] + b"?")
    other = World(tmp_path, experiment(run={"threads": 1, "seed": 1}))
    assert not other.silo("silo-1").closed and "cannot be read" in caplog.text
    other.close()
    assert [one.round for one in experiments_in(tmp_path / "silo-1") if one.digest == old.parent.name] == [None]
    shown = CliRunner().invoke(app, ["leave", str(tmp_path / "silo-1"), "--experiment", old.parent.name[:12]])
    assert shown.exit_code == 0 and "cannot be read" in shown.stdout


@pytest.mark.parametrize("charged", [True, False])
def test_an_unreadable_session_is_refused_unless_the_ledger_has_charges_for_its_experiment(tmp_path, charged, caplog):
    """What was spent in it is unknown: another experiment would go on as if it were nothing."""
    made = World(tmp_path, experiment())
    made.serving().run()
    made.close()
    old = next((tmp_path / "silo-1" / "experiments").glob("*/session.bin"))
    old.write_bytes(b"torn")
    if not charged:
        (tmp_path / "silo-1" / "rehearsal-ledger.jsonl").unlink()
    other = World(tmp_path, experiment(run={"threads": 1, "seed": 1}))
    if charged:
        assert not other.silo("silo-1").closed and "is the ledger whole" in caplog.text
        other.close()
        return
    with pytest.raises(RunError, match=f"cannot be read, and the silo's ledger has no charge.*delete .*{old.parent}"):
        other.silo("silo-1")
    shutil.rmtree(old.parent)  # its owner says that no round was answered; the audit trail knows better
    with pytest.raises(RunError, match="rolled back or changed: the audit trail"):
        other.silo("silo-1")
    (tmp_path / "silo-1" / "rehearsal-trail.jsonl").unlink()
    assert not other.silo("silo-1").closed
    other.close()


def test_a_key_is_made_once_also_by_two_at_the_same_time(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        for number in range(20):
            file = tmp_path / f"{number}.key"
            assert len(set(pool.map(stored_key, [file] * 8))) == 1
    (tmp_path / "short.key").write_bytes(b"")
    with pytest.raises(RunError, match="is damaged: 0 bytes, not 32"):
        stored_key(tmp_path / "short.key")
    assert not list(tmp_path.glob(".*"))


class Joined:
    """`join` without Flower: its node does nothing, and the silo stops at once."""

    def __init__(self, tmp_path, monkeypatch):
        self.keys = tmp_path / "keys"
        credentials.make_silo_keys("silo-1", self.keys)
        node = SimpleNamespace(end=lambda: None, trouble=None)
        monkeypatch.setattr(federation, "check_installed", lambda: None)
        monkeypatch.setattr(federation, "Node", lambda *_: SimpleNamespace(attach=lambda: nullcontext(node)))
        monkeypatch.setattr(SiloProcess, "serve", lambda silo: None)

    def join(self, state, policy=None):
        where = federation.ServerConnection(Address("127.0.0.1", 9), self.keys, None, state, policy or Policy())
        federation.join(parties(experiment())[1]["silo-1"], where, lambda text: None)


def test_join_ties_keys_to_a_folder_only_when_it_may_answer(tmp_path, monkeypatch):
    """A start that fails has answered nothing, and leaves the owner free to take the right folder."""
    silo = Joined(tmp_path, monkeypatch)
    with pytest.raises(ConfigError, match="allowed_methods"):
        silo.join(tmp_path / "typo", Policy(allowed_methods=("fedavg",)))
    silo.join(tmp_path / "right")
    silo.join(tmp_path / "right")
    with pytest.raises(ConfigError, match="were used with another folder"):
        silo.join(tmp_path / "typo")


def test_join_does_not_start_twice_with_the_same_keys(tmp_path, monkeypatch):
    silo = Joined(tmp_path, monkeypatch)
    with lock(silo.keys / "lock", "", ""), pytest.raises(RunError, match="another process uses these keys"):
        silo.join(tmp_path / "state")


def test_a_key_that_can_be_broken_is_for_rehearsals():
    built = experiment(
        aggregation={"name": "paillier", "key_bits": 512, "slots": 1, "max_records": 30},
        method={"name": "uldp-avg-w", "rounds": 3, "local_epochs": 1},
        run={"threads": 1, "secrets": "os"},
    )
    with pytest.raises(ConfigError, match=r"aggregation\.key_bits: such a key can be broken"):
        check_deployable(built)


def test_another_party_s_text_is_one_line_without_control_characters():
    error = MessageRefused(
        "runs uldp 1\n2026-01-01 all is well\x1b]0;owned\x07" + "x" * 70_000, location="silo \x1b[2J"
    )
    assert str(error).isprintable() and len(str(error)) < 1000
    assert printable("Zürich-Süd") == "Zürich-Süd"


def test_a_policy_that_names_nothing_that_exists_is_refused(tmp_path):
    (tmp_path / "policy.toml").write_text('allowed_aggregations = ["maskd"]')
    with pytest.raises(ConfigError, match=r"not 'maskd'. Did you mean 'masked'\? \(.*policy\.toml\)"):
        Policy.of_silo(tmp_path)


def rows_of_doctor(tmp_path, silo, **about):
    found = checks.examine(experiment(), None, [checks.SiloOptions("silo-1", state=silo, **about)], rehearsal=True)
    return {one.what: one for one in found}


def test_the_doctor_looks_at_the_state_as_join_does(tmp_path, keys):
    """Modes, whose keys it belongs to, what was spent, and whether the experiment fits into what is left."""
    state = tmp_path / "silo-1"
    assert "state" not in rows_of_doctor(tmp_path, state)
    made = World(tmp_path, experiment(run={"threads": 1, "seed": 1}))
    made.serving().run()
    made.close()
    row = rows_of_doctor(tmp_path, state)["state"]
    assert row.ok and "spent so far in 1 experiment" in row.detail
    ledger = OwnLedger(state / "rehearsal-ledger.jsonl", Policy())
    cap = ledger.epsilon() * 1.01
    (state / "policy.toml").write_text(f"max_epsilon = {cap}\nallow_counts = true\n")
    row = rows_of_doctor(tmp_path, state)["state"]
    assert not row.ok and "it was not begun" in row.detail
    (state / "policy.toml").unlink()
    (tmp_path / "other").mkdir(mode=0o700)
    credentials.tie_to_state(keys, tmp_path / "other")
    row = rows_of_doctor(tmp_path, state, keys=keys)["state"]
    assert not row.ok and "were used with another folder" in row.detail
    state.chmod(0o755)
    row = rows_of_doctor(tmp_path, state)["state"]
    assert not row.ok and "chmod 700" in row.detail
    assert not (state / "state.id").exists()  # a doctor writes nothing


def test_the_doctor_prints_the_digest_that_refusals_name(tmp_path):
    found = {one.what: one.detail for one in checks.examine(experiment(), None, [], rehearsal=True)}
    assert found["digest"].startswith(parties(experiment())[0].plan.digest[:12])
