"""What ``uldp serve`` and ``uldp join`` share."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

Rehearse = Annotated[
    bool,
    typer.Option("--rehearse", help='Allow run.secrets = "simulated": noise and keys from the seed protect nobody.'),
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Without TLS and without known silos; on loopback only.")]


def default_state(silo: str, keys: Path | None) -> Path:
    """Where a silo keeps its sessions when nobody says where: with its keys, whatever an experiment calls the silo."""
    return Path(f"uldp-{silo}".replace("/", "-")) if keys is None else keys / "state"


def say(text: str) -> None:
    """A line for people."""
    typer.echo(text, err=True)


@contextmanager
def politely_ended() -> Iterator[None]:
    """A SIGTERM is like Ctrl-C: everything that was started is stopped."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
