"""The transport and the two shims without Flower: a grid of dictionaries, a silo of ten lines."""

import subprocess
import sys
import threading
import time

import pytest

from uldp.errors import RunError
from uldp.runtimes import socket_frames as frames
from uldp.runtimes.flower import client_app
from uldp.runtimes.flower import transport as transport_module
from uldp.runtimes.flower.messages import ADDRESS_VARIABLE
from uldp.runtimes.flower.transport import FlowerTransport
from uldp.runtimes.serving import FailedResponse


class FakeRun:
    """What connects to a transport: a run of Flower that answers by itself."""

    def __init__(self, transport, token):
        self.sock = frames.connect(transport.address, 5)
        frames.send(self.sock, {"kind": "transport", "token": token}, b"")

    def next(self):
        return frames.receive(self.sock, 1 << 20)

    def respond(self, header, body, kind="reply"):
        frames.send(self.sock, {"kind": kind, "number": header["number"], "silo": header["silo"]}, body)

    def answer_all(self, count, suffix=b"!"):
        for _ in range(count):
            header, body = self.next()
            self.respond(header, body + suffix)


@pytest.fixture
def transport():
    with FlowerTransport({"a": 11, "b": 12}) as made:
        yield made


def exchanging(transport, requests, timeout=10):
    """An exchange in a thread, and where its result will be."""
    found = {}
    thread = threading.Thread(target=lambda: found.update(transport.exchange(requests, timeout)))
    thread.start()
    return thread, found


def test_requests_go_out_and_answers_come_back(transport):
    run = FakeRun(transport, transport.new_token())
    thread, found = exchanging(transport, {"a": b"1", "b": b"2"})
    header, body = run.next()
    assert (header["silo"], header["node"], body) == ("a", 11, b"1")
    run.respond(header, b"one")
    run.answer_all(1)
    thread.join()
    assert found == {"a": b"one", "b": b"2!"} and transport.pending() == ()


def test_what_a_dead_run_did_not_answer_is_asked_again_with_identical_bytes(transport):
    first = FakeRun(transport, transport.new_token())
    thread, found = exchanging(transport, {"a": b"1", "b": b"2"})
    header, _ = first.next()
    first.respond(header, b"one")
    first.next()
    while transport.pending() != ("b",):  # a new token would drop what is not read yet
        time.sleep(0.01)
    first.sock.close()
    second = FakeRun(transport, transport.new_token())
    header, body = second.next()
    assert (header["silo"], body) == ("b", b"2")
    second.respond(header, b"two")
    thread.join()
    assert found == {"a": b"one", "b": b"two"}


@pytest.mark.parametrize("answered", [0, 1])
def test_a_request_that_may_be_lost_is_sent_again_and_either_may_be_answered(transport, monkeypatch, answered):
    monkeypatch.setattr(transport, "_resend_seconds", 0.1)
    run = FakeRun(transport, transport.new_token())
    thread, found = exchanging(transport, {"a": b"1"})
    sent = [run.next(), run.next()]
    assert [body for _, body in sent] == [b"1", b"1"] and sent[0][0]["number"] != sent[1][0]["number"]
    run.respond(sent[answered][0], b"one")
    thread.join()
    run.respond(sent[1 - answered][0], b"other")  # and the other one counts no more
    assert found == {"a": b"one"} and transport.pending() == ()
    thread, found = exchanging(transport, {"a": b"2"})
    run.answer_all(1)
    thread.join()
    assert found == {"a": b"2!"}


def test_a_silo_that_is_late_is_named_and_its_answer_is_not_lost(transport):
    run = FakeRun(transport, transport.new_token())
    assert isinstance(transport.exchange({"a": b"1"}, 0.1)["a"], FailedResponse)
    assert transport.pending() == ("a",)
    header, _ = run.next()
    thread, found = exchanging(transport, {"a": b"1"})
    run.respond(header, b"late")
    thread.join()
    assert found == {"a": b"late"}
    assert isinstance(transport.exchange({"a": b"3"}, 0.1)["a"], FailedResponse)
    header, body = run.next()  # the request was sent once only: this is the next one
    assert body == b"3"
    run.respond(header, b"three")
    while transport.pending():
        time.sleep(0.01)
    assert transport.exchange({"a": b"3"}, 0.1) == {"a": b"three"}


def test_who_is_there_and_slow_is_told_apart_from_who_is_not(transport):
    run = FakeRun(transport, transport.new_token())
    thread, found = exchanging(transport, {"a": b"1", "b": b"2"}, timeout=1)
    header, _ = run.next()
    for kind in ("absent", "present", "absent"):
        run.respond(header, b"", kind)
    thread.join()
    assert "is not there" in found["a"].reason and found["a"].late and transport.pending() == ("a", "b")
    assert found["b"].reason == "has not responded in time" and found["b"].late
    run.sock.close()
    FakeRun(transport, transport.new_token())
    assert transport.absent == set()  # another run says anew who is there


def test_an_answer_to_an_earlier_question_is_not_taken_for_a_later_one(transport):
    run = FakeRun(transport, transport.new_token())
    transport.exchange({"a": b"1"}, 0.1)
    old, _ = run.next()
    thread, found = exchanging(transport, {"a": b"2"})
    new, _ = run.next()
    run.respond(old, b"old")
    run.respond(new, b"new")
    thread.join()
    assert found == {"a": b"new"}


def test_refusals_are_failures_and_may_be_asked_again(transport):
    run = FakeRun(transport, transport.new_token())
    for _ in range(2):
        thread, found = exchanging(transport, {"a": b"1"})
        header, _ = run.next()
        run.respond(header, b"no, because", kind="refused")
        thread.join()
        assert found == {"a": FailedResponse("no, because", refused=True)}


def test_a_run_with_an_old_token_is_not_heard(transport):
    old = transport.new_token()
    first = FakeRun(transport, old)
    transport.new_token()
    with pytest.raises(RunError):
        first.next()
    with pytest.raises(RunError):
        FakeRun(transport, old).next()
    assert not transport.is_connected and isinstance(transport.exchange({"a": b"1"}, 0.1)["a"], FailedResponse)


def test_a_run_that_takes_nothing_holds_up_nobody_and_is_dropped(monkeypatch):
    monkeypatch.setattr(transport_module, "SEND_SECONDS", 5)
    with FlowerTransport({"a": 11, "b": 12}) as transport:
        FakeRun(transport, transport.new_token())
        large, began = bytes(8 << 20), time.monotonic()
        assert isinstance(transport.exchange({"a": large, "b": large}, 0.2)["a"], FailedResponse)
        assert transport.pending() == ("a", "b") and time.monotonic() - began < 4
        while transport.is_connected:
            assert time.monotonic() - began < 100
            time.sleep(0.05)
        second = FakeRun(transport, transport.new_token())
        thread, found = exchanging(transport, {"a": large, "b": large})
        for _ in range(2):
            header, body = frames.receive(second.sock, 1 << 24)
            second.respond(header, body)
        thread.join()
        assert found == {"a": large, "b": large}


def test_closing_does_not_wait_for_a_run_that_takes_nothing(monkeypatch):
    monkeypatch.setattr(transport_module, "CLOSE_SECONDS", 0.2)
    transport = FlowerTransport({"a": 11})
    FakeRun(transport, transport.new_token())
    transport.exchange({"a": bytes(8 << 20)}, 0.1)
    began = time.monotonic()
    transport.close()
    assert time.monotonic() - began < 30


class FakeSilo:
    def __init__(self, folder):
        self.address = f"unix:{folder}/silo"
        self.listening = frames.listen(self.address)
        self.seen = []
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            connection, _ = self.listening.accept()
            with connection:
                header, body = frames.receive(connection, 1 << 27)
                self.seen.append((header, body))
                if body == b"die":
                    continue
                kind = {b"bad": "refused", b"odd": "surprise"}.get(body, "reply")
                frames.send(connection, {"kind": kind}, body[::-1])


def test_the_client_shim_hands_bytes_over(tmp_path):
    silo = FakeSilo(tmp_path)
    assert client_app.forward(silo.address, b"abc") == ("reply", b"cba")
    assert client_app.forward(silo.address, b"bad") == ("refused", b"dab")
    assert client_app.forward(silo.address, b"odd") == ("failed", client_app.UNKNOWN_RESPONSE)


def test_what_is_wrong_in_a_silo_stays_in_its_log(tmp_path, capsys):
    silo = FakeSilo(tmp_path)
    assert client_app.forward(silo.address, b"die") == ("failed", client_app.NO_RESPONSE)
    assert client_app.forward(f"unix:{tmp_path}/nobody", b"abc", patience=0.1) == ("failed", client_app.NO_RESPONSE)
    assert str(tmp_path) in capsys.readouterr().out and str(tmp_path).encode() not in client_app.NO_RESPONSE


def test_an_app_that_fails_says_nothing_about_itself_to_the_server(monkeypatch, capsys):
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'uldp[flower]'")
    from flwr.supernode.runtime import run_clientapp

    from uldp.runtimes.flower import executor, internals

    said = []
    monkeypatch.setattr("flwr.supercore.heartbeat.HeartbeatSender.start", lambda self: None)
    monkeypatch.setattr("flwr.supercore.heartbeat.HeartbeatSender.stop", lambda self: None)
    monkeypatch.setattr("flwr.app.Message", lambda error, reply_to: error)
    monkeypatch.setattr(run_clientapp, "pull_task_input", lambda client: ("message", "context", None, None))
    monkeypatch.setattr(run_clientapp, "push_message", lambda client, reply, context: said.append(reply.reason))
    monkeypatch.setattr(run_clientapp, "push_task_output", lambda client, *about: said.append(about[-1]))

    def app(message, context):
        raise OSError("/home/ward-a/patients.csv")

    free = threading.BoundedSemaphore(1)
    assert free.acquire()
    executor.respond(type("Client", (), {"close": lambda self: None})(), app, free)
    assert said == [internals.TASK_FAILED, internals.TASK_FAILED] and free.acquire(timeout=0)
    assert "patients.csv" in capsys.readouterr().out


@pytest.mark.parametrize("module", ["client_app", "server_app"])
def test_the_shims_load_no_torch_and_no_session(module):
    heavy = ("torch", "pandas", "scipy", "sklearn", "dp_accounting", "uldp.sessions.silo", "uldp.experiment.config")
    code = f"import uldp.runtimes.flower.{module} as m, sys; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_the_apps_load_no_torch_either():
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'uldp[flower]'")
    code = (
        "from uldp.runtimes.flower import client_app, server_app; client_app.make_app(); server_app.make_app();"
        "import sys; print('torch' in sys.modules, 'pandas' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False False"


class Reply:
    """A message as a grid gives it back."""

    def __init__(self, content, reply_to, error=None):
        self.content, self.error = content, error
        self.metadata = type("Metadata", (), {"reply_to_message_id": reply_to})()

    def has_error(self):
        return self.error is not None


class FakeGrid:
    """Nodes by id; each is a function from a record to a record, or to an error."""

    def __init__(self, nodes):
        self.nodes, self.ready = nodes, []

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        identifiers = []
        for message in messages:
            identifiers.append(f"m{len(self.ready)}-{time.monotonic_ns()}")
            answer = self.nodes[message.metadata.dst_node_id](message.content)
            error = answer if isinstance(answer, Exception) else None
            if error is not None:
                error.reason, error.code = "gone", 5
            self.ready.append(Reply(None if error else answer, identifiers[-1], error))
        return identifiers

    def pull_messages(self, identifiers):
        found = [reply for reply in self.ready if reply.metadata.reply_to_message_id in identifiers]
        self.ready = [reply for reply in self.ready if reply not in found]
        return found


def relaying(transport, grid, monkeypatch):
    from flwr.supercore.task_identity import TaskIdentity

    from uldp.runtimes.flower import server_app

    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    monkeypatch.setenv(ADDRESS_VARIABLE, transport.address)
    thread = threading.Thread(target=server_app.relay, args=(grid, "", transport.new_token()), daemon=True)
    thread.start()
    return thread


def test_the_server_shim_relays_between_transport_and_grid(tmp_path, monkeypatch):
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'uldp[flower]'")
    silo = FakeSilo(tmp_path)
    grid = FakeGrid(
        {11: lambda record: client_app.respond(record, "a", silo.address), 12: lambda record: RuntimeError("x")}
    )
    transport = FlowerTransport({"a": 11, "b": 12, "c": 13})
    thread = relaying(transport, grid, monkeypatch)
    found = transport.exchange({"a": b"abc", "b": b"def", "c": b"ghi"}, 3)
    assert found["a"] == b"cba" and "gone" in str(found["b"]) and "is not there" in found["c"].reason
    assert transport.absent == {"c"}
    grid.nodes[13] = lambda record: client_app.respond(record, "c", silo.address)
    assert transport.exchange({"c": b"ghi"}, 10) == {"c": b"ihg"}  # a node that comes late is asked then
    assert transport.absent == set()
    transport.close()
    thread.join(timeout=10)
    assert not thread.is_alive()


@pytest.mark.parametrize(("silos", "size"), [(6, 8 << 20), (10, 1 << 20)])
def test_bodies_larger_than_any_buffer_pass_both_ways_at_once(monkeypatch, silos, size):
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'uldp[flower]'")
    from uldp.runtimes.flower.messages import from_record, to_record

    nodes = {f"s{number}": number + 1 for number in range(silos)}
    grid = FakeGrid(dict.fromkeys(nodes.values(), lambda record: to_record("reply", from_record(record)[1])))
    with FlowerTransport(nodes) as transport:
        thread = relaying(transport, grid, monkeypatch)
        for number in range(3):
            requests = {silo: bytes([number]) * size for silo in nodes}
            assert transport.exchange(requests, 30) == requests
    thread.join(timeout=10)
    assert not thread.is_alive()


def test_nodes_that_nobody_vouches_for_are_asked_for_their_names(tmp_path, monkeypatch):
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'uldp[flower]'")
    silo = FakeSilo(tmp_path)
    names = {1: "b", 2: "a", 3: "c", 4: "c"}
    nodes = {
        node: (lambda record, name=name: client_app.respond(record, name, silo.address)) for node, name in names.items()
    }
    with FlowerTransport() as transport:
        relaying(transport, FakeGrid(nodes), monkeypatch)
        found = transport.exchange({"a": b"abc", "c": b"abc"}, 4)
    assert found["a"] == b"cba"
    assert isinstance(found["c"], FailedResponse)  # two nodes claim to be c


def test_a_run_that_names_another_transport_is_refused(monkeypatch):
    from uldp.runtimes.flower import server_app

    monkeypatch.setenv(ADDRESS_VARIABLE, "unix:/ours")
    with pytest.raises(RunError, match="another server"):
        server_app.relay(None, "unix:/theirs", "")


def test_an_answer_that_is_too_long_is_refused_and_takes_nobody_else_s_with_it(monkeypatch):
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'uldp[flower]'")
    from uldp.runtimes.flower.messages import to_record

    grid = FakeGrid(
        {1: lambda record: to_record("reply", b"x" * 1001), 2: lambda record: to_record("reply", b"x" * 1000)}
    )
    with FlowerTransport({"bad": 1, "good": 2}, limit=1000) as transport:
        relaying(transport, grid, monkeypatch)
        found = transport.exchange({"bad": b"q", "good": b"q"}, 10)
        assert found["good"] == b"x" * 1000 and transport.is_connected
        assert found["bad"].refused and "1001 bytes, at most 1000" in found["bad"].reason


def test_who_is_not_asked_any_more_is_not_asked_by_a_later_run_either(transport):
    transport.exchange({"a": b"1", "b": b"1"}, 0.1)
    thread, found = exchanging(transport, {"b": b"2"})
    run = FakeRun(transport, transport.new_token())
    header, body = run.next()
    assert (header["silo"], body) == ("b", b"2")
    run.respond(header, b"two")
    thread.join()
    assert found == {"b": b"two"} and transport.pending() == ()
