"""Frames over a local socket: how a transport hands a message to a silo that runs on the same machine.

A frame is a small msgpack header and a body of bytes, each with its length before it (4 and 8 bytes, big-endian). The
transport's process is started for every message, so this module loads nothing that takes long: the standard library and
msgspec.

Addresses are ``unix:/path`` or ``tcp:127.0.0.1:port``. What is not on this machine is refused: a silo's process trusts
whoever reaches its socket to be its own transport. A Unix socket is for its owner only; prefer it.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from uldp.errors import ConfigError, MessageRefused, RunError

MAX_HEADER_BYTES: Final = 1 << 16
MAX_PATH_BYTES: Final = 100
"""Operating systems allow a little more for the path of a Unix socket; some not much."""
_CHUNK: Final = 1 << 20


def listen(address: str) -> socket.socket:
    """A socket that waits for transports. What a killed process left of a Unix socket is replaced."""
    kind, where = _parse(address)
    sock = socket.socket(kind, socket.SOCK_STREAM)
    try:
        if isinstance(where, str):
            _clear(where, address)
            # From the first moment on for the owner only: so Linux does it; elsewhere the second line does. Not by the
            # umask, which belongs to all threads.
            os.fchmod(sock.fileno(), 0o600)
            sock.bind(where)
            Path(where).chmod(0o600)
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(where)
        sock.listen(64)
    except BaseException as error:
        sock.close()
        if isinstance(error, OSError):
            raise _socket_error("cannot listen", error, address) from error
        raise
    return sock


def _socket_error(what: str, error: OSError, address: str) -> RunError:
    return RunError(f"{what} ({error.strerror or error})", location=address, value=address)


def connect(address: str, timeout: float | None = None, patience: float = 0.0) -> socket.socket:
    """A connection to whoever listens at ``address``; ``timeout`` seconds for this and for every later step.

    It is tried for ``patience`` seconds: whoever listens there may be about to start.
    """
    kind, where = _parse(address)
    end = time.monotonic() + patience
    while True:
        sock = socket.socket(kind, socket.SOCK_STREAM)
        sock.settimeout(timeout)
        try:
            sock.connect(where)
            return sock
        except OSError as error:
            sock.close()
            if time.monotonic() >= end:
                why = f"connection failed ({error.strerror or error}); is the silo's process running?"
                raise RunError(why, location=address, value=address) from error
        time.sleep(0.2)


def send(sock: socket.socket, header: dict[str, Any], body: bytes) -> None:
    """One frame."""
    head = msgspec.msgpack.encode(header)
    if len(head) > MAX_HEADER_BYTES:
        raise MessageRefused(f"a header of {len(head)} bytes, at most {MAX_HEADER_BYTES}", location="socket")
    try:
        sock.sendall(len(head).to_bytes(4, "big") + head + len(body).to_bytes(8, "big"))
        if body:  # who has all of a frame may respond and hang up at once
            sock.sendall(body)
    except OSError as error:
        raise RunError(f"the connection broke while sending ({error.strerror or error})", location="socket") from error


def receive(sock: socket.socket, limit: int) -> tuple[dict[str, Any], bytes]:
    """The next frame, with a body of at most ``limit`` bytes. Nothing is set aside for a body before it comes.

    The socket's timeout, if it has one, is for the whole frame: who sends a byte now and then holds up nobody for long.
    """
    timeout = sock.gettimeout()
    end = None if timeout is None else time.monotonic() + timeout
    try:
        head = _part(sock, 4, MAX_HEADER_BYTES, "header", end)
        try:
            header = msgspec.msgpack.decode(head, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise MessageRefused(f"a frame's header cannot be read: {error}", location="socket") from error
        return header, _part(sock, 8, limit, "body", end)
    finally:
        sock.settimeout(timeout)


def ask(sock: socket.socket, header: dict[str, Any], body: bytes, limit: int) -> tuple[dict[str, Any], bytes]:
    """Send a frame and receive its response. Who refuses a frame by its length responds before all of it was sent."""
    try:
        send(sock, header, body)
    except RunError as broken:
        try:
            return receive(sock, limit)
        except (RunError, MessageRefused):
            raise broken from None
    return receive(sock, limit)


def _part(sock: socket.socket, size: int, most: int, what: str, end: float | None) -> bytes:
    """A length of ``size`` bytes, and as many bytes as it says."""
    length = int.from_bytes(_receive_exactly(sock, size, end), "big")
    if length > most:
        raise MessageRefused(
            f"a {what} of {length} bytes, at most {most} are expected", location="socket", value=length
        )
    return _receive_exactly(sock, length, end)


def _receive_exactly(sock: socket.socket, count: int, end: float | None) -> bytes:
    parts, missing = [], count
    while missing:
        try:
            if end is not None:
                sock.settimeout(max(end - time.monotonic(), 0.001))
            part = sock.recv(min(missing, _CHUNK))
        except OSError as error:
            raise RunError(f"the connection broke ({error.strerror or error})", location="socket") from error
        if not part:
            raise RunError(f"the connection ended {missing} bytes too early", location="socket", value=missing)
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def _parse(address: str) -> tuple[socket.AddressFamily, str | tuple[str, int]]:
    kind, _, where = address.partition(":")
    if kind == "unix" and where.startswith("/"):
        if len(os.fsencode(where)) > MAX_PATH_BYTES:
            why = f"the path of a socket has at most {MAX_PATH_BYTES} bytes; take a shorter folder, such as one in /run"
            raise ConfigError(why, location=address, value=address)
        return socket.AF_UNIX, where
    host, _, port = where.rpartition(":")
    host = host.strip("[]")
    if kind == "tcp" and port.isdecimal() and int(port) < 1 << 16 and _on_this_machine(host):
        return socket.AF_INET6 if ":" in host else socket.AF_INET, (host, int(port))
    why = f"unix:/path or tcp:127.0.0.1:port, on this machine, not {address!r}"
    raise ConfigError(why, location="address", value=address)


def _on_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _clear(path: str, address: str) -> None:
    """Remove a socket that nobody listens at any more; anything else at its place is left alone."""
    if not Path(path).exists():
        return
    if not Path(path).is_socket():
        raise RunError("there is something else than a socket", location=address, value=address)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.settimeout(1.0)
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except OSError as error:
            raise _socket_error("cannot be replaced", error, address) from error
    raise RunError("another process listens there already", location=address, value=address)
