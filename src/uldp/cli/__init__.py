"""The command line. Nothing here is imported by the library."""

from __future__ import annotations


def main() -> None:
    """The entry point ``uldp``."""
    from uldp.cli.app import app

    app()
