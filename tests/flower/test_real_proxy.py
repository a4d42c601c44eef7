"""A federation whose silos reach the server through a proxy only, as real processes over Flower and TLS."""

import pytest
from tests.flower.flower_support import QUICK, Parties, with_option
from tests.flower.test_reach import TunnelProxy

from uldp.runtimes.flower import credentials

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'uldp[flower]'")
pytestmark = pytest.mark.slow


def test_silos_behind_a_proxy_take_part(tmp_path, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    proxy = TunnelProxy()  # knows where server.example is; nobody else does
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
    with Parties(tmp_path, QUICK, {"run": {"secrets": "os"}}) as parties:
        credentials.make_certificates(tmp_path / "own", ["server.example", "127.0.0.1"], 2)
        server = parties.commands["server"]
        port = server[server.index("--address") + 1].rpartition(":")[2]
        parties.commands["server"] = with_option(server, "--certificates", tmp_path / "own")
        for silo in parties.silos:
            command = with_option(parties.commands[silo], "--superlink", f"server.example:{port}")
            parties.commands[silo] = with_option(command, "--ca", tmp_path / "own" / credentials.CA)
        parties.start_all()
        assert parties.exit_code() == 0
        parties.check_whole()
    asked = {request.split()[1] for request in proxy.requests}
    assert asked == {f"server.example:{port}"}  # and nothing of what is said on one machine
    proxy.close()
