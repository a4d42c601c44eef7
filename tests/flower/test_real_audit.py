"""An audit whose runs go over a real federation: SuperLink, TLS, a SuperNode with a key of its own for every silo."""

import threading
from contextlib import ExitStack, contextmanager

import pytest

from uldp.audits.audit import audit_of, size_of
from uldp.errors import UldpError
from uldp.library.arguments import CallArguments
from uldp.library.auditing import public_shape
from uldp.runtimes import socket_frames as frames
from uldp.runtimes.flower import credentials
from uldp.runtimes.flower.federation import Node, ServerConnection, ServerSupervisor
from uldp.runtimes.flower.messages import MAX_BYTES
from uldp.runtimes.flower.processes import Address, FlowerFolder, Security, SuperLink, free_port
from uldp.runtimes.flower.transport import FlowerTransport
from uldp.runtimes.temporary import TemporaryFolder

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'uldp[flower]'")
SECONDS = 300.0


class ServedSilo:
    """Answers for a silo's node, as a silo's own process does; with the session of the audit's run at hand."""

    def __init__(self, name, address):
        self.name, self.closed, self.session, self.answered = name, False, None, 0
        self._address = address

    def stop(self):
        self.closed = True

    def serve(self):
        with frames.listen(self._address) as sock:
            sock.settimeout(0.2)
            while not self.closed:
                try:
                    connection, _ = sock.accept()
                except TimeoutError:
                    continue
                with connection:
                    _, request = frames.receive(connection, MAX_BYTES)
                    try:
                        reply = self.session.reply(request)
                    except UldpError as error:
                        frames.send(connection, {"kind": "refused"}, str(error).encode())
                    else:
                        self.answered += 1
                        frames.send(connection, {"kind": "reply"}, reply)


class FlowerFederation:
    """A server's and its silos' programs of Flower, for one audit: its runs follow one another."""

    def __init__(self, silos, folder):
        self._names, self._folder, self.silos = silos, folder, {}

    def __enter__(self):
        with ExitStack() as until:
            certificates = self._folder / "certificates"
            credentials.make_certificates(certificates, ["127.0.0.1"], days=2)
            security, address = Security(certificates), Address("127.0.0.1", free_port())
            keys = {name: credentials.make_silo_keys(name, self._folder / "keys" / name).node for name in self._names}
            sockets = until.enter_context(TemporaryFolder("audit")).path
            self._transport = FlowerTransport()
            until.callback(self._transport.close)
            home = FlowerFolder(self._folder / "server")
            superlink = SuperLink(home, address, security, self._transport.address)
            until.callback(superlink.end)
            until.callback(self._transport.close)
            until.enter_context(ServerSupervisor(superlink, self._transport, keys, print).attach())
            for name in self._names:
                socket = f"unix:{sockets / name}"
                self.silos[name] = silo = ServedSilo(name, socket)
                state = self._folder / "silos" / name
                state.mkdir(parents=True)
                joining = ServerConnection(address, self._folder / "keys" / name, security.ca, state)
                threading.Thread(target=silo.serve, daemon=True).start()
                until.callback(silo.stop)
                until.enter_context(Node(joining, silo, socket, print).attach())
            assert self._transport.wait_for_run(SECONDS)
            self._until = until.pop_all()
        return self

    def __exit__(self, *_):
        self._until.close()

    @contextmanager
    def connect(self, sessions):
        """The sessions of a run behind the silos' nodes."""
        for name, session in sessions.items():
            self.silos[name].session = session

        def exchange(requests):
            replies = self._transport.exchange(requests, SECONDS)
            assert all(isinstance(reply, bytes) for reply in replies.values()), replies
            return replies

        yield exchange


@pytest.mark.slow
def test_an_audit_over_flower_is_that_of_its_sessions(tmp_path):
    """The same messages, so the same verdict and the same numbers; and every reply came from a silo's node."""
    what = {"method": "uldp-avg", "epsilon": 4.0, "rounds": 1, "options": {"data.silos": 2, "data.users": 20}}
    prepared = public_shape(CallArguments.of("synthetic", what))
    size = size_of(prepared, 512)
    with FlowerFederation(prepared.plan.silos, tmp_path) as federation:
        made = audit_of(prepared, size, connect=federation.connect)
        answered = {silo.answered for silo in federation.silos.values()}
    assert not made.refuted and made.to_json() == audit_of(prepared, size).to_json()
    assert 0 < made.found[0].epsilon < made.found[0].exposure.epsilon
    assert min(answered) >= 3 * (size.runs + 2)  # the handshake, a round and the end of each run at least
