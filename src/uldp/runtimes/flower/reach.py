"""Whether a silo's machine reaches its server, and why not: Flower's node tries on for ever and says nothing."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Final

from uldp.runtimes.flower.processes import Address

SECONDS: Final = 5.0


def connection_problem(superlink: Address, ca: Path | None) -> str:
    """Why the server cannot be reached, as a sentence without its end; empty if it can. ``ca`` None: without TLS."""
    context = None
    if ca is not None:
        try:
            context = ssl.create_default_context(cafile=str(ca))
        except OSError as error:
            return f"{ca} holds no certificate that can be read ({error.strerror or error}); ask for ca.crt again"
    try:
        with socket.create_connection((superlink.host, superlink.port), timeout=SECONDS) as plain:
            if context is not None:
                context.wrap_socket(plain, server_hostname=superlink.host).close()
    except ssl.SSLCertVerificationError as error:
        # 62 and 64: the names, of a host and of an address. All else is about who signed it, and when.
        if error.verify_code in (62, 64):
            return f"its certificate is not for {superlink.host}; take a name that it has, or have another one made"
        return (
            f"its certificate is not one that {ca} vouches for ({error.verify_message}); is this the server's ca.crt?"
        )
    except ssl.SSLError as error:
        return f"it does not speak TLS as expected ({error.reason or error}); is it this server, or an --insecure one?"
    except OSError as error:
        return f"connection failed ({error.strerror or error}); is the server up, and is a firewall blocking the port?"
    return ""
