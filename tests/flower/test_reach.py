"""A silo that cannot reach its server is told why, in one sentence, and by `join` too."""

import socket
import ssl
import threading

import pytest

from uldp.runtimes.flower import credentials, federation
from uldp.runtimes.flower.processes import Address, connection_problem, free_port


@pytest.fixture
def served(tmp_path):
    """Starts servers: with the certificate of a folder, or with none at all."""
    open_sockets = []

    def serve(folder=None):
        context = None
        if folder is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(folder / credentials.SERVER, folder / credentials.SERVER_KEY)
        listening = socket.create_server(("127.0.0.1", 0))
        open_sockets.append(listening)

        def answer():
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    try:
                        if context is None:
                            connection.recv(100)
                            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                        else:
                            context.wrap_socket(connection, server_side=True).close()
                    except OSError:
                        pass  # the other side does not like it: that is what is tested

        threading.Thread(target=answer, daemon=True).start()
        return Address("127.0.0.1", listening.getsockname()[1])

    yield serve
    for one in open_sockets:
        one.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    for name, host in (("right", "127.0.0.1"), ("other", "127.0.0.1"), ("elsewhere", "server.example")):
        credentials.make_certificates(folder / name, [host], 2)
    return folder


def test_what_is_well_is_not_mentioned(served, made):
    assert connection_problem(served(made / "right"), made / "right" / credentials.CA) == ""
    assert connection_problem(served(), None) == ""


def test_every_trouble_has_its_sentence(served, made, tmp_path):
    (tmp_path / "empty.crt").write_text("nothing")
    cases = {
        "vouches for": (served(made / "right"), made / "other" / credentials.CA),
        "is not for 127.0.0.1": (served(made / "elsewhere"), made / "elsewhere" / credentials.CA),
        "does not speak TLS": (served(), made / "right" / credentials.CA),
        "connection failed": (Address("127.0.0.1", free_port()), made / "right" / credentials.CA),
        "holds no certificate": (served(made / "right"), tmp_path / "empty.crt"),
    }
    for sentence, (address, ca) in cases.items():
        assert sentence in connection_problem(address, ca)


def test_join_says_it_once_and_says_when_it_is_over(monkeypatch, served, made):
    monkeypatch.setattr(federation, "REACH_SECONDS", 0.0)
    address = served(made / "right")
    said = []
    watch = federation.ConnectionWatch(address, made / "other" / credentials.CA, said.append)
    watch.probe()
    watch.probe()
    assert len(said) == 1 and "vouches for" in said[0]
    watch.ca = made / "right" / credentials.CA
    watch.probe()
    watch.probe()
    assert said[1:] == [f"{address} responds now"]
