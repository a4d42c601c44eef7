"""The HTTP proxy between a hospital and the server: the one that Flower takes from the environment, for our probes too.

Flower's programs of one machine also speak to each other over HTTPS; that must never go to a proxy.
"""

from __future__ import annotations

import base64
import http.client
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib import request
from urllib.parse import unquote, urlsplit

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Proxy:
    """Where the proxy is, and what it is told of who asks."""

    host: str
    port: int
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def proxy_for(host: str) -> Proxy | None:
    """The proxy for HTTPS to ``host`` by HTTPS_PROXY, ALL_PROXY and NO_PROXY; none on loopback.

    >>> proxy_for("127.0.0.1") is None
    True
    """
    found = request.getproxies_environment()
    url = found.get("https") or found.get("all")
    if not url or host in LOOPBACK or request.proxy_bypass(host):
        return None
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        name, port = parts.hostname, parts.port or 80
    except ValueError:
        return None
    if not name or parts.scheme != "http":
        return None
    headers = {}
    if parts.username is not None:
        words = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        headers["Proxy-Authorization"] = f"Basic {base64.b64encode(words).decode()}"
    return Proxy(name, port, headers)


def https_connection(host: str, port: int, context: ssl.SSLContext, timeout: float) -> http.client.HTTPSConnection:
    """A connection, not opened yet, that goes through the proxy where there is one."""
    proxy = proxy_for(host)
    if proxy is None:
        return http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
    connection = http.client.HTTPSConnection(proxy.host, proxy.port, timeout=timeout, context=context)
    connection.set_tunnel(host, port, dict(proxy.headers))
    return connection


def without_loopback(environment: Mapping[str, str], *hosts: str) -> dict[str, str]:
    """The environment with loopback, and ``hosts``, taken out of what goes to a proxy.

    >>> without_loopback({"NO_PROXY": "intern.example"})["NO_PROXY"]
    'intern.example,127.0.0.1,localhost,::1'
    """
    given = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    direct = [name for name in (*given.split(","), *LOOPBACK, *hosts) if name.strip()]
    words = ",".join(dict.fromkeys(direct))
    return {**environment, "NO_PROXY": words, "no_proxy": words}
