"""A silo's node: started again when it ends, and the end of `join` when it cannot be."""

import ast
import inspect
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from uldp.errors import RunError
from uldp.runtimes.flower import federation
from uldp.runtimes.flower.processes import Address
from uldp.runtimes.flower.transport import FlowerTransport


class FakeSilo:
    name, closed = "a", False

    def __init__(self):
        self.stopped = threading.Event()

    def stop(self):
        self.stopped.set()


@pytest.fixture
def node(tmp_path, monkeypatch):
    for name in ("RESTART_SECONDS", "CLOSE_SECONDS", "SETTLED_SECONDS"):
        monkeypatch.setattr(federation, name, 0.01)
    joining = federation.ServerConnection(Address("127.0.0.1", 9), None, None, tmp_path / "state")
    said, silo = [], FakeSilo()
    made = federation.Node(joining, silo, "unix:/silo", said.append)
    made.said, made.silo = said, silo
    return made


@pytest.fixture
def starts(monkeypatch):
    """What is called in place of starting Flower's programs."""
    return lambda start: monkeypatch.setattr(federation, "SuperNode", lambda home, side: start())


def child(*, has_ended, words="it ended"):
    return SimpleNamespace(has_ended=has_ended, log_tail=lambda: words, stop=lambda: None, delivery_count=0)


def test_a_silo_ends_when_its_response_to_close_was_delivered_and_not_before(node, starts, monkeypatch):
    monkeypatch.setattr(federation, "CLOSE_SECONDS", 60.0)
    flower = child(has_ended=False)
    starts(lambda: flower)
    with node.attach():
        flower.delivery_count = 3  # answers of the rounds
        assert not node.silo.stopped.wait(1.5)
        node.silo.closed = True
        assert not node.silo.stopped.wait(1.5)  # its response to Close is under way
        flower.delivery_count = 4
        assert node.silo.stopped.wait(5)
    assert node.trouble is None


def test_a_response_to_close_that_cannot_be_delivered_holds_up_nobody_for_long(node, starts, monkeypatch):
    monkeypatch.setattr(federation, "CLOSE_SECONDS", 0.3)
    starts(lambda: child(has_ended=False))
    node.silo.closed = True
    with node.attach():
        assert node.silo.stopped.wait(10)


def test_a_node_notes_the_answers_that_the_server_has_taken(tmp_path, monkeypatch):
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'uldp[flower]'")
    from flwr.supernode import start_client_internal as loop

    from uldp.runtimes.flower import internals

    def push(contents):
        if contents is None:
            raise OSError("the server is gone")

    monkeypatch.setattr(loop, "push_object_contents_from_iterable", push)
    internals.note_deliveries(tmp_path / "delivered")
    loop.push_object_contents_from_iterable([])
    with pytest.raises(OSError, match="gone"):
        loop.push_object_contents_from_iterable(None)
    loop.push_object_contents_from_iterable([])
    assert (tmp_path / "delivered").stat().st_size == 2


def test_a_node_that_cannot_be_started_again_ends_the_silo_with_a_sentence(node, starts, monkeypatch):
    monkeypatch.setattr(federation, "ADMISSION_SECONDS", 0.1)
    first = [child(has_ended=True)]

    def start():
        if first:
            return first.pop()
        raise RunError("No space left on device", location="supernode.log")

    starts(start)
    with node.attach():
        assert node.silo.stopped.wait(10)
    assert "No space left" in str(node.trouble) and len(node.said) >= 2


def test_an_error_that_nobody_thought_of_ends_the_silo_too(node, starts):
    def start():
        raise ValueError("surprise")

    starts(start)
    with node.attach():
        assert node.silo.stopped.wait(10)
    assert "surprise" in str(node.trouble)


def test_trouble_that_passes_is_passed_over(node, starts):
    begun = []

    def start():
        begun.append(1)
        if len(begun) == 2:
            raise OSError("no more processes")
        return child(has_ended=len(begun) < 4)

    starts(start)
    with node.attach():
        end = time.monotonic() + 10
        while len(begun) < 4:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert not node.silo.stopped.is_set()
        node.silo.closed = True
        assert node.silo.stopped.wait(10)
    assert node.trouble is None


def test_the_servers_supervisor_goes_on_whatever_happens(monkeypatch):
    monkeypatch.setattr(federation, "RESTART_SECONDS", 0.01)
    calls, said = [], []

    class SuperLink:
        start = stop = lambda self: None
        register = lambda self, keys: {}  # noqa: E731
        submit = lambda self, token: None  # noqa: E731
        check_room = lambda self: None  # noqa: E731

        @property
        def running(self):
            calls.append(1)
            if len(calls) == 1:
                raise ValueError("surprise")
            return True

    transport = SimpleNamespace(set_nodes=lambda n: None, new_token=str, seconds_without_run=0.0, pending=lambda s: ())
    with federation.ServerSupervisor(SuperLink(), transport, {}, said.append).attach():
        end = time.monotonic() + 10
        while len(calls) < 2:
            assert time.monotonic() < end
            time.sleep(0.05)
    assert "surprise" in said[0]


def test_a_full_disk_below_flower_stops_the_run(monkeypatch):
    class SuperLink:
        start = stop = lambda self: None
        register = lambda self, keys: {}  # noqa: E731
        submit = lambda self, token: None  # noqa: E731
        running = property(lambda self: 1 / 0)

        def check_room(self):
            raise RunError("No space left on device", location="room")

    with (
        FlowerTransport() as transport,
        federation.ServerSupervisor(SuperLink(), transport, {}, print).attach(),
        pytest.raises(RunError, match="No space left"),
    ):
        transport.exchange({"a": b"1"}, 30)


def test_nothing_is_started_for_a_run_that_another_process_works_on(tmp_path, monkeypatch):
    from uldp.runs.directory import RunDirectory
    from uldp.runtimes.flower.federation import ServerEndpoint
    from uldp.runtimes.serving import Patience

    (tmp_path / "private").mkdir(mode=0o700)
    monkeypatch.setattr(federation, "check_installed", lambda: None)
    monkeypatch.setattr(federation, "ServedRun", lambda *a, **k: None)
    monkeypatch.setattr(federation, "SuperLink", lambda *a, **k: pytest.fail("started"))
    experiment = SimpleNamespace(run=SimpleNamespace(secrets="os"))
    prepared = SimpleNamespace(plan=SimpleNamespace(message_limit=1, silos=(), rounds=1), experiment=experiment)
    where = ServerEndpoint(Address("127.0.0.1", 9), None)
    with RunDirectory(tmp_path).lock(), pytest.raises(RunError, match="another process"):
        federation.serve(prepared, RunDirectory(tmp_path), where, patience=Patience(), on_round=print, say=print)


def test_messages_that_never_end_are_limited(monkeypatch):
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'uldp[flower]'")
    from uldp.runtimes.flower import executor

    monkeypatch.setattr(executor, "STUCK_SECONDS", 0.3)
    monkeypatch.setattr(executor.signal, "signal", lambda *about: None)
    options = ["--runtime-api-address", "127.0.0.1:9", "--superexec-auth-secret-file", "secret"]
    monkeypatch.setattr(sys, "argv", ["executor", *options])
    monkeypatch.setattr(executor.internals, "connect_runtime", lambda *a: None)
    monkeypatch.setattr(executor.internals, "acquire_task", lambda client: "t")
    started, end = [], threading.Event()

    def stuck(client, app):
        started.append(1)
        end.wait(10)

    monkeypatch.setattr(executor.internals, "respond_to_task", stuck)
    with pytest.raises(SystemExit, match=f"none of {executor.MAX_CONCURRENT} messages"):
        executor.main()
    end.set()
    assert len(started) == executor.MAX_CONCURRENT


def test_flowers_loop_looks_more_often_and_takes_nothing_else_from_the_clock(monkeypatch):
    """What is put in place of the module's ``time`` has all that the pinned Flower uses of it."""
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'uldp[flower]'")
    from flwr.supernode import start_client_internal as loop

    from uldp.runtimes.flower import internals

    used = {
        node.attr
        for node in ast.walk(ast.parse(inspect.getsource(loop)))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "time"
    }
    assert used == {"sleep"}
    slept = []
    monkeypatch.setattr(loop, "time", loop.time)
    monkeypatch.setattr(internals, "time", SimpleNamespace(sleep=slept.append))
    internals.poll_more_often()
    loop.time.sleep(3)
    loop.time.sleep(0.1)
    assert slept == [internals.SUPERNODE_POLL_SECONDS, 0.1]


def test_a_thread_that_fails_ends_the_node():
    """The thread of heartbeats, for instance: without it the server takes the node for gone."""
    code = (
        "import threading, time; from uldp.runtimes.flower import supernode; supernode.end_with_any_thread();"
        "threading.Thread(target=lambda: 1 / 0, name='heartbeat').start(); time.sleep(60)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 1
    assert "ERROR: heartbeat of the node has ended: ZeroDivisionError" in done.stdout
