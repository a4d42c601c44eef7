"""Frames: what goes in comes out, what is too long or cut short is refused, and nothing slow is loaded."""

import contextlib
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from uldp.errors import ConfigError, MessageRefused, RunError
from uldp.runtimes import socket_frames as frames

LIMIT = 1 << 22


@pytest.fixture
def pair():
    left, right = socket.socketpair()
    for end in (left, right):
        end.settimeout(5.0)
    with left, right:
        yield left, right


def raw(header: bytes, body: bytes, body_length: int | None = None) -> bytes:
    length = len(body) if body_length is None else body_length
    return len(header).to_bytes(4, "big") + header + length.to_bytes(8, "big") + body


@pytest.mark.parametrize("body", [b"", b"x", bytes(range(256)) * 12_000])
def test_a_frame_comes_out_as_it_went_in(pair, body):
    sender = threading.Thread(target=frames.send, args=(pair[0], {"kind": "request", "n": 1}, body))
    sender.start()
    assert frames.receive(pair[1], LIMIT) == ({"kind": "request", "n": 1}, body)
    sender.join()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xff\xff\xff\xff", "a header of 4294967295 bytes"),
        (raw(b"\xc1", b""), "header cannot be read"),
        (raw(b"\x01", b""), "header cannot be read"),
        (raw(b"\x80", b"", 1 << 60), "a body of 1152921504606846976 bytes"),
        (raw(b"\x80", b"", LIMIT + 1), "at most 4194304"),
    ],
)
def test_a_malformed_frame_is_refused(pair, data, reason):
    pair[0].sendall(data)
    with pytest.raises(MessageRefused, match=reason):
        frames.receive(pair[1], LIMIT)


def test_who_sends_a_byte_now_and_then_is_not_waited_for(pair):
    pair[1].settimeout(0.5)
    stop = threading.Event()

    def drip():
        while not stop.wait(0.1):
            with contextlib.suppress(OSError):
                pair[0].send(b"\0")

    pair[0].sendall(raw(b"\x80", b"", LIMIT))
    thread = threading.Thread(target=drip)
    thread.start()
    began = time.monotonic()
    with pytest.raises(RunError, match="timed out"):
        frames.receive(pair[1], LIMIT)
    assert time.monotonic() - began < 30 and pair[1].gettimeout() == 0.5
    stop.set()
    thread.join()


def test_a_refusal_that_comes_before_all_was_sent_is_heard(short_path):
    address = f"unix:{short_path}/s"
    with frames.listen(address) as listening:

        def serve():
            connection, _ = listening.accept()
            with connection, pytest.raises(MessageRefused):
                frames.receive(connection, 10)
            with connection:
                pass

        def refuse():
            connection, _ = listening.accept()
            with connection:
                try:
                    frames.receive(connection, 10)
                except MessageRefused as error:
                    frames.send(connection, {"kind": "refused"}, str(error).encode())

        for target in (refuse, serve):
            thread = threading.Thread(target=target)
            thread.start()
            with frames.connect(address, 5.0) as sock:
                if target is refuse:
                    header, sentence = frames.ask(sock, {"kind": "request"}, bytes(1 << 24), 100)
                    assert header == {"kind": "refused"} and b"at most 10" in sentence
                else:
                    with pytest.raises(RunError, match="while sending"):
                        frames.ask(sock, {"kind": "request"}, bytes(1 << 24), 100)
            thread.join()


@pytest.mark.parametrize("data", [b"", b"\x00", raw(b"\x80", b"")[:-1], raw(b"\x80", b"abc", 4)])
def test_a_frame_that_is_cut_short_is_an_error(pair, data):
    pair[0].sendall(data)
    pair[0].close()
    with pytest.raises(RunError, match="too early"):
        frames.receive(pair[1], LIMIT)


def test_a_silent_peer_is_given_up_after_the_timeout(pair):
    pair[1].settimeout(0.05)
    with pytest.raises(RunError, match="broke"):
        frames.receive(pair[1], LIMIT)


def test_a_unix_socket_is_for_its_owner_and_replaces_a_dead_one(short_path):
    path = short_path / "s"
    for _ in range(2):  # the second time over what the first one left
        with frames.listen(f"unix:{path}") as sock:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            with frames.connect(f"unix:{path}", 5.0) as client:
                frames.send(client, {}, b"hello")
                with sock.accept()[0] as accepted:
                    assert frames.receive(accepted, LIMIT) == ({}, b"hello")
            with pytest.raises(RunError, match="another process listens"):
                frames.listen(f"unix:{path}")


def test_a_file_at_the_place_of_a_socket_stays(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("precious")
    with pytest.raises(RunError, match="something else"):
        frames.listen(f"unix:{path}")
    assert path.read_text() == "precious"


def test_nobody_there_is_one_sentence(tmp_path):
    with pytest.raises(RunError, match="is the silo's process running"):
        frames.connect(f"unix:{tmp_path}/nobody")


def test_loopback_tcp():
    with frames.listen("tcp:127.0.0.1:0") as sock:
        port = sock.getsockname()[1]
        with frames.connect(f"tcp:127.0.0.1:{port}", 5.0):
            pass


@pytest.mark.parametrize(
    "address",
    ["tcp:0.0.0.0:9000", "tcp:10.0.0.1:9000", "tcp:hospital.example:9000", "tcp:127.0.0.1:99999", "unix:relative", "x"],
)
def test_what_is_not_on_this_machine_is_refused(address):
    with pytest.raises(ConfigError, match="on this machine"):
        frames.listen(address)


def test_a_path_too_long_for_a_socket_says_so():
    with pytest.raises(ConfigError, match="at most 100 bytes"):
        frames.listen("unix:/" + "x" * 200)


def test_the_carrier_starts_in_a_moment():
    """Neither PyTorch nor NumPy: the transport is a new process for every message."""
    code = (
        "import sys, uldp.runtimes.socket_frames;"
        "print([name for name in ('torch', 'numpy', 'pandas', 'uldp.sessions') if name in sys.modules])"
    )
    source = Path(frames.__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": str(source)})
    assert done.stdout.strip() == "[]", done.stderr
