"""A silo that cannot reach its server is told why, in one sentence, and by `join` too."""

import base64
import socket
import ssl
import threading
from contextlib import suppress

import pytest

from uldp.runtimes.flower import credentials, federation
from uldp.runtimes.flower.processes import Address, FlowerFolder, connection_problem, free_port


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


class TunnelProxy:
    """A proxy that opens tunnels to this machine, whatever host is asked for, and notes who was asked for."""

    def __init__(self, refuse=False):
        self.requests, self._refuse = [], refuse
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        head = b""
        while b"\r\n\r\n" not in head and (more := connection.recv(4096)):
            head += more
        self.requests.append(head.decode())
        if self._refuse:
            connection.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")
            connection.close()
            return
        port = int(head.split()[1].rpartition(b":")[2])
        try:
            server = socket.create_connection(("127.0.0.1", port))
        except OSError:
            connection.sendall(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
            connection.close()
            return
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        threading.Thread(target=_pump, args=(connection, server), daemon=True).start()
        _pump(server, connection)

    def close(self):
        self._socket.close()


def _pump(source, target):
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for one in (source, target):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxied(monkeypatch):
    """Makes a proxy, and puts it into the environment."""
    made = []

    def make(**options):
        made.append(TunnelProxy(**options))
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY", "HTTPS_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("https_proxy", f"http://ward:pass%20word@127.0.0.1:{made[-1].port}")
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_server_behind_a_proxy_is_reached_through_it(served, made, proxied, monkeypatch):
    proxy, port = proxied(), served(made / "elsewhere").port
    address = Address("server.example", port)
    assert connection_problem(address, made / "elsewhere" / credentials.CA) == ""
    assert f"CONNECT server.example:{port} " in proxy.requests[0]
    assert f"Proxy-Authorization: Basic {base64.b64encode(b'ward:pass word').decode()}" in proxy.requests[0]
    assert "vouches for" in connection_problem(address, made / "other" / credentials.CA)
    assert (
        connection_problem(served(made / "right"), made / "right" / credentials.CA) == "" and len(proxy.requests) == 2
    )
    monkeypatch.setenv("no_proxy", "server.example")
    assert "connection failed (" in connection_problem(address, made / "elsewhere" / credentials.CA)


def test_a_proxy_that_refuses_is_named_without_its_password(made, proxied):
    proxy = proxied(refuse=True)
    said = connection_problem(Address("server.example", 443), made / "elsewhere" / credentials.CA)
    assert f"through the proxy 127.0.0.1:{proxy.port}" in said and "403" in said and "pass" not in said


def test_flowers_programs_of_one_machine_never_speak_through_a_proxy(proxied, tmp_path, monkeypatch):
    proxied()
    monkeypatch.setenv("NO_PROXY", "intern.example")
    found = FlowerFolder(tmp_path / "flower", ("server.example",)).environment()
    assert found["https_proxy"].startswith("http://ward")
    for name in ("no_proxy", "NO_PROXY"):
        assert found[name].split(",") == ["intern.example", "127.0.0.1", "localhost", "::1", "server.example"]
