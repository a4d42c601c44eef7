"""Health and metrics of a party on loopback, as Prometheus reads them. Off unless a port is given.

All measures are facts about rounds and parties; there is none about a person. When a party was heard last is given in
whole minutes: how long a silo computes would say something about its records.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from uldp._version import __version__
from uldp.errors import ConfigError, require

MEASURES: Final[dict[str, tuple[str, str]]] = {
    "uldp_info": ("gauge", "1; the label has the version of uldp"),
    "uldp_round": ("gauge", "rounds that are done"),
    "uldp_rounds": ("gauge", "rounds that there will be"),
    "uldp_epsilon": ("gauge", "epsilon spent: at a server by the run, at a silo over all experiments"),
    "uldp_epsilon_limit": ("gauge", "the cap of the silo's owner; absent without one"),
    "uldp_last_contact_timestamp_seconds": ("gauge", "when the silo, or at a silo the server, was heard last"),
    "uldp_silo_absent": ("gauge", "1 while a silo is asked and no node of it is connected"),
    "uldp_refusals_total": ("counter", "responses that are refusals"),
}
"""All measures, by name: kind and help. None has another label than ``silo`` or ``version``."""
MINUTE: Final = 60
Sample = tuple[str, str, float]
"""A measure's name, a silo or nothing, the value."""
_LOOPBACK: Final = ("127.0.0.1", "localhost")


def whole_minute(seconds: float) -> float:
    """A time without the part that shows how long something took."""
    return float(seconds // MINUTE * MINUTE)


class Gauges:
    """What is measured. Parties set values, or give a source that is asked when somebody looks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[tuple[str, str], float] = {}
        self._sources: list[Callable[[], Iterable[Sample]]] = []
        self._trouble: Callable[[], str] = lambda: ""

    def set(self, name: str, value: float, silo: str = "") -> None:
        with self._lock:
            self._values[name, silo] = value

    def add(self, name: str, silo: str = "") -> None:
        """Count one more."""
        with self._lock:
            self._values[name, silo] = self._values.get((name, silo), 0.0) + 1

    def ask(self, source: Callable[[], Iterable[Sample]]) -> None:
        """Take values from ``source`` whenever somebody looks."""
        with self._lock:
            self._sources.append(source)

    def watch(self, trouble: Callable[[], str]) -> None:
        """``trouble`` says in a sentence what is wrong, or nothing."""
        self._trouble = trouble

    @property
    def trouble(self) -> str:
        return self._trouble()

    def text(self) -> str:
        """All of it in the text format of Prometheus."""
        with self._lock:
            found, sources = dict(self._values), list(self._sources)
        for source in sources:
            found.update({(name, silo): value for name, silo, value in source()})
        lines = []
        for name, (kind, words) in MEASURES.items():
            values = {silo: value for (measure, silo), value in found.items() if measure == name}
            if name == "uldp_info":
                shown = [f'uldp_info{{version="{__version__}"}} 1']
            else:
                shown = [f"{name}{_label(silo)} {_number(value)}" for silo, value in sorted(values.items())]
            lines += [f"# HELP {name} {words}", f"# TYPE {name} {kind}", *shown] if shown else []
        return "\n".join(lines) + "\n"


def _label(silo: str) -> str:
    escaped = silo.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{{silo="{escaped}"}}' if silo else ""


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return ("+Inf" if value > 0 else "-Inf") if math.isinf(value) else repr(float(value))


class _QuietServer(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Who asked sees that no answer came, mostly because they did not wait; a traceback is no line of a log."""


class GaugeServer(AbstractContextManager["GaugeServer"]):
    """``/metrics`` and ``/health`` at a port of 127.0.0.1, and at no other address."""

    def __init__(self, gauges: Gauges, port: int) -> None:
        require(0 < port < 1 << 16, "--metrics", port, "a port from 1 to 65535")
        try:
            self._server = _QuietServer(("127.0.0.1", port), _handler(gauges))
        except OSError as error:
            why = f"cannot listen on 127.0.0.1:{port} ({error.strerror}); choose another port"
            raise ConfigError(why, location="--metrics", value=port) from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(gauges: Gauges) -> type[BaseHTTPRequestHandler]:
    class GaugeHandler(BaseHTTPRequestHandler):
        timeout = 10
        server_version, sys_version = "uldp", ""

        def do_GET(self) -> None:
            # A page in somebody's browser may ask for any name that it says is here.
            if (self.headers.get("Host") or "").partition(":")[0] not in _LOOPBACK:
                self._send(403, "text/plain", "only for this machine\n")
            elif self.path == "/metrics":
                self._send(200, "text/plain; version=0.0.4", gauges.text())
            elif self.path == "/health":
                trouble = gauges.trouble
                state = {"ok": not trouble, "trouble": trouble or None}
                self._send(503 if trouble else 200, "application/json", json.dumps(state) + "\n")
            else:
                self._send(404, "text/plain", "/metrics and /health are here\n")

        def _send(self, code: int, kind: str, text: str) -> None:
            body = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Who looks how often is not worth a line."""

    return GaugeHandler


def now_in_minutes() -> float:
    """The present minute."""
    return whole_minute(time.time())
