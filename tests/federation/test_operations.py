"""What the people of a silo's machine do: look where it stands, verify its trail, copy its ledger, put it back."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.federation.federation_support import World, parties, with_identities
from typer.testing import CliRunner

from uldp.cli.app import app
from uldp.errors import ConfigError, RunError
from uldp.runs.directory import RunDirectory
from uldp.runs.files import lock, read_lines
from uldp.runs.trail import ROTATED, read_trail
from uldp.runtimes.backup import back_up, restore
from uldp.runtimes.flower import credentials
from uldp.runtimes.flower.rotation import check_rotation_finished, rotate_silo_keys
from uldp.runtimes.policy import Policy, RefusedByOwner
from uldp.runtimes.release_trail import ReleaseTrail, check_trails
from uldp.runtimes.silo_process import SENT, SiloProcess
from uldp.runtimes.silo_state import TrailSigner, open_trail
from uldp.runtimes.standing import standing_of

runner = CliRunner()


class Silo:
    """silo-1 with keys, whose process signs its trail with them and keeps the head there."""

    def __init__(self, folder):
        self.folder, self.keys, self.state = folder, folder / "keys", folder / "silo-1"
        self.public = credentials.make_silo_keys("silo-1", self.keys)
        self.identity = credentials.identity_of(self.keys)
        self.built = with_identities(folder)
        silos = {**self.built.aggregation.identities, "silo-1": self.public.identity}
        tree = self.built.to_tree()
        tree["aggregation"]["identities"] = silos
        self.built = type(self.built).from_tree(tree)
        self.world = World(folder, self.built, keys=folder)

    def start(self):
        signer = TrailSigner(self.identity, self.keys)
        prepared = parties(self.built)[1]["silo-1"]
        process = SiloProcess(prepared, self.state, "unix:/unused", identity=self.identity, signer=signer)
        self.world.running["silo-1"] = process
        credentials.tie_to_state(self.keys, self.state)
        return process

    def run(self, rounds=3):
        """Run the experiment until so many rounds are done."""
        self.start()
        self.world.serving(on_round=lambda report: report.round >= rounds).run()
        self.world.close()


@pytest.fixture
def silo(tmp_path):
    return Silo(tmp_path)


def test_every_message_that_left_is_on_the_trail_and_signed_by_the_silos_key(silo):
    silo.run()
    entries = read_trail(silo.state / "trail.jsonl", silo.public.identity)
    noted = {entry.about["sha256"] for entry in entries if entry.kind == SENT}
    sent = {hashlib.sha256(reply).hexdigest() for name, _, reply in silo.world.sent if name == "silo-1"}
    assert noted == sent
    kinds = [entry.about["message"] for entry in entries if entry.kind == SENT]
    assert kinds.count("Update") == 3 and "Counts" in kinds
    charged = [entry.about["round"] for entry in entries if entry.kind == "charged"]
    assert charged == [1, 2, 3] and all(entry.about["events"] for entry in entries if entry.kind == "charged")
    found = check_trails(silo.state, key=silo.public.identity, heads=silo.keys)
    assert found[0].head_compared and found[0].head == entries[-1].head


def test_a_request_that_comes_again_is_no_further_release(silo):
    asked = []

    def twice(world, name, request):
        asked.append(world.ask(name, request))
        again = world.ask(name, request)
        assert again == asked[-1]
        return again

    silo.world.fault = twice
    silo.run()
    noted = [entry.about["sha256"] for entry in read_trail(silo.state / "trail.jsonl") if entry.kind == SENT]
    assert len(noted) == len(set(noted))


def test_a_message_that_the_trail_cannot_take_does_not_leave(silo, monkeypatch):
    process = silo.start()

    def full(*_):
        raise RunError("No space left on device", location="trail.jsonl")

    monkeypatch.setattr("uldp.runtimes.silo_process.kind_of", full)
    with pytest.raises(RunError, match="trouble with its files, so nothing was sent"):
        silo.world.serving().run()
    assert not [name for name, _, _ in silo.world.sent if name == "silo-1"]
    process.close()


def test_a_folder_that_was_rolled_back_is_refused_by_its_head(silo):
    silo.run(rounds=1)
    shutil.copytree(silo.state, silo.folder / "old")
    silo.run()
    shutil.rmtree(silo.state)
    shutil.copytree(silo.folder / "old", silo.state)
    with pytest.raises(RunError, match="rolled back: it has"):
        silo.start()
    standing = standing_of(silo.state, keys=silo.keys)
    assert not standing.ok and "rolled back" in standing.sentences[-1]


def test_a_copy_of_the_ledger_is_put_back_and_spending_goes_on(silo):
    silo.run()
    copy = back_up(silo.state, silo.folder / "copy")
    assert copy.charges == 6 and (silo.folder / "copy").stat().st_mode & 0o777 == 0o600
    shutil.rmtree(silo.state)
    restore(silo.folder / "copy", silo.state, keys=silo.keys)
    names = {file.name for file in silo.state.iterdir()}
    assert names == {"ledger.jsonl", "trail.jsonl", "state.id", "lock", "experiments"}  # no session and no secrets
    assert standing_of(silo.state, keys=silo.keys).ok
    with pytest.raises(RunError, match="its session is gone; start a new experiment"):
        silo.start()
    assert silo.world.running == {} and len(list(read_lines(silo.state / "ledger.jsonl"))) == 6


@pytest.mark.parametrize("by", ["keys", "head"])
def test_an_older_copy_is_refused(silo, by):
    silo.run(rounds=1)
    back_up(silo.state, silo.folder / "old")
    silo.run()
    newest = back_up(silo.state, silo.folder / "new").head
    known = {"keys": silo.keys} if by == "keys" else {"head": str(newest)}
    for state in (silo.state, silo.folder / "elsewhere"):
        with pytest.raises(RunError, match="rolled back: it has"):
            restore(silo.folder / "old", state, **known)
    assert not (silo.folder / "elsewhere").exists()
    with pytest.raises(RunError, match="would take releases back"):
        restore(silo.folder / "old", silo.state, unchecked=True)
    with pytest.raises(ConfigError, match="give the folder of the silo's keys"):
        restore(silo.folder / "old", silo.folder / "elsewhere")
    restore(silo.folder / "new", silo.state, **known)


def test_without_keys_and_heads_a_copy_begins_a_new_trail(silo):
    silo.run()
    back_up(silo.state, silo.folder / "copy")
    shutil.rmtree(silo.state)
    shutil.rmtree(silo.keys)
    restore(silo.folder / "copy", silo.state, unchecked=True)
    assert (silo.state / "old-trail.jsonl").exists() and not (silo.state / "trail.jsonl").exists()


def damage(at):
    def change(data):
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (damage(-5), "is damaged"),
        (damage(3), "is no copy"),
        (lambda data: data[:60], "is damaged"),
        (lambda data: b"", "is no copy"),
    ],
)
def test_a_damaged_copy_is_refused(silo, change, reason):
    silo.run(rounds=1)
    file = silo.folder / "copy"
    back_up(silo.state, file)
    with pytest.raises(ConfigError, match="never overwritten"):
        back_up(silo.state, file)
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises((RunError, ConfigError), match=reason):
        restore(file, silo.folder / "elsewhere", keys=silo.keys)
    assert not (silo.folder / "elsewhere").exists()


def test_a_process_that_runs_keeps_its_ledger(silo):
    silo.run(rounds=1)
    back_up(silo.state, silo.folder / "copy")
    with lock(silo.state / "lock", "taken", "here"):
        assert "A process of this silo is running." in standing_of(silo.state).sentences
        with pytest.raises(RunError, match="a process of this silo is running"):
            restore(silo.folder / "copy", silo.state, keys=silo.keys)


def test_a_server_notes_what_its_ledger_has(silo):
    silo.run(rounds=2)
    directory = RunDirectory.open(silo.folder / "run")
    trail = ReleaseTrail(directory)
    trail.catch_up()
    silo.run()
    again = ReleaseTrail(directory)
    again.catch_up()
    again.catch_up()
    entries = check_trails(directory.path)[0].entries
    ledger = list(read_lines(directory.path / "ledger.jsonl"))
    assert [entry.about["content"] for entry in entries[1:]] == [line["content"] for line in ledger]
    assert not any((directory.path / name).exists() for name in ("trail.jsonl", "trail.key"))  # for the owner only


def test_status_says_where_a_run_and_a_silo_stand(silo):
    silo.run(rounds=1)
    for folder, words in (
        (silo.state, ["No process of this silo is running", "over 1 experiment; no cap", "not over, round 1 was"]),
        (silo.folder / "run", ["stands still after 1 of 3 rounds", "epsilon ", "1 release."]),
    ):
        done = runner.invoke(app, ["status", str(folder)])
        assert done.exit_code == 0 and all(one in done.output for one in words), done.output
        tree = json.loads(runner.invoke(app, ["status", str(folder), "--json"]).stdout)
        assert tree["state"] == "stopped" and tree["epsilon"] > 0
    silo.run()
    assert "The run is finished: 3 rounds." in runner.invoke(app, ["status", str(silo.folder / "run")]).output
    assert "over, round 3 was the last" in runner.invoke(app, ["status", str(silo.state)]).output


def test_the_commands_agree_on_the_head(silo):
    silo.run()
    out = silo.folder / "copy"
    copied = json.loads(runner.invoke(app, ["backup", str(silo.state), "--out", str(out), "--json"]).stdout)
    verified = runner.invoke(app, ["trail", str(silo.state), "--head", copied["head"], "--entries"])
    assert verified.exit_code == 0 and f"head: {copied['head']}" in verified.output, verified.output
    assert "It ends where, or after, its head says." in verified.output
    assert runner.invoke(app, ["trail", str(silo.state), "--key", "0" * 64]).exit_code == 2


def test_neither_trail_nor_status_holds_a_value_of_a_record(silo):
    """Counts are in a silo's session; the trail has their message's digest, and nothing that depends on them else."""
    silo.run()
    text = (silo.state / "trail.jsonl").read_text()
    counts = parties(silo.built)[1]["silo-1"].data("silo-1")
    assert str(np.bincount(counts.users).tolist())[1:-1] not in text
    fields = {name for entry in read_trail(silo.state / "trail.jsonl") for name in entry.about}
    assert fields == {
        *("experiment", "session", "round", "content", "answer", "events", "ledger"),
        *("message", "bytes", "sha256"),
    }


def test_after_a_rotation_the_ledger_goes_on_and_the_trail_says_who_signs(silo):
    silo.run()
    old = (silo.keys / "identity.key").read_bytes()
    public = rotate_silo_keys("silo-1", silo.keys, silo.state)
    assert public != silo.public and public == credentials.public_keys("silo-1", silo.keys)
    assert {file.name for file in silo.keys.iterdir()} == {
        *("identity.key", "node.key", "node.pub", "state.id", "trail.head", "lock"),
    }
    assert old not in [file.read_bytes() for file in silo.keys.iterdir()]
    entries = check_trails(silo.state, key=silo.public.identity, heads=silo.keys)[0].entries
    assert entries[-1].about["identity"] == public.identity and entries[-1].about["node"] == public.node
    with pytest.raises(RunError, match="goes on with another key"):
        open_trail(silo.state, rehearsal=False, signer=TrailSigner(silo.identity, silo.keys))
    trail = open_trail(silo.state, rehearsal=False, signer=TrailSigner(credentials.identity_of(silo.keys), silo.keys))
    trail.append("charged", {})
    assert check_trails(silo.state, key=silo.public.identity, heads=silo.keys)[0].entries[-1].key == public.identity


def test_keys_are_not_rotated_while_an_experiment_is_under_way(silo):
    silo.run(rounds=1)
    with pytest.raises(RunError, match="is not over, and its other parties know the silo by these keys"):
        rotate_silo_keys("silo-1", silo.keys, silo.state)
    assert credentials.public_keys("silo-1", silo.keys) == silo.public
    with pytest.raises(ConfigError, match="were used with another folder"):
        rotate_silo_keys("silo-1", silo.keys, silo.folder / "other")


@pytest.mark.parametrize("at", ["trail", "ready", "first file", "second file"])
def test_a_rotation_that_was_cut_short_is_finished_and_nothing_runs_meanwhile(silo, monkeypatch, at):
    silo.run()
    with monkeypatch.context() as patched:
        _fail(patched, at)
        with pytest.raises((OSError, RunError), match="killed"):
            rotate_silo_keys("silo-1", silo.keys, silo.state)
    with pytest.raises(ConfigError, match="`uldp keys rotate` finishes it"):
        check_rotation_finished(silo.keys)
    public = rotate_silo_keys("silo-1", silo.keys, silo.state)
    assert credentials.public_keys("silo-1", silo.keys) == public and not (silo.keys / "next").exists()
    entries = check_trails(silo.state, key=silo.public.identity, heads=silo.keys)[0].entries
    assert [entry.about.get("identity") for entry in entries if entry.kind == ROTATED] == [public.identity]


def _fail(patched, at):
    from uldp.runtimes.flower import rotation

    if at == "trail":
        patched.setattr(rotation, "open_trail", _killed)
    elif at == "ready":
        patched.setattr(rotation, "replace_file", _killed)
    else:
        calls, replace = [], rotation.os.replace

        def moved(source, target):
            if Path(source).parent.name == "next" != Path(target).parent.name:
                calls.append(source)
                if len(calls) > (at == "second file"):
                    _killed()
            replace(source, target)

        patched.setattr(rotation.os, "replace", moved)


def _killed(*_, **__):
    raise OSError("killed")


@pytest.mark.parametrize("which", ["identity", "node"])
def test_an_experiment_with_a_revoked_key_is_refused(silo, which):
    tree = silo.built.to_tree()
    tree["deployment"] = {"nodes": {"silo-1": f"{silo.public.node} somebody@somewhere"}}
    revoked = silo.public.identity.upper() if which == "identity" else silo.public.node
    Policy(revoked_keys=("ff" * 32,)).check_names(tree)
    with pytest.raises(RefusedByOwner, match=r"revoked key as (aggregation.identities|deployment.nodes)\.silo-1"):
        Policy(revoked_keys=(revoked,)).check_names(tree)
