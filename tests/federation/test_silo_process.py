"""A silo's process: killed and restarted it gives identical bytes, and nobody else gets its files."""

import errno
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.federation.federation_support import World, experiment, parties, signing_key_from, with_identities
from tests.support import decode

import uldp
from uldp.errors import RunError
from uldp.protocol import messages as m
from uldp.runtimes import socket_frames as frames
from uldp.runtimes.serving import FailedResponse
from uldp.runtimes.silo_process import SiloProcess

SCRIPT = """
import json, sys, time
from uldp.experiment.config import Experiment
from uldp.experiment.parties import prepare_silo
from pathlib import Path
from uldp.crypto.keys import SigningKey
from uldp.rng import Secrets
from uldp.runs.files import stored_key
from uldp.runtimes.silo_process import SiloProcess
tree, folder, address, key, stuck = json.loads(sys.argv[1]), *sys.argv[2:6]
if stuck == "stuck":
    from uldp.learners.torch import TorchLearner
    TorchLearner.user_deltas = lambda *arguments: iter(lambda: time.sleep(3600), None)
prepared = prepare_silo(Experiment.from_tree(tree), "silo-1")
with SiloProcess(prepared, folder, address, identity=SigningKey(Secrets.from_key(stored_key(Path(key))))) as process:
    process.serve()
"""


class Child:
    """The process of silo-1, restarted as often as one likes."""

    def __init__(self, built, folder, key, sockets):
        self.address = f"unix:{sockets}/silo.sock"
        self._arguments = [json.dumps(built.to_tree()), str(folder), self.address, str(key)]
        self.process = None

    def start(self, *, stuck=False):
        """``stuck``: training never ends, however fast the machine is."""
        source = Path(uldp.__file__).parents[1]
        environment = {**os.environ, "PYTHONPATH": str(source)}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", SCRIPT, *self._arguments, "stuck" if stuck else ""],
            env=environment,
            stderr=subprocess.PIPE,
        )
        for _ in range(600):
            try:
                return frames.connect(self.address, 60.0).close()
            except RunError:
                assert self.process.poll() is None, self.process.stderr.read().decode()
                time.sleep(0.05)
        raise AssertionError("it does not come up")

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stderr.close()

    def open(self, request):
        sock = frames.connect(self.address, 60.0)
        frames.send(sock, {"kind": "request"}, request)
        return sock

    def ask(self, request):
        with self.open(request) as sock:
            return frames.receive(sock, 1 << 24)


@pytest.fixture
def child(tmp_path, short_path):
    """silo-1 in a process of its own, on secrets of its own, up to its first round's request."""
    built = with_identities(tmp_path, method={"name": "uldp-avg-w", "rounds": 2, "local_epochs": 2})
    plan = parties_of(built).plan
    made = World(tmp_path, built, keys=tmp_path)
    kept = []

    def until_the_round(made, name, request):
        body = decode(request, experiment=plan.digest, silo=name, limit=plan.message_limit)
        if isinstance(body, m.UpdateRequest):
            kept.append((name, request))
            return FailedResponse("enough")
        return made.ask(name, request)

    made.fault = until_the_round
    with pytest.raises(RunError, match="enough"):
        made.serving().run()
    made.close()
    process = Child(built, tmp_path / "silo-1", tmp_path / "silo-1.key", short_path)
    process.request = dict(kept)["silo-1"]
    process.prepared = parties(built)[1]["silo-1"]
    process.folder = tmp_path
    yield process
    if process.process is not None and process.process.poll() is None:
        process.kill()


def parties_of(built):
    return parties(built)[0]


def session_file(child):
    (file,) = (child.folder / "silo-1" / "experiments").glob("*/session.bin")
    return file


def test_a_process_that_is_killed_in_a_round_and_restarted_gives_identical_bytes(child):
    # What it must answer: computed elsewhere, from a copy of its folder.
    shutil.copytree(child.folder / "silo-1", child.folder / "copy")
    key = signing_key_from(child.folder / "silo-1.key")
    with SiloProcess(child.prepared, child.folder / "copy", "unix:/unused", identity=key) as copy:
        expected = copy.respond({"kind": "request"}, child.request)
    assert expected[0] == {"kind": "reply"}

    saved = session_file(child).read_bytes()
    child.start(stuck=True)
    with child.open(child.request):
        wait_until((child.folder / "silo-1" / "ledger.jsonl").exists)
        child.kill()  # the round is charged and being computed
    assert session_file(child).read_bytes() == saved

    child.start()
    kept_out(child)
    with child.open(child.request):
        wait_until(lambda: session_file(child).read_bytes() != saved)
        child.kill()  # it has answered, and nobody has heard it

    child.start()
    assert child.ask(child.request) == expected
    assert child.ask(child.request) == expected
    ledger = [json.loads(line) for line in (child.folder / "silo-1" / "ledger.jsonl").read_text().splitlines()]
    assert [bool(line["answer"]) for line in ledger] == [False, True]  # charged once, answered once


def kept_out(child):
    """A second process with the same identity does not start; the first one says where it stands."""
    key = signing_key_from(child.folder / "silo-1.key")
    with pytest.raises(RunError, match="another process of this silo is running"):
        SiloProcess(child.prepared, child.folder / "silo-1", "unix:/unused", identity=key)
    with frames.connect(child.address, 60.0) as sock:
        frames.send(sock, {"kind": "status"}, b"")
        header, _ = frames.receive(sock, 10)
    assert (header["silo"], header["round"], header["phase"]) == ("silo-1", 0, "ready")


def wait_until(holds):
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# --- in this process -------------------------------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path, short_path):
    """silo-1 of a rehearsal, serving in a thread."""
    address = f"unix:{short_path}/s"
    with SiloProcess(parties(experiment())[1]["silo-1"], tmp_path / "state", address) as process:
        thread = threading.Thread(target=process.serve)
        thread.start()
        while not Path(address[5:]).exists():
            time.sleep(0.01)
        yield process, address
        process.stop()
        thread.join()


def hello(built=None):
    plan = parties_of(built or experiment()).plan
    return m.encode(plan.digest, "silo-1", plan.hello)


def ask(address, header, body):
    with frames.connect(address, 10.0) as sock:
        frames.send(sock, header, body)
        return frames.receive(sock, 1 << 20)


def test_one_frame_in_one_frame_out(served):
    _, address = served
    header, body = ask(address, {"kind": "request"}, hello())
    assert header == {"kind": "reply"}
    assert ask(address, {"kind": "request"}, hello()) == (header, body)
    header, sentence = ask(address, {"kind": "request"}, b"garbage")
    assert (header, sentence.decode()[:7]) == ({"kind": "refused"}, "silo si")
    assert ask(address, {"kind": "dance"}, b"")[0] == {"kind": "refused"}


def test_a_broken_frame_does_not_stop_the_process(served):
    _, address = served
    for data in (b"", b"\xff" * 100, b"\x00\x00\x00\x01\x80" + b"\xff" * 8):
        with frames.connect(address, 10.0) as sock:
            sock.sendall(data)
    assert ask(address, {"kind": "request"}, hello())[0] == {"kind": "reply"}


def test_files_are_for_the_owner_only(tmp_path):
    built = with_identities(tmp_path)
    made = World(tmp_path / "world", built, keys=tmp_path)
    (tmp_path / "world").mkdir()
    made.ask("silo-1", hello(built))
    made.close()
    for path in (tmp_path / "world" / "silo-1").rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    assert stat.S_IMODE((tmp_path / "silo-1.key").stat().st_mode) == 0o600


def test_a_damaged_or_lost_state_is_never_a_fresh_start(tmp_path):
    built = with_identities(tmp_path)
    made = World(tmp_path, built, keys=tmp_path)
    made.ask("silo-1", hello(built))
    made.close()
    (own,) = (tmp_path / "silo-1" / "experiments").iterdir()
    key, session = (own / "secrets.key").read_bytes(), (own / "session.bin").read_bytes()
    (own / "session.bin").write_bytes(session[:-1] + b"x")
    with pytest.raises(RunError, match="damaged"):
        made.silo("silo-1")
    (own / "session.bin").write_bytes(session)
    (own / "secrets.key").unlink()
    with pytest.raises(RunError, match="secrets for this experiment are gone"):
        made.silo("silo-1")
    (own / "secrets.key").write_bytes(key)
    made.silo("silo-1")
    made.close()


@pytest.mark.parametrize("where", ["session.bin", "rehearsal-ledger.jsonl"])
def test_a_full_disk_is_one_sentence_that_names_no_file(tmp_path, monkeypatch, where):
    built = experiment()
    plan, seen = parties_of(built).plan, []

    def fault(made, name, request):
        body = decode(request, experiment=plan.digest, silo=name, limit=plan.message_limit)
        if name == "silo-2" and isinstance(body, m.UpdateRequest) and len(seen) < 2:  # a no counts twice
            original = os.fsync

            def full(number):
                if where in os.readlink(f"/proc/self/fd/{number}"):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                original(number)

            with monkeypatch.context() as patch:
                patch.setattr(os, "fsync", full)
                seen.append(made.ask(name, request))
            return seen[-1]
        return made.ask(name, request)

    made = World(tmp_path, built, fault)
    with pytest.raises(RunError, match="trouble with its files"):
        made.serving().run()
    made.serving().run()
    made.close()
    assert seen[0].reason == "silo silo-2: trouble with its files, so nothing was sent; its own log says which"


def test_what_goes_wrong_inside_stays_inside(tmp_path, monkeypatch):
    built = experiment()
    made = World(tmp_path, built)

    def breaks(self, request):
        raise ValueError("record 7 of patient Miller")

    monkeypatch.setattr("uldp.sessions.silo.SiloSession.reply", breaks)
    answer = made.ask("silo-1", b"anything")
    made.close()
    assert answer == FailedResponse("silo silo-1: failed; its own log says why", refused=True)
