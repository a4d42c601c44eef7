"""Flower's programs: how they are started, watched and stopped.

Every program runs in a process group of its own and with an environment of its own, with Flower's home inside the run
directory. The commands that Flower looks for to run an app are ours, so that no code that came over the network is run,
neither at the server nor in a silo.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from uldp.errors import ConfigError, RunError, require
from uldp.runs.files import private_folder, replace_file, report_disk_errors
from uldp.runtimes.flower import credentials, internals
from uldp.runtimes.flower.child import Child, wait_until
from uldp.runtimes.flower.internals import check_installed as check_installed
from uldp.runtimes.flower.messages import ADDRESS_VARIABLE
from uldp.runtimes.flower.proxies import https_connection, proxy_for, without_loopback
from uldp.runtimes.flower.supernode import DELIVERED

EXECUTOR: Final = "uldp.runtimes.flower.executor"
"""What responds to a SuperNode's messages; Flower's would start ``flwr-clientapp`` for every one."""
SUPERNODE: Final = "uldp.runtimes.flower.supernode"
"""Flower's program, which ends when it should."""
RUNTIME: Final = "runtime"
"""The folder with the certificate of a SuperNode's own port."""
START_SECONDS: Final = 60.0
CONNECT_SECONDS: Final = 5.0
MIN_FREE_BYTES: Final = 1 << 16
"""Bytes that must be free beside Flower's database."""
CONNECTION: Final = "uldp"


@dataclass(frozen=True)
class Address:
    """A host and a port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, location: str) -> Address:
        """From ``HOST:PORT``.

        >>> Address.parse("127.0.0.1:8000", "--address").port
        8000
        """
        host, colon, port = text.rpartition(":")
        try:
            host.strip("[]").encode("idna")  # what looking it up would raise
            good = bool(colon and host) and port.isdecimal() and 0 < int(port) < 1 << 16
        except UnicodeError:
            good = False
        require(good, location, text, "HOST:PORT, for instance 127.0.0.1:8000")
        return cls(host.strip("[]"), int(port))

    @property
    def loopback(self) -> bool:
        return self.host in ("127.0.0.1", "::1", "localhost")

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class FlowerFolder:
    """A folder for Flower inside a run's private folder: settings, database, logs, commands."""

    def __init__(self, folder: Path, direct: tuple[str, ...] = ()) -> None:
        """``direct``: hosts that are reached without a proxy, beside this one."""
        self.folder = folder.resolve()
        self._direct = direct
        private_folder(self.folder)
        self._commands = self.folder / "bin"
        private_folder(self._commands)
        commands = {name: f'echo "uldp: {name} is not run here" >&2; exit 1' for name in internals.REFUSED_PROGRAMS}
        for name, module in internals.REPLACED_PROGRAMS.items():
            # Flower throws away what these print.
            commands[name] = f'exec "{sys.executable}" -P -m {module} "$@" >>"$FLWR_HOME/{name}.log" 2>&1'
        for name, line in commands.items():
            replace_file(self._commands / name, f"#!/bin/sh\numask 077\n{line}\n".encode(), mode=0o700)

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """Flower's environment. Our commands come first on the path, then those of this Python."""
        path = os.pathsep.join([str(self._commands), str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        own = without_loopback(internals.environment(), *self._direct)
        return {**own, "FLWR_HOME": str(self.folder), "PATH": path, **(extra or {})}

    def file(self, name: str) -> Path:
        return self.folder / name

    def secret(self) -> Path:
        """What hands out a SuperLink's or a SuperNode's tasks to our processes and to nobody else; made once."""
        file = self.file("superexec.secret")
        if not file.exists():
            replace_file(file, os.urandom(32).hex().encode())
        return file

    def connect(self, address: Address, ca: Path | None) -> None:
        """Write down how Flower's command line reaches the SuperLink."""
        how = "insecure = true" if ca is None else f"root-certificates = {json.dumps(str(ca.resolve()))}"
        text = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = "{address}"\n{how}\n'
        replace_file(self.file("config.toml"), text.encode())

    def write_app(self) -> Path:
        """The app that is submitted. It has no code of its own but two lines; the settings come with the run."""
        app = self.folder / "app"
        files = {"pyproject.toml": _APP, "uldp_transport/__init__.py": ""}
        for side in ("client_app", "server_app"):
            text = f"from uldp.runtimes.flower.{side} import make_app\n\napp = make_app()\n"
            files[f"uldp_transport/{side}.py"] = text
        with report_disk_errors(app):
            (app / "uldp_transport").mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            replace_file(app / name, text.encode(), mode=0o644)
        return app

    def run(self, *arguments: str) -> dict[str, Any]:
        """A command of ``flwr`` and the JSON that it prints."""
        command, location = [_program("flwr"), *arguments, "--format", "json"], "flwr " + " ".join(arguments[:2])
        return internals.run_for_json(command, location, self.environment(), self.folder)

    def nodes(self) -> dict[str, int]:
        """Every node key that the SuperLink knows, and its node id."""
        found = internals.registered_nodes(CONNECTION, self.environment(), self.folder)
        return {credentials.node_line_of(pem.encode()): node for pem, node in found.items()}


_APP: Final = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "uldp-transport"
version = "1.0.0"
description = "Transports the messages of an uldp federation"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "uldp"

[tool.flwr.app.components]
serverapp = "uldp_transport.server_app:app"
clientapp = "uldp_transport.client_app:app"

[tool.flwr.app.config]
transport = ""
token = ""
"""


def _program(name: str) -> str:
    """The program of this Python's own installation."""
    return str(Path(sys.executable).parent / name)


@dataclass(frozen=True)
class Security:
    """TLS with these files, or ``None`` for an insecure rehearsal on loopback."""

    folder: Path

    @property
    def ca(self) -> Path:
        return self.folder / credentials.CA

    def check(self) -> None:
        for name in (credentials.CA, credentials.SERVER, credentials.SERVER_KEY):
            file = self.folder / name
            with report_disk_errors(file):
                there = file.is_file()
            if not there:
                raise ConfigError("is missing; `uldp keys certificates` makes one for trials", location=str(file))


def superlink_command(home: FlowerFolder, address: Address, security: Security | None) -> list[str]:
    """The SuperLink. Who takes tasks from it must know the secret: its port is open to all silos."""
    command = [_program("flower-superlink"), "--host", address.host, "--port", str(address.port)]
    command += ["--database", str(home.file("state.db")), "--disable-runtime-dependency-installation"]
    command += internals.secret_options(home.secret())
    if security is None:
        return [*command, "--insecure"]
    return [*command, *_certificate(security), "--enable-supernode-auth"]


def _certificate(security: Security) -> list[str]:
    """The certificate that a program shows."""
    files = {"ca-certfile": credentials.CA, "certfile": credentials.SERVER, "keyfile": credentials.SERVER_KEY}
    pairs = ((f"--ssl-{option}", str((security.folder / name).resolve())) for option, name in files.items())
    return [word for pair in pairs for word in pair]


def _trust_options(ca: Path | None) -> list[str]:
    """The authority of the certificates that a program accepts."""
    return ["--insecure"] if ca is None else ["--root-certificates", str(ca.resolve())]


def superexec_command(home: FlowerFolder, address: Address, ca: Path | None) -> list[str]:
    """What starts the app of a run, or of every message, in a new process."""
    return [_program("flower-superexec"), *internals.runtime_options(address, home.secret()), *_trust_options(ca)]


@dataclass(frozen=True)
class NodeSide:
    """How a silo's SuperNode reaches the server, and its configuration."""

    superlink: Address
    ca: Path | None
    key: Path | None
    config: Mapping[str, str]


def supernode_command(home: FlowerFolder, side: NodeSide, port: int) -> list[str]:
    """A silo's SuperNode. Its own port is on loopback, over TLS, and for who knows the secret."""
    words = " ".join(f"{name}={json.dumps(value)}" for name, value in side.config.items())
    command = [sys.executable, "-P", "-m", SUPERNODE, "--superlink", str(side.superlink), *_trust_options(side.ca)]
    command += ["--node-config", words, "--host", "127.0.0.1", "--port", str(port)]
    command += [*internals.secret_options(home.secret()), *_certificate(Security(home.file(RUNTIME)))]
    return command if side.key is None else [*command, "--auth-supernode-private-key", str(side.key.resolve())]


def executor_command(home: FlowerFolder, port: int) -> list[str]:
    """What responds to the messages of the SuperNode at ``port``."""
    command = [sys.executable, "-P", "-m", EXECUTOR, *superexec_of_node(home, port)[1:]]
    return [*command, "--parent-pid", str(os.getpid())]


def superexec_of_node(home: FlowerFolder, port: int) -> list[str]:
    """Flower's own way instead, with a new process for every message. Only for ``uldp bench transport``."""
    return superexec_command(home, Address("127.0.0.1", port), home.file(RUNTIME) / credentials.CA)


class _Programs:
    """Programs of Flower that belong together: started one after the other, and stopped the other way round."""

    def __init__(self, home: FlowerFolder) -> None:
        self.home = home
        self._children: list[Child] = []

    def _start(self, name: str, command: list[str], extra: Mapping[str, str] | None = None) -> Child:
        child = Child(command, self.home.environment(extra), self.home.file(f"{name}.log"), self.home.folder)
        self._children.append(child)
        return child

    @property
    def has_ended(self) -> bool:
        """Whether one of them has ended."""
        return any(child.exit_code is not None for child in self._children)

    def stop(self) -> None:
        while self._children:
            self._children.pop().stop()


class SuperNode(_Programs):
    """A silo's part of Flower: its node, and what responds to the node's messages. One is nothing without the other.

    Between the two: a secret and a certificate of their own, so that nobody else on the machine gets in between.
    """

    def __init__(
        self, home: FlowerFolder, side: NodeSide, executor: Callable[[FlowerFolder, int], list[str]] = executor_command
    ) -> None:
        check_installed()
        super().__init__(home)
        self.port = free_port()
        self._delivered = home.file(DELIVERED)
        with report_disk_errors(self._delivered):
            self._delivered.unlink(missing_ok=True)
        shutil.rmtree(home.file(RUNTIME), ignore_errors=True)
        credentials.make_certificates(home.file(RUNTIME), ["127.0.0.1"], credentials.MAX_DAYS)
        (home.file(RUNTIME) / credentials.CA_KEY).unlink()  # it signs nothing else
        try:
            self._start("supernode", supernode_command(home, side, self.port))
            self._start("executor", executor(home, self.port))
        except BaseException:
            self.stop()
            raise

    @property
    def delivery_count(self) -> int:
        """How many responses the server has taken from this node."""
        try:
            return self._delivered.stat().st_size
        except OSError:  # none yet
            return 0

    def log_tail(self) -> str:
        """What the one that has ended said last."""
        return next((child.log_tail(1) for child in self._children if child.exit_code is not None), "")


def free_port() -> int:
    """A port of loopback that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def connection_problem(address: Address, ca: Path | None) -> str:
    """Why nobody can be reached there, as a sentence without its end; empty if somebody can. ``ca`` None: without TLS.

    Flower's node tries on for ever and says nothing.
    """
    try:
        context = None if ca is None else ssl.create_default_context(cafile=str(ca))
    except OSError as error:
        return f"{ca} holds no certificate that can be read ({error.strerror or error}); ask for ca.crt again"
    proxy = None if context is None else proxy_for(address.host)
    through = "" if proxy is None else f" through the proxy {proxy}"
    try:
        if context is None:
            socket.create_connection((address.host, address.port), timeout=CONNECT_SECONDS).close()
        else:
            connection = https_connection(address.host, address.port, context, CONNECT_SECONDS)
            connection.connect()
            connection.close()
    except ssl.SSLCertVerificationError as error:
        # 62 and 64: the names, of a host and of an address. All else is about who signed it, and when.
        if error.verify_code in (62, 64):
            return f"its certificate is not for {address.host}; take a name that it has, or have another one made"
        why = error.verify_message
        return f"its certificate is not one that {ca} vouches for ({why}); is this the server's ca.crt?"
    except ssl.SSLError as error:
        return f"it does not speak TLS as expected ({error.reason or error}); is it this server, or an --insecure one?"
    except OSError as error:
        reason = error.strerror or error
        return f"connection failed{through} ({reason}); is the server up, and is a firewall blocking the port?"
    return ""


class SuperLink(_Programs, AbstractContextManager["SuperLink"]):
    """The server's part of Flower: SuperLink and SuperExec, the silos' nodes, and the run.

    With ``running`` a SuperLink that is there already is used as it is.
    """

    def __init__(
        self, home: FlowerFolder, address: Address, security: Security | None, transport: str, *, running: bool = False
    ) -> None:
        super().__init__(home)
        self._theirs = running
        self._address = address
        self._security = security
        self._transport = transport
        self._over = False
        home.connect(address, security.ca if security else None)
        self._app = home.write_app()

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Stop, and start nothing any more."""
        self._over = True
        self.stop()

    def start(self) -> None:
        """Start both programs, and wait until they respond."""
        there, where = not connection_problem(self._address, None), str(self._address)
        if self._theirs and not there:
            raise RunError("no SuperLink responds there", location=where)
        if there and not self._theirs:
            raise RunError("another program listens there; stop it, or choose another port", location=where)
        if self._theirs:
            return
        check_installed()
        ca = self._security.ca if self._security else None
        commands = {
            "superlink": superlink_command(self.home, self._address, self._security),
            "superexec": superexec_command(self.home, self._address, ca),
        }
        for name, command in commands.items():
            if self._over:
                return
            child = self._start(name, command, {ADDRESS_VARIABLE: self._transport})
            if name == "superlink":
                self._wait(child)

    def _wait(self, child: Child) -> None:
        def is_decided() -> bool:
            return child.exit_code is not None or not connection_problem(self._address, None)

        if not wait_until(is_decided, START_SECONDS, 0.2):
            raise RunError(f"the SuperLink does not respond after {START_SECONDS:g} s", location=str(child.log))
        if child.exit_code is not None:
            raise RunError(f"the SuperLink ended at once: {child.log_tail()}", location=str(child.log))

    @property
    def running(self) -> bool:
        return self._theirs or (bool(self._children) and not self.has_ended)

    def check_room(self) -> None:
        """Refuse a disk that takes no more: Flower says of that only that something is wrong."""
        replace_file(self.home.file("room"), bytes(MIN_FREE_BYTES))

    def register(self, keys: Mapping[str, str]) -> dict[str, int]:
        """Every silo's node id. What was registered is stored beside the database; Flower registers no key twice."""
        stored = self.home.file("nodes.json")
        known: dict[str, int] = json.loads(stored.read_text()) if stored.exists() else {}
        for number, (silo, key) in enumerate(keys.items()):
            if key in known:
                continue
            file = self.home.file(f"node-{number}.pub")
            replace_file(file, key.encode() + b"\n", mode=0o644)
            try:
                known[key] = int(self.home.run("supernode", "register", str(file), "--name", silo)["node-id"])
            except RunError:
                # A server that was killed before it wrote the node down: Flower knows the key, and refuses it.
                node = self.home.nodes().get(" ".join(key.split()[:2]))
                if node is None:
                    raise
                known[key] = node
            replace_file(stored, json.dumps(known).encode())
        return {silo: known[key] for silo, key in keys.items()}

    def submit(self, token: str) -> str:
        """Start a new run of Flower; its id."""
        config = f'token="{token}"' + (f' transport="{self._transport}"' if self._theirs else "")
        return str(self.home.run("run", str(self._app), CONNECTION, "--run-config", config)["run-id"])
