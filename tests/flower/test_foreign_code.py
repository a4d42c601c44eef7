"""A server that sends code of its own has it run neither in a silo nor at our SuperLink. With Flower's own programs."""

import argparse
import os
import sys
import time
from pathlib import Path

import pytest

from uldp.runtimes import socket_frames as frames
from uldp.runtimes.flower import credentials
from uldp.runtimes.flower import processes as p

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'uldp[flower]'")
pytestmark = pytest.mark.slow

SERVER = """
open({marker!r} + "-server", "a").write("ran")
import time
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp
app = ServerApp()

@app.main()
def main(grid, context):
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.5)
    messages = [Message(RecordDict(), dst_node_id=nodes[0], message_type=kind) for kind in ("query.carry", "train")]
    replies = list(grid.send_and_receive(messages, timeout=60))
    open({marker!r} + "-replies", "a").write(str(len(replies)))
"""
CLIENT = """
open({marker!r} + "-client", "a").write("ran")
from flwr.clientapp import ClientApp
app = ClientApp()
"""


def foreign_app(folder, marker):
    home = p.FlowerFolder(folder / "writer")
    app = home.write_app()
    (app / "uldp_transport" / "server_app.py").write_text(SERVER.format(marker=marker))
    (app / "uldp_transport" / "client_app.py").write_text(CLIENT.format(marker=marker))
    return app


def taken(port, ca, secret):
    """What another process of the machine gets that asks a silo's node for a message."""
    from uldp.runtimes.flower import internals

    about = {"insecure": False, "root_certificates": str(ca), "superexec_auth_secret_file": secret}
    client = internals.connect_runtime(argparse.Namespace(runtime_api_address=f"127.0.0.1:{port}", **about))
    try:
        token = internals.acquire_task(client)
    except KeyboardInterrupt:  # so Flower ends a process that is not let in
        return "refused"
    return "a message" if token else "nothing there"


@pytest.mark.parametrize("superlink", ["ours", "theirs"])
def test_code_that_came_with_a_run_is_not_run(tmp_path, superlink, monkeypatch):
    marker = str(tmp_path / "marker")
    credentials.make_certificates(tmp_path / "c", ["127.0.0.1"], 2)
    public = credentials.make_silo_keys("a", tmp_path / "k")
    address, security = p.Address("127.0.0.1", p.free_port()), p.Security(tmp_path / "c")
    listening = frames.listen(f"unix:{tmp_path}/silo")
    listening.settimeout(0.1)
    server = p.SuperLink(p.FlowerFolder(tmp_path / "f"), address, security, f"unix:{tmp_path}/hub")
    node = None
    try:
        with monkeypatch.context() as patch:
            if superlink == "theirs":  # one that runs what it is sent, as Flower does
                plain = {**server.home.environment(), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
                patch.setattr(server.home, "environment", lambda extra=None: plain)
            server.start()
        known = server.register({"a": public.node})
        server.home.file("nodes.json").unlink()  # as if killed in between
        assert server.register({"a": public.node}) == known
        words = {"silo": "a", "socket": f"unix:{tmp_path}/silo"}
        side = p.NodeSide(address, security.ca, tmp_path / "k" / "node.key", words)
        node = p.SuperNode(p.FlowerFolder(tmp_path / "n"), side)
        server.home.run("run", str(foreign_app(tmp_path, marker)), p.CONNECTION)
        done = Path(f"{marker}-replies") if superlink == "theirs" else tmp_path / "f" / "flwr-serverapp.log"
        end = time.monotonic() + 120
        while not done.exists() or (superlink == "ours" and "Exit Code" not in done.read_text()):
            assert time.monotonic() < end
            time.sleep(0.5)
        assert not Path(f"{marker}-client").exists()
        assert Path(f"{marker}-server").exists() == (superlink == "theirs")
        if superlink == "ours":  # not even unpacked
            assert not list((tmp_path / "f").glob("apps/*"))
        with pytest.raises(TimeoutError):
            listening.accept()  # nothing of it reached the silo either
        ca = tmp_path / "n" / "runtime" / "ca.crt"
        assert taken(node.port, ca, tmp_path / "n" / "superexec.secret") == "nothing there"
        (tmp_path / "guess").write_bytes(b"0" * 64)
        assert taken(node.port, ca, tmp_path / "guess") == "refused"
    finally:
        listening.close()
        if node is not None:
            node.stop()
        server.end()
