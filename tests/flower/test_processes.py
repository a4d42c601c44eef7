"""Programs that were started are stopped, with all that they started; Flower's get the environment that they must."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from uldp.errors import ConfigError, RunError
from uldp.runtimes.flower import child as c
from uldp.runtimes.flower import internals
from uldp.runtimes.flower import processes as p


def waited(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen")


def alive(pid):
    return c.alive(pid)


# A parent with a child that leaves its process group, as Flower's SuperExec does; both ignore a polite end.
FAMILY = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(100)"
print(subprocess.Popen([sys.executable, "-c", code], start_new_session=True).pid, flush=True)
time.sleep(100)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_stopping_a_program_leaves_no_orphan(tmp_path, monkeypatch):
    monkeypatch.setattr(c, "STOP_SECONDS", 0.5)
    child = c.Child([sys.executable, "-c", FAMILY], os.environ, tmp_path / "log", tmp_path)
    below = int(waited(lambda: (tmp_path / "log").read_text().strip()))
    child.stop()
    assert child.exit_code is not None and not alive(below)
    child.stop()  # once more is harmless


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux")
def test_a_program_ends_with_whoever_started_it(tmp_path):
    code = (
        "import os, sys, time; from pathlib import Path; from uldp.runtimes.flower.child import Child;"
        f"child = Child([sys.executable, '-c', 'import time; time.sleep(100)'], os.environ, Path({str(tmp_path)!r})"
        f" / 'log', Path({str(tmp_path)!r})); print(child.pid, flush=True); time.sleep(100)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    waited(
        lambda: b"time.sleep" in (words := Path(f"/proc/{pid}/cmdline").read_bytes()) and b"flower.child" not in words
    )
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    waited(lambda: not alive(pid))


def test_flowers_environment_is_silent_and_its_home_is_ours(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", "/elsewhere")
    monkeypatch.setenv("ULDP_TRANSPORT", "unix:/elsewhere")
    for name in ("FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE"):  # as in a notebook: JSON would come with colours
        monkeypatch.setenv(name, "1")
    environment = p.FlowerFolder(tmp_path / "flower").environment()
    assert {key: environment[key] for key in internals.ENVIRONMENT} == internals.ENVIRONMENT
    assert environment["FLWR_HOME"] == str(tmp_path / "flower") and "ULDP_TRANSPORT" not in environment
    assert not [name for name in environment if "COLOR" in name]
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0" and environment["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert environment["PATH"].split(os.pathsep)[0] == str(tmp_path / "flower" / "bin")


def test_what_a_server_sends_is_not_run(tmp_path):
    home = p.FlowerFolder(tmp_path / "flower")
    for name in internals.REFUSED_PROGRAMS:
        done = subprocess.run([name], env=home.environment(), capture_output=True, text=True, check=False)
        assert done.returncode == 1 and "not run here" in done.stderr
    for name, module in internals.REPLACED_PROGRAMS.items():
        assert module in (tmp_path / "flower" / "bin" / name).read_text()


def test_flower_has_no_other_command_that_we_do_not_know():
    constant = pytest.importorskip("flwr.supercore.constant", reason="Flower is not installed")
    known = {*internals.REPLACED_PROGRAMS, *internals.REFUSED_PROGRAMS}
    assert set(constant.TASK_TYPE_TO_COMMAND.values()) == known - {"flower-superexec", "uv"}


def test_the_commands_name_keys_and_authorities(tmp_path):
    home, address = p.FlowerFolder(tmp_path / "flower"), p.Address("127.0.0.1", 8000)
    secure = p.superlink_command(home, address, p.Security(tmp_path))
    assert "--enable-supernode-auth" in secure and str(tmp_path / "server.key") in secure and "--insecure" not in secure
    assert "--insecure" in p.superlink_command(home, address, None)
    side = p.NodeSide(address, tmp_path / "ca.crt", tmp_path / "node.key", {"silo": 'a "b"'})
    node = p.supernode_command(home, side, 9)
    assert node[node.index("--node-config") + 1] == 'silo="a \\"b\\""'
    assert node[node.index("--host") + 1] == "127.0.0.1" and str(tmp_path / "node.key") in node


def test_who_takes_a_nodes_messages_must_know_its_secret(tmp_path):
    home = p.FlowerFolder(tmp_path / "flower")
    node = p.supernode_command(home, p.NodeSide(p.Address("127.0.0.1", 8000), None, None, {}), 9)
    assert node[node.index("--isolation") + 1] == "process"  # in the other one Flower ignores the secret
    for command in (node, p.executor_command(home, 9)):
        secret = Path(command[command.index("--superexec-auth-secret-file") + 1])
        assert len(secret.read_bytes()) == 64 and secret.stat().st_mode & 0o777 == 0o600
    assert "--ssl-certfile" in node and "--root-certificates" in p.executor_command(home, 9)


@pytest.mark.parametrize("text", ["", "8000", "host:", "host:0", "host:99999", "host:x", ":1"])
def test_addresses_that_are_none(text):
    with pytest.raises(ConfigError, match="HOST:PORT"):
        p.Address.parse(text, "--address")


def test_a_port_that_is_taken_is_refused_before_anything_starts(tmp_path):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = p.Address("127.0.0.1", taken.getsockname()[1])
        superlink = p.SuperLink(p.FlowerFolder(tmp_path / "flower"), address, None, "unix:/hub")
        with pytest.raises(RunError, match="another program"):
            superlink.start()
        assert not superlink.running


def test_a_key_that_was_registered_and_not_written_down_is_found_again(tmp_path, monkeypatch):
    from uldp.runtimes.flower import credentials

    public = credentials.make_silo_keys("a", tmp_path / "k")
    superlink = p.SuperLink(p.FlowerFolder(tmp_path / "flower"), p.Address("127.0.0.1", 8000), None, "unix:/hub")
    known = {public.node: 2**63 + 5}

    def refuses(*arguments):
        raise RunError("Flower says: public key already in use", location="flwr supernode register")

    monkeypatch.setattr(superlink.home, "run", refuses)
    monkeypatch.setattr(superlink.home, "nodes", lambda: known)
    assert superlink.register({"a": public.node + " comment"}) == {"a": 2**63 + 5}
    assert superlink.register({"a": public.node + " comment"}) == {"a": 2**63 + 5}  # written down now
    with pytest.raises(RunError, match="already in use"):
        superlink.register({"b": credentials.make_silo_keys("b", tmp_path / "l").node})


@pytest.mark.parametrize("text", ["a..b:8000", f"{'a' * 300}:8000", ":8000", "host", "host:0", "host:x"])
def test_an_address_that_nobody_can_look_up_is_named(text):
    with pytest.raises(ConfigError, match="--address: HOST:PORT"):
        p.Address.parse(text, "--address")
